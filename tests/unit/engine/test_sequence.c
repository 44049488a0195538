#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/scheduler_fixture.h"

/* The plan's lines are exactly what is taken: asking for more is a BUG in the ledger, less would be memory nobody uses. */
static void stores_take_what_their_lines_were_priced_at(void **state) {
    for (int seqs = 1; seqs < 80; seqs += 13)
        for (int context = 2; context < 3000; context = context * 3 + 1) {
            struct engine_options o = {.max_seqs = seqs,
                                       .max_queue = seqs * 3 % 7,
                                       .max_context = context,
                                       .max_batch_tokens = seqs + 31,
                                       .block_tokens = 16 + 16 * (seqs % 3)};
            struct world w;
            world_open(&w, &o, 100);
            struct ledger_reading r;
            ledger_read(w.ledger, &r);
            const struct plan *p = ledger_plan(w.ledger);
            assert_true(r.used[LINE_SEQUENCES] <= p->lines[LINE_SEQUENCES].bytes);
            assert_true(r.used[LINE_SEQUENCES] + 64 >= p->lines[LINE_SEQUENCES].bytes);
            assert_true(r.used[LINE_KV_TABLES] <= p->lines[LINE_KV_TABLES].bytes + 64);
            assert_true(r.used[LINE_KV_TABLES] + 64 >= p->lines[LINE_KV_TABLES].bytes);
            world_close(&w);
        }
}

static void every_slot_begins_free_and_apart(void **state) {
    struct engine_options o = {.max_seqs = 3, .max_queue = 2, .max_context = 40, .max_batch_tokens = 8, .block_tokens = 16};
    struct world w;
    world_open(&w, &o, 8);
    assert_int_equal(w.store.n_requests, 5);
    assert_int_equal(w.store.max_blocks, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(w.store.sequences[i].request, -1);
    for (int i = 1; i < 3; i++) {
        assert_true(w.store.sequences[i].tokens >= w.store.sequences[i - 1].tokens + 40);
        assert_true(w.store.sequences[i].blocks >= w.store.sequences[i - 1].blocks + 3);
    }
    for (int i = 1; i < 5; i++) assert_true(w.store.requests[i].prompt >= w.store.requests[i - 1].prompt + 40);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_take_what_their_lines_were_priced_at),
        cmocka_unit_test(every_slot_begins_free_and_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
