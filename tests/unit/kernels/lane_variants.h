/* What the tests of vector kernels share: every table that can run here, a backend around one, and random numbers.
 *
 * Variant 0 is plain C, what the others are compared with by memcmp. AVX-512 runs natively where the CPU has it, and through
 * SIMDe (tests/CMakeLists.txt) in any build that found it. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/checked.h"
#include "kernels/cpu/lane_ops.h"

#ifdef TALLY_HAVE_SIMDE
extern const struct cpu_lane_ops cpu_lane_ops_simde; /* lane_ops_avx512.c through SIMDe */
#endif

struct variant {
    const char *name;
    const struct cpu_lane_ops *ops;
};

static inline void say_once(const char *text) {
    static const char *said[4];
    int i = 0;
    while (i < 3 && said[i] && said[i] != text) i++;
    if (!said[i]) print_message("SKIPPED: %s\n", said[i] = text);
}

static inline int find_variants(struct variant *variants) {
    int n = 0;
    variants[n++] = (struct variant){"plain", &cpu_lane_ops_plain};
#ifdef TALLY_X86
    if (cpu_isa_available(CPU_ISA_AVX2)) variants[n++] = (struct variant){"avx2", &cpu_lane_ops_avx2};
    else say_once("avx2, this CPU has none");
    if (cpu_isa_available(CPU_ISA_AVX512)) variants[n++] = (struct variant){"avx512", &cpu_lane_ops_avx512};
    else say_once("avx512 natively, this CPU has none");
#endif
#ifdef TALLY_HAVE_SIMDE
    if (cpu_isa_available(CPU_ISA_AVX2)) variants[n++] = (struct variant){"avx512 through SIMDe", &cpu_lane_ops_simde};
#else
    say_once("avx512 through SIMDe, which was not found at build time");
#endif
    return n;
}

/* Random numbers, the seed printed by whoever sets it. */
static uint64_t random_state = 1;

static inline void random_seed(uint64_t seed) {
    print_message("seed %llu\n", (unsigned long long)seed);
    random_state = seed;
}

static inline uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static inline int random_int(int low, int high) { /* both included */
    return low + (int)(random_u32() % (uint32_t)(high - low + 1));
}

static inline float random_float(float low, float high) { return low + (high - low) * ((float)random_u32() * 0x1p-32f); }

/* A sum of four: bell-shaped, standard deviation about 1. */
static inline float random_normal(void) {
    return 1.732f * (random_float(-1, 1) + random_float(-1, 1) + random_float(-1, 1) + random_float(-1, 1)) / 2;
}

static inline void *must_alloc(size_t bytes) {
    void *p = aligned_alloc(64, round_up(bytes + 1, 64));
    assert_non_null(p);
    memset(p, 0xa5, round_up(bytes + 1, 64)); /* never zeros by luck */
    return p;
}

static inline float *random_vector(size_t n) {
    float *x = must_alloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = random_normal();
    return x;
}

struct test_backend {
    struct cpu_backend cpu;
    void *pool_memory;
};

static inline struct test_backend *open_backend(const struct cpu_lane_ops *ops, const struct cpu_backend_options *options) {
    struct test_backend *b = calloc(1, sizeof *b);
    struct err err;
    assert_non_null(b);
    b->pool_memory = must_alloc(threadpool_bytes(options->n_threads));
    b->cpu.pool = threadpool_open(options->n_threads, b->pool_memory, &err);
    assert_non_null(b->cpu.pool);
    b->cpu.n_threads = options->n_threads;
    b->cpu.options = *options;
    b->cpu.attention_workspace_bytes = cpu_attention_workspace_bytes(options);
    b->cpu.attention_workspace = must_alloc(b->cpu.attention_workspace_bytes);
    cpu_install_lane_ops(&b->cpu);
    b->cpu.lane_ops = ops;
    return b;
}

static inline void close_backend(struct test_backend *b) {
    threadpool_close(b->cpu.pool);
    free(b->pool_memory);
    free(b->cpu.attention_workspace);
    free(b);
}
