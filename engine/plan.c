/* See plan.h. How the lines are priced stands beside what each line is of; this file adds them up and closes the circle between
 * budget, context and pool: the pool is what the budget leaves, and a context longer than the pool is cut to it. */
#include "engine/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/cpus.h"
#include "engine/base/host_memory.h"
#include "engine/block_pool.h"
#include "engine/engine_events.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kernels/cpu/cpu_backend.h"

#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_LINE ((size_t)16 << 20)          /* lines from here on are rounded to huge pages */
#define THREAD_STACK_BYTES ((size_t)64 << 10) /* what a worker's stack really touches */
#define AUTO_KV_TOKENS 16384                  /* of the pool, when no budget is given */
#define MIN_CONTEXT 64                        /* an automatic context is never cut below it */

/* ---- a model file's header ---- */

enum status model_source_open(struct model_source *source, const char *path, struct err *err) {
    memset(source, 0, sizeof *source);
    enum status s = gguf_open(&source->file, path, err);
    if (s) return s;
    if ((s = model_desc_read(source->file, &source->desc, err)) || (s = gguf_vocab(source->file, &source->vocab, err))) {
        model_source_close(source);
        return s;
    }
    if (source->vocab.n_tokens > source->desc.vocab) {
        s = err_set_param(err, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                          "model: tokenizer.ggml.tokens has %d tokens, but the embedding %d rows", source->vocab.n_tokens,
                          source->desc.vocab);
        model_source_close(source);
    }
    return s;
}

void model_source_close(struct model_source *source) {
    vocab_free(&source->vocab);
    gguf_close(source->file);
    source->file = NULL;
}

/* ---- options ---- */

static enum status check_range(const char *name, long long value, long long low, long long high, struct err *err) {
    if (value >= low && value <= high) return STATUS_OK;
    return err_set_param(err, STATUS_INVALID, name, "%s is %lld, allowed are %lld to %lld", name, value, low, high);
}

static enum status resolve_counts(const struct model_desc *d, struct engine_options *o, struct err *err) {
    enum status s;
    int cpus = o->n_threads ? 0 : cpus_usable();
    if (cpus) o->n_threads = cpus < MAX_THREADS ? cpus : MAX_THREADS;
    if (!o->max_batch_tokens) o->max_batch_tokens = o->max_seqs > DEFAULT_BATCH_TOKENS ? o->max_seqs : DEFAULT_BATCH_TOKENS;
    if ((s = check_range("threads", o->n_threads, 1, MAX_THREADS, err))) return s;
    if ((s = check_range("max_seqs", o->max_seqs, 1, 1024, err))) return s;
    if ((s = check_range("max_batch_tokens", o->max_batch_tokens, o->max_seqs, 65536, err))) return s;
    if ((s = check_range("max_queue", o->max_queue, 0, 65536, err))) return s;
    if ((s = check_range("block_tokens", o->block_tokens, 16, 256, err))) return s;
    if (o->block_tokens % KV_TILE_TOKENS != 0)
        return err_set_param(err, STATUS_INVALID, "block_tokens", "block_tokens is %d, allowed are multiples of %d",
                             o->block_tokens, KV_TILE_TOKENS);
    if (o->max_context != 0 && (s = check_range("max_context", o->max_context, 2, d->max_context, err))) return s;
    return STATUS_OK;
}

int plan_logit_rows(const struct engine_options *o) { return o->max_seqs < 32 ? 32 : o->max_seqs; }

/* ---- lines ---- */

static const struct {
    const char *id, *owner;
    bool is_arena;
} line_kinds[LINE_COUNT] = {
    [LINE_WEIGHTS] = {"weights", "engine/model", true},
    [LINE_NORMS] = {"norms_and_tables", "engine/model", true},
    [LINE_ROPE] = {"rope_table", "engine/model", true},
    [LINE_TOKENIZER] = {"tokenizer", "engine/tokenizer", true},
    [LINE_KV_POOL] = {"kv_pool", "engine/block_pool", true},
    [LINE_KV_TABLES] = {"kv_tables", "engine/block_pool", true},
    [LINE_ACTIVATIONS] = {"activations", "engine/model", true},
    [LINE_BACKEND] = {"backend_workspace", "kernels", true},
    [LINE_LOGITS] = {"logits_and_sampling", "engine/sampler", true},
    [LINE_SEQUENCES] = {"sequences_and_queue", "engine/scheduler", true},
    [LINE_EVENTS] = {"events", "engine/engine", true},
    [LINE_REQUESTS] = {"request_slots", "server/stream", true},
    [LINE_HTTP] = {"http_connections", "server/http", false},
    [LINE_THREADS] = {"thread_stacks", "kernels", false},
};

static size_t granted_of(size_t bytes) { return round_up(bytes, bytes >= HUGE_LINE ? HUGE_PAGE : PAGE); }

static void set_line(struct plan *p, enum ledger_line_id id, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void set_line(struct plan *p, enum ledger_line_id id, size_t bytes, const char *format, ...) {
    struct ledger_line *line = &p->lines[id];
    *line = (struct ledger_line){.id = line_kinds[id].id,
                                 .owner = line_kinds[id].owner,
                                 .device = "host",
                                 .lifetime = LIFETIME_SERVE,
                                 .is_arena = line_kinds[id].is_arena,
                                 .bytes = bytes,
                                 .granted = granted_of(bytes)};
    va_list args;
    va_start(args, format);
    vsnprintf(line->formula, sizeof line->formula, format, args);
    va_end(args);
}

struct cpu_backend_options plan_backend_options(const struct engine_options *o, const struct model_desc *d) {
    return (struct cpu_backend_options){.n_threads = o->n_threads,
                                        .max_tokens = o->max_batch_tokens,
                                        .max_positions = o->max_context,
                                        .max_head_dim = d->head_dim,
                                        .max_heads = d->n_heads};
}

/* Lines that grow with the context. */
static void set_context_lines(struct plan *p, const struct model_desc *d, const struct engine_options *o) {
    struct cpu_backend_options backend = plan_backend_options(o, d);
    set_line(p, LINE_ROPE, model_rope_bytes(d, o->max_context), "%d positions × %d values × 4 bytes", o->max_context, d->n_rot);
    set_line(p, LINE_BACKEND, cpu_backend_workspace_bytes(&backend), "attention partials and scratch of %d threads",
             o->n_threads);
    set_line(p, LINE_SEQUENCES, sequence_store_bytes(o) + scheduler_bytes(o),
             "%d sequences and %d waiting requests of up to %d tokens", o->max_seqs, o->max_queue, o->max_context);
}

/* Every line but the pool and its tables, for a context. */
static void set_fixed_lines(struct plan *p, const struct model_source *source, const struct engine_options *o) {
    const struct model_desc *d = &source->desc;
    int rows = plan_logit_rows(o);
    set_line(p, LINE_WEIGHTS, model_weight_bytes(source->file, d), "packed matrices of %lld parameters",
             (long long)d->n_params);
    set_line(p, LINE_NORMS, model_norm_bytes(source->file, d), "norms, biases and the tables of %d layers", d->n_layers);
    set_context_lines(p, d, o);
    set_line(p, LINE_TOKENIZER, tokenizer_bytes(&source->vocab), "%d tokens, %d merges", source->vocab.n_tokens,
             source->vocab.n_merges);
    set_line(p, LINE_ACTIVATIONS, model_activation_bytes(d, o->max_batch_tokens),
             "%d batch tokens × (%d wide, %d heads × %d, %d feed-forward)", o->max_batch_tokens, d->hidden,
             d->n_heads + 2 * d->n_kv_heads, d->head_dim, d->ffn);
    set_line(p, LINE_LOGITS, model_logit_bytes(d, rows) + sampler_bytes(d->vocab, rows),
             "%d rows × %d logits × 4 bytes, and sampling", rows, d->vocab);
    set_line(p, LINE_EVENTS, engine_event_bytes(o), "ring for %d sequences and %d batch tokens", o->max_seqs,
             o->max_batch_tokens);
    set_line(p, LINE_REQUESTS, o->request_bytes, "request slots of the server");
    set_line(p, LINE_HTTP, o->http_bytes, "connection pools of the HTTP library");
    set_line(p, LINE_THREADS, (size_t)o->n_threads * THREAD_STACK_BYTES, "%d stacks × %zu bytes touched", o->n_threads,
             THREAD_STACK_BYTES);
}

static int64_t blocks_for(int64_t tokens, const struct engine_options *o) {
    return (tokens + o->block_tokens - 1) / o->block_tokens;
}

static void set_pool_lines(struct plan *p, const struct model_desc *d, const struct engine_options *o, int32_t n_blocks) {
    struct kv_layout layout = {d->n_layers, d->n_kv_heads, d->head_dim, o->block_tokens};
    size_t block = kv_block_bytes(&layout);
    p->n_blocks = n_blocks;
    p->kv_tokens = (int64_t)n_blocks * o->block_tokens;
    p->kv_bytes_per_token = block / (size_t)o->block_tokens;
    set_line(p, LINE_KV_POOL, block * (size_t)n_blocks, "%d blocks × %d tokens × %zu bytes (%d layers × 2 × %d heads × %d × 2)",
             n_blocks, o->block_tokens, p->kv_bytes_per_token, d->n_layers, d->n_kv_heads, d->head_dim);
    set_line(p, LINE_KV_TABLES, round_up(block_pool_bytes(n_blocks), 64) + block_table_bytes(o),
             "%d blocks' links, %d block tables", n_blocks, o->max_seqs);
    p->total = 0;
    for (int i = 0; i < LINE_COUNT; i++) p->total += p->lines[i].granted;
    p->peak = p->total; /* the model's file is a mapping: its pages are the page cache's */
}

/* ---- the budget ---- */

/* The most blocks of any use with which the plan stays within `budget`; 0 when not even one does. Lines other than the pool's are
 * set. Lines round up to pages, so this is a search: their sum grows with the blocks, but not evenly. */
static int32_t blocks_within(struct plan *p, const struct model_desc *d, const struct engine_options *o, size_t budget) {
    struct kv_layout layout = {d->n_layers, d->n_kv_heads, d->head_dim, o->block_tokens};
    int64_t low = 0, high = (int64_t)o->max_seqs * blocks_for(o->max_context, o);
    if ((uint64_t)high > budget / kv_block_bytes(&layout))
        high = (int64_t)(budget / kv_block_bytes(&layout)); /* and no product overflows */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        set_pool_lines(p, d, o, (int32_t)middle);
        if (p->total <= budget) low = middle;
        else high = middle - 1;
    }
    return (int32_t)low;
}

/* Bytes that these options need with a pool of `tokens`. */
static size_t price(const struct model_source *source, struct engine_options o, int64_t tokens) {
    struct plan p;
    set_fixed_lines(&p, source, &o);
    set_pool_lines(&p, &source->desc, &o, (int32_t)blocks_for(tokens, &o));
    return p.total;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* The refusal that helps: what these options need, and the nearest smaller ones with their price. */
static enum status refuse(const struct model_source *source, const struct engine_options *o, size_t budget, struct err *err) {
    struct engine_options small = *o;
    small.max_seqs = 1;
    small.max_batch_tokens = o->max_batch_tokens < 32 ? o->max_batch_tokens : 32;
    small.max_queue = o->max_queue < 8 ? o->max_queue : 8;
    small.max_context = o->max_context < 512 ? o->max_context : 512;
    size_t needed = price(source, *o, o->max_context), least = price(source, small, small.max_context);
    return err_set_param(
        err, STATUS_NO_MEMORY, "memory_budget",
        "memory budget: %.1f MiB do not hold this model with max_context %d, max_seqs %d, max_batch_tokens %d, which need "
        "%.1f MiB (weights %.1f MiB); %s: max_context %d, max_seqs %d, max_batch_tokens %d, max_queue %d, which need %.1f MiB",
        mib(budget), o->max_context, o->max_seqs, o->max_batch_tokens, mib(needed),
        mib(model_weight_bytes(source->file, &source->desc)),
        least <= budget ? "what would fit" : "nor would the smallest useful settings fit", small.max_context, small.max_seqs,
        small.max_batch_tokens, small.max_queue, mib(least));
}

static size_t automatic_budget(const struct model_source *source, const struct engine_options *o) {
    int64_t tokens = (int64_t)o->max_seqs * o->max_context;
    if (tokens > AUTO_KV_TOKENS) tokens = o->max_context > AUTO_KV_TOKENS ? o->max_context : AUTO_KV_TOKENS;
    size_t wanted = price(source, *o, tokens), available = host_memory_available();
    size_t limit = available == SIZE_MAX ? SIZE_MAX : available / 10 * 8;
    return wanted < limit ? wanted : limit;
}

/* The longest context up to the model's of which the budget holds one, in o and the plan's lines; 0 when it is too short to be of
 * use. What grows with the context grows in steps, so this is a search too. */
static int longest_context(struct plan *p, const struct model_desc *d, struct engine_options *o, size_t budget) {
    int low = 0, high = o->max_context, least = high < MIN_CONTEXT ? high : MIN_CONTEXT;
    while (low < high) {
        o->max_context = low + (high - low + 1) / 2;
        set_context_lines(p, d, o);
        set_pool_lines(p, d, o, (int32_t)blocks_for(o->max_context, o));
        if (p->total <= budget) low = o->max_context;
        else high = o->max_context - 1;
    }
    o->max_context = low;
    set_context_lines(p, d, o);
    return low >= least ? low : 0;
}

enum status plan_build(const struct model_source *source, const struct engine_options *options, struct engine_options *resolved,
                       struct plan *plan, struct err *err) {
    *resolved = *options;
    memset(plan, 0, sizeof *plan);
    const struct model_desc *d = &source->desc;
    enum status s = resolve_counts(d, resolved, err);
    if (s) return s;
    bool is_context_given = options->max_context != 0;
    if (!is_context_given) resolved->max_context = d->max_context;
    size_t budget = options->memory_budget ? options->memory_budget : automatic_budget(source, resolved);
    struct engine_options asked = *resolved;
    set_fixed_lines(plan, source, resolved);
    bool fits = is_context_given || longest_context(plan, d, resolved, budget) > 0;
    int32_t blocks = fits ? blocks_within(plan, d, resolved, budget) : 0;
    if (blocks < blocks_for(resolved->max_context, resolved)) blocks = 0;
    if (blocks == 0) return refuse(source, &asked, budget, err);
    set_pool_lines(plan, d, resolved, blocks);
    resolved->memory_budget = plan->budget = budget;
    return STATUS_OK;
}

enum status engine_plan(const struct engine_options *options, struct engine_options *resolved, struct plan *plan,
                        struct err *err) {
    struct model_source source;
    enum status s = model_source_open(&source, options->model_path, err);
    if (s) return s;
    s = plan_build(&source, options, resolved, plan, err);
    model_source_close(&source);
    return s;
}
