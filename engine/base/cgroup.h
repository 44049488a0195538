/* The control groups that bound this process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef void cgroup_visit(void *context, const char *directory, bool is_v2);

/* Calls visit with the directory of this process's group and of each group above it, as far up as this process can see, in every
 * mounted hierarchy that can bound `controller` ("cpu", "memory"): version 1's with that controller and version 2's. A limit holds
 * for all groups below it, so the tightest one counts. Source: cgroups(7), proc_pid_mountinfo(5). */
void cgroup_each(const char *controller, cgroup_visit *visit, void *context);

/* What a file of a group says, cut to n − 1 bytes; false when it cannot be read. */
bool cgroup_read(const char *directory, const char *file, char *text, size_t n);
