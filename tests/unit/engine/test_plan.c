/* The plan as a function: pure, adding up, never over its budget, monotone in it, and naming what does not fit; and that what it
 * grants is what opening takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/evaluator.h"
#include "engine/plan.h"
#include "tests/unit/engine/tiny_model.h"

#define MIB ((size_t)1 << 20)

static char path[64];
static struct model_source source; /* a context of 8192, so that it is worth cutting */

static const struct engine_options usual = {
    .n_threads = 2, .max_seqs = 4, .max_batch_tokens = 64, .max_queue = 8, .block_tokens = 16, .memory_budget = 64 * MIB};

static struct tiny_model long_model(void) {
    struct tiny_model m = tiny_llama;
    m.context = 8192;
    return m;
}

static int open_model(void **state) {
    struct tiny_model m = long_model();
    struct err err = {0};
    tiny_write(&m, path);
    if (!model_source_open(&source, path, &err)) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int close_model(void **state) {
    model_source_close(&source);
    return unlink(path);
}

static void assert_adds_up(const struct plan *p) {
    size_t total = 0;
    for (int i = 0; i < LINE_COUNT; i++) {
        const struct ledger_line *line = &p->lines[i];
        total += line->granted;
        assert_true(line->granted >= line->bytes && line->granted % 4096 == 0);
        assert_true(line->id && line->id[0] && line->owner && line->owner[0] && line->formula[0]);
    }
    assert_true(p->total == total && p->peak >= p->total);
    assert_true(p->total <= p->budget);
    assert_true(p->n_blocks > 0);
}

static void assert_holds(const struct plan *p, const struct engine_options *resolved) {
    assert_adds_up(p);
    assert_true(resolved->memory_budget == p->budget);
    assert_true(p->kv_tokens == (int64_t)p->n_blocks * resolved->block_tokens);
    assert_true(p->kv_tokens >= resolved->max_context);
    assert_true(p->lines[LINE_KV_POOL].bytes == (size_t)p->kv_tokens * p->kv_bytes_per_token);
}

static enum status build(const struct engine_options *options, struct engine_options *resolved, struct plan *plan,
                         struct err *err) {
    memset(err, 0, sizeof *err);
    return plan_build(&source, options, resolved, plan, err);
}

/* ---- it is a function ---- */

static void the_same_options_give_the_same_plan(void **state) {
    struct engine_options first, second;
    struct plan a, b;
    struct err err;
    memset(&a, 0x55, sizeof a);
    memset(&b, 0xaa, sizeof b);
    assert_int_equal(build(&usual, &first, &a, &err), STATUS_OK);
    assert_int_equal(build(&usual, &second, &b, &err), STATUS_OK);
    assert_memory_equal(&first, &second, sizeof first);
    assert_int_equal(a.total, b.total);
    for (int i = 0; i < LINE_COUNT; i++) {
        assert_int_equal(a.lines[i].bytes, b.lines[i].bytes);
        assert_string_equal(a.lines[i].formula, b.lines[i].formula);
    }
    assert_holds(&a, &first);
}

static void what_it_resolved_resolves_to_itself(void **state) {
    struct engine_options first, second;
    struct plan a, b;
    struct err err;
    for (size_t budget = 2 * MIB; budget < 64 * MIB; budget = budget * 5 / 4) {
        struct engine_options o = usual;
        o.memory_budget = budget;
        if (build(&o, &first, &a, &err)) continue;
        if (build(&first, &second, &b, &err)) fail_msg("%zu: %s", budget, err.text);
        assert_memory_equal(&first, &second, sizeof first);
        assert_int_equal(a.n_blocks, b.n_blocks);
        assert_int_equal(a.total, b.total);
    }
}

static void engine_plan_is_the_same_function(void **state) {
    struct engine_options o = usual, first, second;
    struct plan a, b;
    struct err err = {0};
    o.model_path = path;
    assert_int_equal(engine_plan(&o, &first, &a, &err), STATUS_OK);
    assert_int_equal(build(&o, &second, &b, &err), STATUS_OK);
    assert_memory_equal(&first, &second, sizeof first);
    assert_int_equal(a.total, b.total);
}

static void the_servers_lines_are_what_it_asked_for(void **state) {
    struct engine_options o = usual, resolved;
    struct plan plan;
    struct err err;
    o.request_bytes = 3 * MIB;
    o.http_bytes = 100001;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_OK);
    assert_int_equal(plan.lines[LINE_REQUESTS].bytes, 3 * MIB);
    assert_int_equal(plan.lines[LINE_HTTP].bytes, 100001);
    assert_holds(&plan, &resolved);
}

/* ---- budgets ---- */

static int between(uint64_t *state, int low, int high) { return low + (int)(tiny_next(state) % (uint64_t)(high - low + 1)); }

static struct engine_options random_options(uint64_t *state) {
    struct engine_options o = {.n_threads = between(state, 1, 8),
                               .max_seqs = 1 << between(state, 0, 7),
                               .max_queue = between(state, 0, 300),
                               .block_tokens = 16 * between(state, 1, 16)};
    o.max_batch_tokens = o.max_seqs + between(state, 0, 2000);
    if (between(state, 0, 1)) o.max_context = between(state, 2, 8192);
    o.memory_budget = (size_t)between(state, 1, 64) * (tiny_next(state) % MIB + 1);
    return o;
}

static void no_budget_is_ever_exceeded(void **state) {
    uint64_t seed = 20240607, n_fit = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 20000; round++) {
        struct engine_options o = random_options(&seed), resolved;
        struct plan plan;
        struct err err;
        enum status status = build(&o, &resolved, &plan, &err);
        if (status) {
            assert_int_equal(status, STATUS_NO_MEMORY);
            assert_string_equal(err.param, "memory_budget");
            continue;
        }
        n_fit++;
        assert_holds(&plan, &resolved);
        assert_true(plan.budget == o.memory_budget);
        if (o.max_context) assert_int_equal(resolved.max_context, o.max_context);
        else assert_true(resolved.max_context <= 8192);
    }
    assert_in_range(n_fit, 2000, 18000);
}

static void the_pool_takes_what_the_budget_leaves_up_to_what_is_of_use(void **state) {
    uint64_t seed = 7;
    for (int round = 0; round < 5000; round++) {
        struct engine_options o = random_options(&seed), resolved;
        struct plan plan;
        struct err err;
        if (build(&o, &resolved, &plan, &err)) continue;
        int64_t useful = (int64_t)o.max_seqs * ((resolved.max_context + o.block_tokens - 1) / o.block_tokens);
        size_t block = plan.kv_bytes_per_token * (size_t)o.block_tokens;
        assert_true(plan.n_blocks <= useful);
        /* Less than a block is left, but for rounding of the two lines that grow with it: to pages, large ones to huge pages. */
        size_t pages = plan.lines[LINE_KV_POOL].bytes + block >= 16 * MIB ? 2 * MIB : 4096;
        if (plan.n_blocks < useful) assert_true(plan.budget - plan.total < block + pages + 4096);
    }
}

/* Of an automatic context the pool is a result: a longer one may take a block from it, but never one that the context needs. */
static void more_budget_never_gives_less(void **state) {
    uint64_t seed = 11;
    for (int round = 0; round < 300; round++) {
        struct engine_options o = random_options(&seed), resolved;
        struct plan plan;
        struct err err;
        int blocks = 0, context = 0;
        size_t step = 4096 * (1 + tiny_next(&seed) % 64);
        o.memory_budget = step;
        for (int i = 0; i < 200; i++, o.memory_budget += step) {
            if (build(&o, &resolved, &plan, &err)) {
                if (blocks) fail_msg("round %d: %zu bytes do not do, fewer did: %s", round, o.memory_budget, err.text);
                continue;
            }
            bool is_cut = !o.max_context && resolved.max_context < 8192;
            if ((!is_cut && plan.n_blocks < blocks && context == resolved.max_context) || resolved.max_context < context)
                fail_msg("round %d: %zu bytes give %d blocks and a context of %d, fewer gave %d and %d", round, o.memory_budget,
                         plan.n_blocks, resolved.max_context, blocks, context);
            blocks = plan.n_blocks;
            context = resolved.max_context;
        }
    }
}

static void an_automatic_context_is_cut_to_the_longest_that_fits(void **state) {
    uint64_t seed = 13, n_cut = 0;
    for (int round = 0; round < 3000; round++) {
        struct engine_options o = random_options(&seed), resolved, longer;
        struct plan plan, other;
        struct err err;
        o.max_context = 0;
        if (build(&o, &resolved, &plan, &err)) continue;
        if (resolved.max_context == 8192) continue;
        n_cut++;
        longer = o;
        longer.max_context = resolved.max_context + 1;
        assert_int_equal(build(&longer, &resolved, &other, &err), STATUS_NO_MEMORY);
    }
    assert_true(n_cut > 300);
}

static void an_explicit_context_that_does_not_fit_is_refused(void **state) {
    struct engine_options o = usual, resolved;
    struct plan plan;
    struct err err;
    o.memory_budget = 2 * MIB;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_OK); /* automatic: cut */
    assert_in_range(resolved.max_context, 64, 8191);
    o.max_context = 8192;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_NO_MEMORY);
    assert_string_equal(err.param, "memory_budget");
    assert_non_null(strstr(err.text, "max_context 8192"));
}

static void a_budget_that_is_too_small_is_told_what_would_do(void **state) {
    struct engine_options o = usual, resolved;
    struct plan plan;
    struct err err;
    o.memory_budget = 1;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_NO_MEMORY);
    assert_string_equal(err.param, "memory_budget");
    for (const char *const *word =
             (const char *const[]){"memory budget", "MiB", "weights", "max_context", "max_seqs", "nor would", NULL};
         *word; word++)
        if (!strstr(err.text, *word)) fail_msg("'%s' is not in: %s", *word, err.text);
    assert_true(strlen(err.text) < sizeof err.text - 1); /* not cut */
}

/* "what would fit: max_context 512, max_seqs 1, max_batch_tokens 32, max_queue 8": it does. */
static void what_a_refusal_recommends_fits(void **state) {
    uint64_t seed = 17, n_offers = 0;
    for (int round = 0; round < 5000; round++) {
        struct engine_options o = random_options(&seed), resolved;
        struct plan plan;
        struct err err;
        if (build(&o, &resolved, &plan, &err) != STATUS_NO_MEMORY) continue;
        const char *offer = strstr(err.text, "what would fit: ");
        if (!offer) continue;
        n_offers++;
        if (sscanf(offer, "what would fit: max_context %d, max_seqs %d, max_batch_tokens %d, max_queue %d", &o.max_context,
                   &o.max_seqs, &o.max_batch_tokens, &o.max_queue) != 4)
            fail_msg("%s", err.text);
        if (build(&o, &resolved, &plan, &err)) fail_msg("round %d: what was said to fit does not: %s", round, err.text);
    }
    assert_true(n_offers > 50);
}

static void without_a_budget_one_is_found(void **state) {
    struct engine_options o = usual, resolved;
    struct plan plan;
    struct err err;
    o.memory_budget = 0;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_OK);
    assert_holds(&plan, &resolved);
    assert_int_equal(resolved.max_context, 8192);
    assert_true(plan.kv_tokens >= 16384);
}

/* ---- options ---- */

static void what_is_left_to_it_is_always_allowed(void **state) {
    for (int max_seqs = 1; max_seqs <= 1024; max_seqs *= 4) {
        struct engine_options o = usual, resolved;
        struct plan plan;
        struct err err;
        o.n_threads = o.max_batch_tokens = 0, o.max_seqs = max_seqs, o.memory_budget = 0;
        assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_OK);
        assert_in_range(resolved.n_threads, 1, MAX_THREADS);
        assert_int_equal(resolved.max_batch_tokens, max_seqs > DEFAULT_BATCH_TOKENS ? max_seqs : DEFAULT_BATCH_TOKENS);
    }
}

static void an_option_out_of_range_is_named(void **state) {
    static const struct {
        const char *name;
        size_t offset;
        int values[4];
    } bad[] = {{"threads", offsetof(struct engine_options, n_threads), {-1, 257, INT32_MAX, INT32_MIN}},
               {"max_seqs", offsetof(struct engine_options, max_seqs), {0, -1, 1025, INT32_MAX}},
               {"max_batch_tokens", offsetof(struct engine_options, max_batch_tokens), {-1, 3, 65537, INT32_MIN}},
               {"max_queue", offsetof(struct engine_options, max_queue), {-1, 65537, INT32_MAX, INT32_MIN}},
               {"block_tokens", offsetof(struct engine_options, block_tokens), {0, 8, 24, 272}},
               {"max_context", offsetof(struct engine_options, max_context), {1, -1, 8193, INT32_MAX}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int j = 0; j < 4; j++) {
            struct engine_options o = usual, resolved;
            struct plan plan;
            struct err err;
            memcpy((char *)&o + bad[i].offset, &bad[i].values[j], sizeof(int));
            assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_INVALID);
            assert_string_equal(err.param, bad[i].name);
            assert_non_null(strstr(err.text, bad[i].name));
        }
}

static void the_largest_options_neither_overflow_nor_fit(void **state) {
    struct engine_options o = {.n_threads = 256,
                               .max_seqs = 1024,
                               .max_batch_tokens = 65536,
                               .max_queue = 65536,
                               .block_tokens = 256},
                          resolved;
    struct plan plan;
    struct err err;
    o.memory_budget = 64 * MIB;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_NO_MEMORY);
    o.memory_budget = SIZE_MAX;
    assert_int_equal(build(&o, &resolved, &plan, &err), STATUS_OK);
    assert_holds(&plan, &resolved);
    assert_int_equal(plan.n_blocks, 1024 * 32);
}

/* ---- what is granted is what is taken ---- */

static void assert_used_within(const struct ledger *ledger, const struct plan *plan) {
    struct ledger_reading reading;
    ledger_read(ledger, &reading);
    for (int i = 0; i < LINE_COUNT; i++) {
        const struct ledger_line *line = &plan->lines[i];
        if (!line->is_arena) continue;
        if (reading.used[i] > line->bytes) fail_msg("%s: %zu used, %zu planned", line->id, reading.used[i], line->bytes);
    }
}

static void opening_stays_within_every_line(void **state) {
    uint64_t seed = 23;
    static const uint32_t types[] = {GGML_F32, GGML_F16, GGML_Q4_0, GGML_Q4_1, GGML_Q8_0, GGML_Q5_1};
    for (int round = 0; round < 24; round++) {
        struct tiny_model m = long_model();
        m.type = types[round % 6];
        m.is_tied = round % 2;
        m.has_biases = round % 3 == 0;
        m.has_factors = round % 4 == 0;
        m.vocab = 40 + round;
        m.n_kv_heads = 1 << round % 3;
        char file[64];
        tiny_write(&m, file);
        struct engine_options o = random_options(&seed);
        o.model_path = file;
        o.memory_budget = 48 * MIB;
        o.max_context = 16 + 100 * round;
        o.activations_f32 = round % 2;
        struct engine *e;
        struct err err = {0};
        if (engine_open(&e, &o, &err)) {
            assert_int_equal(err.status, STATUS_NO_MEMORY);
        } else {
            assert_used_within(engine_ledger(e), ledger_plan(engine_ledger(e)));
            engine_close(e);
        }
        unlink(file);
    }
}

/* Lines whose use is known when all is open hold no air: what was asked is what was taken. */
static void weights_and_tables_are_planned_to_the_byte(void **state) {
    struct engine_options o = usual;
    struct engine *e;
    struct err err = {0};
    o.model_path = path;
    assert_int_equal(engine_open(&e, &o, &err), STATUS_OK);
    const struct plan *plan = ledger_plan(engine_ledger(e));
    struct ledger_reading reading;
    ledger_read(engine_ledger(e), &reading);
    static const enum ledger_line_id exact[] = {LINE_WEIGHTS,     LINE_NORMS,   LINE_ROPE,  LINE_KV_POOL,
                                                LINE_ACTIVATIONS, LINE_BACKEND, LINE_LOGITS};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (reading.used[exact[i]] != plan->lines[exact[i]].bytes)
            fail_msg("%s: %zu used, %zu planned", plan->lines[exact[i]].id, reading.used[exact[i]],
                     plan->lines[exact[i]].bytes);
    engine_close(e);
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_options_give_the_same_plan),
        cmocka_unit_test(what_it_resolved_resolves_to_itself),
        cmocka_unit_test(engine_plan_is_the_same_function),
        cmocka_unit_test(the_servers_lines_are_what_it_asked_for),
        cmocka_unit_test(no_budget_is_ever_exceeded),
        cmocka_unit_test(the_pool_takes_what_the_budget_leaves_up_to_what_is_of_use),
        cmocka_unit_test(more_budget_never_gives_less),
        cmocka_unit_test(an_automatic_context_is_cut_to_the_longest_that_fits),
        cmocka_unit_test(an_explicit_context_that_does_not_fit_is_refused),
        cmocka_unit_test(a_budget_that_is_too_small_is_told_what_would_do),
        cmocka_unit_test(what_a_refusal_recommends_fits),
        cmocka_unit_test(without_a_budget_one_is_found),
        cmocka_unit_test(what_is_left_to_it_is_always_allowed),
        cmocka_unit_test(an_option_out_of_range_is_named),
        cmocka_unit_test(the_largest_options_neither_overflow_nor_fit),
        cmocka_unit_test(opening_stays_within_every_line),
        cmocka_unit_test(weights_and_tables_are_planned_to_the_byte),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
