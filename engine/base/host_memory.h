/* How much memory this process may still take. */
#pragma once

#include <stddef.h>

/* Bytes: the smaller of the kernel's MemAvailable and what the tightest limit (memory.max, memory.limit_in_bytes) of its control groups
 * leaves, file pages that it would give up counted as free. SIZE_MAX when neither can be read. */
size_t host_memory_available(void);
