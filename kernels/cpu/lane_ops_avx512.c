#define LANES_AVX512
#define LANE_OPS cpu_lane_ops_avx512
#include "kernels/cpu/lane_ops_table.h"
