/* Rotary embedding, and a token's keys and values into the paged cache as F16.
 *
 * A pair (a, b) becomes (a·c − b·s, a·s + b·c) as fma(a, c, −(b·s)) and fma(b, c, a·s). Keys lie in tiles of 16 tokens, so a key
 * is scattered with a stride of 32 bytes; that is head_dim stores of 2 bytes a key, far below what the layer's matrices cost. */
#pragma once

#include <stddef.h>

#include "kernels/backend.h"
#include "kernels/cpu/lane_ops.h"
#include "kernels/cpu/lanes.h"

static void rotate_pair(float *a, float *b, const float *cos_sin) {
    float x = *a, y = *b, c = cos_sin[0], s = cos_sin[1];
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(y, c, x * s);
}

static void rotate(float *x, const struct rope_table *rope, int position) {
    int half = rope->n_rot / 2;
    if (rope->pairs == ROPE_NONE) return;
    const float *cos_sin = rope->cos_sin + (size_t)position * (size_t)rope->n_rot;
    for (int i = 0; i < half; i++) {
        if (rope->pairs == ROPE_ADJACENT) rotate_pair(&x[2 * i], &x[2 * i + 1], cos_sin + 2 * i);
        else rotate_pair(&x[i], &x[i + half], cos_sin + 2 * i);
    }
}

static void store_key(uint16_t *tile_column, const float *k, const struct rope_table *rope, int position, int head_dim) {
    float rotated[MAX_HEAD_DIM];
    uint16_t halves[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += N_LANES) lanes_store(rotated + d, lanes_load(k + d));
    rotate(rotated, rope, position);
    for (int d = 0; d < head_dim; d += N_LANES) lanes_store_f16(halves + d, lanes_load(rotated + d));
    for (int d = 0; d < head_dim; d++) tile_column[d * KV_TILE_TOKENS] = halves[d];
}

/* One token: row of the batch, its position, the numbers of its sequence's blocks. */
static void rope_append_token(const struct rope_append_args *a, int row, int position, const int32_t *blocks) {
    const struct attention_shape *shape = a->shape;
    const struct kv_layout *l = &a->kv->layout;
    char *block = (char *)a->kv->base + (size_t)blocks[position / l->block_tokens] * kv_block_bytes(l);
    int slot = position % l->block_tokens, head_dim = shape->head_dim;
    for (int h = 0; h < shape->n_heads; h++)
        rotate(a->q + (size_t)row * (size_t)a->q_stride + (size_t)h * (size_t)head_dim, a->rope, position);
    for (int h = 0; h < shape->n_kv_heads; h++) {
        size_t at = (size_t)row * (size_t)a->kv_stride + (size_t)h * (size_t)head_dim;
        uint16_t *keys = (uint16_t *)(void *)(block + kv_head_offset(l, a->layer, 0, h));
        uint16_t *values = (uint16_t *)(void *)(block + kv_head_offset(l, a->layer, 1, h));
        store_key(keys + kv_key_index(l, slot), a->k + at, a->rope, position, head_dim);
        for (int d = 0; d < head_dim; d += N_LANES)
            lanes_store_f16(values + kv_value_index(l, slot) + d, lanes_load(a->v + at + d));
    }
}
