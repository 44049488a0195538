#include "engine/base/host_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

/* A file's only number; SIZE_MAX for "max", a missing file or one larger than any memory. */
static size_t read_bytes(const char *path) {
    char text[64];
    FILE *f = fopen(path, "re");
    if (!f) return SIZE_MAX;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text || value > (1ull << 60) ? SIZE_MAX : (size_t)value;
}

static size_t meminfo_available(void) {
    char line[128];
    size_t kib, bytes = SIZE_MAX;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return SIZE_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) bytes = kib * 1024;
    fclose(f);
    return bytes;
}

static size_t left(size_t limit, size_t used) {
    return limit == SIZE_MAX || used == SIZE_MAX ? SIZE_MAX : used < limit ? limit - used : 0;
}

/* What is left under the tightest memory.max from this group up to the root. */
static size_t group_left(char *directory) {
    size_t tightest = SIZE_MAX;
    for (;;) {
        char limit_path[1300], used_path[1300];
        snprintf(limit_path, sizeof limit_path, "%s/memory.max", directory);
        snprintf(used_path, sizeof used_path, "%s/memory.current", directory);
        size_t here = left(read_bytes(limit_path), read_bytes(used_path));
        if (here < tightest) tightest = here;
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(CGROUP_ROOT)) return tightest;
        *slash = 0;
    }
}

static size_t cgroup_available(void) {
    char line[1024], directory[1100];
    size_t tightest =
        left(read_bytes(CGROUP_ROOT "/memory/memory.limit_in_bytes"), read_bytes(CGROUP_ROOT "/memory/memory.usage_in_bytes"));
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return tightest;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(directory, sizeof directory, CGROUP_ROOT "%s", line + 3);
        size_t here = group_left(directory);
        if (here < tightest) tightest = here;
    }
    fclose(f);
    return tightest;
}

size_t host_memory_available(void) {
    size_t host = meminfo_available(), group = cgroup_available();
    return host < group ? host : group;
}
