/* Greedy answers of the demo model on every instruction set: not only the same ids, but every logit's bits on the way.
 *
 * A model, its cache and its batches are the evaluator's; prompts are those of smollm2.json. Prompts go in at once and answers token by
 * token, so both the kernels of prefill and those of decode count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/evaluator.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/unit/engine/model_fixture.h"

enum { MAX_PROMPTS = 4, MAX_ROWS = 32, MAX_PROMPT = 16 };

struct prompts {
    int n, n_ids[MAX_PROMPTS];
    int32_t ids[MAX_PROMPTS][MAX_PROMPT];
};

/* What one run computed: rows of logits in order, and the ids they were for. */
struct record {
    int n_rows, vocab;
    int32_t ids[MAX_ROWS];
    float *logits, log_sum_exps[MAX_ROWS];
};

static const char *model_path;
static struct prompts prompts;

static void read_prompts(void) {
    json_error_t where;
    json_t *golden = json_load_file(TALLY_SOURCE_DIR "/tests/golden/smollm2.json", JSON_ALLOW_NUL, &where);
    if (!golden) fail_msg("smollm2.json: %d: %s", where.line, where.text);
    const json_t *greedy = json_object_get(golden, "greedy");
    for (; prompts.n < MAX_PROMPTS; prompts.n++) {
        const json_t *ids = json_object_get(json_array_get(greedy, (size_t)prompts.n), "ids");
        int n = (int)json_array_size(ids);
        assert_in_range(n, 1, MAX_PROMPT);
        prompts.n_ids[prompts.n] = n;
        for (int i = 0; i < n; i++) prompts.ids[prompts.n][i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    }
    json_decref(golden);
}

static void add_row(void *context, int position, const float *logits, float log_sum_exp) {
    struct record *r = context;
    int32_t best = 0;
    (void)position;
    assert_true(r->n_rows < MAX_ROWS);
    for (int i = 1; i < r->vocab; i++)
        if (logits[i] > logits[best]) best = i;
    memcpy(r->logits + (size_t)r->n_rows * (size_t)r->vocab, logits, (size_t)r->vocab * sizeof *logits);
    r->log_sum_exps[r->n_rows] = log_sum_exp;
    r->ids[r->n_rows++] = best;
}

static struct record answer(enum cpu_isa isa, int n_threads, bool f32, int n_prompts, int n_tokens) {
    struct engine_options options = {
        .model_path = model_path, .n_threads = n_threads, .max_context = 64, .activations_f32 = f32};
    struct evaluator *e;
    struct err err = {0};
    setenv("TALLY_ISA", cpu_isa_name(isa), 1);
    if (evaluator_open(&e, &options, &err)) fail_msg("%s", err.text);
    assert_non_null(strstr(evaluator_backend_name(e), cpu_isa_name(isa)));
    struct record r = {.vocab = evaluator_vocab(e)};
    r.logits = malloc(MAX_ROWS * (size_t)r.vocab * sizeof *r.logits);
    assert_non_null(r.logits);
    for (int p = 0; p < n_prompts; p++) {
        evaluator_reset(e);
        assert_int_equal(evaluator_append(e, prompts.ids[p], prompts.n_ids[p], false, add_row, &r, &err), STATUS_OK);
        for (int i = 1; i < n_tokens; i++)
            assert_int_equal(evaluator_append(e, &r.ids[r.n_rows - 1], 1, false, add_row, &r, &err), STATUS_OK);
    }
    evaluator_close(e);
    return r;
}

static void assert_same(const struct record *a, const struct record *b, const char *what) {
    assert_int_equal(a->n_rows, b->n_rows);
    for (int i = 0; i < a->n_rows; i++) {
        size_t row = (size_t)i * (size_t)a->vocab;
        if (a->ids[i] != b->ids[i]) fail_msg("%s: answers part at row %d", what, i);
        if (memcmp(a->logits + row, b->logits + row, (size_t)a->vocab * sizeof *a->logits))
            fail_msg("%s: other bits in row %d", what, i);
    }
    assert_memory_equal(a->log_sum_exps, b->log_sum_exps, (size_t)a->n_rows * sizeof(float));
}

static void compare_all(bool f32, int n_prompts, int n_tokens) {
    struct record plain = answer(CPU_ISA_PLAIN, 2, f32, n_prompts, n_tokens);
    for (int isa = CPU_ISA_AVX2; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_available((enum cpu_isa)isa)) {
            fprintf(stderr, "skipped: this CPU has no %s\n", cpu_isa_name((enum cpu_isa)isa));
            continue;
        }
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            struct record other = answer((enum cpu_isa)isa, n_threads, f32, n_prompts, n_tokens);
            assert_same(&plain, &other, cpu_isa_name((enum cpu_isa)isa));
            free(other.logits);
        }
    }
    free(plain.logits);
}

static void greedy_answers_have_the_same_bits_on_every_instruction_set(void **state) {
    (void)state;
    compare_all(false, 4, 8);
}

static void so_have_those_with_float_activations(void **state) {
    (void)state;
    compare_all(true, 1, 3);
}

int main(void) {
    model_path = demo_model_path();
    if (!model_path) return 77;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    fprintf(stderr, "skipped: too slow under sanitizers; the release build's run of this test counts\n");
    return 77;
#endif
    read_prompts();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_have_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(so_have_those_with_float_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
