/* See page_pool.h.
 *
 *   memory:  | pages ............................ | taken: one byte a page |
 *
 * First fit over one byte a page: 16 MiB are 4,096 bytes to scan, a microsecond, once or twice a request. Rejected: a heap (its
 * own overhead and fragments would have to be priced) and one fixed arena a request (sized for the worst, it would take the KV
 * pool's memory for nothing). A pool too fragmented for a large request refuses it with 429, as a full one does. */
#include "server/page_pool.h"

#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"

static size_t pages_of(size_t bytes) { return bytes / PAGE_BYTES + (bytes % PAGE_BYTES != 0 || bytes == 0); }

size_t page_pool_bytes(size_t bytes) { return pages_of(bytes) * (PAGE_BYTES + 1); }

void page_pool_init(struct page_pool *pool, void *memory, size_t bytes) {
    size_t n_pages = pages_of(bytes);
    *pool = (struct page_pool){.base = memory, .n_pages = n_pages, .n_free = n_pages};
    pool->taken = (unsigned char *)memory + n_pages * PAGE_BYTES;
    memset(pool->taken, 0, n_pages);
    pthread_mutex_init(&pool->mutex, NULL);
}

void page_pool_deinit(struct page_pool *pool) { pthread_mutex_destroy(&pool->mutex); }

/* The first free run of n pages, or n_pages. */
static size_t find_run(const struct page_pool *pool, size_t n) {
    size_t length = 0;
    for (size_t i = 0; i < pool->n_pages; i++) {
        length = pool->taken[i] ? 0 : length + 1;
        if (length == n) return i + 1 - n;
    }
    return pool->n_pages;
}

void *page_pool_alloc(struct page_pool *pool, size_t bytes) {
    size_t n = pages_of(bytes);
    char *run = NULL;
    pthread_mutex_lock(&pool->mutex);
    size_t start = n > pool->n_free ? pool->n_pages : find_run(pool, n);
    if (start < pool->n_pages) {
        memset(pool->taken + start, 1, n);
        pool->n_free -= n;
        run = pool->base + start * PAGE_BYTES;
    }
    pthread_mutex_unlock(&pool->mutex);
    return run;
}

void page_pool_free(struct page_pool *pool, void *run, size_t bytes) {
    if (!run) return;
    size_t n = pages_of(bytes), start = (size_t)((char *)run - pool->base) / PAGE_BYTES;
    pthread_mutex_lock(&pool->mutex);
    for (size_t i = start; i < start + n; i++)
        if (i >= pool->n_pages || !pool->taken[i]) BUG("page_pool: page %zu of run %zu+%zu freed, but not taken", i, start, n);
    memset(pool->taken + start, 0, n);
    pool->n_free += n;
    pthread_mutex_unlock(&pool->mutex);
}

size_t page_pool_capacity(const struct page_pool *pool) { return pool->n_pages * PAGE_BYTES; }

size_t page_pool_used(struct page_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    size_t used = (pool->n_pages - pool->n_free) * PAGE_BYTES;
    pthread_mutex_unlock(&pool->mutex);
    return used;
}
