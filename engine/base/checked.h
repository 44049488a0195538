/* Arithmetic on sizes that a file, a request or an option can influence. Each returns false on overflow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool checked_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* `n` rounded up to a multiple of `to`, a power of two. The caller knows that it does not overflow. */
static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) & ~(to - 1); }
