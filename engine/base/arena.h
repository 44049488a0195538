/* A bump arena over one piece of memory that somebody else owns: the ledger, or a request slot.
 *
 * Nothing is freed on its own; arena_reset takes everything back at once. Not thread-safe: one owner at a time. */
#pragma once

#include <stddef.h>

struct arena {
    char *base;
    size_t used, size; /* bytes */
    size_t peak;       /* most ever used since arena_init, bytes */
};

void arena_init(struct arena *arena, void *memory, size_t bytes);
void arena_reset(struct arena *arena);
/* `bytes` aligned to 64, not zeroed; NULL when it does not fit (a client can influence the size, so the caller refuses). */
void *arena_alloc(struct arena *arena, size_t bytes);
/* Copies `n` bytes and adds a NUL; NULL when it does not fit. */
char *arena_copy(struct arena *arena, const void *data, size_t n);
