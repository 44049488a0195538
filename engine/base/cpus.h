/* How many CPUs this process may really use. */
#pragma once

/* At least 1: the smaller of the affinity mask and the tightest quota (cpu.max, cpu.cfs_quota_us) of its control groups, rounded up. */
int cpus_usable(void);
