#include "engine/block_pool.h"

#include <stdio.h>

#include "engine/base/err.h"

size_t block_pool_bytes(int32_t n_blocks) { return (size_t)n_blocks * sizeof(struct block); }

static void push_last(struct block_pool *p, int32_t i) {
    struct block *b = &p->blocks[i];
    b->prev = p->last_free;
    b->next = -1;
    if (p->last_free >= 0) p->blocks[p->last_free].next = i;
    else p->first_free = i;
    p->last_free = i;
    p->n_free++;
}

static int32_t pop_first(struct block_pool *p) {
    int32_t i = p->first_free;
    p->first_free = p->blocks[i].next;
    if (p->first_free >= 0) p->blocks[p->first_free].prev = -1;
    else p->last_free = -1;
    p->blocks[i].prev = p->blocks[i].next = -1;
    p->n_free--;
    return i;
}

void block_pool_init(struct block_pool *p, void *memory, int32_t n_blocks) {
    *p = (struct block_pool){.blocks = memory, .n_blocks = n_blocks, .first_free = -1, .last_free = -1};
    for (int32_t i = 0; i < n_blocks; i++) {
        p->blocks[i].refs = 0;
        push_last(p, i);
    }
}

bool block_pool_can_alloc(const struct block_pool *p, int32_t n) { return n <= p->n_free; }

int32_t block_pool_alloc(struct block_pool *p) {
    if (p->n_free == 0) return -1;
    int32_t i = pop_first(p);
    p->blocks[i].refs = 1;
    return i;
}

void block_pool_share(struct block_pool *p, int32_t block) {
    if (p->blocks[block].refs < 1) BUG("block pool: block %d is shared while free", block);
    p->blocks[block].refs++;
}

void block_pool_release(struct block_pool *p, const int32_t *blocks, int32_t n) {
    for (int32_t i = n - 1; i >= 0; i--) {
        struct block *b = &p->blocks[blocks[i]];
        if (b->refs < 1) BUG("block pool: block %d is given back twice", blocks[i]);
        if (--b->refs == 0) push_last(p, blocks[i]);
    }
}

bool block_pool_check(const struct block_pool *p) {
    int32_t on_list = 0, counted_free = 0, prev = -1;
    for (int32_t i = p->first_free; i >= 0 && on_list <= p->n_blocks; prev = i, i = p->blocks[i].next, on_list++)
        if (p->blocks[i].refs != 0 || p->blocks[i].prev != prev) {
            fprintf(stderr, "block pool: block %d on the free list has count %d and prev %d\n", i, p->blocks[i].refs,
                    p->blocks[i].prev);
            return false;
        }
    for (int32_t i = 0; i < p->n_blocks; i++) counted_free += p->blocks[i].refs == 0;
    if (on_list == p->n_free && counted_free == p->n_free && prev == p->last_free) return true;
    fprintf(stderr, "block pool: %d on the list, %d with count 0, n_free %d\n", on_list, counted_free, p->n_free);
    return false;
}
