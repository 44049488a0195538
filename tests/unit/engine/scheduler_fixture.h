/* A scheduler over small arenas and a stand-in for the model, for unit and property tests.
 *
 * The stand-in keeps a shadow of the KV cache: for every slot of every block the hash of the token written there and all before it.
 * A step first checks that whatever it would attend to is what that sequence wrote (or shares), then writes its own rows; the next
 * token of a sequence is a function of that hash. So a block given to two, reused too early, shared wrongly or computed twice in
 * another way shows up as a wrong hash, and a sequence's tokens can be compared with those of a solo run. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ledger.h"
#include "engine/scheduler.h"

struct world {
    struct engine_options options;
    struct ledger *ledger;
    struct sequence_store store;
    struct block_pool pool;
    struct scheduler scheduler;
    struct batch batch;
    uint64_t *shadow;    /* [n_blocks, block_tokens] */
    int32_t *seen;       /* [n_blocks] references counted by world_check */
    const char *failure; /* what world_* found wrong; NULL: nothing */
};

static inline uint64_t world_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t world_hash(uint64_t before, int32_t token) {
    return world_mix(before ^ world_mix((uint64_t)(uint32_t)token));
}

/* What the stand-in model says after a text of this hash; choices differ, as with sampling. */
static inline int32_t world_next(uint64_t hash, int choice) { return (int32_t)(world_mix(hash + (uint64_t)choice) & 0xffff); }

static inline void world_line(struct plan *p, enum ledger_line_id id, size_t bytes) {
    p->lines[id].bytes = bytes;
    p->lines[id].granted = (bytes + 4095) / 4096 * 4096;
    p->total += p->lines[id].granted;
}

static inline void world_open(struct world *w, const struct engine_options *options, int32_t n_blocks) {
    memset(w, 0, sizeof *w);
    w->options = *options;
    struct plan p = {0};
    for (int i = 0; i < LINE_COUNT; i++) p.lines[i].id = "line", p.lines[i].is_arena = true;
    world_line(&p, LINE_SEQUENCES, sequence_store_bytes(options) + scheduler_bytes(options));
    world_line(&p, LINE_KV_TABLES, block_table_bytes(options) + block_pool_bytes(n_blocks));
    struct err err;
    if (ledger_open(&w->ledger, &p, &err)) abort();
    sequence_store_init(&w->store, options, w->ledger);
    block_pool_init(&w->pool, ledger_alloc(w->ledger, LINE_KV_TABLES, block_pool_bytes(n_blocks)), n_blocks);
    scheduler_init(&w->scheduler, &w->batch, &w->store, &w->pool, options, w->ledger);
    w->shadow = calloc((size_t)n_blocks * (size_t)options->block_tokens, sizeof *w->shadow);
    w->seen = calloc((size_t)n_blocks, sizeof *w->seen);
    for (int i = 0; i < w->store.n_requests; i++) w->store.requests[i].id = 0;
}

static inline void world_close(struct world *w) {
    free(w->shadow);
    free(w->seen);
    ledger_close(w->ledger);
}

/* A request with a prompt made from `seed`; its slot, or −1 when all are taken. */
static inline int32_t world_submit(struct world *w, uint64_t seed, int n_prompt, int max_tokens, int n_choices) {
    int32_t i = 0;
    while (i < w->store.n_requests && w->store.requests[i].id) i++;
    if (i == w->store.n_requests) return -1;
    struct request *r = &w->store.requests[i];
    int32_t *prompt = r->prompt;
    memset(r, 0, sizeof *r);
    r->prompt = prompt;
    r->params =
        (struct engine_request){.prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n_choices = n_choices};
    for (int t = 0; t < n_prompt; t++) prompt[t] = (int32_t)(world_mix(seed + (uint64_t)t) & 0xffff);
    r->id = seed + 1;
    r->n_unstarted = n_choices;
    r->first_scheduled_us = -1;
    scheduler_enqueue(&w->scheduler, i);
    return i;
}

static inline bool world_fail(struct world *w, const char *what) {
    if (!w->failure) w->failure = what;
    return false;
}

static inline uint64_t *world_slot(struct world *w, const int32_t *blocks, int position) {
    int bt = w->options.block_tokens;
    return &w->shadow[(size_t)blocks[position / bt] * (size_t)bt + (size_t)(position % bt)];
}

/* What attention would read, then what it would write. False: a wrong or stale block. */
static inline bool world_compute(struct world *w) {
    for (int i = 0; i < w->batch.n_seqs; i++) {
        const struct attn_seq *rows = &w->batch.seqs[i];
        const struct sequence *q = &w->store.sequences[w->scheduler.scheduled[i]];
        uint64_t hash = 0;
        for (int position = 0; position < rows->first_position; position++) {
            hash = world_hash(hash, q->tokens[position]);
            if (*world_slot(w, rows->blocks, position) != hash)
                return world_fail(w, "a block does not hold what the sequence wrote");
        }
        for (int row = 0; row < rows->n_rows; row++) {
            int position = rows->first_position + row;
            if (w->batch.tokens[rows->first_row + row] != q->tokens[position])
                return world_fail(w, "the batch has another token");
            hash = world_hash(hash, q->tokens[position]);
            *world_slot(w, rows->blocks, position) = hash;
        }
    }
    return true;
}

/* Shape and bounds of the batch. */
static inline bool world_check_batch(struct world *w) {
    const struct batch *b = &w->batch;
    int row = 0, logit = 0;
    if (b->n_tokens > w->options.max_batch_tokens) return world_fail(w, "more tokens than the budget");
    if (b->n_seqs > w->options.max_seqs || b->n_seqs != w->scheduler.n_scheduled)
        return world_fail(w, "more sequences than allowed");
    for (int i = 0; i < b->n_seqs; i++) {
        const struct attn_seq *rows = &b->seqs[i];
        const struct sequence *q = &w->store.sequences[w->scheduler.scheduled[i]];
        if (rows->first_row != row || rows->n_rows < 1) return world_fail(w, "rows of a sequence do not follow the one before");
        if (rows->first_position != q->computed || rows->first_position + rows->n_rows > q->n_tokens)
            return world_fail(w, "rows past the tokens");
        if (q->n_blocks * w->options.block_tokens < rows->first_position + rows->n_rows)
            return world_fail(w, "rows without blocks");
        for (int j = 0; j < i; j++)
            if (w->scheduler.scheduled[j] == w->scheduler.scheduled[i]) return world_fail(w, "a sequence is in the step twice");
        row += rows->n_rows;
        for (; logit < b->n_logits && b->logit_rows[logit] < row; logit++)
            if (b->logit_rows[logit] < rows->first_row || (logit && b->logit_rows[logit] <= b->logit_rows[logit - 1]))
                return world_fail(w, "logit rows are not ascending");
    }
    if (row != b->n_tokens || logit != b->n_logits) return world_fail(w, "rows do not add up");
    return true;
}

/* Every block's count is the number of tables that hold it, and the pool's own invariants hold. */
static inline bool world_check_blocks(struct world *w) {
    if (!block_pool_check(&w->pool)) return world_fail(w, "the block pool contradicts itself");
    memset(w->seen, 0, (size_t)w->pool.n_blocks * sizeof *w->seen);
    for (int i = 0; i < w->store.max_seqs; i++) {
        const struct sequence *q = &w->store.sequences[i];
        if (q->request < 0) continue;
        if (q->state == CHOICE_PREEMPTED && q->n_blocks) return world_fail(w, "a preempted sequence holds blocks");
        for (int b = 0; b < q->n_blocks; b++) w->seen[q->blocks[b]]++;
    }
    for (int32_t b = 0; b < w->pool.n_blocks; b++)
        if (w->seen[b] != w->pool.blocks[b].refs) return world_fail(w, "a block's count is not the number of its holders");
    return true;
}

static inline int32_t world_sequence(const struct world *w, int32_t request, int choice) {
    for (int32_t i = 0; i < w->store.max_seqs; i++)
        if (w->store.sequences[i].request == request && w->store.sequences[i].choice == choice) return i;
    return -1;
}

static inline void world_count_done(struct world *w, int32_t request) {
    struct request *r = &w->store.requests[request];
    if (++r->n_done == r->params.n_choices) r->id = 0;
}

static inline void world_finish(struct world *w, int32_t sequence) {
    int32_t request = w->store.sequences[sequence].request;
    scheduler_finish(&w->scheduler, sequence);
    world_count_done(w, request);
}

static inline void world_cancel(struct world *w, int32_t request, int choice) {
    switch (w->store.requests[request].choices[choice]) {
    case CHOICE_UNSTARTED:
        scheduler_drop_unstarted(&w->scheduler, request, choice);
        world_count_done(w, request);
        break;
    case CHOICE_RUNNING:
    case CHOICE_PREEMPTED: world_finish(w, world_sequence(w, request, choice)); break;
    case CHOICE_DONE: break;
    }
}

/* The tokens are those of a solo run. */
static inline bool world_check_tokens(struct world *w, const struct sequence *q) {
    uint64_t hash = 0;
    for (int i = 0; i < q->n_tokens; i++) {
        if (i >= q->n_prompt && q->tokens[i] != world_next(hash, q->choice))
            return world_fail(w, "not the tokens of a solo run");
        hash = world_hash(hash, q->tokens[i]);
    }
    return true;
}

/* The scheduled sequences move on; those that have all their tokens computed get the next one, or end. */
static inline bool world_advance(struct world *w) {
    scheduler_commit(&w->scheduler);
    for (int i = 0; i < w->batch.n_seqs; i++) {
        int32_t index = w->scheduler.scheduled[i];
        struct sequence *q = &w->store.sequences[index];
        if (sequence_remaining(q) > 0) continue;
        const struct request *r = &w->store.requests[q->request];
        uint64_t hash = *world_slot(w, q->blocks, q->n_tokens - 1);
        if (r->params.max_tokens > 0) q->tokens[q->n_tokens++] = world_next(hash, q->choice);
        if (!world_check_tokens(w, q)) return false;
        if (sequence_n_generated(q) >= r->params.max_tokens) world_finish(w, index);
    }
    return true;
}

/* A whole step with every check; false (and w->failure) when something is wrong. */
static inline bool world_step(struct world *w) {
    bool has_work = scheduler_has_work(&w->scheduler), has_stepped = scheduler_step(&w->scheduler, &w->batch);
    if (has_work && !has_stepped) return world_fail(w, "nothing is scheduled while work waits");
    if (has_stepped != (w->batch.n_tokens > 0)) return world_fail(w, "the step's return contradicts its batch");
    return world_check_batch(w) && world_check_blocks(w) && world_compute(w) && world_advance(w) && world_check_blocks(w);
}
