#include "engine/base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cgroup.h"

static bool read_word(const char *directory, const char *name, char word[64], long long *second) {
    char path[2200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    int n = fscanf(f, "%63s %lld", word, second);
    fclose(f);
    return n >= 1;
}

/* CPU time of a group in a period, both in microseconds: "QUOTA PERIOD" in version 2's one file, a number in each of version 1's two.
 * No quota is "max" there, −1 here; both read as less than 1. */
static void take_quota(void *context, const char *directory, bool is_v2) {
    int *tightest = context;
    char word[64];
    long long quota, period = 0;
    if (!read_word(directory, is_v2 ? "cpu.max" : "cpu.cfs_quota_us", word, &period)) return;
    quota = atoll(word);
    if (!is_v2) period = read_word(directory, "cpu.cfs_period_us", word, &period) ? atoll(word) : 0;
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
