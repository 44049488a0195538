/* Where a group's files lie takes two tables. /proc/self/cgroup says in which group of each hierarchy the process is; the path counts
 * from the hierarchy's root. /proc/self/mountinfo says where a hierarchy is mounted, and which of its groups is the one seen at
 * the mount point: in a container that is often the container's own. Taking /sys/fs/cgroup for granted fails wherever version 1 or
 * both versions are in use, and then a server starts as many threads as the host has CPUs under a quota of one. */
#include "engine/base/cgroup.h"

#include <stdio.h>
#include <string.h>

#define PATH_BYTES 1024
#define LINE_BYTES (4 * PATH_BYTES)

/* Is `word` one of the words of `list`, which commas part? */
static bool list_has(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
    return false;
}

/* The process's group in the hierarchy of a controller, or in version 2's (no controller). Its path is left in line. */
static const char *find_group(const char *controller, bool is_v2, char line[LINE_BYTES]) {
    const char *found = NULL;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return NULL;
    while (!found && fgets(line, LINE_BYTES, f)) { /* ID:controllers:path */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (is_v2 ? controllers[1] == 0 : list_has(controllers + 1, controller)) found = path;
    }
    fclose(f);
    return found;
}

/* The group's path below the group seen at the mount point; "" when that one is not above it, or all that can be seen. */
static const char *below(const char *group, const char *root) {
    size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(group, root, n) != 0 || (group[n] != '/' && group[n] != 0)) return "";
    return strcmp(group + n, "/") == 0 ? "" : group + n;
}

static void visit_upwards(const char *mount, const char *group, bool is_v2, cgroup_visit *visit, void *context) {
    char directory[2 * PATH_BYTES];
    int n = snprintf(directory, sizeof directory, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof directory) return;
    for (size_t least = strlen(mount);;) {
        visit(context, directory, is_v2);
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < least) return;
        *slash = 0;
    }
}

/* A line of mountinfo: ID PARENT DEVICE ROOT MOUNT OPTIONS [FIELD…] - TYPE SOURCE HIERARCHY'S-OPTIONS */
static void visit_mount(const char *line, const char *controller, cgroup_visit *visit, void *context) {
    char root[PATH_BYTES], mount[PATH_BYTES], type[32], options[PATH_BYTES], group_line[LINE_BYTES];
    const char *tail = strstr(line, " - ");
    if (!tail || sscanf(line, "%*s %*s %*s %1023s %1023s", root, mount) != 2 ||
        sscanf(tail, " - %31s %*s %1023s", type, options) != 2)
        return;
    bool is_v2 = strcmp(type, "cgroup2") == 0;
    if (!is_v2 && (strcmp(type, "cgroup") != 0 || !list_has(options, controller))) return;
    const char *group = find_group(controller, is_v2, group_line);
    if (group) visit_upwards(mount, below(group, root), is_v2, visit, context);
}

bool cgroup_read(const char *directory, const char *file, char *text, size_t n) {
    char path[3 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t got = fread(text, 1, n - 1, f);
    fclose(f);
    text[got] = 0;
    return true;
}

void cgroup_each(const char *controller, cgroup_visit *visit, void *context) {
    char line[LINE_BYTES];
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) visit_mount(line, controller, visit, context);
    fclose(f);
}
