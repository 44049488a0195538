#include "engine/evaluator.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "engine/plan.h"
#include "kernels/cpu/cpu_backend.h"

#define EVAL_BATCH_TOKENS 256

struct evaluator {
    struct engine_options options; /* resolved */
    struct plan plan;
    struct ledger *ledger;
    struct backend *backend;
    struct model *model;
    struct tokenizer *tokenizer;
    struct kv_view kv;
    int32_t *blocks;     /* block i of the sequence is block i of the pool */
    int32_t *logit_rows; /* [EVAL_BATCH_TOKENS] */
    struct row_stat *stats;
    int n_tokens; /* in the sequence so far */
};

static enum status open_backend(struct evaluator *e, const struct model_desc *d, struct err *err) {
    struct cpu_backend_options o = plan_backend_options(&e->options, d);
    enum status s = cpu_isa_choose(&o.isa, err);
    if (s) return s;
    e->backend = cpu_backend_open(&o, ledger_alloc(e->ledger, LINE_BACKEND, cpu_backend_workspace_bytes(&o)), err);
    return e->backend ? STATUS_OK : STATUS_NO_MEMORY;
}

static void open_cache(struct evaluator *e, const struct model_desc *d) {
    e->kv.layout = (struct kv_layout){d->n_layers, d->n_kv_heads, d->head_dim, e->options.block_tokens};
    e->kv.base = ledger_alloc(e->ledger, LINE_KV_POOL, kv_block_bytes(&e->kv.layout) * (size_t)e->plan.n_blocks);
    e->blocks = calloc((size_t)e->plan.n_blocks, sizeof *e->blocks);
    e->logit_rows = calloc(EVAL_BATCH_TOKENS, sizeof *e->logit_rows);
    e->stats = calloc(EVAL_BATCH_TOKENS, sizeof *e->stats);
    if (!e->blocks || !e->logit_rows || !e->stats) BUG("evaluator: out of memory");
    for (int32_t i = 0; i < e->plan.n_blocks; i++) e->blocks[i] = i;
}

static enum status open_all(struct evaluator *e, struct model_source *source, const struct engine_options *options,
                            struct err *err) {
    struct engine_options wanted = *options;
    wanted.max_seqs = 1;
    wanted.max_batch_tokens = EVAL_BATCH_TOKENS;
    wanted.max_queue = 0;
    wanted.block_tokens = 16;
    enum status s = plan_build(source, &wanted, &e->options, &e->plan, err);
    if (s) return s;
    if ((s = ledger_open(&e->ledger, &e->plan, err))) return s;
    e->tokenizer = tokenizer_create(&source->vocab, ledger_source(e->ledger, LINE_TOKENIZER), err);
    if (!e->tokenizer) return err && err->status ? err->status : STATUS_CORRUPT;
    if ((s = open_backend(e, &source->desc, err))) return s;
    struct model_options m = {e->options.max_context, EVAL_BATCH_TOKENS, plan_logit_rows(&e->options),
                              options->activations_f32 ? ACTIVATIONS_F32 : ACTIVATIONS_INT8};
    if ((s = model_load(&e->model, source->file, &source->desc, &m, e->backend, e->ledger, err))) return s;
    open_cache(e, &source->desc);
    return STATUS_OK;
}

enum status evaluator_open(struct evaluator **out, const struct engine_options *options, struct err *err) {
    struct model_source source;
    enum status s = model_source_open(&source, options->model_path, err);
    if (s) return s;
    struct evaluator *e = calloc(1, sizeof *e);
    if (!e) BUG("evaluator: out of memory");
    s = open_all(e, &source, options, err);
    model_source_close(&source);
    if (s) {
        evaluator_close(e);
        return s;
    }
    *out = e;
    return STATUS_OK;
}

void evaluator_close(struct evaluator *e) {
    if (!e) return;
    if (e->model) model_close(e->model);
    if (e->backend) e->backend->close(e->backend);
    if (e->tokenizer) tokenizer_destroy(e->tokenizer);
    ledger_close(e->ledger);
    free(e->blocks);
    free(e->logit_rows);
    free(e->stats);
    free(e);
}

void evaluator_reset(struct evaluator *e) { e->n_tokens = 0; }

/* Logits of the batch's wanted rows, a chunk at a time. */
static void report_rows(struct evaluator *e, int n_wanted, int first_position, evaluator_row row, void *context) {
    int chunk = plan_logit_rows(&e->options), vocab = evaluator_vocab(e);
    for (int first = 0; first < n_wanted; first += chunk) {
        int n = n_wanted - first < chunk ? n_wanted - first : chunk;
        const float *logits = model_logits(e->model, first, n);
        e->backend->row_stats(e->backend, e->stats, logits, n, vocab);
        for (int i = 0; i < n; i++)
            row(context, first_position + e->logit_rows[first + i], logits + (size_t)i * (size_t)vocab,
                e->stats[i].log_sum_exp);
    }
}

static void forward_chunk(struct evaluator *e, int32_t *ids, int n, bool all_rows, bool is_last, evaluator_row row,
                          void *context) {
    struct attn_seq seq = {0, n, e->n_tokens, e->blocks};
    struct batch batch = {.n_tokens = n, .n_seqs = 1, .tokens = ids, .seqs = &seq, .logit_rows = e->logit_rows};
    if (row && all_rows)
        for (; batch.n_logits < n; batch.n_logits++) e->logit_rows[batch.n_logits] = batch.n_logits;
    else if (row && is_last) e->logit_rows[batch.n_logits++] = n - 1;
    model_forward(e->model, &batch, &e->kv);
    if (batch.n_logits) report_rows(e, batch.n_logits, e->n_tokens, row, context);
    e->n_tokens += n;
}

enum status evaluator_append(struct evaluator *e, const int32_t *ids, int n, bool all_rows, evaluator_row row, void *context,
                             struct err *err) {
    if (n > e->options.max_context - e->n_tokens)
        return err_set(err, STATUS_TOO_LARGE, "evaluate: %d tokens, the context holds %d", e->n_tokens + n,
                       e->options.max_context);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= evaluator_vocab(e))
            return err_set(err, STATUS_INVALID, "evaluate: id %d at %d, allowed are 0 to %d", ids[i], i,
                           evaluator_vocab(e) - 1);
    int32_t chunk[EVAL_BATCH_TOKENS];
    for (int first = 0; first < n; first += EVAL_BATCH_TOKENS) {
        int m = n - first < EVAL_BATCH_TOKENS ? n - first : EVAL_BATCH_TOKENS;
        memcpy(chunk, ids + first, (size_t)m * sizeof *chunk);
        forward_chunk(e, chunk, m, all_rows, first + m == n, row, context);
    }
    return STATUS_OK;
}

int evaluator_vocab(const struct evaluator *e) { return model_description(e->model)->vocab; }

int evaluator_max_context(const struct evaluator *e) { return e->options.max_context; }

const struct tokenizer *evaluator_tokenizer(const struct evaluator *e) { return e->tokenizer; }

const char *evaluator_backend_name(const struct evaluator *e) { return e->backend->name; }

const struct plan *evaluator_plan(const struct evaluator *e) { return &e->plan; }
