/* Norm, quantization and gated activation: one row of activations in, one row of struct act out.
 *
 * Each computes 32 columns at a time, two vectors of lanes, and puts them where the kinds asked for want them. The order of
 * operations, the same for every instruction set:
 *   rms_norm   acc = fma(x, x, acc) in 16 lanes, lanes_sum; inverse = 1 / sqrt(sum / n_cols + eps); y = (x·inverse)·weight
 *   gated      y = gate(g)·u
 *   INT8       amax over 16 columns; inverse = 127/amax; q = round to nearest even(x·inverse); scale = amax/127
 *   INT16      the same with 32767, over 32 columns */
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "kernels/backend.h"
#include "kernels/cpu/math_lanes.h"

/* An amax below this gives a scale that is not a normal number. */
#define SMALLEST_AMAX (127 * FLT_MIN)
#define SMALLEST_WIDE_AMAX (32767 * FLT_MIN)

/* One group of 16 columns; returns Σq. */
LANE_FN int32_t quantize_lanes(int8_t *q, float *scale, lanes x) {
    float amax = lanes_largest(lanes_abs(x));
    if (!(amax >= SMALLEST_AMAX && amax <= FLT_MAX)) {
        *scale = 0;
        return lanes_store_int8(q, lanes_zero());
    }
    x = lanes_mul(x, lanes_set(127 / amax));
    x = lanes_min(lanes_max(x, lanes_set(-127)), lanes_set(127)); /* clamped only for NaN, which becomes −127 */
    *scale = amax / 127;
    return lanes_store_int8(q, x);
}

LANE_FN void quantize_group(struct act *y, size_t group, lanes a, lanes b) {
    int8_t *q = y->q + group * GROUP_COLS;
    float *scale = y->scale + 2 * group;
    int32_t sum0 = quantize_lanes(q, scale, a), sum1 = quantize_lanes(q + ACT_GROUP_COLS, scale + 1, b);
    y->zero[2 * group] = -8 * sum0;
    y->zero[2 * group + 1] = -8 * sum1;
    y->sum[group] = fmaf(scale[1], (float)sum1, scale[0] * (float)sum0);
}

/* The same with 32767 for 127 */
LANE_FN void quantize_group_wide(struct act *y, size_t group, lanes a, lanes b) {
    float amax = lanes_largest(lanes_max(lanes_abs(a), lanes_abs(b)));
    int32_t sum = 0;
    float scale = 0;
    int16_t *q = y->wide + group * GROUP_COLS;
    if (amax >= SMALLEST_WIDE_AMAX && amax <= FLT_MAX) {
        const lanes inverse = lanes_set(32767 / amax), most = lanes_set(32767), least = lanes_set(-32767);
        a = lanes_min(lanes_max(lanes_mul(a, inverse), least), most);
        b = lanes_min(lanes_max(lanes_mul(b, inverse), least), most);
        sum = lanes_store_int16(q, a, b);
        scale = amax / 32767;
    } else {
        lanes_store_int16(q, lanes_zero(), lanes_zero());
    }
    y->wide_scale[group] = scale;
    y->wide_sum[group] = scale * (float)sum;
}

/* Columns [col, col + 32) of a row, as far as there are so many. */
LANE_FN void act_put(struct act *y, unsigned kinds, int token, int col, lanes a, lanes b) {
    size_t at = (size_t)token * (size_t)y->n_cols + (size_t)col;
    if (kinds & ACT_F32) {
        lanes_store_some(y->f + at, y->n_cols - col, a);
        lanes_store_some(y->f + at + N_LANES, y->n_cols - col - N_LANES, b);
    }
    if (kinds & ACT_INT8) quantize_group(y, at / GROUP_COLS, a, b);
    if (kinds & ACT_INT16) quantize_group_wide(y, at / GROUP_COLS, a, b);
}

static float row_sum_of_squares(const float *x, int n) {
    lanes sum = lanes_zero();
    for (int i = 0; i < n; i += N_LANES) {
        lanes v = lanes_load_some(x + i, n - i, 0);
        sum = lanes_fma(v, v, sum);
    }
    return lanes_sum(sum);
}

static void rms_norm_rows(struct act *y, unsigned kinds, const float *x, const float *weight, float eps, int first, int end) {
    int n = y->n_cols;
    for (int token = first; token < end; token++) {
        const float *row = x + (size_t)token * (size_t)n;
        const lanes inverse = lanes_set(1 / sqrtf(row_sum_of_squares(row, n) / (float)n + eps));
        for (int i = 0; i < n; i += 2 * N_LANES) {
            lanes a = lanes_mul(lanes_load_some(row + i, n - i, 0), inverse);
            lanes b = lanes_mul(lanes_load_some(row + i + N_LANES, n - i - N_LANES, 0), inverse);
            a = lanes_mul(a, lanes_load_some(weight + i, n - i, 0));
            b = lanes_mul(b, lanes_load_some(weight + i + N_LANES, n - i - N_LANES, 0));
            act_put(y, kinds, token, i, a, b);
        }
    }
}

static void quantize_rows(struct act *y, unsigned kinds, const float *x, int first, int end) {
    int n = y->n_cols;
    for (int token = first; token < end; token++) {
        const float *row = x + (size_t)token * (size_t)n;
        for (int i = 0; i < n; i += 2 * N_LANES)
            act_put(y, kinds, token, i, lanes_load_some(row + i, n - i, 0),
                    lanes_load_some(row + i + N_LANES, n - i - N_LANES, 0));
    }
}

LANE_FN lanes gate_times(enum gate_kind kind, const float *g, const float *u, int n) {
    lanes gate = lanes_load_some(g, n, 0);
    gate = kind == GATE_SILU ? lanes_silu(gate) : lanes_gelu_tanh(gate);
    return lanes_mul(gate, lanes_load_some(u, n, 0));
}

LANE_FN void gated_rows_of_kind(struct act *y, unsigned kinds, enum gate_kind kind, const float *g, const float *u, int first,
                                int end) {
    int n = y->n_cols;
    for (int token = first; token < end; token++) {
        const float *grow = g + (size_t)token * (size_t)n, *urow = u + (size_t)token * (size_t)n;
        for (int i = 0; i < n; i += 2 * N_LANES) {
            lanes a = gate_times(kind, grow + i, urow + i, n - i);
            lanes b = gate_times(kind, grow + i + N_LANES, urow + i + N_LANES, n - i - N_LANES);
            act_put(y, kinds, token, i, a, b);
        }
    }
}

static void gated_rows(struct act *y, unsigned kinds, enum gate_kind kind, const float *g, const float *u, int first, int end) {
    if (kind == GATE_SILU) gated_rows_of_kind(y, kinds, GATE_SILU, g, u, first, end);
    else gated_rows_of_kind(y, kinds, GATE_GELU_TANH, g, u, first, end);
}
