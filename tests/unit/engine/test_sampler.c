/* The sampler against a reference that sorts the whole vocabulary and computes in long double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/checked.h"
#include "engine/sampler.h"
#include "kernels/cpu/cpu_backend.h"

#define VOCAB 3001

static uint64_t random_state = 1;
static double uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static void *from_heap(void *context, size_t bytes) {
    size_t *used = context;
    *used += (bytes + 63) / 64 * 64;
    return calloc(1, bytes ? bytes : 1);
}

static struct backend *backend;

static struct backend *open_backend(void) {
    struct cpu_backend_options o = {.n_threads = 1, .max_tokens = 1, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    struct err err = {0};
    void *workspace = aligned_alloc(64, round_up(cpu_backend_workspace_bytes(&o), 64));
    if (cpu_isa_choose(&o.isa, &err)) fail_msg("%s", err.text);
    return workspace ? cpu_backend_open(&o, workspace, &err) : NULL;
}

static struct sampler open_sampler(int vocab) {
    size_t used = 0;
    struct sampler s;
    sampler_init(&s, vocab, backend, (struct memory_source){from_heap, &used});
    assert_true(used + (size_t)7 * sizeof(struct row_stat) <= sampler_bytes(vocab, 7));
    return s;
}

static void close_sampler(struct sampler *s) {
    free(s->row.weights);
    free(s->row.chunk_sums);
    free(s->row.chunk_maxima);
    free(s->candidates);
}

static struct row_stat stat_of(const float *logits, int n) {
    struct row_stat st = {-INFINITY, 0, 0};
    for (int i = 0; i < n; i++)
        if (logits[i] > st.max) st.max = logits[i], st.argmax = i;
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i])) sum += exp((double)logits[i] - (double)st.max);
    st.log_sum_exp = (float)((double)st.max + log(sum));
    return st;
}

static void fill_random(float *logits, int n, double spread) {
    for (int i = 0; i < n; i++) logits[i] = (float)(spread * (uniform() + uniform() + uniform() - 1.5));
}

/* ---- the reference ---- */

static const float *sorted_logits;
static int by_logit(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (sorted_logits[x] != sorted_logits[y]) return sorted_logits[x] > sorted_logits[y] ? -1 : 1;
    return x - y;
}

struct kept {
    int n, ids[VOCAB];
    long double p[VOCAB]; /* of ids, renormalised */
    bool is_close;        /* a cut fell so near to its border that rounding may move it */
};

static struct kept reference_filter(const float *logits, const struct sampling *s) {
    static struct kept k;
    k.n = VOCAB;
    k.is_close = false;
    for (int i = 0; i < VOCAB; i++) k.ids[i] = i;
    sorted_logits = logits;
    qsort(k.ids, VOCAB, sizeof *k.ids, by_logit);
    long double best = logits[k.ids[0]], total = 0, sum = 0;
    for (int i = 0; i < VOCAB; i++) k.p[i] = expl(((long double)logits[k.ids[i]] - best) / (long double)s->temperature);
    if (s->top_k > 0 && s->top_k < k.n) k.n = s->top_k;
    for (int i = 0; i < k.n; i++) total += k.p[i];
    if (s->top_p < 1.0f)
        for (int i = 0; i < k.n; i++) {
            sum += k.p[i] / total;
            if (fabsl(sum - (long double)s->top_p) < 2e-6L) k.is_close = true;
            if (sum >= (long double)s->top_p) k.n = i + 1;
        }
    while (k.n > 1 && k.p[k.n - 1] < (long double)s->min_p) k.n--;
    while (k.p[k.n - 1] < expl(-86.5L)) k.n--; /* no weight in float: never drawn */
    for (int i = 0; i < VOCAB; i++) k.is_close |= fabsl(k.p[i] - (long double)s->min_p) < 1e-6L * (long double)s->min_p;
    total = 0;
    for (int i = 0; i < k.n; i++) total += k.p[i];
    for (int i = 0; i < k.n; i++) k.p[i] /= total;
    return k;
}

/* ---- tests ---- */

static void filters_keep_what_a_full_sort_keeps(void **state) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.999f, 0.01f}, temperatures[] = {1.0f, 0.3f, 2.0f};
    const int top_ks[] = {0, 1, 40, 700, VOCAB - 1};
    const float min_ps[] = {0.0f, 0.05f, 0.5f, 1.0f};
    int compared = 0;
    for (int round = 0; round < 300; round++) {
        struct sampling p = {.temperature = temperatures[round % 3],
                             .top_p = top_ps[round % 5],
                             .top_k = top_ks[round / 5 % 5],
                             .min_p = min_ps[round / 25 % 4]};
        fill_random(logits, VOCAB, 4 + round % 7 * 3);
        struct row_stat st = stat_of(logits, VOCAB);
        sampler_draw(&s, logits, &st, &p, 0, 0); /* fills the weights */
        if (p.top_p == 1.0f && p.top_k == 0) continue;
        struct kept want = reference_filter(logits, &p);
        if (want.is_close) continue;
        int n = sampler_filter(&s, &p);
        bool is_kept[VOCAB] = {false};
        for (int i = 0; i < n; i++) is_kept[s.candidates[i].id] = true;
        if (n != want.n)
            fail_msg("round %d: %d kept, not %d (T %g k %d p %g min %g)", round, n, want.n, (double)p.temperature, p.top_k,
                     (double)p.top_p, (double)p.min_p);
        for (int i = 0; i < want.n; i++) assert_true(is_kept[want.ids[i]]);
        compared++;
    }
    printf("compared=%d of 300\n", compared);
    assert_true(compared > 200);
    free(logits);
    close_sampler(&s);
}

static void among_equals_the_lowest_ids_are_kept(void **state) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = calloc(VOCAB, sizeof *logits);
    for (int i = 1000; i < 1100; i++) logits[i] = 3.0f;
    struct row_stat st = stat_of(logits, VOCAB);
    struct sampling p = {.temperature = 1, .top_p = 1, .top_k = 7};
    sampler_draw(&s, logits, &st, &p, 0, 0);
    assert_int_equal(sampler_filter(&s, &p), 7);
    for (int i = 0; i < 7; i++) assert_in_range(s.candidates[i].id, 1000, 1006);
    p.top_k = 105; /* the hundred and the first five of the rest */
    assert_int_equal(sampler_filter(&s, &p), 105);
    int n_low = 0;
    for (int i = 0; i < 105; i++) n_low += s.candidates[i].id < 5;
    assert_int_equal(n_low, 5);
    free(logits);
    close_sampler(&s);
}

/* Frequencies of many draws against the reference's probabilities: χ² over ids expected at least 10 times, the rest in one cell. */
static void check_frequencies(const struct sampling *p, double spread, const char *what) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    int *count = calloc(VOCAB, sizeof *count), n_draws = 40000, n_cells = 0;
    random_state = 5;
    fill_random(logits, VOCAB, spread);
    struct row_stat st = stat_of(logits, VOCAB);
    for (int i = 0; i < n_draws; i++) count[sampler_draw(&s, logits, &st, p, i % 3, i / 3)]++;
    struct kept k = reference_filter(logits, p);
    double chi = 0, rest = n_draws, rest_expected = n_draws;
    for (int i = 0; i < k.n && (double)k.p[i] * n_draws >= 10; i++, n_cells++) {
        double expected = (double)k.p[i] * n_draws, seen = count[k.ids[i]];
        chi += (seen - expected) * (seen - expected) / expected;
        rest -= seen;
        rest_expected -= expected;
    }
    if (rest_expected > 5) chi += (rest - rest_expected) * (rest - rest_expected) / rest_expected, n_cells++;
    else assert_true(rest < 30);
    double degrees = n_cells - 1;
    printf("%s: chi2=%.1f degrees=%.0f\n", what, chi, degrees);
    assert_true(degrees > 2);
    assert_true(chi < degrees + 4 * sqrt(2 * degrees) + 4); /* about one in ten thousand; the seed is fixed */
    for (int i = k.n; i < VOCAB; i++) assert_int_equal(count[k.ids[i]], 0);
    free(logits);
    free(count);
    close_sampler(&s);
}

static void draws_have_the_right_frequencies(void **state) {
    check_frequencies(&(struct sampling){.temperature = 1, .top_p = 1, .seed = 1}, 12, "temperature 1");
    check_frequencies(&(struct sampling){.temperature = 0.7f, .top_p = 1, .seed = 2}, 12, "temperature 0.7");
    check_frequencies(&(struct sampling){.temperature = 1, .top_p = 1, .top_k = 20, .seed = 3}, 6, "top_k 20");
    check_frequencies(&(struct sampling){.temperature = 1, .top_p = 0.9f, .seed = 4}, 12, "top_p 0.9");
    check_frequencies(&(struct sampling){.temperature = 1, .top_p = 1, .min_p = 0.1f, .seed = 5}, 12, "min_p 0.1");
    check_frequencies(&(struct sampling){.temperature = 1.5f, .top_p = 0.95f, .min_p = 0.02f, .top_k = 50, .seed = 6}, 9,
                      "all of them");
}

/* What is drawn by rejection is what the filter would have kept, equal weights included. */
static void draws_lie_within_what_is_kept(void **state) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    int n_seen = 0;
    for (int round = 0; round < 60; round++) {
        struct sampling p = {.temperature = 1, .top_p = (float[]){0.5f, 0.9f, 0.6f}[round % 3], .min_p = round % 4 ? 0 : 0.2f};
        fill_random(logits, VOCAB, 2 + round % 5);
        for (int i = 0; i < VOCAB; i++) logits[i] = roundf(logits[i]); /* many equals */
        struct row_stat st = stat_of(logits, VOCAB);
        sampler_draw(&s, logits, &st, &p, 0, 0);
        bool is_kept[VOCAB] = {false}, is_seen[VOCAB] = {false};
        int n = sampler_filter(&s, &p);
        for (int i = 0; i < n; i++) is_kept[s.candidates[i].id] = true;
        for (int i = 0; i < 200; i++) {
            int32_t id = sampler_draw(&s, logits, &st, &p, 0, i);
            assert_true(is_kept[id]);
            n_seen += !is_seen[id];
            is_seen[id] = true;
        }
    }
    assert_true(n_seen > 60 * 50);
    free(logits);
    close_sampler(&s);
}

static void temperature_zero_takes_the_best(void **state) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    fill_random(logits, VOCAB, 5);
    logits[77] = logits[1234] = 100;
    struct row_stat st = stat_of(logits, VOCAB);
    struct sampling p = {.temperature = 0, .top_p = 1};
    for (int i = 0; i < 10; i++) assert_int_equal(sampler_draw(&s, logits, &st, &p, i, i), 77);
    free(logits);
    close_sampler(&s);
}

static void a_draw_depends_on_seed_choice_and_index_alone(void **state) {
    struct sampler s = open_sampler(VOCAB), t = open_sampler(VOCAB);
    float *a = malloc(VOCAB * sizeof *a), *b = malloc(VOCAB * sizeof *b);
    fill_random(a, VOCAB, 6);
    fill_random(b, VOCAB, 9);
    struct row_stat of_a = stat_of(a, VOCAB), of_b = stat_of(b, VOCAB);
    struct sampling p = {.temperature = 1, .top_p = 0.97f, .seed = 123};
    int differ = 0;
    for (int i = 0; i < 50; i++) {
        int32_t alone = sampler_draw(&s, a, &of_a, &p, 2, i);
        sampler_draw(&t, b, &of_b, &p, 0, i);
        sampler_draw(&t, a, &of_a, &p, 1, i);
        assert_int_equal(sampler_draw(&t, a, &of_a, &p, 2, i), alone);
        differ += sampler_draw(&t, a, &of_a, &p, 3, i) != alone;
    }
    assert_true(differ > 25);
    free(a);
    free(b);
    close_sampler(&s);
    close_sampler(&t);
}

static void uniforms_are_uniform_and_apart(void **state) {
    double sum = 0, along = 0, previous = 0.5;
    for (int i = 0; i < 20000; i++) {
        double u = sampler_uniform(42, i % 4, i / 4);
        assert_true(u >= 0 && u < 1);
        sum += u;
        along += (u - 0.5) * (previous - 0.5);
        previous = u;
    }
    assert_true(fabs(sum / 20000 - 0.5) < 0.01);
    assert_true(fabs(along / 20000) < 0.003);
    assert_true(sampler_uniform(0, 0, 0) != sampler_uniform(1, 0, 0) && sampler_uniform(0, 0, 0) != sampler_uniform(0, 1, 0));
    assert_true(sampler_uniform(0, 0, 1) != sampler_uniform(0, 1, 0));
}

static float strange_logit(int kind, int i) {
    switch (kind) {
    case 0: return 0;
    case 1: return NAN;
    case 2: return -INFINITY;
    case 3: return i % 2 ? NAN : -5.0f;
    case 4: return 3e38f * (float)(i % 3 - 1);
    default: return i == 9 ? INFINITY : 0;
    }
}

static void strange_rows_give_a_token_in_range(void **state) {
    struct sampler s = open_sampler(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    const struct sampling ps[] = {{.temperature = 1, .top_p = 1},
                                  {.temperature = 1e-38f, .top_p = 0.9f},
                                  {.temperature = 1e-45f, .top_p = 1},
                                  {.temperature = 1e38f, .top_p = 0.5f},
                                  {.temperature = 2, .top_p = 1, .top_k = 1},
                                  {.temperature = 1, .top_p = 1e-30f},
                                  {.temperature = 1, .top_p = 0.99999994f},
                                  {.temperature = 0.01f, .top_p = 0.99999994f, .top_k = 2999}};
    for (int kind = 0; kind < 6; kind++) {
        for (int i = 0; i < VOCAB; i++) logits[i] = strange_logit(kind, i);
        struct row_stat st = stat_of(logits, VOCAB);
        for (size_t j = 0; j < sizeof ps / sizeof *ps; j++) {
            int32_t id = sampler_draw(&s, logits, &st, &ps[j], 0, (int)j);
            assert_in_range(id, 0, VOCAB - 1);
            if (kind == 3) assert_int_equal(id % 2, 0);
        }
    }
    free(logits);
    close_sampler(&s);
}

static void any_vocabulary_size_works(void **state) {
    float logits[700];
    fill_random(logits, 700, 3);
    for (int n = 1; n < 700; n += n < 40 ? 1 : 97) {
        struct sampler s = open_sampler(n);
        struct row_stat st = stat_of(logits, n);
        for (int i = 0; i < 50; i++) {
            assert_in_range(sampler_draw(&s, logits, &st, &(struct sampling){.temperature = 1, .top_p = 1}, 0, i), 0, n - 1);
            assert_in_range(
                sampler_draw(&s, logits, &st, &(struct sampling){.temperature = 1, .top_p = 0.9f, .top_k = 5}, 0, i), 0, n - 1);
        }
        close_sampler(&s);
    }
}

static void the_top_logprobs_are_the_best_and_ties_go_to_the_lowest_id(void **state) {
    float *logits = malloc(VOCAB * sizeof *logits);
    struct top_logprob top[MAX_TOP_LOGPROBS];
    for (int round = 0; round < 50; round++) {
        fill_random(logits, VOCAB, 5);
        for (int i = 0; i < VOCAB; i++) logits[i] = roundf(logits[i] * 4) / 4; /* many equals */
        if (round % 2) logits[round] = NAN;
        struct row_stat st = stat_of(logits, VOCAB);
        int *ids = malloc(VOCAB * sizeof *ids);
        for (int i = 0; i < VOCAB; i++) ids[i] = i;
        float *clean = malloc(VOCAB * sizeof *clean);
        for (int i = 0; i < VOCAB; i++) clean[i] = isnan(logits[i]) ? -INFINITY : logits[i];
        sorted_logits = clean;
        qsort(ids, VOCAB, sizeof *ids, by_logit);
        for (int n = 1; n <= MAX_TOP_LOGPROBS; n += 19) {
            sampler_top(logits, VOCAB, st.log_sum_exp, n, top);
            for (int i = 0; i < n; i++) {
                assert_int_equal(top[i].id, ids[i]);
                assert_true(top[i].logprob == logits[ids[i]] - st.log_sum_exp);
            }
        }
        free(ids);
        free(clean);
    }
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_keep_what_a_full_sort_keeps),
        cmocka_unit_test(among_equals_the_lowest_ids_are_kept),
        cmocka_unit_test(draws_have_the_right_frequencies),
        cmocka_unit_test(draws_lie_within_what_is_kept),
        cmocka_unit_test(temperature_zero_takes_the_best),
        cmocka_unit_test(a_draw_depends_on_seed_choice_and_index_alone),
        cmocka_unit_test(uniforms_are_uniform_and_apart),
        cmocka_unit_test(strange_rows_give_a_token_in_range),
        cmocka_unit_test(any_vocabulary_size_works),
        cmocka_unit_test(the_top_logprobs_are_the_best_and_ties_go_to_the_lowest_id),
    };
    backend = open_backend();
    if (!backend) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend->close(backend);
    free(backend); /* its workspace begins with it */
    return failed;
}
