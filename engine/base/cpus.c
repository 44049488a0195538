#include "engine/base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Quota in whole CPUs, rounded up; 0 when there is none. */
static int ceil_quota(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return 0;
    long long n = (quota + period - 1) / period;
    return n > 1 << 20 ? 0 : (int)n;
}

static int quota_v2(const char *directory) {
    char path[1200], value[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int n = fscanf(f, "%63s %lld", value, &period);
    fclose(f);
    if (n != 2 || strcmp(value, "max") == 0) return 0;
    quota = atoll(value);
    return ceil_quota(quota, period);
}

static long long read_number(const char *path) {
    long long value = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%lld", &value) != 1) value = 0;
    fclose(f);
    return value;
}

static int smaller_set(int a, int b) { return a == 0 ? b : b == 0 ? a : a < b ? a : b; }

/* The tightest cpu.max from this process's group up to the root of the v2 hierarchy. */
static int quota_of_groups(void) {
    char line[1024], directory[1100];
    int tightest = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(directory, sizeof directory, "/sys/fs/cgroup%s", line + 3);
        for (;;) {
            tightest = smaller_set(tightest, quota_v2(directory));
            char *slash = strrchr(directory, '/');
            if (!slash || (size_t)(slash - directory) < strlen("/sys/fs/cgroup")) break;
            *slash = 0;
        }
    }
    fclose(f);
    int v1 =
        ceil_quota(read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
    return smaller_set(tightest, v1);
}

int cpus_usable(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    n = smaller_set(n, quota_of_groups());
    return n < 1 ? 1 : n;
}
