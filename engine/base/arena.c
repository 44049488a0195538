#include "engine/base/arena.h"

#include <stdint.h>
#include <string.h>

#define ARENA_ALIGN 64

void arena_init(struct arena *arena, void *memory, size_t bytes) { *arena = (struct arena){.base = memory, .size = bytes}; }

void arena_reset(struct arena *arena) { arena->used = 0; }

void *arena_alloc(struct arena *arena, size_t bytes) {
    size_t start = arena->used;
    size_t misaligned = ((uintptr_t)arena->base + start) % ARENA_ALIGN;
    if (misaligned) start += ARENA_ALIGN - misaligned;
    if (start > arena->size || bytes > arena->size - start) return NULL;
    arena->used = start + bytes;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return arena->base + start;
}

char *arena_copy(struct arena *arena, const void *data, size_t n) {
    if (n == SIZE_MAX) return NULL;
    char *copy = arena_alloc(arena, n + 1);
    if (!copy) return NULL;
    memcpy(copy, data, n);
    copy[n] = 0;
    return copy;
}
