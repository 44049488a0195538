/* Time of one layer's attention, and of the operations around it: bench_attention [threads [heads kv_heads head_dim]]
 *
 * Prints the least of many runs, in microseconds a layer, for every instruction set that this CPU has but plain C. Each run reads
 * another layer of a cache of 30, as a forward pass does, so that the cache comes from memory when it is large. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/checked.h"
#include "kernels/cpu/lane_ops.h"

enum { LAYERS = 30, MAX_POSITIONS = 8192 + 512, CHUNK = 512 };

/* One thread is timed by the processor time it used, so that others on the machine count less. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static double now_us(void) {
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void *zeroed(size_t bytes) {
    void *p = aligned_alloc(64, round_up(bytes, 64));
    if (!p) abort();
    return memset(p, 0, round_up(bytes, 64));
}

struct bench {
    struct cpu_backend cpu;
    struct attention_shape shape;
    struct kv_view kv;
    int32_t *blocks;
    float *q, *out;
};

static void open_bench(struct bench *b, int n_threads, int n_heads, int n_kv_heads, int head_dim) {
    struct err err;
    int n_blocks = MAX_POSITIONS / 16;
    b->shape = (struct attention_shape){n_heads, n_kv_heads, head_dim, 0.125f};
    b->kv.layout = (struct kv_layout){LAYERS, n_kv_heads, head_dim, 16};
    b->kv.base = zeroed((size_t)n_blocks * kv_block_bytes(&b->kv.layout));
    uint16_t *cache = b->kv.base;
    for (size_t i = 0; i < (size_t)n_blocks * kv_block_bytes(&b->kv.layout) / 2; i++) cache[i] = (uint16_t)(0x2c00 + i % 977);
    b->blocks = zeroed((size_t)n_blocks * sizeof(int32_t));
    for (int i = 0; i < n_blocks; i++) b->blocks[i] = (int32_t)((i * 211) % n_blocks);
    size_t n = (size_t)CHUNK * (size_t)(n_heads * head_dim);
    b->q = zeroed(n * sizeof(float));
    b->out = zeroed(n * sizeof(float));
    for (size_t i = 0; i < n; i++) b->q[i] = (float)(i % 17) * 0.03f;
    b->cpu.n_threads = n_threads;
    b->cpu.options = (struct cpu_backend_options){.n_threads = n_threads,
                                                  .max_tokens = CHUNK,
                                                  .max_positions = MAX_POSITIONS,
                                                  .max_head_dim = head_dim,
                                                  .max_heads = n_heads};
    b->cpu.pool = threadpool_open(n_threads, zeroed(threadpool_bytes(n_threads)), &err);
    b->cpu.attention_workspace = zeroed(cpu_attention_workspace_bytes(&b->cpu.options));
}

/* Least time of a layer for sequences of n_rows tokens each after `depth`. */
static double attention_us(struct bench *b, int n_seqs, int n_rows, int depth) {
    struct attn_seq seqs[64];
    double best = 1e30, end = now_us() + 1.5e6;
    for (int s = 0; s < n_seqs; s++) seqs[s] = (struct attn_seq){s * n_rows, n_rows, depth, b->blocks};
    for (int pass = 0; pass < 3 || now_us() < end; pass++) {
        for (int layer = 0; layer < LAYERS; layer++) {
            double start = now_us();
            b->cpu.ops.attention(&b->cpu.ops, b->out, b->q, b->shape.n_heads * b->shape.head_dim, &b->shape, &b->kv, layer,
                                 seqs, n_seqs);
            double us = now_us() - start;
            if (us < best) best = us;
        }
    }
    return best;
}

static void report(const struct bench *b, const char *what, double us, double query_keys) {
    double macs = query_keys * 2 * b->shape.n_heads * b->shape.head_dim;
    printf("  %-24s %10.1f us a layer  %6.1f GMAC/s\n", what, us, macs / us * 1e-3);
}

static void bench_attention(struct bench *b) {
    static const int depths[] = {128, 512, 2048, 8192};
    char what[64];
    for (int i = 0; i < 4; i++) {
        snprintf(what, sizeof what, "decode at %d", depths[i]);
        report(b, what, attention_us(b, 1, 1, depths[i]), depths[i] + 1);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(what, sizeof what, "decode of 8 at %d", depths[i]);
        report(b, what, attention_us(b, 8, 1, depths[i]), 8.0 * (depths[i] + 1));
    }
    for (int depth = 0; depth <= 2048; depth += 2048) {
        snprintf(what, sizeof what, "prefill of %d at %d", CHUNK, depth);
        report(b, what, attention_us(b, 1, CHUNK, depth), CHUNK * (depth + (CHUNK + 1) / 2.0));
    }
}

#define LEAST_US(best, call)                                                                                                   \
    for (int pass_ = 0; pass_ < 400; pass_++) {                                                                                \
        double start_ = now_us();                                                                                              \
        call;                                                                                                                  \
        double us_ = now_us() - start_;                                                                                        \
        if (pass_ == 0 || us_ < (best)) (best) = us_;                                                                          \
    }

/* What stands around the matrices of a layer, in the demo model's shape. */
static void bench_around(struct bench *b, int n_tokens) {
    enum { HIDDEN = 576, FFN = 1536, VOCAB = 49152 };
    struct backend *ops = &b->cpu.ops;
    size_t n = (size_t)n_tokens * FFN;
    struct act a = {HIDDEN, zeroed(n * 4), zeroed(n), zeroed(n / 8), zeroed(n / 8), zeroed(n / 8)};
    float *x = zeroed(n * 4), *w = zeroed(FFN * 4), *table = zeroed(MAX_POSITIONS * 64 * 4), *logits = zeroed(VOCAB * 4);
    struct rope_table rope = {ROPE_HALVES, b->shape.head_dim < 64 ? b->shape.head_dim : 64, table};
    struct attn_seq seq = {0, n_tokens, 0, b->blocks};
    int q_stride = b->shape.n_heads * b->shape.head_dim;
    struct row_stat stat;
    double norm = 0, gated = 0, append = 0, stats = 0;
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 31) * 0.1f - 1;
    LEAST_US(norm, ops->rms_norm(ops, &a, ACT_INT8, x, w, 1e-5f, n_tokens))
    a.n_cols = FFN;
    LEAST_US(gated, ops->gated(ops, &a, ACT_INT8, GATE_SILU, x, x, n_tokens))
    if (b->shape.n_kv_heads * b->shape.head_dim <= FFN)
        LEAST_US(append, ops->rope_append(ops, b->q, q_stride, x, x, FFN, &rope, &b->shape, &b->kv, 0, &seq, 1))
    LEAST_US(stats, ops->row_stats(ops, &stat, logits, 1, VOCAB))
    printf("  %3d tokens: rms_norm %.2f us, gated %.2f us, rope_append %.2f us; row_stats of one row %.1f us\n", n_tokens, norm,
           gated, append, stats);
    free(a.f), free(a.q), free(a.scale), free(a.sum), free(a.zero), free(x), free(w), free(table), free(logits);
}

int main(int argc, char **argv) {
    struct bench b = {0};
    int n_threads = argc > 1 ? atoi(argv[1]) : 2;
    int n_heads = argc > 4 ? atoi(argv[2]) : 9, n_kv_heads = argc > 4 ? atoi(argv[3]) : 3,
        head_dim = argc > 4 ? atoi(argv[4]) : 64;
    if (n_threads < 1 || n_kv_heads < 1 || n_heads < n_kv_heads || head_dim < 16) return 2;
    if (n_threads == 1) bench_clock = CLOCK_THREAD_CPUTIME_ID;
    open_bench(&b, n_threads, n_heads, n_kv_heads, head_dim);
    for (int isa = CPU_ISA_AVX2; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_available((enum cpu_isa)isa)) continue;
        b.cpu.isa = (enum cpu_isa)isa;
        cpu_install_lane_ops(&b.cpu);
        printf("%s, %d threads, %d heads, %d kv heads, head_dim %d\n", cpu_isa_name(b.cpu.isa), n_threads, n_heads, n_kv_heads,
               head_dim);
        bench_attention(&b);
        bench_around(&b, 1);
        bench_around(&b, CHUNK);
    }
    threadpool_close(b.cpu.pool);
    return 0;
}
