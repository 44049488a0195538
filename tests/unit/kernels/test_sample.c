/* row_stats: maximum, lowest argmax and log Σ e^x, the same on every instruction set, NaN or not. */
#include "tests/unit/kernels/lane_variants.h"

#include "engine/base/f16.h"

static struct row_stat stat_of_definition(const float *x, int n) {
    struct row_stat s = {.max = -INFINITY, .argmax = 0};
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > s.max) s.max = x[i], s.argmax = i;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) sum += exp((double)x[i] - (double)s.max);
    s.log_sum_exp = isfinite(s.max) ? (float)((double)s.max + log(sum)) : s.max;
    return s;
}

static void check(const float *x, int n_rows, int n_cols, int n_threads) {
    struct variant variants[4];
    struct row_stat plain[70], got[70];
    struct cpu_backend_options options = {
        .n_threads = n_threads, .max_tokens = n_rows, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    for (int n = find_variants(variants), v = 0; v < n; v++) {
        struct test_backend *b = open_backend(variants[v].ops, &options);
        b->cpu.ops.row_stats(&b->cpu.ops, v ? got : plain, x, n_rows, n_cols);
        if (v) assert_memory_equal(plain, got, (size_t)n_rows * sizeof *got);
        close_backend(b);
    }
    for (int r = 0; r < n_rows; r++) {
        struct row_stat want = stat_of_definition(x + (size_t)r * (size_t)n_cols, n_cols);
        assert_true(plain[r].max == want.max);
        assert_int_equal(plain[r].argmax, want.argmax);
        if (isfinite(want.max))
            assert_true(fabsf(plain[r].log_sum_exp - want.log_sum_exp) <= 2e-6f * (1 + fabsf(want.log_sum_exp)));
        else assert_true(plain[r].log_sum_exp == want.log_sum_exp);
    }
}

static void it_is_right_and_the_same_on_every_instruction_set(void **test) {
    const int columns[] = {1, 2, 15, 16, 17, 33, 1000, 49152, 32001};
    random_seed(31);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int rows = 1; rows <= 9; rows += 4) {
            float *x = random_vector((size_t)(rows * columns[i]));
            for (int j = 0; j < rows * columns[i]; j++) x[j] *= 6;
            check(x, rows, columns[i], 1 + rows % 3);
            free(x);
        }
}

static void the_lowest_of_equal_ids_wins(void **test) {
    random_seed(32);
    for (int round = 0; round < 300; round++) {
        int n = random_int(1, 200);
        float *x = random_vector((size_t)n);
        for (int i = 0; i < n; i++)
            x[i] = (float)(int)(x[i] * 2) * (random_int(0, 1) ? 1.0f : -0.0f); /* many equals, both zeros */
        check(x, 1, n, 1);
        free(x);
    }
}

static void nan_counts_as_minus_infinity(void **test) {
    random_seed(33);
    for (int round = 0; round < 300; round++) {
        int n = random_int(1, 100), percent = random_int(0, 100);
        float *x = random_vector((size_t)n);
        for (int i = 0; i < n; i++)
            if (random_int(1, 100) <= percent) x[i] = random_int(0, 1) ? NAN : -INFINITY;
        check(x, 1, n, 1);
        free(x);
    }
}

static void an_infinite_logit_is_the_whole_distribution(void **test) {
    float x[40];
    for (int i = 0; i < 40; i++) x[i] = (float)i;
    x[7] = x[30] = INFINITY;
    check(x, 1, 40, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(the_lowest_of_equal_ids_wins),
        cmocka_unit_test(nan_counts_as_minus_infinity),
        cmocka_unit_test(an_infinite_logit_is_the_whole_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
