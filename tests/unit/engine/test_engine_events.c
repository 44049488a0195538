/* The engine's events: in order whatever the pieces they are taken in, none lost when the ring is full, and an eventfd that is readable
 * whenever there may be some. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/engine_events.h"

#define HANG_MS 60000 /* nothing takes this long: a wait that ends by it is a failure */

struct ring {
    struct engine_events events;
    struct ledger *ledger;
};

static struct ledger *ledger_of(size_t bytes) {
    struct plan plan = {0};
    struct ledger *ledger;
    struct err err;
    for (int i = 0; i < LINE_COUNT; i++) plan.lines[i].id = "line", plan.lines[i].is_arena = true;
    plan.lines[LINE_EVENTS].bytes = bytes;
    plan.lines[LINE_EVENTS].granted = plan.total = (bytes + 4095) / 4096 * 4096;
    assert_int_equal(ledger_open(&ledger, &plan, &err), STATUS_OK);
    return ledger;
}

static struct engine_options options_of(int max_seqs, int max_batch_tokens) {
    return (struct engine_options){.max_seqs = max_seqs, .max_batch_tokens = max_batch_tokens};
}

static void ring_open(struct ring *ring) {
    struct engine_options o = options_of(1, 1);
    struct err err;
    ring->ledger = ledger_of(engine_event_bytes(&o));
    assert_int_equal(engine_events_init(&ring->events, &o, ring->ledger, &err), STATUS_OK);
}

static void ring_close(struct ring *ring) {
    engine_events_deinit(&ring->events);
    ledger_close(ring->ledger);
}

static bool is_readable(const struct ring *ring) {
    struct pollfd fd = {.fd = ring->events.fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* For threads beside the test's own too, which may not fail by assertion. */
static void await_readable(const struct ring *ring) {
    struct pollfd fd = {.fd = ring->events.fd, .events = POLLIN};
    if (poll(&fd, 1, HANG_MS) == 1) return;
    fprintf(stderr, "the eventfd stayed silent\n");
    abort();
}

/* Every field that a copy could lose is told by the number. */
static struct engine_event event_of(uint64_t number) {
    struct engine_event event = {
        .id = number, .tag = ~number, .kind = EVENT_TOKEN, .token = (int32_t)number, .n_top = MAX_TOP_LOGPROBS};
    event.top[MAX_TOP_LOGPROBS - 1].id = (int32_t)number;
    event.first_token_us = -(int64_t)number;
    return event;
}

static void push(struct ring *ring, uint64_t number) {
    struct engine_event event = event_of(number);
    engine_events_push(&ring->events, &event);
}

static bool is_event(const struct engine_event *event, uint64_t number) {
    return event->id == number && event->tag == ~number && event->token == (int32_t)number &&
           event->top[MAX_TOP_LOGPROBS - 1].id == (int32_t)number && event->first_token_us == -(int64_t)number;
}

static int take(struct ring *ring, int max, uint64_t first) {
    struct engine_event events[64];
    int n = engine_events_poll(&ring->events, events, max < 64 ? max : 64);
    for (int i = 0; i < n; i++) assert_true(is_event(&events[i], first + (uint64_t)i));
    return n;
}

static void the_line_is_what_the_ring_takes_and_holds_two_steps(void **state) {
    const int sizes[][2] = {{1, 1}, {4, 508}, {16, 512}, {512, 512}, {256, 8192}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct engine_options o = options_of(sizes[i][0], sizes[i][1]);
        struct engine_events events;
        struct err err;
        struct ledger *ledger = ledger_of(engine_event_bytes(&o));
        assert_int_equal(engine_events_init(&events, &o, ledger, &err), STATUS_OK);
        assert_true(events.capacity >= 2 * (o.max_seqs + o.max_batch_tokens));
        struct ledger_reading reading;
        ledger_read(ledger, &reading);
        assert_int_equal(reading.used[LINE_EVENTS], engine_event_bytes(&o));
        engine_events_deinit(&events);
        ledger_close(ledger);
    }
}

static void events_come_in_order_in_pieces_of_any_size(void **state) {
    struct ring ring;
    ring_open(&ring);
    uint64_t random = 5, pushed = 0, taken = 0;
    print_message("seed %llu\n", (unsigned long long)random);
    for (int round = 0; round < 3000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int n_push = (int)(random >> 33) % 64, n_take = (int)(random >> 45) % 64;
        for (; n_push > 0 && pushed - taken < (uint64_t)ring.events.capacity; n_push--) push(&ring, pushed++);
        uint64_t held = pushed - taken;
        int n = take(&ring, n_take, taken);
        assert_int_equal(n, held < (uint64_t)n_take ? (int)held : n_take);
        taken += (uint64_t)n;
    }
    assert_true(taken > 20 * (uint64_t)ring.events.capacity); /* the ring went round */
    ring_close(&ring);
}

static void the_fd_is_readable_from_the_signal_until_all_is_taken(void **state) {
    struct ring ring;
    ring_open(&ring);
    assert_int_equal(take(&ring, 10, 0), 0);
    engine_events_signal(&ring.events);
    assert_false(is_readable(&ring)); /* no news */
    push(&ring, 0);
    push(&ring, 1);
    assert_false(is_readable(&ring)); /* one wake a step, not one an event */
    engine_events_signal(&ring.events);
    assert_true(is_readable(&ring));
    assert_int_equal(take(&ring, 1, 0), 1);
    assert_true(is_readable(&ring)); /* there is more */
    assert_int_equal(take(&ring, 0, 1), 0);
    assert_true(is_readable(&ring));
    assert_int_equal(take(&ring, 10, 1), 1);
    assert_false(is_readable(&ring));
    engine_events_signal(&ring.events); /* no news since */
    assert_false(is_readable(&ring));
    ring_close(&ring);
}

struct producer {
    struct ring *ring;
    uint64_t n_events;
    int events_a_step; /* 0: it never signals */
    atomic_bool has_ended;
};

static void *produce(void *arg) {
    struct producer *p = arg;
    for (uint64_t i = 0; i < p->n_events; i++) {
        push(p->ring, i);
        if (p->events_a_step && (i + 1) % (uint64_t)p->events_a_step == 0) engine_events_signal(&p->ring->events);
    }
    if (p->events_a_step) engine_events_signal(&p->ring->events);
    atomic_store(&p->has_ended, true);
    return NULL;
}

/* That the fd becomes readable at all shows that a full ring asks for room by itself. */
static void a_full_ring_asks_for_room_and_loses_nothing(void **state) {
    struct ring ring;
    ring_open(&ring);
    struct producer p = {.ring = &ring, .n_events = 3 * (uint64_t)ring.events.capacity};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &p), 0);
    await_readable(&ring);
    assert_false(atomic_load(&p.has_ended));
    for (uint64_t taken = 0; taken < p.n_events;) {
        uint64_t left = p.n_events - taken;
        if (left > (uint64_t)ring.events.capacity) await_readable(&ring);
        taken += (uint64_t)take(&ring, 64, taken);
    }
    pthread_join(thread, NULL);
    assert_int_equal(take(&ring, 64, p.n_events), 0);
    ring_close(&ring);
}

/* The consumer sleeps whenever the fd says nothing: a wake lost between the two would leave it there. */
static void no_wake_is_lost_between_producer_and_consumer(void **state) {
    static const int steps[] = {1, 3, 200, 5000};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        struct ring ring;
        ring_open(&ring);
        struct producer p = {.ring = &ring, .n_events = 20000, .events_a_step = steps[s]};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, produce, &p), 0);
        for (uint64_t taken = 0; taken < p.n_events;) {
            await_readable(&ring);
            taken += (uint64_t)take(&ring, 1 + (int)(taken % 64), taken);
        }
        pthread_join(thread, NULL);
        ring_close(&ring);
    }
}

static void closing_lets_a_waiting_producer_go(void **state) {
    struct ring ring;
    ring_open(&ring);
    struct producer p = {.ring = &ring, .n_events = 3 * (uint64_t)ring.events.capacity};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &p), 0);
    await_readable(&ring); /* it is full */
    engine_events_close(&ring.events);
    pthread_join(thread, NULL);
    for (uint64_t taken = 0; taken < (uint64_t)ring.events.capacity;) {
        int n = take(&ring, 64, taken);
        assert_true(n > 0); /* what was there stays */
        taken += (uint64_t)n;
    }
    assert_int_equal(take(&ring, 64, 0), 0); /* what found no room is dropped */
    ring_close(&ring);
}

static void without_a_descriptor_it_does_not_open(void **state) {
    struct engine_options o = options_of(1, 1);
    struct ledger *ledger = ledger_of(engine_event_bytes(&o));
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    struct engine_events events;
    struct err err;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum status status = engine_events_init(&events, &o, ledger, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, STATUS_IO);
    assert_non_null(strstr(err.text, "eventfd"));
    engine_events_deinit(&events); /* is allowed */
    ledger_close(ledger);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_is_what_the_ring_takes_and_holds_two_steps),
        cmocka_unit_test(events_come_in_order_in_pieces_of_any_size),
        cmocka_unit_test(the_fd_is_readable_from_the_signal_until_all_is_taken),
        cmocka_unit_test(a_full_ring_asks_for_room_and_loses_nothing),
        cmocka_unit_test(no_wake_is_lost_between_producer_and_consumer),
        cmocka_unit_test(closing_lets_a_waiting_producer_go),
        cmocka_unit_test(without_a_descriptor_it_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
