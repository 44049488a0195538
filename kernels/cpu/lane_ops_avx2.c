#define LANES_AVX2
#define LANE_OPS cpu_lane_ops_avx2
#include "kernels/cpu/lane_ops_table.h"
