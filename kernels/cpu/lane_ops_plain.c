#define LANES_PLAIN
#define LANE_OPS cpu_lane_ops_plain
#include "kernels/cpu/lane_ops_table.h"
