#include "engine/scheduler.h"

#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"

#define BYPASS_LOOK 16   /* how far behind the head of the queue rule 3 looks */
#define RESERVE_DECAY 64 /* quiet steps after which the reserve shrinks by one */
#define RESERVE_SHARE 8  /* it is at most this part of the pool */

size_t scheduler_bytes(const struct engine_options *o) {
    size_t seqs = (size_t)o->max_seqs, tokens = (size_t)o->max_batch_tokens;
    return 3 * round_up(seqs * sizeof(int32_t), 64) + 2 * round_up(tokens * sizeof(int32_t), 64) +
           round_up(seqs * sizeof(struct attn_seq), 64);
}

void scheduler_init(struct scheduler *s, struct batch *batch, struct sequence_store *store, struct block_pool *pool,
                    const struct engine_options *o, struct ledger *ledger) {
    size_t seqs = (size_t)o->max_seqs, tokens = (size_t)o->max_batch_tokens;
    *s = (struct scheduler){.store = store,
                            .pool = pool,
                            .max_batch_tokens = o->max_batch_tokens,
                            .block_tokens = o->block_tokens,
                            .queue_first = -1,
                            .queue_last = -1};
    s->running = ledger_alloc(ledger, LINE_SEQUENCES, seqs * sizeof(int32_t));
    s->preempted = ledger_alloc(ledger, LINE_SEQUENCES, seqs * sizeof(int32_t));
    s->scheduled = ledger_alloc(ledger, LINE_SEQUENCES, seqs * sizeof(int32_t));
    *batch = (struct batch){0};
    batch->tokens = ledger_alloc(ledger, LINE_SEQUENCES, tokens * sizeof(int32_t));
    batch->logit_rows = ledger_alloc(ledger, LINE_SEQUENCES, tokens * sizeof(int32_t));
    batch->seqs = ledger_alloc(ledger, LINE_SEQUENCES, seqs * sizeof(struct attn_seq));
}

/* ---- lists ---- */

static void list_remove(int32_t *list, int *n, int32_t value) {
    int i = 0;
    while (i < *n && list[i] != value) i++;
    if (i == *n) return;
    memmove(list + i, list + i + 1, (size_t)(*n - i - 1) * sizeof *list);
    (*n)--;
}

void scheduler_enqueue(struct scheduler *s, int32_t request) {
    struct request *r = &s->store->requests[request];
    r->next = -1;
    r->is_known = true;
    if (s->queue_last >= 0) s->store->requests[s->queue_last].next = request;
    else s->queue_first = request;
    s->queue_last = request;
    s->n_queued += r->n_unstarted;
}

static void queue_remove(struct scheduler *s, int32_t request) {
    struct request *requests = s->store->requests;
    int32_t prev = -1;
    for (int32_t i = s->queue_first; i >= 0; prev = i, i = requests[i].next) {
        if (i != request) continue;
        if (prev >= 0) requests[prev].next = requests[i].next;
        else s->queue_first = requests[i].next;
        if (s->queue_last == i) s->queue_last = prev;
        return;
    }
}

static void take_unstarted(struct scheduler *s, int32_t request, int choice, enum choice_state to) {
    struct request *r = &s->store->requests[request];
    r->choices[choice] = to;
    r->n_unstarted--;
    s->n_queued--;
    if (r->n_unstarted == 0) queue_remove(s, request);
}

void scheduler_drop_unstarted(struct scheduler *s, int32_t request, int choice) {
    take_unstarted(s, request, choice, CHOICE_DONE);
}

bool scheduler_has_work(const struct scheduler *s) { return s->n_running > 0 || s->n_preempted > 0 || s->queue_first >= 0; }

/* ---- blocks ---- */

static int blocks_for(const struct scheduler *s, int n_tokens) { return (n_tokens + s->block_tokens - 1) / s->block_tokens; }

/* Blocks for the sequence's first n_tokens; false, and nothing taken, when the pool does not have them. */
static bool take_blocks(struct scheduler *s, struct sequence *q, int n_tokens) {
    int missing = blocks_for(s, n_tokens) - q->n_blocks;
    if (missing > 0 && !block_pool_can_alloc(s->pool, missing)) return false;
    for (; missing > 0; missing--) q->blocks[q->n_blocks++] = block_pool_alloc(s->pool);
    return true;
}

static void give_back_blocks(struct scheduler *s, struct sequence *q) {
    block_pool_release(s->pool, q->blocks, q->n_blocks);
    q->n_blocks = 0;
}

void scheduler_finish(struct scheduler *s, int32_t sequence) {
    struct sequence *q = &s->store->sequences[sequence];
    give_back_blocks(s, q);
    list_remove(s->running, &s->n_running, sequence);
    list_remove(s->preempted, &s->n_preempted, sequence);
    s->store->requests[q->request].choices[q->choice] = CHOICE_DONE;
    q->request = -1;
}

/* ---- preemption ---- */

static void preempt(struct scheduler *s, int32_t sequence) {
    struct sequence *q = &s->store->sequences[sequence];
    give_back_blocks(s, q);
    s->recomputed_tokens += (uint64_t)q->computed;
    q->computed = 0;
    q->state = CHOICE_PREEMPTED;
    s->store->requests[q->request].choices[q->choice] = CHOICE_PREEMPTED;
    list_remove(s->running, &s->n_running, sequence);
    int at = 0; /* oldest first */
    while (at < s->n_preempted && s->store->sequences[s->preempted[at]].admitted < q->admitted) at++;
    memmove(s->preempted + at + 1, s->preempted + at, (size_t)(s->n_preempted - at) * sizeof *s->preempted);
    s->preempted[at] = sequence;
    s->n_preempted++;
    s->preemptions++;
    int most = s->pool->n_blocks / RESERVE_SHARE;
    s->reserve = s->reserve * 2 + 1 < most ? s->reserve * 2 + 1 : most;
    s->quiet_steps = 0;
}

/* The running sequence admitted last: the tail, since resumed ones are inserted by age. */
static int32_t victim(const struct scheduler *s) { return s->running[s->n_running - 1]; }

/* ---- a step ---- */

static void schedule(struct scheduler *s, int32_t sequence, int n) {
    s->store->sequences[sequence].n_scheduled = n;
    s->scheduled[s->n_scheduled++] = sequence;
}

/* Step part 1. Returns the tokens scheduled. Victims are younger than who needs the block, so they were not scheduled yet. */
static int schedule_decodes(struct scheduler *s) {
    int n = 0;
    for (int i = 0; i < s->n_running; i++) {
        int32_t index = s->running[i];
        struct sequence *q = &s->store->sequences[index];
        if (sequence_remaining(q) != 1) continue;
        bool has_blocks = take_blocks(s, q, q->n_tokens);
        while (!has_blocks) {
            int32_t loser = victim(s);
            preempt(s, loser);
            if (loser == index) break;
            has_blocks = take_blocks(s, q, q->n_tokens);
        }
        if (!has_blocks) break; /* it was the youngest itself */
        schedule(s, index, 1);
        n++;
    }
    return n;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* Step part 2. Rule 1 gave them their blocks. */
static int schedule_prefills(struct scheduler *s, int budget) {
    int n = 0;
    for (int i = 0; i < s->n_running && n < budget; i++) {
        struct sequence *q = &s->store->sequences[s->running[i]];
        if (sequence_remaining(q) <= 1) continue;
        int m = smaller(sequence_remaining(q), budget - n);
        schedule(s, s->running[i], m);
        n += m;
    }
    return n;
}

/* Rule 2. */
static bool has_room(const struct scheduler *s, int n_blocks) {
    int watermark = s->n_running == 0 ? 0 : s->n_running + s->reserve;
    return block_pool_can_alloc(s->pool, n_blocks + watermark);
}

static void insert_running(struct scheduler *s, int32_t sequence) {
    int at = s->n_running;
    uint64_t admitted = s->store->sequences[sequence].admitted;
    while (at > 0 && s->store->sequences[s->running[at - 1]].admitted > admitted) at--;
    memmove(s->running + at + 1, s->running + at, (size_t)(s->n_running - at) * sizeof *s->running);
    s->running[at] = sequence;
    s->n_running++;
}

static void run(struct scheduler *s, int32_t sequence, int budget) {
    struct sequence *q = &s->store->sequences[sequence];
    q->state = CHOICE_RUNNING;
    s->store->requests[q->request].choices[q->choice] = CHOICE_RUNNING;
    insert_running(s, sequence);
    schedule(s, sequence, smaller(sequence_remaining(q), budget));
}

/* Resumes the oldest preempted sequence; 0 when it does not fit yet, else the tokens scheduled. */
static int resume(struct scheduler *s, int budget) {
    int32_t index = s->preempted[0];
    struct sequence *q = &s->store->sequences[index];
    if (!has_room(s, blocks_for(s, q->n_tokens))) {
        s->limit = LIMIT_BLOCKS;
        return 0;
    }
    list_remove(s->preempted, &s->n_preempted, index);
    take_blocks(s, q, q->n_tokens);
    run(s, index, budget);
    return q->n_scheduled;
}

static int32_t free_slot(const struct scheduler *s) {
    for (int32_t i = 0; i < s->store->max_seqs; i++)
        if (s->store->sequences[i].request < 0) return i;
    return -1;
}

static int next_unstarted(const struct request *r) {
    int choice = 0;
    while (r->choices[choice] != CHOICE_UNSTARTED) choice++;
    return choice;
}

/* Rule 5: a running sibling that has computed the shared part. *is_waiting: there is one, but it is not that far. */
static const struct sequence *find_sibling(const struct scheduler *s, int32_t request, int n_shared, bool *is_waiting) {
    *is_waiting = false;
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *q = &s->store->sequences[s->running[i]];
        if (q->request != request) continue;
        if (q->computed >= n_shared) {
            *is_waiting = false;
            return q;
        }
        *is_waiting = true;
    }
    return NULL;
}

static void share_blocks(struct scheduler *s, struct sequence *q, const struct sequence *sibling, int n_shared) {
    q->n_blocks = n_shared / s->block_tokens;
    for (int i = 0; i < q->n_blocks; i++) {
        q->blocks[i] = sibling->blocks[i];
        block_pool_share(s->pool, q->blocks[i]);
    }
    q->computed = n_shared;
}

#define WAITS_FOR_SIBLING (-1)

/* Starts a request's next choice: the tokens scheduled; 0 when it lacks blocks, or WAITS_FOR_SIBLING. */
static int start(struct scheduler *s, int32_t request, int budget) {
    struct request *r = &s->store->requests[request];
    int n_prompt = r->params.n_prompt, n_shared = (n_prompt - 1) / s->block_tokens * s->block_tokens;
    bool is_waiting;
    const struct sequence *sibling = find_sibling(s, request, n_shared, &is_waiting);
    if (is_waiting) return WAITS_FOR_SIBLING;
    if (!sibling) n_shared = 0;
    if (!has_room(s, blocks_for(s, n_prompt) - n_shared / s->block_tokens)) {
        s->limit = LIMIT_BLOCKS;
        return 0;
    }
    int32_t slot = free_slot(s);
    struct sequence *q = &s->store->sequences[slot];
    int32_t *tokens = q->tokens, *blocks = q->blocks;
    *q = (struct sequence){.request = request,
                           .choice = next_unstarted(r),
                           .tokens = tokens,
                           .blocks = blocks,
                           .n_prompt = n_prompt,
                           .n_tokens = n_prompt,
                           .admitted = ++s->n_admitted,
                           .first_token_us = -1};
    memcpy(q->tokens, r->prompt, (size_t)n_prompt * sizeof *tokens);
    if (n_shared) share_blocks(s, q, sibling, n_shared);
    take_blocks(s, q, n_prompt);
    take_unstarted(s, request, q->choice, CHOICE_RUNNING);
    run(s, slot, budget);
    return q->n_scheduled;
}

/* The requests from the head up to `end` (not included) were passed by one behind them. */
static void count_bypass(struct scheduler *s, int32_t end) {
    for (int32_t i = s->queue_first; i != end; i = s->store->requests[i].next) s->store->requests[i].n_bypassed++;
}

/* The first of the queue that can start, by rule 3; 0 when nobody can now. A request that waits for a sibling's prompt holds nobody up. */
static int start_next(struct scheduler *s, int budget) {
    int32_t i = s->queue_first;
    for (int looked = 0; i >= 0 && looked <= BYPASS_LOOK; looked++) {
        const struct request *r = &s->store->requests[i];
        int32_t next = r->next; /* starting may take i off the queue */
        int n = start(s, i, budget);
        if (n > 0) {
            count_bypass(s, r->n_unstarted > 0 ? i : next);
            return n;
        }
        if (n == 0 && r->n_bypassed >= SCHEDULER_MAX_BYPASS) return 0;
        i = next;
    }
    return 0;
}

/* Step part 3. */
static int admit(struct scheduler *s, int budget) {
    int n = 0;
    s->limit = ADMISSION_OPEN;
    while (s->n_preempted > 0 || s->queue_first >= 0) {
        if (n == budget) {
            s->limit = LIMIT_TOKENS;
            break;
        }
        if (s->n_preempted == 0 && s->n_running == s->store->max_seqs) {
            s->limit = LIMIT_SEQUENCES;
            break;
        }
        int m = s->n_preempted > 0 ? resume(s, budget - n) : start_next(s, budget - n);
        if (m == 0) break;
        n += m;
    }
    return n;
}

static void decay_reserve(struct scheduler *s) {
    if (s->reserve == 0 || ++s->quiet_steps < RESERVE_DECAY) return;
    s->reserve--;
    s->quiet_steps = 0;
}

/* Rows of a prompt whose predictions are wanted, and the last row when it ends the known tokens. */
static void add_logit_rows(struct batch *batch, const struct sequence *q, const struct request *r, int first_row) {
    int end = q->computed + q->n_scheduled;
    bool wants_prompt = r->params.prompt_logprobs && q->choice == 0;
    for (int position = q->computed; position < end; position++) {
        bool is_last = position == q->n_tokens - 1;
        bool predicts_prompt = wants_prompt && position + 1 < q->n_prompt && position + 1 >= q->n_prompt_reported;
        if (is_last || predicts_prompt) batch->logit_rows[batch->n_logits++] = first_row + position - q->computed;
    }
}

static void fill_batch(const struct scheduler *s, struct batch *batch) {
    batch->n_tokens = batch->n_seqs = batch->n_logits = 0;
    for (int i = 0; i < s->n_scheduled; i++) {
        const struct sequence *q = &s->store->sequences[s->scheduled[i]];
        int first_row = batch->n_tokens;
        memcpy(batch->tokens + first_row, q->tokens + q->computed, (size_t)q->n_scheduled * sizeof *batch->tokens);
        batch->seqs[batch->n_seqs++] = (struct attn_seq){first_row, q->n_scheduled, q->computed, q->blocks};
        batch->n_tokens += q->n_scheduled;
        add_logit_rows(batch, q, &s->store->requests[q->request], first_row);
    }
}

bool scheduler_step(struct scheduler *s, struct batch *batch) {
    uint64_t preemptions = s->preemptions;
    s->n_scheduled = 0;
    int n = schedule_decodes(s);
    n += schedule_prefills(s, s->max_batch_tokens - n);
    decay_reserve(s);
    if (s->preemptions == preemptions) n += admit(s, s->max_batch_tokens - n);
    else s->limit = LIMIT_BLOCKS;
    fill_batch(s, batch);
    return n > 0;
}

void scheduler_commit(struct scheduler *s) {
    for (int i = 0; i < s->n_scheduled; i++) {
        struct sequence *q = &s->store->sequences[s->scheduled[i]];
        q->computed += q->n_scheduled;
        q->n_scheduled = 0;
    }
}
