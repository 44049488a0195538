/* One monotonic clock for the whole process: every latency in Tally is a difference of two of these. */
#pragma once

#include <stdint.h>

/* Microseconds of CLOCK_MONOTONIC. */
int64_t clock_us(void);
/* Seconds since the epoch, for `created` fields. */
int64_t clock_unix_s(void);
