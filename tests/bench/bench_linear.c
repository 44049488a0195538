/* GMAC/s of linear layers: bench_linear [threads]. Shapes of SmolLM2-135M and one of 4,096 columns; the least time of many runs.
 * TALLY_ISA chooses the instruction set. Weights and activations are random bytes: values don't change the time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu_backend.h"

#define MAX_TOKENS 512
#define BUDGET_NS 300000000 /* of one line */

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *memory(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(p, 0x11, bytes); /* scales are small normal numbers */
    return p;
}

static void line(struct backend *b, enum wfmt fmt, int rows, int cols, int n_tokens, const struct act *x, float *y) {
    struct weight w = {fmt, rows, cols, memory(weight_bytes(fmt, rows, cols))};
    struct linear_job job = {&w, NULL, y, rows, false};
    double least = 1e30, start = now_ns();
    do {
        double t = now_ns();
        b->linear(b, &job, 1, x, n_tokens, false);
        t = now_ns() - t;
        if (t < least) least = t;
    } while (now_ns() - start < BUDGET_NS);
    printf("%-10s %6d × %-6d %4d tokens %10.1f µs %8.1f GMAC/s %7.1f GB/s\n", wfmt_name(fmt), cols, rows, n_tokens, least / 1e3,
           (double)rows * cols * n_tokens / least, (double)weight_bytes(fmt, rows, cols) / least);
    free((void *)(uintptr_t)w.data);
}

int main(int argc, char **argv) {
    static const struct {
        enum wfmt fmt;
        int rows, cols;
    } shapes[] = {
        {WFMT_INT4_G32M, 576, 576}, {WFMT_INT4_G32M, 1536, 576}, {WFMT_INT4_G32M, 576, 1536},
        {WFMT_INT4_G32, 1536, 576}, {WFMT_INT8_G32, 49152, 576}, {WFMT_INT4_G32M, 4096, 4096},
    };
    static const int tokens[] = {1, 2, 4, 8, 32, 512};
    struct err err;
    struct cpu_backend_options o = {.n_threads = argc > 1 ? atoi(argv[1]) : 1,
                                    .max_tokens = MAX_TOKENS,
                                    .max_positions = 16,
                                    .max_head_dim = 64,
                                    .max_heads = 1};
    if (cpu_isa_choose(&o.isa, &err)) return fprintf(stderr, "%s\n", err.text), 2;
    struct backend *b = cpu_backend_open(&o, memory(cpu_backend_workspace_bytes(&o)), &err);
    printf("%s, %d threads\n", b->name, o.n_threads);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int cols = shapes[s].cols;
        size_t n = (size_t)MAX_TOKENS * (size_t)cols, groups = n / 16;
        struct act x = {.n_cols = cols,
                        .f = memory(4 * n),
                        .q = memory(n),
                        .scale = memory(4 * groups),
                        .sum = memory(4 * groups),
                        .zero = memory(4 * groups),
                        .wide = memory(2 * n),
                        .wide_scale = memory(4 * groups),
                        .wide_sum = memory(4 * groups)};
        float *y = memory(4 * (size_t)MAX_TOKENS * (size_t)shapes[s].rows);
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            if (shapes[s].rows < 10000 || tokens[t] <= 32) line(b, shapes[s].fmt, shapes[s].rows, cols, tokens[t], &x, y);
    }
    b->close(b);
    return 0;
}
