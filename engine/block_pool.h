/* The pool of KV blocks: which are free, and how many sequences hold each.
 *
 * Invariants (asserted by block_pool_check after every step in tests):
 *   1. free + used = total; a block is on the free list exactly when its count is 0.
 *   2. Blocks are given back in reverse order of the sequence, to the tail of the list: reuse is least recently used, deepest first.
 * Owner: the engine thread. Memory: two int32 and a link pair a block, given at init. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block {
    int32_t prev, next; /* free list; −1 ends */
    int32_t refs;
};

struct block_pool {
    struct block *blocks; /* [n_blocks] */
    int32_t n_blocks, n_free, first_free, last_free;
};

size_t block_pool_bytes(int32_t n_blocks);
void block_pool_init(struct block_pool *p, void *memory, int32_t n_blocks);
bool block_pool_can_alloc(const struct block_pool *p, int32_t n);
/* One block with count 1; −1 when there is none. */
int32_t block_pool_alloc(struct block_pool *p);
void block_pool_share(struct block_pool *p, int32_t block);
/* Takes one count of each of blocks[0..n), last first. */
void block_pool_release(struct block_pool *p, const int32_t *blocks, int32_t n);
/* Walks everything; false (and a line to stderr) when an invariant is broken. */
bool block_pool_check(const struct block_pool *p);
