/* Sixteen float lanes, the unit in which every vector kernel of the CPU backend is written.
 *
 * A kernel is written once, in terms of `lanes`, in an include file (*_lanes.h), and compiled once for each instruction set:
 * lane_ops_plain.c, lane_ops_avx2.c and lane_ops_avx512.c define LANES_PLAIN, LANES_AVX2 or LANES_AVX512 and include it. All
 * three do the same IEEE operations on the same lanes in the same order, so their bits are the same by construction:
 *
 *   1. lane i of a vector loaded from x holds x[i]; a sum along a vector is kept in lanes (index mod 16) and ends in lanes_sum,
 *      which adds lanes i and i+8, then i+4, i+2, i+1;
 *   2. lanes_max(a, b) is a > b ? a : b and lanes_min(a, b) is a < b ? a : b, also where a NaN or two zeros meet (so NaN gives b);
 *   3. a·b + c is fused only where lanes_fma says so; division and square root are the exact ones;
 *   4. F16 conversions are those of engine/base/f16.h, which are those of F16C.
 *
 * Rejected: compiler vector extensions (no say over fma, min and conversions), and three hand-written copies of every kernel. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/f16.h"

#define N_LANES 16
#if defined(TALLY_SANITIZE) /* all inlined, with a check at every access, gcc takes minutes */
#define LANE_FN static inline __attribute__((unused))
#else
#define LANE_FN static inline __attribute__((always_inline, unused))
#endif

#if defined(LANES_PLAIN)
#include "kernels/cpu/lanes_plain.h"
#elif defined(LANES_AVX2)
#include "kernels/cpu/lanes_avx2.h"
#elif defined(LANES_AVX512)
#include "kernels/cpu/lanes_avx512.h"
#else
#error "define LANES_PLAIN, LANES_AVX2 or LANES_AVX512"
#endif

LANE_FN lanes lanes_zero(void) { return lanes_set(0); }

/* Lanes [0, n) of x, the others `fill`; n may be 0 and below, or 16 and above. Reads nothing past x[n − 1]. */
LANE_FN lanes lanes_load_some(const float *x, int n, float fill) {
    if (n >= N_LANES) return lanes_load(x);
    float padded[N_LANES];
    for (int i = 0; i < N_LANES; i++) padded[i] = i < n ? x[i] : fill;
    return lanes_load(padded);
}

/* Writes lanes [0, n) and nothing past them. */
LANE_FN void lanes_store_some(float *x, int n, lanes a) {
    if (n >= N_LANES) {
        lanes_store(x, a);
        return;
    }
    float all[N_LANES];
    lanes_store(all, a);
    for (int i = 0; i < n; i++) x[i] = all[i];
}

/* Lanes [0, n) of a, the others `fill`. */
LANE_FN lanes lanes_keep(lanes a, int n, float fill) {
    float all[N_LANES];
    lanes_store(all, a);
    for (int i = 0; i < N_LANES; i++) all[i] = i < n ? all[i] : fill;
    return lanes_load(all);
}
