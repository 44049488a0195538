/* The engine's contract, over the demo model: what is refused, what ends how, and that nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include <cmocka.h>

#include "engine/engine_internal.h"
#include "tests/unit/engine/engine_fixture.h"

static const char *model_path;
static struct engine *engine; /* of the tests that need nothing special */

static struct engine_options options_of(int max_seqs, int max_queue, int max_context) {
    return (struct engine_options){.model_path = model_path,
                                   .n_threads = 2,
                                   .max_context = max_context,
                                   .max_seqs = max_seqs,
                                   .max_batch_tokens = 64,
                                   .max_queue = max_queue,
                                   .block_tokens = 16};
}

static const int32_t prompt[] = {504, 2649, 282,  7217, 314, 260, 1206, 30,  198, 57,
                                 736, 253,  1419, 351,  260, 905, 282,  657, 28,  284};
#define N_PROMPT (int)(sizeof prompt / sizeof *prompt)

/* Of tests that compute for a minute there, and are about answers more than about threads. */
static void skip_under_thread_sanitizer(void) {
#if defined(__SANITIZE_THREAD__)
    print_message("skipped: this takes a minute under ThreadSanitizer; the other tests here start the same threads\n");
    skip();
#endif
}

static struct engine_request greedy(int n_prompt, int max_tokens) {
    return (struct engine_request){.prompt = prompt,
                                   .n_prompt = n_prompt,
                                   .max_tokens = max_tokens,
                                   .n_choices = 1,
                                   .n_logprobs = -1,
                                   .ignore_eos = true,
                                   .sampling = {.temperature = 0, .top_p = 1},
                                   .arrival_us = clock_us()};
}

static uint64_t submit(struct engine *e, const struct engine_request *r) {
    struct err err = {0};
    uint64_t id = 0;
    if (engine_submit(e, r, &id, &err)) fail_msg("submit: %s", err.text);
    return id;
}

/* Events until n finishes; the last one is returned, and tokens counted. */
static struct engine_event drain_events(struct engine *e, int n_finishes, int *n_tokens) {
    struct engine_event events[32], last = {0};
    while (n_finishes > 0) {
        int n = poll_events(e, events, 32);
        for (int i = 0; i < n; i++) {
            if (n_tokens) *n_tokens += events[i].kind == EVENT_TOKEN;
            if (events[i].kind == EVENT_FINISH) last = events[i], n_finishes--;
        }
    }
    return last;
}

/* The stats of the last step follow its events: waits until nothing runs. */
static struct engine_stats at_rest(struct engine *e) {
    struct engine_stats s;
    do {
        sched_yield();
        engine_stats_read(e, &s);
    } while (s.running || s.waiting_capacity || s.waiting_seqs || s.waiting_tokens);
    assert_int_equal(s.blocks_used, 0);
    assert_int_equal(s.blocks_free, s.blocks_total);
    assert_int_equal(s.blocks_leaked, 0);
    assert_false(s.stuck);
    return s;
}

static void refused(struct engine *e, struct engine_request r, const char *param) {
    struct err err = {0};
    uint64_t id;
    assert_int_equal(engine_submit(e, &r, &id, &err), STATUS_INVALID);
    assert_string_equal(err.param, param);
    assert_true(err.text[0] != 0);
}

static void what_could_never_run_is_refused_on_arrival(void **state) {
    struct engine_request r = greedy(N_PROMPT, 10), bad = r;
    int32_t ids[] = {1, -1};
    bad.n_prompt = 0, refused(engine, bad, "prompt");
    bad = r, bad.max_tokens = 500, refused(engine, bad, "max_tokens");
    bad = r, bad.max_tokens = -1, refused(engine, bad, "max_tokens");
    bad = r, bad.n_prompt = 5000, refused(engine, bad, "prompt");
    bad = r, bad.n_choices = 0, refused(engine, bad, "n");
    bad = r, bad.n_choices = MAX_CHOICES + 1, refused(engine, bad, "n");
    bad = r, bad.n_logprobs = MAX_TOP_LOGPROBS + 1, refused(engine, bad, "logprobs");
    bad = r, bad.prompt = ids, bad.n_prompt = 2, refused(engine, bad, "prompt");
    ids[1] = engine_vocab(engine), refused(engine, bad, "prompt");
    ids[1] = INT32_MAX, refused(engine, bad, "prompt");
    at_rest(engine);
}

static void max_tokens_is_exactly_what_comes(void **state) {
    for (int n = 1; n <= 3; n++) {
        struct engine_request r = greedy(N_PROMPT, n);
        struct answer a = {0};
        run_alone(engine, &r, &a);
        assert_int_equal(a.n_tokens, n);
        assert_int_equal(a.finish.reason, FINISH_LENGTH);
        assert_int_equal(a.finish.n_generated, n);
        assert_int_equal(a.finish.n_prompt, N_PROMPT);
        assert_int_equal(a.finish.token, -1);
        assert_true(a.finish.first_token_us >= a.finish.queued_us && a.finish.queued_us >= 0);
        answer_free(&a);
    }
}

static void no_tokens_asked_gives_the_prompt_alone(void **state) {
    struct engine_request r = greedy(N_PROMPT, 0);
    struct answer a = {0}, b = {0};
    run_alone(engine, &r, &a);
    assert_int_equal(a.n_tokens + a.n_prompt, 0);
    assert_int_equal(a.finish.reason, FINISH_LENGTH);
    assert_int_equal(a.finish.first_token_us, -1);
    r.prompt_logprobs = true, r.n_logprobs = 2;
    run_alone(engine, &r, &b);
    assert_int_equal(b.n_prompt, N_PROMPT);
    assert_true(isnan(b.prompt[0].logprob) && b.prompt[0].n_top == 0);
    for (int i = 0; i < N_PROMPT; i++) assert_int_equal(b.prompt[i].token, prompt[i]);
    for (int i = 1; i < N_PROMPT; i++) assert_true(b.prompt[i].logprob <= 0 && b.prompt[i].n_top == 2);
    answer_free(&a);
    answer_free(&b);
}

/* Logprobs of a completion are those of the same tokens read as a prompt, bit for bit: computed one by one, or 64 at a time. */
static void a_completion_read_again_as_a_prompt_has_the_same_logprobs(void **state) {
    skip_under_thread_sanitizer();
    struct engine_request r = greedy(N_PROMPT, 60);
    r.n_logprobs = 3;
    struct answer a = {0}, b = {0};
    run_alone(engine, &r, &a);
    int32_t all[N_PROMPT + 60];
    memcpy(all, prompt, sizeof prompt);
    for (int i = 0; i < 60; i++) all[N_PROMPT + i] = a.tokens[i].token;
    r.prompt = all, r.n_prompt = N_PROMPT + 60, r.max_tokens = 0, r.prompt_logprobs = true;
    run_alone(engine, &r, &b);
    assert_int_equal(b.n_prompt, N_PROMPT + 60);
    for (int i = 0; i < 60; i++) {
        assert_true(same_event(&a.tokens[i], &b.prompt[N_PROMPT + i]));
        assert_int_equal(a.tokens[i].top[0].id, a.tokens[i].token); /* greedy takes the best */
        assert_true(a.tokens[i].top[0].logprob == a.tokens[i].logprob &&
                    a.tokens[i].top[1].logprob >= a.tokens[i].top[2].logprob);
    }
    answer_free(&a);
    answer_free(&b);
}

static void greedy_choices_agree_and_sampled_ones_differ(void **state) {
    skip_under_thread_sanitizer();
    struct engine_request r = greedy(N_PROMPT, 20);
    r.n_choices = 6; /* more than sequence slots */
    r.n_logprobs = 1;
    struct answer a[6] = {{0}}, b[6] = {{0}};
    run_alone(engine, &r, a);
    for (int i = 1; i < 6; i++) assert_true(same_answer(&a[0], &a[i], false));
    r.sampling = (struct sampling){.temperature = 1, .top_p = 1, .seed = 9};
    run_alone(engine, &r, b);
    int n_same = 0;
    for (int i = 1; i < 6; i++) n_same += same_answer(&b[0], &b[i], false);
    assert_int_equal(n_same, 0);
    for (int i = 0; i < 6; i++) answer_free(&a[i]), answer_free(&b[i]);
    at_rest(engine);
}

static void *from_heap(void *context, size_t bytes) { return *(void **)context = calloc(1, bytes); }

static void an_end_token_ends_and_is_named_but_not_sent(void **state) {
    skip_under_thread_sanitizer();
    static const char text[] = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";
    const struct tokenizer *t = engine_tokenizer(engine);
    struct err err = {0};
    void *memory = NULL;
    size_t n_ids;
    struct tokenizer_scratch *scratch = tokenizer_scratch_create((struct memory_source){from_heap, &memory}, sizeof text, &err);
    assert_non_null(scratch);
    int32_t chat[64];
    assert_int_equal(tokenizer_encode(t, scratch, text, sizeof text - 1, ENCODE_SPECIAL, chat, 64, &n_ids, &err), STATUS_OK);
    struct engine_request r = greedy((int)n_ids, 300);
    r.prompt = chat, r.ignore_eos = false;
    struct answer a = {0};
    run_alone(engine, &r, &a);
    assert_int_equal(a.finish.reason, FINISH_STOP);
    assert_true(tokenizer_is_end(t, a.finish.token));
    assert_int_equal(a.finish.n_generated, a.n_tokens + 1);
    for (int i = 0; i < a.n_tokens; i++) assert_false(tokenizer_is_end(t, a.tokens[i].token));
    r.ignore_eos = true;
    struct answer b = {0};
    run_alone(engine, &r, &b);
    assert_int_equal(b.n_tokens, 300);
    assert_int_equal(b.tokens[a.n_tokens].token, a.finish.token);
    answer_free(&a);
    answer_free(&b);
    tokenizer_scratch_destroy(scratch);
    free(memory);
}

static void a_cancel_ends_running_and_waiting_alike_and_nobody_else(void **state) {
    struct engine_request r = greedy(N_PROMPT, 400), other = greedy(5, 30);
    uint64_t ids[8];
    for (int i = 0; i < 8; i++) ids[i] = submit(engine, &r); /* 4 run, 4 wait */
    struct engine_event event;
    do poll_events(engine, &event, 1);
    while (event.kind != EVENT_TOKEN);
    other.tag = 77;
    submit(engine, &other);
    for (int i = 7; i >= 0; i--) engine_cancel(engine, ids[i], -1);
    engine_cancel(engine, ids[3], -1); /* twice, and one nobody knows */
    engine_cancel(engine, 123456789, 0);
    int n_cancelled = 0, n_other = 0;
    for (int left = 9; left > 0;) {
        poll_events(engine, &event, 1);
        n_other += event.tag == 77 && event.kind == EVENT_TOKEN;
        if (event.kind != EVENT_FINISH) continue;
        left--;
        n_cancelled += event.reason == FINISH_CANCELLED;
        assert_true(event.tag == 77 ? event.reason == FINISH_LENGTH : event.reason == FINISH_CANCELLED);
    }
    assert_int_equal(n_cancelled, 8);
    assert_int_equal(n_other, 30);
    at_rest(engine);
}

static void one_choice_can_be_cancelled(void **state) {
    struct engine_request r = greedy(N_PROMPT, 100);
    r.n_choices = 3;
    uint64_t id = submit(engine, &r);
    engine_cancel(engine, id, 1);
    struct engine_event event;
    int n_finished[3] = {0};
    for (int left = 3; left > 0;) {
        poll_events(engine, &event, 1);
        if (event.kind != EVENT_FINISH) continue;
        left--;
        n_finished[event.choice]++;
        assert_int_equal(event.reason, event.choice == 1 ? FINISH_CANCELLED : FINISH_LENGTH);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(n_finished[i], 1);
    at_rest(engine);
}

/* A client that goes away with its last token: the cancel meets a request that is over, and must not keep the engine awake. */
static void a_cancel_that_comes_too_late_is_forgotten(void **state) {
    struct engine_request r = greedy(3, 2);
    for (int i = 0; i < 40; i++) {
        uint64_t id = submit(engine, &r);
        struct engine_event event;
        do poll_events(engine, &event, 1);
        while (event.kind != EVENT_TOKEN);
        engine_cancel(engine, id, -1);
        if (event.kind != EVENT_FINISH) drain_events(engine, 1, NULL);
    }
    at_rest(engine);
    int64_t give_up = clock_us() + 20000000;
    while (atomic_load(&engine->inbox.has_cancels) && clock_us() < give_up) sched_yield();
    assert_false(atomic_load(&engine->inbox.has_cancels));
    for (int i = 0; i < engine->store.n_requests; i++) assert_int_equal(atomic_load(&engine->store.requests[i].cancel_mask), 0);
}

struct successor {
    struct engine *e;
    struct engine_request request;
    atomic_bool is_wanted;
    atomic_bool is_over;
};

/* Submits one request each time it is wanted, trying until there is a place. */
static void *take_the_place(void *arg) {
    struct successor *s = arg;
    while (!atomic_load(&s->is_over)) {
        uint64_t id;
        struct err err;
        while (!atomic_load(&s->is_wanted)) sched_yield();
        while (!atomic_load(&s->is_over) && engine_submit(s->e, &s->request, &id, &err) == STATUS_BUSY) {
        }
        atomic_store(&s->is_wanted, false);
    }
    return NULL;
}

static struct engine_event next_finish(struct engine *e) {
    struct engine_event event;
    do poll_events(e, &event, 1);
    while (event.kind != EVENT_FINISH);
    return event;
}

#ifdef TALLY_SANITIZE
#define ROUNDS 25
#else
#define ROUNDS 300
#endif

/* The place of a request that is cancelled whole is taken by another the moment it is free: no choice of that one is cancelled. */
static void a_successor_of_a_cancelled_request_is_left_alone(void **state) {
    struct engine_options o = options_of(1, 0, 512);
    struct engine *e = engine_running(&o);
    struct engine_request r = greedy(3, 400);
    struct successor next = {.e = e, .request = greedy(3, 1)};
    r.n_choices = next.request.n_choices = 4, next.request.tag = 7;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_the_place, &next), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t id = submit(e, &r);
        for (int choice = 2; choice < 4; choice++) {
            engine_cancel(e, id, choice);
            assert_int_equal(next_finish(e).reason, FINISH_CANCELLED);
        }
        atomic_store(&next.is_wanted, true);
        engine_cancel(e, id, -1);
        for (int left = 2 + 4; left > 0; left--) {
            struct engine_event event = next_finish(e);
            assert_int_equal(event.reason, event.tag == 7 ? FINISH_LENGTH : FINISH_CANCELLED);
        }
        while (atomic_load(&next.is_wanted)) sched_yield();
    }
    atomic_store(&next.is_over, true);
    atomic_store(&next.is_wanted, true);
    pthread_join(thread, NULL);
    at_rest(e);
    engine_close(e);
}

static void nothing_is_allocated_after_ready(void **state) {
    struct ledger_reading reading;
    ledger_read(engine_ledger(engine), &reading);
    assert_int_equal(reading.allocs_after_ready, 0);
}

static void a_full_queue_is_busy_and_a_draining_engine_says_so(void **state) {
    struct engine_options o = options_of(1, 1, 512);
    struct engine *e = engine_running(&o);
    struct engine_request r = greedy(N_PROMPT, 60);
    submit(e, &r);
    submit(e, &r);
    struct err err = {0};
    uint64_t id;
    assert_int_equal(engine_submit(e, &r, &id, &err), STATUS_BUSY);
    engine_drain(e);
    assert_int_equal(engine_submit(e, &r, &id, &err), STATUS_DRAINING);
    int n_tokens = 0;
    drain_events(e, 2, &n_tokens);
    assert_int_equal(n_tokens, 120); /* those running and waiting went on */
    at_rest(e);
    engine_close(e);
}

/* Nobody polls: the ring fills, the engine waits, and nothing is lost. */
static void a_slow_consumer_loses_nothing(void **state) {
    skip_under_thread_sanitizer(); /* test_engine_events fills the ring there */
    struct engine_options o = options_of(2, 4, 1500);
    struct engine *e = engine_running(&o);
    int32_t *ids = malloc(1400 * sizeof *ids);
    for (int i = 0; i < 1400; i++) ids[i] = 1000 + i;
    struct engine_request r = greedy(1, 20);
    r.prompt = ids, r.n_prompt = 1400, r.prompt_logprobs = true;
    submit(e, &r);
    int64_t give_up = clock_us() + 120000000;
    int n = 0;
    while (n < e->events.capacity && clock_us() < give_up) { /* until it is full */
        sched_yield();
        pthread_mutex_lock(&e->events.lock);
        n = e->events.n;
        pthread_mutex_unlock(&e->events.lock);
    }
    assert_int_equal(n, e->events.capacity);
    struct engine_event events[100];
    int next_prompt = 0, n_tokens = 0, n_finished = 0;
    while (!n_finished) {
        n = poll_events(e, events, 100);
        for (int i = 0; i < n; i++) {
            if (events[i].kind == EVENT_PROMPT) assert_int_equal(events[i].token, ids[next_prompt++]);
            n_tokens += events[i].kind == EVENT_TOKEN;
            n_finished += events[i].kind == EVENT_FINISH;
        }
    }
    assert_int_equal(next_prompt, 1400);
    assert_int_equal(n_tokens, 20);
    submit(e, &r); /* and closing while it is full, or about to be, does not hang */
    engine_close(e);
    free(ids);
}

static void *read_stats(void *arg) {
    struct engine_stats s;
    for (int i = 0; i < 2000; i++) {
        engine_stats_read(arg, &s);
        if (s.blocks_used + s.blocks_free != s.blocks_total) return arg;
    }
    return NULL;
}

static void stats_are_consistent_from_any_thread(void **state) {
    struct engine_request r = greedy(N_PROMPT, 40);
    for (int i = 0; i < 4; i++) submit(engine, &r);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_stats, engine), 0);
    struct engine_stats before, after;
    engine_stats_read(engine, &before);
    drain_events(engine, 4, NULL);
    void *failed;
    pthread_join(thread, &failed);
    assert_null(failed);
    after = at_rest(engine);
    assert_true(after.generated_tokens >= before.generated_tokens && after.generated_tokens >= 160);
    assert_true(after.finished[FINISH_LENGTH] >= 4 && after.steps > 0);
}

static void hold_blocks(struct engine *e, int n_left) {
    while (e->pool.n_free > n_left) block_pool_alloc(&e->pool);
}

/* Blocks that nobody gives back: the answers go on, and the state says so. */
static void leaked_blocks_are_counted_and_end_nothing(void **state) {
    struct engine_options o = options_of(2, 4, 64);
    struct engine *e;
    struct err err = {0};
    assert_int_equal(engine_open(&e, &o, &err), STATUS_OK);
    int n_leaked = 3;
    hold_blocks(e, e->pool.n_blocks - n_leaked);
    assert_int_equal(engine_start(e, &err), STATUS_OK);
    struct engine_request r = greedy(N_PROMPT, 40);
    for (int i = 0; i < 3; i++) submit(e, &r);
    for (int i = 0; i < 3; i++) assert_int_equal(next_finish(e).reason, FINISH_LENGTH);
    struct engine_stats s;
    do engine_stats_read(e, &s);
    while (s.running);
    assert_int_equal(s.blocks_leaked, n_leaked);
    engine_close(e);
}

/* A broken scheduler, which schedules nothing while work waits: the stats say stuck once that has lasted, and closing still ends it. */
static void a_step_that_schedules_nothing_turns_the_engine_stuck(void **state) {
    struct engine_options o = options_of(2, 4, 64);
    struct engine *e;
    struct err err = {0};
    assert_int_equal(engine_open(&e, &o, &err), STATUS_OK);
    hold_blocks(e, 0);
    assert_int_equal(engine_start(e, &err), STATUS_OK);
    struct engine_request r = greedy(N_PROMPT, 4);
    submit(e, &r);
    struct engine_stats s;
    do engine_stats_read(e, &s); /* of the step that was none, which follow what it found */
    while (!atomic_load(&e->stuck_since_us) || s.running + s.waiting_capacity + s.waiting_seqs + s.waiting_tokens == 0);
    assert_false(s.stuck);
    atomic_store(&e->stuck_since_us, clock_us() - 3600000000);
    engine_stats_read(e, &s);
    assert_true(s.stuck);
    assert_int_equal(s.waiting_capacity, 1);
    engine_close(e);
}

static void closing_with_work_left_ends_it(void **state) {
    struct engine_options o = options_of(2, 8, 512);
    struct engine *e = engine_running(&o);
    struct engine_request r = greedy(N_PROMPT, 400);
    for (int i = 0; i < 6; i++) submit(e, &r);
    struct engine_event event;
    poll_events(e, &event, 1);
    engine_close(e);
}

int main(void) {
    model_path = demo_model_path();
    if (!model_path) return 77;
    struct engine_options o = options_of(4, 16, 512);
    engine = engine_running(&o);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_could_never_run_is_refused_on_arrival),
        cmocka_unit_test(max_tokens_is_exactly_what_comes),
        cmocka_unit_test(no_tokens_asked_gives_the_prompt_alone),
        cmocka_unit_test(a_completion_read_again_as_a_prompt_has_the_same_logprobs),
        cmocka_unit_test(greedy_choices_agree_and_sampled_ones_differ),
        cmocka_unit_test(an_end_token_ends_and_is_named_but_not_sent),
        cmocka_unit_test(a_cancel_ends_running_and_waiting_alike_and_nobody_else),
        cmocka_unit_test(one_choice_can_be_cancelled),
        cmocka_unit_test(a_cancel_that_comes_too_late_is_forgotten),
        cmocka_unit_test(a_successor_of_a_cancelled_request_is_left_alone),
        cmocka_unit_test(stats_are_consistent_from_any_thread),
        cmocka_unit_test(nothing_is_allocated_after_ready),
        cmocka_unit_test(a_full_queue_is_busy_and_a_draining_engine_says_so),
        cmocka_unit_test(a_slow_consumer_loses_nothing),
        cmocka_unit_test(leaked_blocks_are_counted_and_end_nothing),
        cmocka_unit_test(a_step_that_schedules_nothing_turns_the_engine_stuck),
        cmocka_unit_test(closing_with_work_left_ends_it),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    engine_close(engine);
    return failed;
}
