#include "engine/base/clock.h"

#include <time.h>

int64_t clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_unix_s(void) { return (int64_t)time(NULL); }
