/* rms_norm: right, the same on every instruction set, and of one row whatever comes along. */
#include "tests/unit/kernels/act_rows.h"

static const int columns[] = {576, 32, 64, 96, 896, 4096};
static const int odd_columns[] = {1, 15, 16, 17, 31, 33, 100, 575, 1000};

static float *norm_weight(int n) {
    float *w = random_vector((size_t)n);
    for (int i = 0; i < n; i++) w[i] = 1 + 0.3f * w[i];
    return w;
}

static void assert_close_to_exact(const struct act_rows *y, const float *x, const float *w, double eps) {
    int n = y->a.n_cols;
    for (int t = 0; t < y->n_tokens; t++) {
        double squares = 0;
        for (int i = 0; i < n; i++) squares += (double)x[t * n + i] * (double)x[t * n + i];
        for (int i = 0; i < n; i++) {
            double exact = (double)x[t * n + i] / sqrt(squares / n + eps) * (double)w[i];
            assert_true(fabs((double)y->a.f[t * n + i] - exact) <= 1e-6 * (fabs(exact) + 1e-3));
        }
    }
}

static void check(int n_tokens, int n_cols, unsigned kinds, int n_threads, float magnitude) {
    struct variant variants[4];
    struct act_rows plain = make_act(n_tokens, n_cols);
    float *x = random_vector((size_t)(n_tokens * n_cols)), *w = norm_weight(n_cols);
    struct cpu_backend_options options = {
        .n_threads = n_threads, .max_tokens = n_tokens, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    for (int i = 0; i < n_tokens * n_cols; i++) x[i] *= magnitude;
    for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++) {
        struct act_rows y = make_act(n_tokens, n_cols);
        struct test_backend *b = open_backend(variants[v].ops, &options);
        b->cpu.ops.rms_norm(&b->cpu.ops, v ? &y.a : &plain.a, kinds, x, w, 1e-5f, n_tokens);
        if (v) assert_act_equal(&plain, &y, kinds);
        close_backend(b);
        free_act(&y);
    }
    if (kinds & ACT_F32) assert_close_to_exact(&plain, x, w, (double)1e-5f);
    if (kinds & ACT_F32 && kinds & ACT_INT8) assert_int8_follows_from_f32(&plain);
    if (kinds & ACT_F32 && kinds & ACT_INT16) assert_int16_follows_from_f32(&plain);
    free_act(&plain);
    free(x), free(w);
}

static void it_is_right_and_the_same_on_every_instruction_set(void **test) {
    random_seed(11);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        check(3, columns[i], ACT_F32 | ACT_INT8 | ACT_INT16, 1, 1);
        check(1, columns[i], ACT_INT8, 2, 20);
        check(100, columns[i], ACT_F32 | ACT_INT8 | ACT_INT16, 3, 0.01f);
    }
    for (size_t i = 0; i < sizeof odd_columns / sizeof *odd_columns; i++) check(5, odd_columns[i], ACT_F32, 2, 1);
}

static void a_row_does_not_depend_on_its_company(void **test) {
    enum { N = 200, COLS = 576 };
    struct variant variants[4];
    const struct cpu_lane_ops *ops = variants[find_variants(variants) > 1 ? 1 : 0].ops;
    struct cpu_backend_options options = {
        .n_threads = 3, .max_tokens = N, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    random_seed(12);
    struct test_backend *b = open_backend(ops, &options);
    struct act_rows all = make_act(N, COLS), one = make_act(1, COLS);
    float *x = random_vector((size_t)N * COLS), *w = norm_weight(COLS);
    b->cpu.ops.rms_norm(&b->cpu.ops, &all.a, ACT_F32 | ACT_INT8 | ACT_INT16, x, w, 1e-6f, N);
    for (int t = 0; t < N; t++) {
        b->cpu.ops.rms_norm(&b->cpu.ops, &one.a, ACT_F32 | ACT_INT8 | ACT_INT16, x + t * COLS, w, 1e-6f, 1);
        assert_memory_equal(one.a.f, all.a.f + t * COLS, COLS * sizeof(float));
        assert_memory_equal(one.a.q, all.a.q + t * COLS, COLS);
        assert_memory_equal(one.a.zero, all.a.zero + t * (COLS / 16), COLS / 16 * sizeof(int32_t));
        assert_memory_equal(one.a.wide, all.a.wide + t * COLS, COLS * sizeof(int16_t));
    }
    close_backend(b);
    free_act(&all), free_act(&one);
    free(x), free(w);
}

static void a_row_of_zeros_stays_zeros(void **test) {
    struct variant variants[4];
    float x[64] = {0}, w[64];
    for (int i = 0; i < 64; i++) w[i] = 2;
    for (int n = find_variants(variants), v = 0; v < n; v++) {
        struct act_rows y = make_act(1, 64);
        variants[v].ops->rms_norm(&y.a, ACT_F32 | ACT_INT8 | ACT_INT16, x, w, 1e-5f, 0, 1);
        for (int i = 0; i < 64; i++) assert_true(y.a.f[i] == 0 && y.a.q[i] == 0);
        assert_true(y.a.scale[0] == 0 && y.a.scale[1] == 0 && y.a.sum[1] == 0 && y.a.zero[1] == 0);
        free_act(&y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(a_row_does_not_depend_on_its_company),
        cmocka_unit_test(a_row_of_zeros_stays_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
