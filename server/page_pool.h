/* The memory that all requests share: bodies, prompts and answers, in runs of whole pages of one piece that the ledger gave.
 *
 * A request takes what it needs, exactly known, before it is admitted, and gives it back when it ends; so what requests can
 * make the server hold is this piece and no more. Any thread. */
#pragma once

#include <pthread.h>
#include <stddef.h>

#define PAGE_BYTES ((size_t)4096)

struct page_pool {
    char *base;
    unsigned char *taken;   /* [n_pages], 1 while in a run */
    size_t n_pages, n_free; /* guarded by mutex */
    pthread_mutex_t mutex;
};

/* Bytes of memory for a pool of `bytes` to hand out, rounded up to pages. */
size_t page_pool_bytes(size_t bytes);
void page_pool_init(struct page_pool *pool, void *memory, size_t bytes);
void page_pool_deinit(struct page_pool *pool);
/* A run of at least `bytes`, not zeroed, 64-byte aligned; NULL when no run is long enough now. 0 bytes: one page. */
void *page_pool_alloc(struct page_pool *pool, size_t bytes);
/* `bytes` as asked. NULL is allowed. */
void page_pool_free(struct page_pool *pool, void *run, size_t bytes);
size_t page_pool_capacity(const struct page_pool *pool); /* bytes, all of it */
size_t page_pool_used(struct page_pool *pool);           /* bytes */
