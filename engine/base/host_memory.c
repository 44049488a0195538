#include "engine/base/host_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cgroup.h"

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

/* File pages that the group's usage counts, but that the kernel gives up on demand: a model file that was just copied, say. */
static size_t reclaimable(const char *directory, const char *key) {
    char path[2200], line[256];
    size_t n = strlen(key), bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ' ') bytes = strtoull(line + n, NULL, 10);
    fclose(f);
    return bytes;
}

static void take_limit(void *context, const char *directory, bool is_v2) {
    size_t *tightest = context;
    char path[2200];
    snprintf(path, sizeof path, "%s/%s", directory, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    size_t limit = read_bytes(path);
    snprintf(path, sizeof path, "%s/%s", directory, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    size_t used = read_bytes(path), files = reclaimable(directory, is_v2 ? "inactive_file" : "total_inactive_file");
    if (limit == SIZE_MAX || used == SIZE_MAX) return;
    used = files < used ? used - files : 0;
    size_t left = used < limit ? limit - used : 0;
    if (left < *tightest) *tightest = left;
}

size_t host_memory_available(void) {
    size_t tightest = meminfo_available();
    cgroup_each("memory", take_limit, &tightest);
    return tightest;
}
