/* Tokens per second of the whole forward, in process: bench_model MODEL [threads] [runs]
 *
 *   prefill   512 tokens of one sequence in one step, no logits but the last row's
 *   decode    64 steps of 1 sequence from an empty context
 *   decode 8  32 steps of 8 sequences, each after 256 tokens
 *   depth     32 steps of 1 sequence after 2,048 tokens
 *
 * Every decode step computes logits and the best token of each row. One line a run: a script pairs them with a peer's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/model.h"
#include "engine/plan.h"
#include "kernels/cpu/cpu_backend.h"

#define MAX_BATCH 512
#define MAX_SEQS 8
#define CONTEXT 2304

struct bench {
    struct engine_options options;
    struct plan plan;
    struct ledger *ledger;
    struct backend *backend;
    struct model *model;
    struct kv_view kv;
    int32_t blocks[MAX_SEQS][CONTEXT / 16];
    int32_t tokens[MAX_BATCH], logit_rows[MAX_BATCH];
    struct row_stat stats[MAX_BATCH];
    int n_past[MAX_SEQS];
};

static void check(enum status s, const struct err *err) {
    if (s == STATUS_OK) return;
    fprintf(stderr, "bench_model: %s\n", err->text);
    exit(2);
}

static void open_bench(struct bench *b, const char *path, int threads) {
    struct model_source source;
    struct err err = {0};
    struct engine_options o = {.model_path = path,
                               .n_threads = threads,
                               .max_seqs = MAX_SEQS,
                               .max_batch_tokens = MAX_BATCH,
                               .max_context = CONTEXT,
                               .block_tokens = 16,
                               .memory_budget = (size_t)4 << 30};
    check(model_source_open(&source, path, &err), &err);
    check(plan_build(&source, &o, &b->options, &b->plan, &err), &err);
    check(ledger_open(&b->ledger, &b->plan, &err), &err);
    struct cpu_backend_options c = {.n_threads = b->options.n_threads,
                                    .max_tokens = MAX_BATCH,
                                    .max_positions = CONTEXT,
                                    .max_head_dim = source.desc.head_dim,
                                    .max_heads = source.desc.n_heads};
    check(cpu_isa_choose(&c.isa, &err), &err);
    b->backend = cpu_backend_open(&c, ledger_alloc(b->ledger, LINE_BACKEND, cpu_backend_workspace_bytes(&c)), &err);
    struct model_options m = {CONTEXT, MAX_BATCH, plan_logit_rows(&b->options), ACTIVATIONS_INT8};
    check(model_load(&b->model, source.file, &source.desc, &m, b->backend, b->ledger, &err), &err);
    b->kv.layout = (struct kv_layout){source.desc.n_layers, source.desc.n_kv_heads, source.desc.head_dim, 16};
    b->kv.base = ledger_alloc(b->ledger, LINE_KV_POOL, kv_block_bytes(&b->kv.layout) * (size_t)b->plan.n_blocks);
    for (int s = 0, next = 0; s < MAX_SEQS; s++)
        for (int i = 0; i < CONTEXT / 16; i++) b->blocks[s][i] = next++;
    model_source_close(&source);
}

/* One step: n rows for each of n_seqs sequences; logits of each last row if wanted. */
static void step(struct bench *b, int n_seqs, int n, bool logits) {
    struct attn_seq seqs[MAX_SEQS];
    struct batch batch = {
        .n_tokens = n_seqs * n, .n_seqs = n_seqs, .tokens = b->tokens, .seqs = seqs, .logit_rows = b->logit_rows};
    for (int s = 0; s < n_seqs; s++) {
        seqs[s] = (struct attn_seq){s * n, n, b->n_past[s], b->blocks[s]};
        if (logits) b->logit_rows[batch.n_logits++] = (s + 1) * n - 1;
        b->n_past[s] += n;
    }
    model_forward(b->model, &batch, &b->kv);
    if (!logits) return;
    int vocab = model_description(b->model)->vocab;
    const float *rows = model_logits(b->model, 0, n_seqs);
    b->backend->row_stats(b->backend, b->stats, rows, n_seqs, vocab);
    for (int s = 0; s < n_seqs; s++) b->tokens[s] = b->stats[s].argmax;
}

static void fill(struct bench *b, int n_seqs, int n) {
    memset(b->n_past, 0, sizeof b->n_past);
    for (int i = 0; i < MAX_BATCH; i++) b->tokens[i] = (i * 7919 + 13) % model_description(b->model)->vocab;
    int chunk = MAX_BATCH / n_seqs < n ? MAX_BATCH / n_seqs : n;
    for (int done = 0; done < n; done += chunk) step(b, n_seqs, chunk, false);
}

static double decode(struct bench *b, int n_seqs, int depth, int steps) {
    fill(b, n_seqs, depth);
    int64_t start = clock_us();
    for (int i = 0; i < steps; i++) step(b, n_seqs, 1, true);
    return n_seqs * steps * 1e6 / (double)(clock_us() - start);
}

static double prefill(struct bench *b, int n) {
    fill(b, 1, 0);
    int64_t start = clock_us();
    step(b, 1, n, true);
    return n * 1e6 / (double)(clock_us() - start);
}

int main(int argc, char **argv) {
    static struct bench b;
    if (argc < 2) return fprintf(stderr, "usage: bench_model MODEL [threads] [runs]\n"), 2;
    open_bench(&b, argv[1], argc > 2 ? atoi(argv[2]) : 0);
    printf("%s, %d threads\n", b.backend->name, b.options.n_threads);
    prefill(&b, 64); /* warm */
    for (int run = 0; run < (argc > 3 ? atoi(argv[3]) : 3); run++) {
        double p = prefill(&b, 512), d1 = decode(&b, 1, 0, 64), d8 = decode(&b, 8, 256, 32), deep = decode(&b, 1, 2048, 32);
        printf("prefill %.1f decode %.1f decode_of_8 %.1f decode_at_2048 %.1f\n", p, d1, d8, deep);
        fflush(stdout);
    }
    b.backend->close(b.backend);
    ledger_close(b.ledger);
    return 0;
}
