/* Linear layers in plain C: the specification that every other version must match bit for bit.
 *
 * One token and one panel of 16 rows at a time, in the order of sums of kernels/backend.h. INT4 weights with INT8 activations, INT8 weights with INT16:
 *
 *     INT4   dot₀[r], dot₁[r] = Σ q[r][c]·x[c] over the first and the last 16 columns of a group, exact in 32 bits
 *            s = x_scale₀·dot₀[r], s = fma(x_scale₁, dot₁[r], s), acc[r] = fma(w_scale[r], s, acc[r])
 *     INT8   dot[r] over the 32 columns, at most 32·128·32767: acc[r] = fma(w_scale[r]·x_scale, dot[r], acc[r])
 *     and in formats with a minimum acc[r] = fma(w_min[r], x_sum, acc[r])
 *
 * where an INT4_G32 nibble stands for q − 8: its dots start at x_zero = −8·Σx. Float weights, and integer ones when asked to be exact:
 * acc[r] = fma(value[r][c], x[c], acc[r]), columns ascending, with the values of weight_row_f32. */
#include "kernels/cpu/linear.h"

#include <math.h>
#include <string.h>

#include "engine/base/f16.h"
#include "kernels/cpu/linear_store.h"

static inline bool is_int4(enum wfmt fmt) { return fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M; }

static inline bool has_min(enum wfmt fmt) { return fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M; }

static float f16_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

/* q[16] of column c of a group: unsigned nibbles (without their zero point) or signed bytes. */
static void group_column(int q[PANEL_ROWS], const uint8_t *group, bool int4, int c) {
    for (int r = 0; r < PANEL_ROWS; r++) {
        if (!int4) {
            q[r] = (int8_t)group[c / 4 * 64 + 4 * r + c % 4];
            continue;
        }
        uint8_t byte = group[c % 16 / 4 * 64 + 4 * r + c % 4];
        q[r] = c < 16 ? byte & 15 : byte >> 4;
    }
}

/* Where INT16 activations keep column c: fours in the order 0, 2, 1, 3, which is its own inverse. */
static int wide_index(int c) { return c % 4 == 1 ? c + 1 : c % 4 == 2 ? c - 1 : c; }

static void int4_group(float acc[PANEL_ROWS], enum wfmt fmt, const uint8_t *group, const struct act *x, int64_t g) {
    const int8_t *xq = x->q + g * GROUP_COLS;
    int32_t dot[2][PANEL_ROWS];
    int q[PANEL_ROWS];
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < PANEL_ROWS; r++) dot[half][r] = fmt == WFMT_INT4_G32 ? x->zero[2 * g + half] : 0;
        for (int c = half * ACT_GROUP_COLS; c < (half + 1) * ACT_GROUP_COLS; c++) {
            group_column(q, group, true, c);
            for (int r = 0; r < PANEL_ROWS; r++) dot[half][r] += q[r] * xq[c];
        }
    }
    for (int r = 0; r < PANEL_ROWS; r++) {
        float s = x->scale[2 * g] * (float)dot[0][r];
        s = fmaf(x->scale[2 * g + 1], (float)dot[1][r], s);
        acc[r] = fmaf(f16_at(group + 256 + 2 * r), s, acc[r]);
        if (has_min(fmt)) acc[r] = fmaf(f16_at(group + 288 + 2 * r), x->sum[g], acc[r]);
    }
}

static void int8_group(float acc[PANEL_ROWS], enum wfmt fmt, const uint8_t *group, const struct act *x, int64_t g) {
    const int16_t *xq = x->wide + g * GROUP_COLS;
    int32_t dot[PANEL_ROWS] = {0};
    int q[PANEL_ROWS];
    for (int c = 0; c < GROUP_COLS; c++) {
        group_column(q, group, false, c);
        for (int r = 0; r < PANEL_ROWS; r++) dot[r] += q[r] * xq[wide_index(c)];
    }
    for (int r = 0; r < PANEL_ROWS; r++) {
        acc[r] = fmaf(f16_at(group + 512 + 2 * r) * x->wide_scale[g], (float)dot[r], acc[r]);
        if (has_min(fmt)) acc[r] = fmaf(f16_at(group + 544 + 2 * r), x->wide_sum[g], acc[r]);
    }
}

static void integer_panel(float acc[PANEL_ROWS], const struct weight *w, const uint8_t *panel, const struct act *x, int token) {
    int64_t n_groups = w->n_cols / GROUP_COLS, first = token * n_groups;
    for (int64_t g = first; g < first + n_groups; g++, panel += wfmt_group_bytes(w->fmt)) {
        if (is_int4(w->fmt)) int4_group(acc, w->fmt, panel, x, g);
        else int8_group(acc, w->fmt, panel, x, g);
    }
}

/* The 16 values of a column. */
static void column_values(float value[PANEL_ROWS], const struct weight *w, const uint8_t *panel, int c) {
    if (!wfmt_is_integer(w->fmt)) {
        size_t size = w->fmt == WFMT_F32 ? 4 : 2;
        const uint8_t *column = panel + (size_t)c * PANEL_ROWS * size;
        for (int r = 0; r < PANEL_ROWS; r++) {
            uint16_t half;
            memcpy(&half, column + r * size, sizeof half);
            if (w->fmt == WFMT_F32) memcpy(&value[r], column + r * size, sizeof value[r]);
            else value[r] = w->fmt == WFMT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
        return;
    }
    bool int4 = is_int4(w->fmt);
    const uint8_t *group = panel + (size_t)(c / GROUP_COLS) * wfmt_group_bytes(w->fmt), *scales = group + (int4 ? 256 : 512);
    int q[PANEL_ROWS];
    group_column(q, group, int4, c % GROUP_COLS);
    for (int r = 0; r < PANEL_ROWS; r++) {
        float scale = f16_at(scales + 2 * r), steps = (float)(w->fmt == WFMT_INT4_G32 ? q[r] - 8 : q[r]);
        value[r] = has_min(w->fmt) ? fmaf(scale, steps, f16_at(scales + 32 + 2 * r)) : scale * steps;
    }
}

static void float_panel(float acc[PANEL_ROWS], const struct weight *w, const uint8_t *panel, const struct act *x, int token) {
    const float *xf = x->f + (int64_t)token * w->n_cols;
    float value[PANEL_ROWS];
    for (int c = 0; c < w->n_cols; c++) {
        column_values(value, w, panel, c);
        for (int r = 0; r < PANEL_ROWS; r++) acc[r] = fmaf(value[r], xf[c], acc[r]);
    }
}

void linear_span_plain(const struct linear_span *span) {
    const struct weight *w = span->job->w;
    size_t panel_bytes = wfmt_panel_bytes(w->fmt, w->n_cols);
    bool integer = wfmt_is_integer(w->fmt) && !span->use_f32;
    for (int p = span->first_panel; p < span->first_panel + span->n_panels; p++) {
        const uint8_t *panel = (const uint8_t *)w->data + (size_t)p * panel_bytes;
        for (int t = span->first_token; t < span->first_token + span->n_tokens; t++) {
            float acc[PANEL_ROWS] = {0};
            if (integer) integer_panel(acc, w, panel, span->x, t);
            else float_panel(acc, w, panel, span->x, t);
            linear_store(span->job, p, t, acc);
        }
    }
}
