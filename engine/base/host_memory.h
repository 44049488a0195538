/* How much memory this process may still take. */
#pragma once

#include <stddef.h>

/* Bytes: the smaller of the kernel's MemAvailable and what the cgroup's limit (v2 memory.max of this group and its parents, v1)
 * leaves. SIZE_MAX when neither can be read. */
size_t host_memory_available(void);
