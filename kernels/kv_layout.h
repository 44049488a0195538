/* Where a token's keys and values lie in the paged cache.
 *
 * A block holds block_tokens tokens (a multiple of 16) of all layers, contiguous, so that it moves between tiers in one copy:
 *
 *   block:  layer 0 [ K: head 0, head 1, ... | V: head 0, head 1, ... ]  layer 1 [ ... ] ...
 *   K of a head: block_tokens/16 tiles of [head_dim][16 tokens] F16: a query meets 16 keys a load, one key a lane, and no sum
 *                crosses lanes
 *   V of a head: [block_tokens][head_dim] F16
 *
 * Slots past a sequence's length hold anything: kernels must not let them reach a result. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define KV_TILE_TOKENS 16

struct kv_layout {
    int n_layers, n_kv_heads, head_dim, block_tokens;
};

static inline size_t kv_head_bytes(const struct kv_layout *l) { return (size_t)l->block_tokens * (size_t)l->head_dim * 2; }
static inline size_t kv_block_bytes(const struct kv_layout *l) {
    return (size_t)l->n_layers * 2 * (size_t)l->n_kv_heads * kv_head_bytes(l);
}
/* Offset in a block of the K part (V: the same with is_v = 1) of a head. */
static inline size_t kv_head_offset(const struct kv_layout *l, int layer, int is_v, int head) {
    return (((size_t)layer * 2 + (size_t)is_v) * (size_t)l->n_kv_heads + (size_t)head) * kv_head_bytes(l);
}
/* Index in F16 elements, within a head's K part, of dimension 0 of a token's key; dimension d is 16·d further. */
static inline size_t kv_key_index(const struct kv_layout *l, int token_in_block) {
    return (size_t)(token_in_block / KV_TILE_TOKENS) * KV_TILE_TOKENS * (size_t)l->head_dim +
           (size_t)(token_in_block % KV_TILE_TOKENS);
}
static inline size_t kv_value_index(const struct kv_layout *l, int token_in_block) {
    return (size_t)token_in_block * (size_t)l->head_dim;
}
