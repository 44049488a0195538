#include "engine/base/host_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cgroup.h"

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

/* A file's only number; SIZE_MAX for "max", a missing file or one larger than any memory. */
static size_t read_bytes(const char *directory, const char *file) {
    char text[64], *end;
    if (!cgroup_read(directory, file, text, sizeof text)) return SIZE_MAX;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text || value > (1ull << 60) ? SIZE_MAX : (size_t)value;
}

/* File pages that the group's usage counts, but that the kernel gives up on demand: a model file that was just copied, say. */
static size_t reclaimable(const char *directory, bool is_v2) {
    char text[8192];
    if (!cgroup_read(directory, "memory.stat", text, sizeof text)) return 0;
    const char *key = is_v2 ? "\ninactive_file " : "\ntotal_inactive_file ", *line = strstr(text, key);
    return line ? strtoull(line + strlen(key), NULL, 10) : 0;
}

static void take_limit(void *context, const char *directory, bool is_v2) {
    size_t *tightest = context, limit = read_bytes(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes"),
           used = read_bytes(directory, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == SIZE_MAX || used == SIZE_MAX) return;
    size_t files = reclaimable(directory, is_v2), held = files < used ? used - files : 0,
           left = held < limit ? limit - held : 0;
    if (left < *tightest) *tightest = left;
}

size_t host_memory_available(void) {
    size_t tightest = meminfo_available();
    cgroup_each("memory", take_limit, &tightest);
    return tightest;
}
