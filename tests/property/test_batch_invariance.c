/* A request's tokens and logprobs are the same bits alone and in company: random requests, staggered, of one and several choices, greedy
 * and sampled, some cancelled, in a pool small enough to preempt, against each of them run alone by an engine with other threads,
 * other chunks and other blocks.
 *
 * TALLY_REQUESTS=200 TALLY_LONGEST=1500 is the full run (minutes); TALLY_SEED repeats one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/engine_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_REQUESTS 16 /* instrumented kernels are slow */
#else
#define DEFAULT_REQUESTS 48
#endif
#define DEFAULT_LONGEST 350
#define MAX_REQUESTS 1000
#define MAX_COMPLETION 100

static const char *model_path;
static uint64_t random_state;

static uint64_t draw(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static int between(int low, int high) { return low + (int)(draw() % (uint64_t)(high - low + 1)); }

static int from_environment(const char *name, int fallback) {
    const char *text = getenv(name);
    return text && *text ? (int)strtol(text, NULL, 0) : fallback;
}

struct sent {
    struct engine_request request;
    struct answer answers[MAX_CHOICES];
    uint64_t id;
    int n_done, cancel_after; /* events, −1: never */
    int n_events;
    bool is_cancelled;
};

static int32_t *random_prompt(int n, int vocab) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    int32_t common = (int32_t)(draw() % (uint64_t)vocab);
    for (int i = 0; i < n; i++) ids[i] = between(0, 3) ? (int32_t)(draw() % (uint64_t)vocab) : common;
    return ids;
}

static void make_request(struct sent *s, int index, int longest, int vocab) {
    int n_prompt = between(0, 3) ? between(1, longest / 8) : between(1, longest);
    s->request = (struct engine_request){.prompt = random_prompt(n_prompt, vocab),
                                         .n_prompt = n_prompt,
                                         .max_tokens = between(1, MAX_COMPLETION),
                                         .n_choices = between(0, 4) ? 1 : between(2, 4),
                                         .ignore_eos = true,
                                         .tag = (uint64_t)index,
                                         .n_logprobs = between(-1, 5),
                                         .prompt_logprobs = between(0, 3) == 0,
                                         .arrival_us = clock_us()};
    s->request.sampling = (struct sampling){.temperature = 0, .top_p = 1};
    if (between(0, 1))
        s->request.sampling = (struct sampling){.temperature = 0.9f, .top_p = 0.95f, .top_k = between(0, 50), .seed = draw()};
    s->cancel_after = between(0, 7) ? -1 : between(0, 20);
}

static void take_events(struct engine *e, struct sent *sent, int *n_open) {
    struct engine_event events[64];
    int n = poll_events(e, events, 64);
    for (int i = 0; i < n; i++) {
        struct sent *s = &sent[events[i].tag];
        assert_int_equal(events[i].id, s->id);
        assert_false(s->answers[events[i].choice].is_finished);
        answer_take(&s->answers[events[i].choice], &events[i]);
        s->n_events++;
        if (events[i].kind == EVENT_FINISH && ++s->n_done == s->request.n_choices) (*n_open)--;
        if (s->cancel_after >= 0 && s->n_events >= s->cancel_after && !s->is_cancelled) {
            engine_cancel(e, s->id, -1);
            s->is_cancelled = true;
        }
    }
}

static void run_together(struct engine *e, struct sent *sent, int n) {
    int n_open = 0;
    for (int i = 0; i < n; i++) {
        struct err err = {0};
        enum status status;
        while ((status = engine_submit(e, &sent[i].request, &sent[i].id, &err)) == STATUS_BUSY) take_events(e, sent, &n_open);
        assert_int_equal(status, STATUS_OK);
        n_open++;
        if (sent[i].cancel_after == 0) engine_cancel(e, sent[i].id, -1), sent[i].is_cancelled = true;
        for (int wait = between(0, 3) ? 0 : between(1, 6); wait > 0 && n_open > 0; wait--) take_events(e, sent, &n_open);
    }
    while (n_open > 0) take_events(e, sent, &n_open);
}

static void check_at_rest(struct engine *e) {
    struct engine_stats stats;
    do engine_stats_read(e, &stats);
    while (stats.running || stats.blocks_used); /* the last step's end follows its events */
    struct ledger_reading reading;
    ledger_read(engine_ledger(e), &reading);
    assert_int_equal(reading.allocs_after_ready, 0);
    printf("steps=%llu preemptions=%llu recomputed_tokens=%llu cancelled=%llu\n", (unsigned long long)stats.steps,
           (unsigned long long)stats.preemptions, (unsigned long long)stats.recomputed_tokens,
           (unsigned long long)stats.finished[FINISH_CANCELLED]);
    assert_true(stats.preemptions > 0);
}

static void company_changes_no_bit(void **state) {
    if (!model_path) skip();
    int n = from_environment("TALLY_REQUESTS", DEFAULT_REQUESTS), longest = from_environment("TALLY_LONGEST", DEFAULT_LONGEST);
    random_state = (uint64_t)from_environment("TALLY_SEED", 11);
    printf("seed=%llu requests=%d longest=%d\n", (unsigned long long)random_state, n, longest);
    assert_in_range(n, 1, MAX_REQUESTS);
    struct engine_options together = {.model_path = model_path,
                                      .n_threads = 2,
                                      .max_context = longest + MAX_COMPLETION,
                                      .max_seqs = 16,
                                      .max_batch_tokens = 96,
                                      .max_queue = 20,
                                      .block_tokens = 16};
    struct engine_options alone = together;
    together.memory_budget = budget_for_blocks(&together, (together.max_context + 15) / 16);
    alone.n_threads = 1, alone.max_batch_tokens = 333, alone.block_tokens = 32, alone.max_seqs = 4;
    struct engine *e = engine_running(&together);
    struct sent *sent = calloc((size_t)n, sizeof *sent);
    for (int i = 0; i < n; i++) make_request(&sent[i], i, longest, engine_vocab(e));
    run_together(e, sent, n);
    check_at_rest(e);
    engine_close(e);
    e = engine_running(&alone);
    int n_cancelled = 0;
    for (int i = 0; i < n; i++) {
        struct answer answers[MAX_CHOICES] = {{0}};
        run_alone(e, &sent[i].request, answers);
        for (int c = 0; c < sent[i].request.n_choices; c++) {
            bool is_cancelled = sent[i].answers[c].finish.reason == FINISH_CANCELLED;
            n_cancelled += is_cancelled;
            if (!same_answer(&sent[i].answers[c], &answers[c], is_cancelled))
                fail_msg("request %d choice %d (%d prompt tokens) differs: %d and %d tokens", i, c, sent[i].request.n_prompt,
                         sent[i].answers[c].n_tokens, answers[c].n_tokens);
            if (!is_cancelled) assert_int_equal(answers[c].n_tokens, sent[i].request.max_tokens);
            answer_free(&answers[c]);
            answer_free(&sent[i].answers[c]);
        }
        free((void *)(uintptr_t)sent[i].request.prompt);
    }
    assert_true(n_cancelled > 0);
    engine_close(e);
    free(sent);
}

int main(void) {
    model_path = demo_model_path();
    if (!model_path) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(company_changes_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
