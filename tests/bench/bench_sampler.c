/* Microseconds a drawn token, least of many runs: bench_sampler [vocabulary]
 *
 * Logits are bell-shaped with a standard deviation of 3, about what a model gives; what a decode step costs beside it is bench_model's
 * to tell. The row's maximum and sum (backend row_stats) are made for any kind of sampling and are not counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/checked.h"
#include "engine/base/clock.h"
#include "engine/sampler.h"
#include "kernels/cpu/cpu_backend.h"

#define RUNS 20
#define DRAWS 200
#define ROWS 8

static void *from_heap(void *context, size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static float bell(uint64_t index) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += sampler_uniform(index, i, 0);
    return (float)(3 * (sum - 6));
}

static struct row_stat stat_of(const float *logits, int n) {
    struct row_stat st = {.max = -INFINITY};
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (logits[i] > st.max) st.max = logits[i], st.argmax = i;
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - (double)st.max);
    st.log_sum_exp = st.max + (float)log(sum);
    return st;
}

static double least_us(struct sampler *s, const float *logits, const struct row_stat *stats, const struct sampling *sampling) {
    int64_t least = INT64_MAX;
    for (int run = 0; run < RUNS; run++) {
        int64_t start = clock_us();
        for (int i = 0; i < DRAWS; i++)
            sampler_draw(s, logits + (size_t)(i % ROWS) * (size_t)s->vocab, &stats[i % ROWS], sampling, 0, i);
        int64_t us = clock_us() - start;
        if (us < least) least = us;
    }
    return (double)least / DRAWS;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        struct sampling sampling;
    } cases[] = {
        {"temperature 0", {.temperature = 0, .top_p = 1}},
        {"all of the vocabulary", {.temperature = 1, .top_p = 1}},
        {"top_k 40", {.temperature = 1, .top_p = 1, .top_k = 40}},
        {"top_p 0.9", {.temperature = 1, .top_p = 0.9f}},
        {"min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f}},
        {"top_k 40, top_p 0.9, min_p 0.05", {.temperature = 1, .top_p = 0.9f, .top_k = 40, .min_p = 0.05f}},
    };
    int vocab = argc > 1 ? atoi(argv[1]) : 49152;
    if (vocab < 1 || vocab > 1 << 20) return fprintf(stderr, "bench_sampler: vocabulary: allowed are 1 to %d\n", 1 << 20), 2;
    struct sampler s;
    struct row_stat stats[ROWS];
    float *logits = from_heap(NULL, (size_t)ROWS * (size_t)vocab * sizeof *logits);
    for (int i = 0; i < ROWS * vocab; i++) logits[i] = bell((uint64_t)i);
    for (int i = 0; i < ROWS; i++) stats[i] = stat_of(logits + (size_t)i * (size_t)vocab, vocab);
    struct cpu_backend_options o = {.n_threads = 1, .max_tokens = 1, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    struct err err = {0};
    if (cpu_isa_choose(&o.isa, &err)) return fprintf(stderr, "bench_sampler: %s\n", err.text), 2;
    struct backend *backend = cpu_backend_open(&o, aligned_alloc(64, round_up(cpu_backend_workspace_bytes(&o), 64)), &err);
    if (!backend) return fprintf(stderr, "bench_sampler: %s\n", err.text), 2;
    printf("%s\n", backend->name);
    sampler_init(&s, vocab, backend, (struct memory_source){from_heap, NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        printf("%-32s %8.1f us\n", cases[i].name, least_us(&s, logits, stats, &cases[i].sampling));
    free(logits); /* the sampler's own memory goes with the program */
    return 0;
}
