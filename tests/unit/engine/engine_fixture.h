/* An engine over the demo model, and what it says gathered by request and choice. */
#pragma once

#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/engine.h"
#include "tests/unit/engine/model_fixture.h"

#define ANSWER_TOKENS 2048

struct answer {
    int n_tokens, n_prompt;               /* EVENT_TOKENs, EVENT_PROMPTs */
    struct engine_event *tokens, *prompt; /* grown as they come */
    bool is_finished;
    struct engine_event finish;
};

static inline void answer_push(struct engine_event **list, int *n, const struct engine_event *event) {
    if ((*n & (*n - 1)) == 0) *list = realloc(*list, (size_t)(*n ? 2 * *n : 1) * sizeof **list);
    if (!*list) abort();
    (*list)[(*n)++] = *event;
}

static inline void answer_take(struct answer *a, const struct engine_event *event) {
    switch (event->kind) {
    case EVENT_PROMPT: answer_push(&a->prompt, &a->n_prompt, event); break;
    case EVENT_TOKEN: answer_push(&a->tokens, &a->n_tokens, event); break;
    case EVENT_FINISH:
        a->is_finished = true;
        a->finish = *event;
        break;
    }
}

static inline void answer_free(struct answer *a) {
    free(a->tokens);
    free(a->prompt);
    memset(a, 0, sizeof *a);
}

static inline bool same_event(const struct engine_event *a, const struct engine_event *b) {
    return a->token == b->token && memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 && a->n_top == b->n_top &&
           memcmp(a->top, b->top, (size_t)a->n_top * sizeof *a->top) == 0;
}

/* Every token, logprob and top logprob, bit for bit. `prefix`: a may have ended early. */
static inline bool same_answer(const struct answer *a, const struct answer *b, bool prefix) {
    if (prefix ? a->n_tokens > b->n_tokens || a->n_prompt > b->n_prompt
               : a->n_tokens != b->n_tokens || a->n_prompt != b->n_prompt)
        return false;
    for (int i = 0; i < a->n_prompt; i++)
        if (!same_event(&a->prompt[i], &b->prompt[i])) return false;
    for (int i = 0; i < a->n_tokens; i++)
        if (!same_event(&a->tokens[i], &b->tokens[i])) return false;
    return prefix || (a->finish.reason == b->finish.reason && a->finish.token == b->finish.token &&
                      a->finish.n_generated == b->finish.n_generated);
}

/* The budget with which these options get a pool of n_blocks, or a few more: large lines are rounded to huge pages. */
static inline size_t budget_for_blocks(const struct engine_options *options, int n_blocks) {
    struct engine_options o = *options, resolved;
    struct plan plan;
    struct err err = {0};
    if (engine_plan(&o, &resolved, &plan, &err)) {
        fprintf(stderr, "plan: %s\n", err.text);
        abort();
    }
    size_t block = plan.kv_bytes_per_token * (size_t)options->block_tokens;
    size_t pool = block * (size_t)n_blocks, huge_page = (size_t)2 << 20;
    return plan.total - plan.lines[LINE_KV_POOL].granted + (pool + huge_page - 1) / huge_page * huge_page;
}

static inline struct engine *engine_running(const struct engine_options *options) {
    struct engine *e = NULL;
    struct err err = {0};
    if (engine_open(&e, options, &err)) {
        fprintf(stderr, "open: %s\n", err.text);
        abort();
    }
    ledger_ready(engine_ledger(e));
    if (engine_start(e, &err)) abort();
    return e;
}

/* Waits until there may be events; aborts after three silent minutes, which is a hang. (Three waits of one: a machine that was suspended
 * ends only one of them.) */
static inline int poll_events(struct engine *e, struct engine_event *events, int max) {
    for (int n_silent = 0; n_silent < 3;) {
        int n = engine_poll(e, events, max);
        if (n) return n;
        struct pollfd fd = {.fd = engine_event_fd(e), .events = POLLIN};
        if (poll(&fd, 1, 60000) == 0) n_silent++;
    }
    fprintf(stderr, "the engine said nothing for three minutes\n");
    abort();
}

/* One request alone, to its end. answers [n_choices], zeroed. */
static inline void run_alone(struct engine *e, const struct engine_request *request, struct answer *answers) {
    struct err err = {0};
    uint64_t id;
    if (engine_submit(e, request, &id, &err)) {
        fprintf(stderr, "submit: %s\n", err.text);
        abort();
    }
    struct engine_event events[64];
    for (int done = 0; done < request->n_choices;) {
        int n = poll_events(e, events, 64);
        for (int i = 0; i < n; i++) {
            answer_take(&answers[events[i].choice], &events[i]);
            done += events[i].kind == EVENT_FINISH;
        }
    }
}
