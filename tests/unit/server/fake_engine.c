#include "fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"

#define BLOCKS_TOTAL 4096
#define MAX_EVENTS 65536

struct sequence {
    struct sequence *next;
    uint64_t id, tag;
    int choice, n_prompt, max_tokens, n_logprobs, n_done, n_script, script_at;
    int32_t *script; /* NULL: the alphabet */
    int32_t *prompt;
    bool ignore_eos, prompt_logprobs, fails, cancelled, is_running, is_prefilled;
    int64_t arrival_us, scheduled_us, first_us;
};

struct engine {
    struct engine_options options;
    struct plan plan;
    struct ledger *ledger;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool started, closing, gated, draining, stuck;
    int credits;
    struct sequence *sequences; /* in order of arrival */
    struct engine_event *events;
    int n_events, event_fd;
    uint64_t next_id, steps, prompt_tokens, generated_tokens, finished[FINISH_COUNT];
};

static void post(struct engine *e, const struct engine_event *event) {
    if (e->n_events == MAX_EVENTS) abort();
    e->events[e->n_events++] = *event;
}

static float fake_logprob(int32_t id) { return -0.25f - 0.125f * (float)(id % 5); }

static void fill(struct engine_event *event, const struct sequence *s, int32_t id) {
    event->token = id;
    event->logprob = fake_logprob(id);
    event->n_top = s->n_logprobs > 0 ? s->n_logprobs : 0;
    for (int i = 0; i < event->n_top; i++) {
        event->top[i].id = (id + i) % FAKE_VOCAB;
        event->top[i].logprob = i == MAX_TOP_LOGPROBS - 1 ? -INFINITY : event->logprob - (float)i;
    }
}

static struct engine_event event_of(const struct sequence *s, enum event_kind kind) {
    return (struct engine_event){
        .id = s->id, .tag = s->tag, .choice = s->choice, .kind = kind, .token = -1, .at_us = clock_us()};
}

static void finish(struct engine *e, struct sequence *s, enum finish_reason reason) {
    struct engine_event event = event_of(s, EVENT_FINISH);
    event.reason = reason;
    event.n_prompt = s->n_prompt;
    event.n_generated = s->n_done;
    event.queued_us = s->scheduled_us ? s->scheduled_us - s->arrival_us : clock_us() - s->arrival_us;
    event.first_token_us = s->first_us ? s->first_us - s->arrival_us : -1;
    e->finished[reason]++;
    post(e, &event);
    for (struct sequence **at = &e->sequences; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    free(s->script);
    free(s->prompt);
    free(s);
}

static void prefill(struct engine *e, struct sequence *s) {
    s->is_prefilled = true;
    e->prompt_tokens += (uint64_t)s->n_prompt;
    for (int i = 0; i < s->n_prompt && s->prompt_logprobs && s->choice == 0; i++) {
        struct engine_event event = event_of(s, EVENT_PROMPT);
        fill(&event, s, s->prompt[i]);
        if (i == 0) event.logprob = NAN, event.n_top = 0;
        post(e, &event);
    }
    if (s->max_tokens == 0) finish(e, s, FINISH_LENGTH);
}

static void generate(struct engine *e, struct sequence *s) {
    bool at_end = s->script && s->script_at == s->n_script;
    if (s->fails && s->n_done == 2) {
        finish(e, s, FINISH_ERROR);
        return;
    }
    s->n_done++;
    e->generated_tokens++;
    if (at_end && !s->ignore_eos) {
        finish(e, s, FINISH_STOP);
        return;
    }
    struct engine_event event = event_of(s, EVENT_TOKEN);
    fill(&event, s, at_end ? FAKE_END : s->script ? s->script[s->script_at++] : 'a' + (s->choice + s->n_done - 1) % 26);
    post(e, &event);
    if (!s->first_us) s->first_us = event.at_us;
    if (s->n_done == s->max_tokens) finish(e, s, FINISH_LENGTH);
}

static int count_running(const struct engine *e) {
    int n = 0;
    for (const struct sequence *s = e->sequences; s; s = s->next) n += s->is_running;
    return n;
}

/* Mutex held. */
static void step(struct engine *e) {
    struct sequence *next;
    for (struct sequence *s = e->sequences; s; s = next) {
        next = s->next;
        if (s->cancelled) finish(e, s, FINISH_CANCELLED);
    }
    int running = count_running(e);
    for (struct sequence *s = e->sequences; s; s = s->next)
        if (!s->is_running && running < e->options.max_seqs) s->is_running = true, s->scheduled_us = clock_us(), running++;
    for (struct sequence *s = e->sequences; s; s = next) {
        next = s->next;
        if (!s->is_running) continue;
        if (!s->is_prefilled) prefill(e, s);
        else generate(e, s);
    }
    e->steps++;
    uint64_t one = 1;
    if (e->n_events && write(e->event_fd, &one, sizeof one) < 0) abort();
}

static bool has_cancelled(const struct engine *e) {
    for (const struct sequence *s = e->sequences; s; s = s->next)
        if (s->cancelled) return true;
    return false;
}

/* A cancel is obeyed within one step, gate or not. */
static void drop_cancelled(struct engine *e) {
    struct sequence *next;
    for (struct sequence *s = e->sequences; s; s = next) {
        next = s->next;
        if (s->cancelled) finish(e, s, FINISH_CANCELLED);
    }
    uint64_t one = 1;
    if (write(e->event_fd, &one, sizeof one) < 0) abort();
    pthread_cond_broadcast(&e->changed);
}

static void *run(void *arg) {
    struct engine *e = arg;
    pthread_mutex_lock(&e->mutex);
    while (!e->closing) {
        if (e->gated && e->credits > 0) {
            step(e);
            e->credits--;
            pthread_cond_broadcast(&e->changed);
        } else if (!e->gated && e->sequences && e->n_events < MAX_EVENTS / 2) {
            step(e);
            pthread_mutex_unlock(&e->mutex); /* let others in */
            pthread_mutex_lock(&e->mutex);
        } else if (has_cancelled(e)) drop_cancelled(e);
        else pthread_cond_wait(&e->changed, &e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}

enum status engine_open(struct engine **out, const struct engine_options *options, struct err *err) {
    struct engine *e = calloc(1, sizeof *e);
    e->options = *options;
    e->events = calloc(MAX_EVENTS, sizeof *e->events);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (int i = 0; i < LINE_COUNT; i++)
        e->plan.lines[i] = (struct ledger_line){.id = "other", .owner = "tests", .device = "host"};
    struct ledger_line *line = &e->plan.lines[LINE_REQUESTS];
    *line = (struct ledger_line){.id = "requests",
                                 .owner = "server",
                                 .device = "host",
                                 .lifetime = LIFETIME_SERVE,
                                 .is_arena = true,
                                 .formula = "tests",
                                 .bytes = options->request_bytes,
                                 .granted = (options->request_bytes + 4095) / 4096 * 4096};
    e->plan.total = e->plan.peak = line->granted;
    *out = e;
    return ledger_open(&e->ledger, &e->plan, err);
}

enum status engine_start(struct engine *e, struct err *err) {
    ledger_ready(e->ledger);
    e->started = pthread_create(&e->thread, NULL, run, e) == 0;
    return e->started ? STATUS_OK : STATUS_INTERNAL;
}

void engine_close(struct engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->closing = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    if (e->started) pthread_join(e->thread, NULL);
    while (e->sequences) finish(e, e->sequences, FINISH_CANCELLED), e->n_events = 0;
    close(e->event_fd);
    ledger_close(e->ledger);
    free(e->events);
    free(e);
}

static const char *find(const char *text, size_t n, const char *word) { return memmem(text, n, word, strlen(word)); }

/* What the prompt asks the fake to say. */
static void read_script(struct sequence *s) {
    char *text = malloc((size_t)s->n_prompt * 8 + 1);
    size_t n = 0;
    for (int i = 0; i < s->n_prompt; i++) {
        struct text_view piece = tokenizer_piece(NULL, s->prompt[i]);
        memcpy(text + n, piece.data, piece.n);
        n += piece.n;
    }
    const char *say = find(text, n, "say:");
    s->fails = find(text, n, "fail:") != NULL;
    if (say) {
        size_t m = n - (size_t)(say + 4 - text);
        s->script = malloc((m + 1) * sizeof *s->script);
        s->n_script = fake_encode(say + 4, m, 0, s->script, (int)m);
    }
    free(text);
}

static struct sequence *new_sequence(const struct engine_request *q, uint64_t id, int choice) {
    struct sequence *s = calloc(1, sizeof *s);
    *s = (struct sequence){.id = id,
                           .tag = q->tag,
                           .choice = choice,
                           .n_prompt = q->n_prompt,
                           .max_tokens = q->max_tokens,
                           .n_logprobs = q->n_logprobs,
                           .ignore_eos = q->ignore_eos,
                           .prompt_logprobs = q->prompt_logprobs,
                           .arrival_us = q->arrival_us};
    s->prompt = malloc((size_t)q->n_prompt * sizeof *s->prompt);
    memcpy(s->prompt, q->prompt, (size_t)q->n_prompt * sizeof *s->prompt);
    read_script(s);
    return s;
}

enum status engine_submit(struct engine *e, const struct engine_request *q, uint64_t *id, struct err *err) {
    enum status status = STATUS_OK;
    int n = 0;
    pthread_mutex_lock(&e->mutex);
    struct sequence **at = &e->sequences;
    for (; *at; at = &(*at)->next) n++;
    if (e->draining) status = err_set(err, STATUS_DRAINING, "shutting down");
    else if (q->n_prompt < 1 || q->n_prompt + q->max_tokens > e->options.max_context)
        status = err_set_param(err, STATUS_INVALID, "max_tokens", "too long");
    else if (n >= e->options.max_seqs + e->options.max_queue) status = err_set(err, STATUS_BUSY, "the queue is full");
    else {
        *id = ++e->next_id;
        for (int i = 0; i < q->n_choices; i++, at = &(*at)->next) *at = new_sequence(q, *id, i);
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->mutex);
    return status;
}

void engine_cancel(struct engine *e, uint64_t id, int choice) {
    pthread_mutex_lock(&e->mutex);
    for (struct sequence *s = e->sequences; s; s = s->next)
        if (s->id == id && (choice < 0 || s->choice == choice)) s->cancelled = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

void engine_drain(struct engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->draining = true;
    pthread_mutex_unlock(&e->mutex);
}

int engine_poll(struct engine *e, struct engine_event *events, int max) {
    uint64_t count;
    pthread_mutex_lock(&e->mutex);
    if (read(e->event_fd, &count, sizeof count) < 0) count = 0;
    int n = e->n_events < max ? e->n_events : max;
    memcpy(events, e->events, (size_t)n * sizeof *events);
    e->n_events -= n;
    memmove(e->events, e->events + n, (size_t)e->n_events * sizeof *events);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    return n;
}

int engine_event_fd(const struct engine *e) { return e->event_fd; }

void engine_stats_read(const struct engine *e, struct engine_stats *stats) {
    struct engine *m = (struct engine *)(uintptr_t)e;
    pthread_mutex_lock(&m->mutex);
    *stats = (struct engine_stats){.running = count_running(e),
                                   .blocks_total = BLOCKS_TOTAL,
                                   .prompt_tokens = e->prompt_tokens,
                                   .generated_tokens = e->generated_tokens,
                                   .steps = e->steps,
                                   .stuck = e->stuck};
    for (const struct sequence *s = e->sequences; s; s = s->next) {
        stats->waiting_seqs += !s->is_running;
        if (s->is_running) stats->blocks_used += (s->n_prompt + s->n_done + 15) / 16;
    }
    stats->blocks_free = BLOCKS_TOTAL - stats->blocks_used;
    memcpy(stats->finished, e->finished, sizeof e->finished);
    pthread_mutex_unlock(&m->mutex);
}

const struct engine_options *engine_resolved(const struct engine *e) { return &e->options; }

struct ledger *engine_ledger(const struct engine *e) {
    return e->ledger;
}

const char *engine_model_name(const struct engine *e) { return "fake-model"; }

const char *engine_backend_name(const struct engine *e) { return "fake"; }

int engine_vocab(const struct engine *e) { return FAKE_VOCAB; }

void fake_engine_gate(struct engine *e, bool on) {
    pthread_mutex_lock(&e->mutex);
    e->gated = on;
    e->credits = 0;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

void fake_engine_step(struct engine *e, int n) {
    pthread_mutex_lock(&e->mutex);
    e->credits += n;
    pthread_cond_broadcast(&e->changed);
    while (e->credits > 0 && e->gated) pthread_cond_wait(&e->changed, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
}

void fake_engine_stuck(struct engine *e, bool stuck) {
    pthread_mutex_lock(&e->mutex);
    e->stuck = stuck;
    pthread_mutex_unlock(&e->mutex);
}
