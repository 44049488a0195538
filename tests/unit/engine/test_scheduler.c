#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/scheduler_fixture.h"

static const struct engine_options small = {
    .max_seqs = 4, .max_queue = 100, .max_context = 256, .max_batch_tokens = 64, .block_tokens = 16};

static void step(struct world *w) {
    if (!world_step(w)) fail_msg("%s", w->failure);
}

static void run_out(struct world *w) {
    for (int i = 0; scheduler_has_work(&w->scheduler); i++) {
        assert_true(i < 100000);
        step(w);
    }
    assert_int_equal(w->pool.n_free, w->pool.n_blocks);
}

/* Rows the sequence of a request's choice has in the step just made; 0: none. */
static int rows_of(const struct world *w, int32_t request, int choice) {
    for (int i = 0; i < w->batch.n_seqs; i++) {
        const struct sequence *q = &w->store.sequences[w->scheduler.scheduled[i]];
        if (q->request == request && q->choice == choice) return w->batch.seqs[i].n_rows;
    }
    return 0;
}

static const struct sequence *sequence_of(const struct world *w, int32_t request, int choice) {
    int32_t i = world_sequence(w, request, choice);
    return i < 0 ? NULL : &w->store.sequences[i];
}

static void an_idle_scheduler_schedules_nothing(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    assert_false(scheduler_has_work(&w.scheduler));
    assert_false(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_tokens, 0);
    world_close(&w);
}

static void a_long_prompt_runs_in_chunks_beside_decodes_that_miss_no_step(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 10, 50, 1);
    step(&w);
    int32_t b = world_submit(&w, 2, 200, 5, 1);
    int chunks[] = {63, 63, 63, 11};
    for (int i = 0; i < 4; i++) {
        step(&w);
        assert_int_equal(rows_of(&w, a, 0), 1);
        assert_int_equal(rows_of(&w, b, 0), chunks[i]);
    }
    step(&w);
    assert_int_equal(rows_of(&w, b, 0), 1);
    run_out(&w);
    world_close(&w);
}

static void only_a_row_that_ends_the_known_tokens_wants_logits(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    world_submit(&w, 1, 100, 2, 1);
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_tokens, 64);
    assert_int_equal(w.batch.n_logits, 0);
    assert_true(world_compute(&w) && world_advance(&w));
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_tokens, 36);
    assert_int_equal(w.batch.n_logits, 1);
    assert_int_equal(w.batch.logit_rows[0], 35);
    world_close(&w);
}

static void prompt_logprobs_want_every_row_once_and_of_the_first_choice_only(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 100, 4, 2);
    w.store.requests[a].params.prompt_logprobs = true;
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_logits, 64);
    assert_true(world_compute(&w) && world_advance(&w));
    w.store.sequences[world_sequence(&w, a, 0)].n_prompt_reported = 65; /* as the engine notes: token 64 is known by row 63 */
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_logits, 36);
    assert_true(world_compute(&w) && world_advance(&w));
    w.store.sequences[world_sequence(&w, a, 0)].n_prompt_reported = 100;
    assert_true(scheduler_step(&w.scheduler, &w.batch)); /* a decode of choice 0, the prompt's tail of choice 1 */
    assert_int_equal(rows_of(&w, a, 1), 4);
    assert_int_equal(w.batch.n_logits, 2);
    world_close(&w);
}

static void a_prompt_computed_again_is_not_reported_again(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 50, 4, 1);
    w.store.requests[a].params.prompt_logprobs = true;
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_logits, 50);
    struct sequence *q = &w.store.sequences[world_sequence(&w, a, 0)];
    q->n_prompt_reported = 31; /* as if it had been preempted after 30 rows */
    q->n_scheduled = 0;
    assert_true(scheduler_step(&w.scheduler, &w.batch));
    assert_int_equal(w.batch.n_tokens, 50);
    assert_int_equal(w.batch.n_logits, 20); /* rows 30 to 48 predict tokens 31 to 49, row 49 the next one */
    assert_int_equal(w.batch.logit_rows[0], 30);
    world_close(&w);
}

static void choices_wait_for_the_prompt_and_share_its_full_blocks(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 100, 5, 4);
    step(&w);
    assert_int_equal(w.batch.n_seqs, 1);
    step(&w);
    assert_int_equal(w.batch.n_seqs, 1);
    step(&w);
    assert_int_equal(w.batch.n_seqs, 4);
    for (int choice = 1; choice < 4; choice++) {
        const struct sequence *q = sequence_of(&w, a, choice), *leader = sequence_of(&w, a, 0);
        assert_int_equal(rows_of(&w, a, choice), 4); /* tokens 96 to 99 */
        for (int i = 0; i < 6; i++) assert_int_equal(q->blocks[i], leader->blocks[i]);
        assert_int_not_equal(q->blocks[6], leader->blocks[6]);
    }
    assert_int_equal(w.pool.n_blocks - w.pool.n_free, 6 + 4);
    run_out(&w);
    world_close(&w);
}

static void a_prompt_that_ends_a_block_leaves_its_last_block_to_each_choice(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 32, 5, 2);
    step(&w);
    step(&w);
    assert_int_equal(rows_of(&w, a, 1), 16);
    run_out(&w);
    world_close(&w);
}

static void a_choice_waits_for_the_last_token_of_the_shared_part(void **state) {
    struct world w;
    struct engine_options o = small;
    o.max_batch_tokens = 63;
    world_open(&w, &o, 64);
    world_submit(&w, 1, 70, 5, 2);
    step(&w); /* 63 of the 64 shared */
    step(&w);
    assert_int_equal(w.batch.n_seqs, 1);
    step(&w);
    assert_int_equal(w.batch.n_seqs, 2);
    run_out(&w);
    world_close(&w);
}

static void the_next_choice_leads_when_the_first_is_cancelled_in_its_prompt(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    int32_t a = world_submit(&w, 1, 100, 5, 3);
    step(&w);
    world_cancel(&w, a, 0);
    step(&w);
    assert_int_equal(rows_of(&w, a, 1), 64);
    assert_int_equal(sequence_of(&w, a, 1)->computed, 64);
    run_out(&w);
    world_close(&w);
}

static void choices_beyond_the_sequence_slots_start_as_others_end(void **state) {
    struct world w;
    world_open(&w, &small, 64);
    world_submit(&w, 1, 20, 8, MAX_CHOICES);
    for (int i = 0; i < 3; i++) step(&w);
    assert_int_equal(w.scheduler.n_running, 4);
    assert_int_equal(w.scheduler.limit, LIMIT_SEQUENCES);
    run_out(&w);
    world_close(&w);
}

static void the_youngest_is_preempted_and_comes_back_before_the_queue(void **state) {
    struct world w;
    world_open(&w, &small, 16); /* 256 tokens */
    int32_t old = world_submit(&w, 1, 100, 100, 1), young = world_submit(&w, 2, 100, 100, 1);
    while (w.scheduler.preemptions == 0) step(&w);
    assert_int_equal(sequence_of(&w, young, 0)->state, CHOICE_PREEMPTED);
    assert_int_equal(sequence_of(&w, old, 0)->state, CHOICE_RUNNING);
    int32_t late = world_submit(&w, 3, 10, 5, 1);
    step(&w);
    assert_null(sequence_of(&w, late, 0)); /* it would fit, but the preempted one is first */
    while (sequence_of(&w, old, 0)) step(&w);
    step(&w);
    assert_int_equal(sequence_of(&w, young, 0)->state, CHOICE_RUNNING);
    run_out(&w);
    assert_int_equal(w.scheduler.preemptions, 1);
    world_close(&w);
}

static void a_preempted_sequence_that_is_cancelled_is_gone(void **state) {
    struct world w;
    world_open(&w, &small, 16);
    world_submit(&w, 1, 100, 100, 1);
    int32_t young = world_submit(&w, 2, 100, 100, 1);
    while (w.scheduler.preemptions == 0) step(&w);
    world_cancel(&w, young, 0);
    assert_int_equal(w.scheduler.n_preempted, 0);
    assert_int_equal(w.store.requests[young].id, 0);
    run_out(&w);
    world_close(&w);
}

static void nobody_is_admitted_into_what_decoding_is_about_to_need(void **state) {
    struct world w;
    world_open(&w, &small, 16);
    int32_t a = world_submit(&w, 1, 200, 50, 1); /* 13 blocks; 3 left */
    while (!sequence_of(&w, a, 0) || sequence_remaining(sequence_of(&w, a, 0)) > 1) step(&w);
    int32_t b = world_submit(&w, 2, 48, 5, 1), c = world_submit(&w, 3, 30, 5, 1);
    step(&w);
    assert_null(sequence_of(&w, b, 0)); /* 3 blocks and one of watermark: refused with 3 free */
    assert_int_equal(w.scheduler.limit, LIMIT_BLOCKS);
    assert_non_null(sequence_of(&w, c, 0)); /* 2 blocks and one: passes */
    assert_int_equal(w.store.requests[b].n_bypassed, 1);
    run_out(&w);
    world_close(&w);
}

static void a_large_request_is_passed_a_bounded_number_of_times(void **state) {
    struct world w;
    world_open(&w, &small, 18);
    world_submit(&w, 1, 100, 156, 1);
    step(&w);
    int32_t large = world_submit(&w, 2, 250, 6, 1);
    int n_passed = 0;
    for (uint64_t seed = 3; !sequence_of(&w, large, 0); seed++) {
        int32_t one = world_submit(&w, seed, 8, 1, 1);
        step(&w);
        n_passed += w.store.requests[one].id == 0 || sequence_of(&w, one, 0);
        assert_true(n_passed <= SCHEDULER_MAX_BYPASS + 1); /* the last may come in with the large one itself */
        assert_true(seed < 1000);
    }
    assert_true(n_passed >= SCHEDULER_MAX_BYPASS);
    run_out(&w);
    world_close(&w);
}

static void the_largest_request_allowed_runs_alone_in_the_smallest_pool(void **state) {
    struct world w;
    world_open(&w, &small, 16);
    world_submit(&w, 1, 1, 255, 1);
    world_submit(&w, 2, 255, 1, 3);
    run_out(&w);
    world_close(&w);
}

static void the_limit_that_stopped_admission_is_named(void **state) {
    struct world w;
    struct engine_options o = small;
    o.max_batch_tokens = 8;
    world_open(&w, &o, 64);
    world_submit(&w, 1, 100, 5, 1);
    world_submit(&w, 2, 100, 5, 1);
    step(&w);
    assert_int_equal(w.scheduler.limit, LIMIT_TOKENS);
    run_out(&w);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_scheduler_schedules_nothing),
        cmocka_unit_test(a_long_prompt_runs_in_chunks_beside_decodes_that_miss_no_step),
        cmocka_unit_test(only_a_row_that_ends_the_known_tokens_wants_logits),
        cmocka_unit_test(prompt_logprobs_want_every_row_once_and_of_the_first_choice_only),
        cmocka_unit_test(a_prompt_computed_again_is_not_reported_again),
        cmocka_unit_test(choices_wait_for_the_prompt_and_share_its_full_blocks),
        cmocka_unit_test(a_prompt_that_ends_a_block_leaves_its_last_block_to_each_choice),
        cmocka_unit_test(a_choice_waits_for_the_last_token_of_the_shared_part),
        cmocka_unit_test(the_next_choice_leads_when_the_first_is_cancelled_in_its_prompt),
        cmocka_unit_test(choices_beyond_the_sequence_slots_start_as_others_end),
        cmocka_unit_test(the_youngest_is_preempted_and_comes_back_before_the_queue),
        cmocka_unit_test(a_preempted_sequence_that_is_cancelled_is_gone),
        cmocka_unit_test(nobody_is_admitted_into_what_decoding_is_about_to_need),
        cmocka_unit_test(a_large_request_is_passed_a_bounded_number_of_times),
        cmocka_unit_test(the_largest_request_allowed_runs_alone_in_the_smallest_pool),
        cmocka_unit_test(the_limit_that_stopped_admission_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
