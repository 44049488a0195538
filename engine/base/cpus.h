/* How many CPUs this process may really use. */
#pragma once

/* At least 1: the smaller of the affinity mask and the cgroup quota (v2 cpu.max of this group and its parents, v1 cfs quota),
 * the quota rounded up. */
int cpus_usable(void);
