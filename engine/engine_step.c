/* A step: schedule, compute, sample, tell. */
#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/engine_internal.h"

/* ---- ends ---- */

static struct engine_event finish_event(const struct engine *e, int32_t index, int choice, const struct sequence *q,
                                        enum finish_reason reason, int32_t end_token, int64_t now) {
    const struct request *r = &e->store.requests[index];
    struct engine_event event = {.id = r->id,
                                 .tag = r->params.tag,
                                 .kind = EVENT_FINISH,
                                 .choice = choice,
                                 .token = end_token,
                                 .reason = reason,
                                 .n_prompt = r->params.n_prompt,
                                 .at_us = now,
                                 .first_token_us = -1};
    event.n_generated = q ? sequence_n_generated(q) + (end_token >= 0) : 0;
    event.queued_us = (r->first_scheduled_us < 0 ? now : r->first_scheduled_us) - r->params.arrival_us;
    if (q && q->first_token_us >= 0) event.first_token_us = q->first_token_us - r->params.arrival_us;
    return event;
}

/* One more choice of the request is done; the last one frees it. The event goes out last, so that whoever has read a finish finds
 * the request's place in the queue free. */
static void count_done(struct engine *e, int32_t index, const struct engine_event *finish) {
    struct request *r = &e->store.requests[index];
    if (++r->n_done == r->params.n_choices) engine_inbox_free(e, index);
    e->stats.finished[finish->reason]++;
    engine_events_push(&e->events, finish);
}

static void finish_sequence(struct engine *e, int32_t slot, enum finish_reason reason, int32_t end_token, int64_t now) {
    struct sequence *q = &e->store.sequences[slot];
    int32_t index = q->request;
    struct engine_event event = finish_event(e, index, q->choice, q, reason, end_token, now);
    scheduler_finish(&e->scheduler, slot);
    count_done(e, index, &event);
}

static int32_t find_sequence(const struct engine *e, int32_t request, int choice) {
    for (int32_t i = 0; i < e->store.max_seqs; i++)
        if (e->store.sequences[i].request == request && e->store.sequences[i].choice == choice) return i;
    return -1;
}

static void drop_unstarted(struct engine *e, int32_t index, int choice, int64_t now) {
    struct engine_event event = finish_event(e, index, choice, NULL, FINISH_CANCELLED, -1, now);
    scheduler_drop_unstarted(&e->scheduler, index, choice);
    count_done(e, index, &event);
}

static void cancel_choice(struct engine *e, int32_t index, int choice, int64_t now) {
    switch (e->store.requests[index].choices[choice]) {
    case CHOICE_UNSTARTED: drop_unstarted(e, index, choice, now); break;
    case CHOICE_RUNNING:
    case CHOICE_PREEMPTED: finish_sequence(e, find_sequence(e, index, choice), FINISH_CANCELLED, -1, now); break;
    case CHOICE_DONE: break;
    }
}

/* With its last choice the request is freed, and may be another one a moment later: nothing of it is read from then on. */
static void obey_cancel(struct engine *e, int32_t index, uint32_t mask, int64_t now) {
    const struct request *r = &e->store.requests[index];
    int n_choices = r->params.n_choices, n_open = n_choices - r->n_done;
    for (int choice = 0; choice < n_choices && n_open > 0; choice++) {
        if (!(mask >> choice & 1) || r->choices[choice] == CHOICE_DONE) continue;
        cancel_choice(e, index, choice, now);
        n_open--;
    }
}

void engine_obey_cancels(struct engine *e) {
    if (!atomic_exchange(&e->inbox.has_cancels, false)) return;
    int64_t now = clock_us();
    for (int32_t i = 0; i < e->store.n_requests; i++) {
        struct request *r = &e->store.requests[i];
        if (!r->is_known) { /* submitted a moment ago: its turn comes at the next step */
            if (atomic_load(&r->cancel_mask)) atomic_store(&e->inbox.has_cancels, true);
            continue;
        }
        obey_cancel(e, i, atomic_exchange(&r->cancel_mask, 0), now);
    }
}

/* ---- rows ---- */

static void fill_logprobs(const struct engine *e, struct engine_event *event, const struct request *r, const float *logits,
                          const struct row_stat *stat) {
    event->logprob = logits[event->token] - stat->log_sum_exp;
    event->n_top = r->params.n_logprobs > 0 ? r->params.n_logprobs : 0;
    if (event->n_top > engine_vocab(e)) event->n_top = engine_vocab(e);
    if (event->n_top) sampler_top(logits, engine_vocab(e), stat->log_sum_exp, event->n_top, event->top);
}

static struct engine_event token_event(const struct engine *e, enum event_kind kind, const struct sequence *q, int32_t token,
                                       int64_t now) {
    const struct request *r = &e->store.requests[q->request];
    return (struct engine_event){
        .id = r->id, .tag = r->params.tag, .kind = kind, .choice = q->choice, .token = token, .at_us = now, .logprob = NAN};
}

/* The row predicts the prompt token after `position`. */
static void report_prompt_token(struct engine *e, struct sequence *q, int position, const float *logits,
                                const struct row_stat *stat, int64_t now) {
    struct engine_event event = token_event(e, EVENT_PROMPT, q, q->tokens[position + 1], now);
    fill_logprobs(e, &event, &e->store.requests[q->request], logits, stat);
    engine_events_push(&e->events, &event);
    q->n_prompt_reported = position + 2;
}

/* The first prompt token has no prediction. */
static void report_first_prompt_token(struct engine *e, struct sequence *q, int64_t now) {
    struct engine_event event = token_event(e, EVENT_PROMPT, q, q->tokens[0], now);
    engine_events_push(&e->events, &event);
    q->n_prompt_reported = 1;
}

/* The row predicts the sequence's next token: draws it, and ends the sequence where that is its end. */
static void extend(struct engine *e, int32_t slot, const float *logits, const struct row_stat *stat, int64_t now) {
    struct sequence *q = &e->store.sequences[slot];
    const struct request *r = &e->store.requests[q->request];
    if (r->params.max_tokens == 0) {
        finish_sequence(e, slot, FINISH_LENGTH, -1, now);
        return;
    }
    int32_t token = sampler_draw(&e->sampler, logits, stat, &r->params.sampling, q->choice, sequence_n_generated(q));
    if (q->first_token_us < 0) q->first_token_us = now;
    e->stats.generated_tokens++;
    if (!r->params.ignore_eos && tokenizer_is_end(e->tokenizer, token)) {
        finish_sequence(e, slot, FINISH_STOP, token, now);
        return;
    }
    struct engine_event event = token_event(e, EVENT_TOKEN, q, token, now);
    fill_logprobs(e, &event, r, logits, stat);
    engine_events_push(&e->events, &event);
    q->tokens[q->n_tokens++] = token;
    if (sequence_n_generated(q) == r->params.max_tokens) finish_sequence(e, slot, FINISH_LENGTH, -1, now);
}

/* Walks the batch's wanted rows in order, a chunk of logits at a time. Finishing a sequence changes no row of another. */
struct row_walk {
    int next, chunk_first, chunk_n; /* index among the wanted rows; the chunk computed last */
    const float *logits;
};

static const float *next_row(struct engine *e, struct row_walk *w, const struct row_stat **stat) {
    int i = w->next++, chunk = plan_logit_rows(&e->options);
    if (i >= w->chunk_first + w->chunk_n) {
        w->chunk_first = i;
        w->chunk_n = e->batch.n_logits - i < chunk ? e->batch.n_logits - i : chunk;
        w->logits = model_logits(e->model, i, w->chunk_n);
        e->backend->row_stats(e->backend, e->row_stats, w->logits, w->chunk_n, engine_vocab(e));
    }
    *stat = &e->row_stats[i - w->chunk_first];
    return w->logits + (size_t)(i - w->chunk_first) * (size_t)engine_vocab(e);
}

static bool has_more_rows(const struct engine *e, const struct row_walk *w, int end_row) {
    return w->next < e->batch.n_logits && e->batch.logit_rows[w->next] < end_row;
}

static void report_sequence(struct engine *e, struct row_walk *w, int index) {
    const struct attn_seq rows = e->batch.seqs[index];
    int32_t slot = e->scheduler.scheduled[index];
    struct sequence *q = &e->store.sequences[slot];
    const struct request *r = &e->store.requests[q->request];
    if (r->params.prompt_logprobs && q->choice == 0 && q->n_prompt_reported == 0) report_first_prompt_token(e, q, clock_us());
    while (has_more_rows(e, w, rows.first_row + rows.n_rows)) {
        int position = rows.first_position + e->batch.logit_rows[w->next] - rows.first_row;
        const struct row_stat *stat;
        const float *logits = next_row(e, w, &stat);
        int64_t now = clock_us();
        if (position + 1 < q->n_tokens) report_prompt_token(e, q, position, logits, stat, now);
        else extend(e, slot, logits, stat, now);
    }
}

static void note_scheduled(struct engine *e, int64_t now) {
    for (int i = 0; i < e->scheduler.n_scheduled; i++) {
        struct sequence *q = &e->store.sequences[e->scheduler.scheduled[i]];
        struct request *r = &e->store.requests[q->request];
        if (r->first_scheduled_us < 0) {
            r->first_scheduled_us = now;
            e->stats.prompt_tokens += (uint64_t)r->params.n_prompt;
        }
    }
}

bool engine_step(struct engine *e) {
    if (!scheduler_step(&e->scheduler, &e->batch)) return false;
    int64_t start = clock_us();
    atomic_store(&e->step_start_us, start);
    note_scheduled(e, start);
    model_forward(e->model, &e->batch, &e->kv);
    scheduler_commit(&e->scheduler);
    struct row_walk walk = {0};
    for (int i = 0; i < e->batch.n_seqs; i++) report_sequence(e, &walk, i);
    e->stats.steps++;
    e->stats.scheduled_tokens += (uint64_t)e->batch.n_tokens;
    e->stats.last_step_us = clock_us() - start;
    atomic_store(&e->step_start_us, 0);
    return true;
}
