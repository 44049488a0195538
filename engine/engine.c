/* The engine's life: opened from a plan, started, stepped, closed. See engine.h for the contract and engine_internal.h for the threads. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/engine_internal.h"
#include "kernels/cpu/cpu_backend.h"

#define STUCK_US 10000000     /* work waits and nothing was scheduled for so long */
#define LONG_STEP_US 60000000 /* or one step runs for so long */

/* ---- open ---- */

/* "dir/SmolLM2-135M-Instruct.Q4_1.gguf" → "SmolLM2-135M-Instruct.Q4_1" */
static void name_model(char *out, size_t size, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) n -= 5;
    if (n > size - 1) n = size - 1;
    memcpy(out, name, n);
    out[n] = 0;
}

static enum status open_backend(struct engine *e, const struct model_desc *d, struct err *err) {
    struct cpu_backend_options o = plan_backend_options(&e->options, d);
    enum status s = cpu_isa_choose(&o.isa, err);
    if (s) return s;
    e->backend = cpu_backend_open(&o, ledger_alloc(e->ledger, LINE_BACKEND, cpu_backend_workspace_bytes(&o)), err);
    return e->backend ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status open_model(struct engine *e, const struct model_source *source, struct err *err) {
    struct model_options o = {e->options.max_context, e->options.max_batch_tokens, plan_logit_rows(&e->options),
                              e->options.activations_f32 ? ACTIVATIONS_F32 : ACTIVATIONS_INT8};
    return model_load(&e->model, source->file, &source->desc, &o, e->backend, e->ledger, err);
}

static void open_pool(struct engine *e, const struct model_desc *d) {
    e->kv.layout = (struct kv_layout){d->n_layers, d->n_kv_heads, d->head_dim, e->options.block_tokens};
    e->kv.base = ledger_alloc(e->ledger, LINE_KV_POOL, kv_block_bytes(&e->kv.layout) * (size_t)e->plan.n_blocks);
    block_pool_init(&e->pool, ledger_alloc(e->ledger, LINE_KV_TABLES, block_pool_bytes(e->plan.n_blocks)), e->plan.n_blocks);
}

static enum status open_parts(struct engine *e, const struct model_source *source, struct err *err) {
    enum status s = ledger_open(&e->ledger, &e->plan, err);
    if (s) return s;
    e->tokenizer = tokenizer_create(&source->vocab, ledger_source(e->ledger, LINE_TOKENIZER), err);
    if (!e->tokenizer) return err && err->status ? err->status : STATUS_CORRUPT;
    if ((s = open_backend(e, &source->desc, err)) || (s = open_model(e, source, err))) return s;
    open_pool(e, &source->desc);
    sequence_store_init(&e->store, &e->options, e->ledger);
    scheduler_init(&e->scheduler, &e->batch, &e->store, &e->pool, &e->options, e->ledger);
    sampler_init(&e->sampler, source->desc.vocab, e->backend, ledger_source(e->ledger, LINE_LOGITS));
    e->row_stats = ledger_alloc(e->ledger, LINE_LOGITS, (size_t)plan_logit_rows(&e->options) * sizeof *e->row_stats);
    if ((s = engine_events_init(&e->events, &e->options, e->ledger, err))) return s;
    engine_inbox_init(e);
    return STATUS_OK;
}

enum status engine_open(struct engine **out, const struct engine_options *options, struct err *err) {
    struct model_source source;
    enum status s = model_source_open(&source, options->model_path, err);
    if (s) return s;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) BUG("engine: no memory for its own struct");
    pthread_mutex_init(&e->stats_lock, NULL);
    name_model(e->model_name, sizeof e->model_name, options->model_path);
    s = plan_build(&source, options, &e->options, &e->plan, err);
    if (!s) s = open_parts(e, &source, err);
    model_source_close(&source);
    e->options.model_path = options->model_path;
    if (s) {
        engine_close(e);
        return s;
    }
    *out = e;
    return STATUS_OK;
}

/* ---- run ---- */

static enum admission_limit waiting_reason(const struct engine *e) {
    return e->scheduler.limit == ADMISSION_OPEN ? LIMIT_TOKENS : e->scheduler.limit;
}

/* Who holds blocks while there is nothing to do? A pool that loses some still serves, so it is said and not died of. */
static void note_leak(struct engine *e) {
    int leaked = e->pool.n_blocks - e->pool.n_free;
    if (scheduler_has_work(&e->scheduler) || leaked == e->stats.blocks_leaked) return;
    e->stats.blocks_leaked = leaked;
    log_event(LOG_ERROR, "kv_blocks_leaked", "leaked=%d blocks_total=%d", leaked, e->pool.n_blocks);
}

static void publish_stats(struct engine *e) {
    struct engine_stats *s = &e->stats;
    const struct scheduler *c = &e->scheduler;
    int waiting = c->n_queued + c->n_preempted;
    enum admission_limit reason = waiting_reason(e);
    s->running = c->n_running;
    s->waiting_capacity = reason == LIMIT_BLOCKS ? waiting : 0;
    s->waiting_seqs = reason == LIMIT_SEQUENCES ? waiting : 0;
    s->waiting_tokens = reason == LIMIT_TOKENS ? waiting : 0;
    s->blocks_total = e->pool.n_blocks;
    s->blocks_free = e->pool.n_free;
    s->blocks_used = e->pool.n_blocks - e->pool.n_free;
    s->preemptions = c->preemptions;
    s->recomputed_tokens = c->recomputed_tokens;
    pthread_mutex_lock(&e->stats_lock);
    e->shared = *s;
    pthread_mutex_unlock(&e->stats_lock);
}

/* Rule 4 of the scheduler was broken: say so once, with the state, and let /health turn red rather than end everyone's requests. */
static void note_stuck(struct engine *e, bool is_stuck) {
    if (!is_stuck) {
        atomic_store(&e->stuck_since_us, 0);
        return;
    }
    if (atomic_load(&e->stuck_since_us)) return;
    const struct scheduler *c = &e->scheduler;
    atomic_store(&e->stuck_since_us, clock_us());
    log_event(LOG_ERROR, "scheduler_stuck",
              "running=%d preempted=%d queued=%d blocks_free=%d blocks_total=%d reserve=%d limit=%d", c->n_running,
              c->n_preempted, c->n_queued, e->pool.n_free, e->pool.n_blocks, c->reserve, (int)c->limit);
}

static void cancel_everything(struct engine *e) {
    pthread_mutex_lock(&e->inbox.lock);
    for (int32_t i = 0; i < e->store.n_requests; i++)
        atomic_store(&e->store.requests[i].cancel_mask, e->store.requests[i].id ? UINT32_MAX : 0);
    pthread_mutex_unlock(&e->inbox.lock);
    atomic_store(&e->inbox.has_cancels, true);
    engine_obey_cancels(e);
    engine_events_signal(&e->events);
}

static void *engine_main(void *arg) {
    struct engine *e = arg;
    pthread_setname_np(pthread_self(), "tally-engine");
    publish_stats(e);
    bool is_idle = true;
    while (engine_inbox_receive(e, is_idle)) {
        engine_obey_cancels(e);
        bool has_work = scheduler_has_work(&e->scheduler), has_stepped = has_work && engine_step(e);
        note_stuck(e, has_work && !has_stepped);
        note_leak(e);
        is_idle = !has_stepped;
        publish_stats(e);
        engine_events_signal(&e->events);
    }
    cancel_everything(e);
    publish_stats(e);
    return NULL;
}

enum status engine_start(struct engine *e, struct err *err) {
    int error = pthread_create(&e->thread, NULL, engine_main, e);
    if (error) return err_set(err, STATUS_NO_MEMORY, "engine: starting its thread: %s", strerror(error));
    e->is_started = true;
    return STATUS_OK;
}

static void stop_thread(struct engine *e) {
    if (!e->is_started) return;
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.is_draining = e->inbox.is_stopping = true;
    pthread_cond_signal(&e->inbox.has_mail);
    pthread_mutex_unlock(&e->inbox.lock);
    engine_events_close(&e->events);
    pthread_join(e->thread, NULL);
}

void engine_close(struct engine *e) {
    if (!e) return;
    stop_thread(e);
    if (e->events.ring) engine_inbox_deinit(e); /* initialised right after it */
    engine_events_deinit(&e->events);
    if (e->model) model_close(e->model);
    if (e->backend) e->backend->close(e->backend);
    if (e->tokenizer) tokenizer_destroy(e->tokenizer);
    ledger_close(e->ledger);
    pthread_mutex_destroy(&e->stats_lock);
    free(e);
}

/* ---- reading ---- */

int engine_poll(struct engine *e, struct engine_event *events, int max) { return engine_events_poll(&e->events, events, max); }

int engine_event_fd(const struct engine *e) { return e->events.fd; }

void engine_stats_read(const struct engine *e, struct engine_stats *stats) {
    struct engine *mutable = (struct engine *)(uintptr_t)e; /* the lock is not part of what the caller sees */
    pthread_mutex_lock(&mutable->stats_lock);
    *stats = e->shared;
    pthread_mutex_unlock(&mutable->stats_lock);
    int64_t start = atomic_load(&mutable->step_start_us);
    stats->oldest_step_start_us = start;
    int64_t now = clock_us(), stuck_since = atomic_load(&mutable->stuck_since_us);
    stats->stuck = (start && now - start > LONG_STEP_US) || (stuck_since && now - stuck_since > STUCK_US);
}

const struct engine_options *engine_resolved(const struct engine *e) { return &e->options; }

const struct tokenizer *engine_tokenizer(const struct engine *e) { return e->tokenizer; }

struct ledger *engine_ledger(const struct engine *e) {
    return e->ledger;
}

const char *engine_model_name(const struct engine *e) { return e->model_name; }

const char *engine_backend_name(const struct engine *e) { return e->backend->name; }

int engine_vocab(const struct engine *e) { return model_description(e->model)->vocab; }
