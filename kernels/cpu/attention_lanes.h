/* Causal attention of a few query rows over one segment of one kv head's keys and values.
 *
 * A row is one query head of one token. All rows of a task read the same kv head, so grouped heads and neighbouring tokens share
 * every load of the cache. For a segment of 256 positions (THE ORDER, the same however the work is split):
 *
 *   scores   s[row][key] = scale · Σ_d q[d]·K[d][key]: one key a lane, d ascending, one fma each. A micro-kernel keeps ROWS × TILES
 *            accumulators of 16 keys in registers, so a K load meets ROWS rows and a q broadcast meets TILES tiles.
 *   softmax  keys the row may not see become −infinity; m = max; p = e^(s − m); l = Σ p in 16 lanes, lane = position mod 16.
 *   values   o[row][d] = Σ_key p·V[key][d]: one dimension a lane, keys ascending, one fma each, never past the row's last key:
 *            what lies there is undefined and may be NaN. ROWS × DIMS accumulators; V in chunks of 64 keys, which stay in L1.
 *
 * Segments are merged ascending: m' = max(m, ms), a = e^(m − m'), b = e^(ms − m'), l = fma(l, a, ls·b), o = fma(o, a, os·b).
 *
 * Per row, key and dimension there are two fma. With 3 rows × 32 keys AVX2 issues 12 fma on 4 loads that convert F16 and 3
 * broadcasts, so fma units are the limit and the conversion is hidden; F32 copies of the tiles were measured to gain nothing. */
#pragma once

#include <stddef.h>

#include "kernels/backend.h"
#include "kernels/cpu/lane_ops.h"
#include "kernels/cpu/math_lanes.h"

#define MICRO_ROWS 3
#ifdef LANES_AVX512
#define MICRO_TILES 4 /* 32 registers of 16 lanes */
#define MICRO_DIMS 4
#else
#define MICRO_TILES 2 /* 16 registers of 8 lanes */
#define MICRO_DIMS 2
#endif
#define CHUNK_TILES 4

/* s[r·ATTENTION_SEGMENT + 16·t ...] for `rows` rows and `tiles` tiles, both constants where this is inlined. */
LANE_FN void scores_block(int rows, int tiles, float *s, const float *const *q, const uint16_t *const *keys, int head_dim,
                          float scale) {
    lanes sum[MICRO_ROWS][MICRO_TILES], k[MICRO_TILES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) sum[r][t] = lanes_zero();
    for (int d = 0; d < head_dim; d++) {
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) k[t] = lanes_load_f16(keys[t] + (size_t)d * KV_TILE_TOKENS);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            lanes x = lanes_set(q[r][d]);
#pragma GCC unroll 4
            for (int t = 0; t < tiles; t++) sum[r][t] = lanes_fma(x, k[t], sum[r][t]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++)
            lanes_store(s + r * ATTENTION_SEGMENT + t * N_LANES, lanes_mul(sum[r][t], lanes_set(scale)));
}

LANE_FN void scores_rows(int tiles, int rows, float *s, const float *const *q, const uint16_t *const *keys, int head_dim,
                         float scale) {
    if (rows == 3) scores_block(3, tiles, s, q, keys, head_dim, scale);
    else if (rows == 2) scores_block(2, tiles, s, q, keys, head_dim, scale);
    else scores_block(1, tiles, s, q, keys, head_dim, scale);
}

/* Scores of rows [first, n) against the first n_tiles tiles of the segment. */
static void segment_scores(struct attention_scratch *w, const struct attention_task *task, int first, int n_tiles) {
    int head_dim = task->head_dim;
    for (int t = 0; t < n_tiles;) {
        int tiles = n_tiles - t >= MICRO_TILES ? MICRO_TILES : 1;
        for (int r = first; r < task->n_rows; r += MICRO_ROWS) {
            int rows = task->n_rows - r < MICRO_ROWS ? task->n_rows - r : MICRO_ROWS;
            float *s = w->scores + r * ATTENTION_SEGMENT + t * N_LANES;
            if (tiles == 1) scores_rows(1, rows, s, task->q + r, w->keys + t, head_dim, task->scale);
            else scores_rows(MICRO_TILES, rows, s, task->q + r, w->keys + t, head_dim, task->scale);
        }
        t += tiles;
    }
}

/* Scores of a row become p; returns their sum and writes the maximum. */
static float segment_softmax(float *s, int n_visible, float *maximum) {
    lanes largest = lanes_set(-INFINITY), sum = lanes_zero();
    int last = (n_visible - 1) / N_LANES * N_LANES;
    lanes_store(s + last, lanes_keep(lanes_load(s + last), n_visible - last, -INFINITY));
    for (int i = 0; i < n_visible; i += N_LANES) largest = lanes_max(largest, lanes_load(s + i));
    *maximum = lanes_largest(largest);
    const lanes shift = lanes_set(*maximum);
    for (int i = 0; i < n_visible; i += N_LANES) {
        lanes p = lanes_exp(lanes_sub(lanes_load(s + i), shift));
        lanes_store(s + i, p);
        sum = lanes_add(sum, p);
    }
    return lanes_sum(sum);
}

/* o[r·o_stride + d ...] += Σ p·V over keys [from, to) of the segment, for 16·dims dimensions from d; rows and dims constants. */
LANE_FN void values_block(int rows, int dims, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int d,
                          int head_dim, int from, int to) {
    lanes sum[MICRO_ROWS][MICRO_DIMS], v[MICRO_DIMS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < dims; i++) sum[r][i] = lanes_load(o + (size_t)r * o_stride + d + i * N_LANES);
    for (int key = from; key < to; key++) {
        const uint16_t *row = values[key / KV_TILE_TOKENS] + (size_t)(key % KV_TILE_TOKENS) * (size_t)head_dim + d;
#pragma GCC unroll 4
        for (int i = 0; i < dims; i++) v[i] = lanes_load_f16(row + i * N_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            lanes x = lanes_set(p[r * ATTENTION_SEGMENT + key]);
#pragma GCC unroll 4
            for (int i = 0; i < dims; i++) sum[r][i] = lanes_fma(x, v[i], sum[r][i]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < dims; i++) lanes_store(o + (size_t)r * o_stride + d + i * N_LANES, sum[r][i]);
}

LANE_FN void values_dims(int rows, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int head_dim,
                         int from, int to) {
    int d = 0;
    for (; d + MICRO_DIMS * N_LANES <= head_dim; d += MICRO_DIMS * N_LANES)
        values_block(rows, MICRO_DIMS, o, o_stride, p, values, d, head_dim, from, to);
    for (; d < head_dim; d += N_LANES) values_block(rows, 1, o, o_stride, p, values, d, head_dim, from, to);
}

static void values_rows(int rows, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int head_dim, int from,
                        int to) {
    if (from >= to) return;
    if (rows == 3) values_dims(3, o, o_stride, p, values, head_dim, from, to);
    else if (rows == 2) values_dims(2, o, o_stride, p, values, head_dim, from, to);
    else values_dims(1, o, o_stride, p, values, head_dim, from, to);
}

/* Keys [from, to) for a block of rows whose last visible keys ascend: together as far as the first row sees, then one by one. */
static void values_of_rows(struct attention_scratch *w, const struct attention_task *task, int first, int rows, int from, int to) {
    float *o = w->partial + (size_t)first * w->stride;
    const float *p = w->scores + first * ATTENTION_SEGMENT;
    int together = w->visible[first] < to ? w->visible[first] : to;
    if (together < from) together = from;
    values_rows(rows, o, w->stride, p, w->values, task->head_dim, from, together);
    for (int r = 1; r < rows; r++) {
        int own = w->visible[first + r] < to ? w->visible[first + r] : to;
        values_rows(1, o + (size_t)r * w->stride, w->stride, p + r * ATTENTION_SEGMENT, w->values, task->head_dim, together, own);
    }
}

static void segment_values(struct attention_scratch *w, const struct attention_task *task, int first, int n_keys) {
    for (int r = first; r < task->n_rows; r++)
        for (int d = 0; d < task->head_dim; d += N_LANES) lanes_store(w->partial + (size_t)r * w->stride + d, lanes_zero());
    for (int from = 0; from < n_keys; from += CHUNK_TILES * KV_TILE_TOKENS)
        for (int r = first; r < task->n_rows; r += MICRO_ROWS) {
            int rows = task->n_rows - r < MICRO_ROWS ? task->n_rows - r : MICRO_ROWS;
            values_of_rows(w, task, r, rows, from, from + CHUNK_TILES * KV_TILE_TOKENS);
        }
}

/* The segment's tiles: where 16 tokens' keys and values of this head lie. */
static void find_tiles(struct attention_scratch *w, const struct attention_task *task, int first_position, int n_keys) {
    const struct kv_layout *l = &task->kv->layout;
    for (int i = 0; i * KV_TILE_TOKENS < n_keys; i++) {
        int position = first_position + i * KV_TILE_TOKENS, slot = position % l->block_tokens;
        const char *block = (const char *)task->kv->base + (size_t)task->blocks[position / l->block_tokens] * kv_block_bytes(l);
        w->keys[i] = (const uint16_t *)(const void *)(block + task->key_offset) + kv_key_index(l, slot);
        w->values[i] = (const uint16_t *)(const void *)(block + task->value_offset) + kv_value_index(l, slot);
    }
}

/* Contract: lane_ops.h. */
static int attention_segment(struct attention_scratch *w, const struct attention_task *task, int segment) {
    int start = segment * ATTENTION_SEGMENT, first = 0;
    for (int r = 0; r < task->n_rows; r++) {
        int visible = task->position[r] + 1 - start;
        w->visible[r] = visible < ATTENTION_SEGMENT ? visible : ATTENTION_SEGMENT;
        if (visible <= 0) first = r + 1;
    }
    int n_keys = w->visible[task->n_rows - 1];
    find_tiles(w, task, start, n_keys);
    segment_scores(w, task, first, (n_keys + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS);
    for (int r = first; r < task->n_rows; r++)
        w->partial_sum[r] = segment_softmax(w->scores + r * ATTENTION_SEGMENT, w->visible[r], &w->partial_max[r]);
    segment_values(w, task, first, n_keys);
    return first;
}

static void attention_merge(float *o, float *max, float *sum, const float *segment_o, float segment_max, float segment_sum,
                            int head_dim) {
    float larger = *max > segment_max ? *max : segment_max;
    const lanes a = lanes_exp(lanes_set(*max - larger)), b = lanes_exp(lanes_set(segment_max - larger));
    *sum = fmaf(*sum, lanes_first(a), segment_sum * lanes_first(b));
    *max = larger;
    for (int d = 0; d < head_dim; d += N_LANES)
        lanes_store(o + d, lanes_fma(lanes_load(o + d), a, lanes_mul(lanes_load(segment_o + d), b)));
}

static void attention_finish(float *out, const float *o, float sum, int head_dim) {
    const lanes divisor = lanes_set(sum);
    for (int d = 0; d < head_dim; d += N_LANES) lanes_store(out + d, lanes_div(lanes_load(o + d), divisor));
}
