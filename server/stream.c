/* See stream.h.
 *
 * Invariants
 *   1. While a request is PREPARING only the prep pool touches body, completion and err.
 *   2. n_unfinished = the FINISH events that the engine owes: n for each prompt submitted. A slot is free only at 0.
 *   3. The status code is sent once something is known: the first text of a stream, the whole of another answer, or an error.
 *      So an error before the first token is an HTTP error, also for streams.
 *   4. A stop string is found when its last token arrives, however slowly the client reads; its choice is cancelled at once. */
#include "server/stream.h"

#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/api_completions.h"
#include "server/server_state.h"
#include "server/sse.h"

#define EVENTS_A_POLL 64

struct streams {
    struct request *free;
    int n_slots, n_active;
    struct render_scratch scratch;
    struct engine_event events[EVENTS_A_POLL];
    struct request slots[];
};

static int slot_count(const struct server_options *options) {
    return options->max_requests > 0 ? options->max_requests : options->max_connections;
}

size_t streams_memory_bytes(const struct server_options *options) {
    return sizeof(struct streams) + (size_t)slot_count(options) * sizeof(struct request) + 64;
}

void streams_open(struct server *server) {
    int n = slot_count(&server->options);
    struct streams *s = ledger_alloc(engine_ledger(server->engine), LINE_REQUESTS, streams_memory_bytes(&server->options));
    s->n_slots = n;
    for (int i = n - 1; i >= 0; i--) {
        s->slots[i].index = (uint32_t)i;
        s->slots[i].next = s->free;
        s->free = &s->slots[i];
    }
    server->streams = s;
}

int streams_active(const struct streams *streams) { return streams->n_active; }

/* ---- The end of a request. ---- */

static const char *end_name(const struct request *r) {
    if (r->has_failed) return "error";
    if (r->is_cancelled) return "abort";
    const struct completion *c = &r->completion;
    return c->n_choices && c->choices[0].end == END_LENGTH ? "length" : "stop";
}

static double mean_tpot_ms(const struct completion *c) {
    double us = 0;
    int64_t gaps = 0;
    for (int i = 0; i < c->n_choices; i++) {
        if (c->choices[i].n_records < 2) continue;
        us += (double)(c->choices[i].last_us - c->choices[i].first_us);
        gaps += c->choices[i].n_records - 1;
    }
    return gaps ? us / (double)gaps / 1000 : 0;
}

static void log_done(const struct request *r) {
    const struct completion *c = &r->completion;
    int64_t prompt = 0, generated = 0;
    for (int i = 0; i < c->n_prompts; i++) prompt += c->prompts[i].n;
    for (int i = 0; i < c->n_choices; i++) generated += c->choices[i].n_generated;
    log_event(
        LOG_INFO, "request_done",
        "id=%s completion=%s reason=%s prompt_tokens=%lld tokens=%lld queue_ms=%.1f ttft_ms=%.1f tpot_ms=%.2f e2e_ms=%.1f",
        r->id, c->id, end_name(r), (long long)prompt, (long long)generated, (double)r->queued_us / 1000,
        r->first_token_us ? (double)(r->first_token_us - r->arrival_us) / 1000 : -1.0, mean_tpot_ms(c),
        (double)((r->end_us ? r->end_us : clock_us()) - r->arrival_us) / 1000);
}

static void release_if_over(struct server *server, struct request *r) {
    struct streams *s = server->streams;
    if (r->exchange || r->state == REQUEST_FREE || r->state == REQUEST_PREPARING || r->n_unfinished > 0) return;
    if (r->completion.n_choices && r->completion.run) log_done(r);
    completion_free(&r->completion, &server->memory);
    page_pool_free(&server->memory, r->body, r->body_bytes);
    r->body = NULL;
    r->state = REQUEST_FREE;
    r->generation++;
    r->next = s->free;
    s->free = r;
    s->n_active--;
}

static void cancel_in_engine(struct server *server, struct request *r) {
    for (int i = 0; i < r->completion.n_prompts; i++)
        if (r->completion.prompts[i].is_submitted) engine_cancel(server->engine, r->completion.prompts[i].engine_id, -1);
}

/* Ends the request with an error: as the HTTP answer if none has begun, else within the stream. */
static void fail(struct server *server, struct request *r, const struct err *err) {
    if (r->has_failed) return;
    r->has_failed = true;
    if (err != &r->err) r->err = *err;
    r->end_us = clock_us();
    if (r->state == REQUEST_RUNNING) cancel_in_engine(server, r);
    server->metrics.ended[REQUEST_ERROR] += (uint64_t)(r->n_open > 0 ? r->n_open : 0);
    if (!r->exchange) return;
    if (!r->is_answered) {
        http_answer_error(r->exchange, &r->err);
        log_event(LOG_INFO, "request_refused", "id=%s status=%d param=%s", r->id, r->exchange->answer.http,
                  *r->err.param ? r->err.param : "-");
    }
    r->is_answered = true;
    http_resume(r->exchange);
}

/* ---- The answer. ---- */

static long read_answer(struct server *server, struct exchange *x, char *out, size_t max) {
    struct request *r = x->request;
    struct render_job job = {
        .c = &r->completion, .tokenizer = engine_tokenizer(server->engine), .error = r->has_failed ? &r->err : NULL};
    render_item item = r->completion.stream ? sse_item : render_body_item;
    return render_fill(&job, &r->renderer, item, &server->streams->scratch, out, max);
}

static void begin_answer(struct request *r) {
    struct answer *answer = &r->exchange->answer;
    answer->http = 200;
    answer->is_stream = r->completion.stream;
    answer->content_type = r->completion.stream ? "text/event-stream; charset=utf-8" : "application/json";
    answer->read = read_answer;
    r->is_answered = true;
}

/* After something arrived: lets the client have it. */
static void advance(struct request *r) {
    if (!r->exchange || r->has_failed) return;
    bool is_ready = r->completion.stream ? sse_is_pending(&r->completion) : r->n_open == 0;
    if (!is_ready) return;
    if (!r->is_answered) begin_answer(r);
    http_resume(r->exchange);
}

/* ---- Arrival and submission. ---- */

void stream_begin(struct server *server, struct exchange *x) {
    struct streams *s = server->streams;
    struct request *r = s->free;
    struct err err;
    if (!r) {
        err_set(&err, STATUS_BUSY, "server busy: %d requests are held already; try again shortly", s->n_slots);
        http_answer_error(x, &err);
        return;
    }
    s->free = r->next;
    s->n_active++;
    *r = (struct request){.state = REQUEST_PREPARING,
                          .index = r->index,
                          .generation = r->generation,
                          .exchange = x,
                          .arrival_us = x->arrival_us,
                          .body = x->body,
                          .n_body = x->n_body,
                          .body_bytes = x->body_capacity};
    memcpy(r->id, x->id, sizeof r->id);
    x->body = NULL;
    x->request = r;
    prep_submit(server->prep, r);
}

static uint64_t tag_of(const struct request *r, int prompt) {
    return (uint64_t)r->generation << 32 | (uint64_t)r->index << 8 | (uint64_t)prompt;
}

static enum status submit_prompt(struct server *server, struct request *r, int i) {
    struct completion *c = &r->completion;
    struct completion_prompt *prompt = &c->prompts[i];
    struct engine_request request = {.prompt = prompt->ids,
                                     .n_prompt = prompt->n,
                                     .max_tokens = c->max_tokens,
                                     .n_choices = c->n,
                                     .sampling = c->sampling,
                                     .ignore_eos = c->ignore_eos,
                                     .n_logprobs = c->n_logprobs,
                                     .prompt_logprobs = c->echo && (c->n_logprobs >= 0 || c->max_tokens == 0),
                                     .arrival_us = r->arrival_us,
                                     .tag = tag_of(r, i)};
    enum status status = engine_submit(server->engine, &request, &prompt->engine_id, &r->err);
    if (status != STATUS_OK) return status;
    prompt->is_submitted = true;
    r->n_unfinished += c->n;
    return STATUS_OK;
}

static void submit(struct server *server, struct request *r) {
    r->n_open = r->completion.n_choices;
    for (int i = 0; i < r->completion.n_prompts; i++)
        if (submit_prompt(server, r, i) != STATUS_OK) {
            r->n_open = 0; /* refused, not ended */
            struct err err = r->err;
            fail(server, r, &err);
            return;
        }
}

void streams_take_prepared(struct server *server) {
    struct request *r;
    prep_clear(server->prep);
    while ((r = prep_take_done(server->prep))) {
        r->state = REQUEST_RUNNING;
        if (r->exchange && server->is_draining && r->prep_status == STATUS_OK)
            r->prep_status = err_set(&r->err, STATUS_DRAINING, "server shutting down: no new requests are taken");
        if (r->exchange && r->prep_status != STATUS_OK) fail(server, r, &r->err);
        else if (r->exchange) submit(server, r);
        release_if_over(server, r);
    }
}

/* ---- Events. ---- */

static void end_choice(struct server *server, struct request *r, struct completion_choice *choice, enum choice_end end,
                       int64_t at_us) {
    choice->end = end;
    server->metrics.ended[end == END_LENGTH ? REQUEST_LENGTH : REQUEST_STOP]++;
    if (choice->n_records > 1)
        metrics_observe(&server->metrics.tpot, (choice->last_us - choice->first_us) / (choice->n_records - 1));
    if (--r->n_open > 0) return;
    r->end_us = at_us;
    metrics_observe(&server->metrics.e2e, at_us - r->arrival_us);
}

static void time_token(struct server *server, struct request *r, struct completion_choice *choice, int64_t at_us) {
    if (!r->first_token_us) {
        r->first_token_us = at_us;
        metrics_observe(&server->metrics.ttft, at_us - r->arrival_us);
    }
    if (choice->n_records == 0) choice->first_us = at_us;
    else metrics_observe(&server->metrics.itl, at_us - choice->last_us);
    choice->last_us = at_us;
}

static void keep(const struct engine_event *event, int n_top, struct token_record *record, struct top_record *tops) {
    *record = (struct token_record){.id = event->token, .logprob = event->logprob};
    record->n_top = (uint8_t)(event->n_top < n_top ? event->n_top : n_top);
    for (int i = 0; i < record->n_top; i++) tops[i] = (struct top_record){event->top[i].id, event->top[i].logprob};
}

/* Records whose text begins before the cut: `released` bytes of the whole text are visible. */
static int count_listed(struct server *server, const struct completion *c, const struct completion_choice *choice,
                        size_t released) {
    const struct completion_prompt *prompt = &c->prompts[choice->prompt];
    struct text_scratch *scratch = &server->streams->scratch.text;
    const struct tokenizer *t = engine_tokenizer(server->engine);
    const struct stop_set none = {0};
    struct text_cursor cursor;
    size_t before = 0;
    int hit, listed = 0;
    text_cursor_init(&cursor, c->echo);
    for (int i = c->echo ? prompt->hides_bos : prompt->n; i < prompt->n; i++)
        text_cursor_prompt(&cursor, t, prompt->ids[i], scratch);
    while (listed < choice->n_records && before < released)
        before += text_cursor_push(&cursor, t, &none, choice->records[listed++].id, scratch, &hit);
    return listed;
}

static void on_token(struct server *server, struct request *r, struct completion_choice *choice,
                     const struct engine_event *event) {
    struct completion *c = &r->completion;
    struct text_scratch *scratch = &server->streams->scratch.text;
    int at = choice->n_records, n_top = completion_n_top(c), hit;
    if (choice->end != END_NONE || r->has_failed || r->is_cancelled) return; /* the engine had not heard of the end yet */
    if (at >= c->max_tokens) BUG("stream: request %s has more than %d tokens", r->id, c->max_tokens);
    time_token(server, r, choice, event->at_us);
    keep(event, n_top, &choice->records[at], choice->tops ? choice->tops + (size_t)at * (size_t)n_top : NULL);
    choice->n_records++;
    choice->n_generated++;
    size_t n = text_cursor_push(&choice->arrived, engine_tokenizer(server->engine), &c->stops, event->token, scratch, &hit);
    choice->n_released += n;
    choice->records[at].is_releasing = n > 0;
    if (hit < 0) return;
    choice->stop_hit = hit;
    choice->n_listed = count_listed(server, c, choice, choice->n_released);
    end_choice(server, r, choice, END_STOP, event->at_us);
    engine_cancel(server->engine, c->prompts[choice->prompt].engine_id, event->choice);
}

static void on_prompt(struct request *r, struct completion_prompt *prompt, const struct engine_event *event) {
    int n_top = completion_n_top(&r->completion), at = prompt->n_records;
    if (!prompt->records || at >= prompt->n) return;
    keep(event, n_top, &prompt->records[at], prompt->tops ? prompt->tops + (size_t)at * (size_t)n_top : NULL);
    prompt->n_records++;
}

static void on_finish(struct server *server, struct request *r, struct completion_choice *choice,
                      const struct engine_event *event) {
    struct err err;
    r->n_unfinished--;
    if (event->choice == 0 && event->queued_us >= 0) {
        metrics_observe(&server->metrics.queue, event->queued_us);
        r->queued_us = event->queued_us;
    }
    if (choice->end != END_NONE || r->has_failed || r->is_cancelled) return;
    choice->n_generated = event->n_generated;
    if (event->reason == FINISH_STOP || event->reason == FINISH_LENGTH) {
        end_choice(server, r, choice, event->reason == FINISH_LENGTH ? END_LENGTH : END_STOP, event->at_us);
        return;
    }
    if (event->reason == FINISH_CANCELLED) err_set(&err, STATUS_CANCELLED, "cancelled: the server stopped this request");
    else err_set(&err, STATUS_INTERNAL, "internal error: the engine could not go on with this request");
    fail(server, r, &err);
}

static void on_event(struct server *server, const struct engine_event *event) {
    struct streams *s = server->streams;
    uint32_t index = (uint32_t)(event->tag >> 8) & 0xffffff, prompt = (uint32_t)event->tag & 0xff;
    if (index >= (uint32_t)s->n_slots) return;
    struct request *r = &s->slots[index];
    struct completion *c = &r->completion;
    if (r->state != REQUEST_RUNNING || r->generation != (uint32_t)(event->tag >> 32)) return;
    if (prompt >= (uint32_t)c->n_prompts || event->choice < 0 || event->choice >= c->n) return;
    struct completion_choice *choice = &c->choices[(int)prompt * c->n + event->choice];
    if (event->kind == EVENT_TOKEN) on_token(server, r, choice, event);
    else if (event->kind == EVENT_PROMPT) on_prompt(r, &c->prompts[prompt], event);
    else on_finish(server, r, choice, event);
    advance(r);
    if (event->kind == EVENT_FINISH) release_if_over(server, r);
}

void streams_take_events(struct server *server) {
    struct streams *s = server->streams;
    int n;
    do {
        n = engine_poll(server->engine, s->events, EVENTS_A_POLL);
        for (int i = 0; i < n; i++) on_event(server, &s->events[i]);
    } while (n == EVENTS_A_POLL);
}

/* ---- Leaving. ---- */

void stream_detach(struct server *server, struct exchange *x) {
    struct request *r = x->request;
    if (!r) return;
    x->request = NULL;
    r->exchange = NULL;
    if (r->state == REQUEST_PREPARING) r->is_cancelled = true;
    if (r->state == REQUEST_RUNNING && r->n_open > 0 && !r->has_failed) {
        r->is_cancelled = true;
        server->metrics.ended[REQUEST_ABORT] += (uint64_t)r->n_open;
        cancel_in_engine(server, r);
    }
    release_if_over(server, r);
}

void streams_cancel_all(struct server *server) {
    struct err err;
    err_set(&err, STATUS_DRAINING, "server shutting down: the request was cancelled");
    for (int i = 0; i < server->streams->n_slots; i++) {
        struct request *r = &server->streams->slots[i];
        if (r->state == REQUEST_RUNNING && r->exchange && r->n_open > 0) fail(server, r, &err);
    }
}
