/* Causal attention of a few query rows over one segment of one kv head's keys and values.
 *
 * A row is one query head of one token. All rows of a task read the same kv head, so grouped heads and neighbouring tokens share
 * every load of the cache. For a segment of 256 positions (THE ORDER, the same however the work is split):
 *
 *   scores   s[row][key] = scale · Σ_d q[d]·K[d][key]: one key a lane, d ascending, one fma each. A micro-kernel keeps sums of 3 rows ×
 *            MICRO_VECS vectors of keys in registers, so a K load meets 3 rows and a q broadcast meets all the vectors.
 *   softmax  keys the row may not see become −infinity; m = max; p = e^(s − m); l = Σ p in 16 lanes, lane = position mod 16.
 *   values   o[row][d] = Σ_key p·V[key][d]: one dimension a lane, keys ascending, one fma each, never past the row's last key:
 *            what lies there is undefined and may be NaN. Sums of 3 rows × MICRO_VECS vectors of dimensions stay in registers
 *            over a chunk of 64 keys, whose V stays in L1.
 *
 * Segments are merged ascending: m' = max(m, ms), a = e^(m − m'), b = e^(ms − m'), l = fma(l, a, ls·b), o = fma(o, a, os·b).
 *
 * Per row, key and dimension there are two fma. With 3 rows × 32 keys AVX2 issues 12 fma on 4 loads that convert F16 and 3
 * broadcasts. A seventeenth register would put a sum on the stack and halve the speed (measured), hence `vec` and the order of
 * the loops. */
#pragma once

#include <stddef.h>

#include "kernels/backend.h"
#include "kernels/cpu/lane_ops.h"
#include "kernels/cpu/math_lanes.h"

#define MICRO_ROWS 3
#define TILE_VECS (KV_TILE_TOKENS / VEC_LANES)
#define MICRO_KEYS (MICRO_VECS * VEC_LANES)
#define CHUNK_TILES 4 /* at most AHEAD_TILES */
/* Loops over registers: unrolled before the arrays they index become registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

/* s[r·SCORE_STRIDE + key] for `rows` rows and `vecs` vectors of keys, both constants where this is inlined. */
LANE_FN void scores_block(int rows, int vecs, float *s, const float *const *q, const uint16_t *const *keys,
                          const uint16_t *const *next, int head_dim, float scale) {
    vec sum[MICRO_ROWS][MICRO_VECS + TILE_VECS], x[MICRO_ROWS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++) sum[r][v] = vec_set(0);
    for (int d = 0; d < head_dim; d++) {
        UNROLL for (int t = 0; t < vecs / TILE_VECS; t++) if (t % 2 == 0)
            __builtin_prefetch(next[t + d % 2] + (size_t)(d - d % 2) * KV_TILE_TOKENS);
        UNROLL for (int r = 0; r < rows; r++) x[r] = vec_set(q[r][d]);
        UNROLL for (int v = 0; v < vecs; v++) {
            vec k = vec_load_f16(keys[v / TILE_VECS] + (size_t)d * KV_TILE_TOKENS + v % TILE_VECS * VEC_LANES);
            UNROLL for (int r = 0; r < rows; r++) sum[r][v] = vec_fma(x[r], k, sum[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++)
        vec_store(s + r * SCORE_STRIDE + v * VEC_LANES, vec_mul(sum[r][v], vec_set(scale)));
}

LANE_FN void scores_rows(int vecs, int rows, float *s, const float *const *q, const uint16_t *const *keys,
                         const uint16_t *const *next, int head_dim, float scale) {
    if (rows == 3) scores_block(3, vecs, s, q, keys, next, head_dim, scale);
    else if (rows == 2) scores_block(2, vecs, s, q, keys, next, head_dim, scale);
    else scores_block(1, vecs, s, q, keys, next, head_dim, scale);
}

/* Scores of rows [first, n) against the first n_tiles tiles of the segment. */
static void segment_scores(struct attention_scratch *w, const struct attention_task *task, int first, int n_tiles) {
    const int micro_tiles = MICRO_KEYS / KV_TILE_TOKENS;
    for (int t = 0; t < n_tiles;) {
        bool is_wide = n_tiles - t >= micro_tiles;
        for (int r = first; r < task->n_rows; r += MICRO_ROWS) {
            int rows = task->n_rows - r < MICRO_ROWS ? task->n_rows - r : MICRO_ROWS;
            float *s = w->scores + r * SCORE_STRIDE + t * KV_TILE_TOKENS;
            const uint16_t *const *keys = w->keys + t, *const *next = keys + micro_tiles;
            if (is_wide) scores_rows(MICRO_VECS, rows, s, task->q + r, keys, next, task->head_dim, task->scale);
            else scores_rows(TILE_VECS, rows, s, task->q + r, keys, next, task->head_dim, task->scale);
        }
        t += is_wide ? micro_tiles : 1;
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

/* o[r·o_stride + d ...] += Σ p·V over keys [from, to) of the segment, for `vecs` vectors of dimensions from d; rows and vecs are
 * constants. */
LANE_FN void values_block(int rows, int vecs, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int d,
                          int head_dim, int from, int to) {
    vec sum[MICRO_ROWS][MICRO_VECS + TILE_VECS], x[MICRO_ROWS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++) sum[r][v] =
        vec_load(o + (size_t)r * o_stride + d + v * VEC_LANES);
    for (int key = from; key < to; key++) {
        const uint16_t *row = values[key / KV_TILE_TOKENS] + (size_t)(key % KV_TILE_TOKENS) * (size_t)head_dim + d;
        __builtin_prefetch(values[key / KV_TILE_TOKENS + CHUNK_TILES] + (size_t)(key % KV_TILE_TOKENS) * (size_t)head_dim + d);
        UNROLL for (int r = 0; r < rows; r++) x[r] = vec_set(p[r * SCORE_STRIDE + key]);
        UNROLL for (int v = 0; v < vecs; v++) {
            vec value = vec_load_f16(row + v * VEC_LANES);
            UNROLL for (int r = 0; r < rows; r++) sum[r][v] = vec_fma(x[r], value, sum[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++)
        vec_store(o + (size_t)r * o_stride + d + v * VEC_LANES, sum[r][v]);
}

LANE_FN void values_dims(int rows, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int head_dim,
                         int from, int to) {
    int d = 0;
    for (; d + MICRO_VECS * VEC_LANES <= head_dim; d += MICRO_VECS * VEC_LANES)
        values_block(rows, MICRO_VECS, o, o_stride, p, values, d, head_dim, from, to);
    for (; d < head_dim; d += KV_TILE_TOKENS) values_block(rows, TILE_VECS, o, o_stride, p, values, d, head_dim, from, to);
}

static void values_rows(int rows, float *o, size_t o_stride, const float *p, const uint16_t *const *values, int head_dim,
                        int from, int to) {
    if (from >= to) return;
    if (rows == 3) values_dims(3, o, o_stride, p, values, head_dim, from, to);
    else if (rows == 2) values_dims(2, o, o_stride, p, values, head_dim, from, to);
    else values_dims(1, o, o_stride, p, values, head_dim, from, to);
}

/* Keys [from, to) for a block of rows whose last visible keys ascend: together as far as the first row sees, then one by one. */
static void values_of_rows(struct attention_scratch *w, const struct attention_task *task, int first, int rows, int from,
                           int to) {
    float *o = w->partial + (size_t)first * w->stride;
    const float *p = w->scores + first * SCORE_STRIDE;
    int together = w->visible[first] < to ? w->visible[first] : to;
    if (together < from) together = from;
    values_rows(rows, o, w->stride, p, w->values, task->head_dim, from, together);
    for (int r = 1; r < rows; r++) {
        int own = w->visible[first + r] < to ? w->visible[first + r] : to;
        values_rows(1, o + (size_t)r * w->stride, w->stride, p + r * SCORE_STRIDE, w->values, task->head_dim, together, own);
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

/* Where the keys of the 16 tokens from `position` lie, or `offset` bytes further in the block than position's block begins. */
LANE_FN const uint16_t *find_tile(const struct attention_task *task, int position, size_t head_offset) {
    const struct kv_layout *l = &task->kv->layout;
    const char *block = (const char *)task->kv->base + (size_t)task->blocks[position / l->block_tokens] * kv_block_bytes(l);
    return (const uint16_t *)(const void *)(block + head_offset) + kv_key_index(l, position % l->block_tokens);
}

/* The segment's tiles in the order in which they are read, keys, then values, then what is worth fetching ahead: the first keys
 * of the next segment, up to position `end`. A tile of keys and one of values are equally large. */
static void find_tiles(struct attention_scratch *w, const struct attention_task *task, int start, int n_keys, int end) {
    int n = 0, n_tiles = (n_keys + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS;
    for (int i = 0; i < n_tiles; i++) w->tiles[n++] = find_tile(task, start + i * KV_TILE_TOKENS, task->key_offset);
    for (int i = 0; i < n_tiles; i++) w->tiles[n++] = find_tile(task, start + i * KV_TILE_TOKENS, task->value_offset);
    for (int i = 0; i < AHEAD_TILES; i++, n++) {
        int position = start + ATTENTION_SEGMENT + i * KV_TILE_TOKENS;
        w->tiles[n] = position < end ? find_tile(task, position, task->key_offset) : w->tiles[n - 1];
    }
    w->keys = w->tiles;
    w->values = w->tiles + n_tiles;
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
    find_tiles(w, task, start, n_keys, task->position[task->n_rows - 1] + 1);
    segment_scores(w, task, first, (n_keys + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS);
    for (int r = first; r < task->n_rows; r++)
        w->partial_sum[r] = segment_softmax(w->scores + r * SCORE_STRIDE, w->visible[r], &w->partial_max[r]);
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
