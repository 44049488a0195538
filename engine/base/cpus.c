#include "engine/base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/cgroup.h"

static long long number_in(const char *directory, const char *file) {
    char text[64];
    return cgroup_read(directory, file, text, sizeof text) ? atoll(text) : 0;
}

/* CPU time of a group in a period, both in microseconds: "QUOTA PERIOD" in version 2's one file, a number in each of version 1's two.
 * Where there is no quota, it says "max" there and −1 here. */
static void take_quota(void *context, const char *directory, bool is_v2) {
    int *tightest = context;
    char text[64];
    long long quota = 0, period = 0;
    if (!is_v2) {
        quota = number_in(directory, "cpu.cfs_quota_us");
        period = number_in(directory, "cpu.cfs_period_us");
    } else if (!cgroup_read(directory, "cpu.max", text, sizeof text) || sscanf(text, "%lld %lld", &quota, &period) != 2) {
        return;
    }
    if (quota < 1 || period < 1) return;
    long long n = quota / period + (quota % period != 0);
    if (n < *tightest) *tightest = (int)n;
}

int cpus_usable(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    cgroup_each("cpu", take_quota, &n);
    return n < 1 ? 1 : n;
}
