/* Counts the calls of malloc, calloc and realloc in the whole program, libraries too. Include in one file of a program: without a
 * sanitizer it defines these functions, over the C library's; under one it asks the sanitizer, which has its own. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

static atomic_size_t n_allocations;

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOCATIONS_ARE_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOCATIONS_ARE_SANITIZED 1
#endif

#ifdef ALLOCATIONS_ARE_SANITIZED
/* Its header is not everywhere. */
int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *));

static void note_allocation(const volatile void *p, size_t n) {
    (void)p;
    (void)n;
    n_allocations++;
}
static void note_free(const volatile void *p) { (void)p; }

__attribute__((constructor)) static void count_from_now_on(void) {
    __sanitizer_install_malloc_and_free_hooks(note_allocation, note_free);
}
#else
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n) {
    n_allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t each) {
    n_allocations++;
    return __libc_calloc(n, each);
}
void *realloc(void *p, size_t n) {
    n_allocations++;
    return __libc_realloc(p, n);
}
#endif

static inline size_t count_allocations(void) { return n_allocations; }
