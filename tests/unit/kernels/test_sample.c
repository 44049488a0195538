/* What sampling needs of a row: maximum, lowest argmax, log Σ e^x and weights, the same on every instruction set, NaN or not. */
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

/* exp((x − max)·inverse) in double; 0 where that is below `least` or no weight. */
static void check_weights(const float *x, int n, float inverse, float least) {
    struct variant variants[4];
    struct row_stat stat = stat_of_definition(x, n);
    size_t n_chunks = ((size_t)n + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    struct sample_weights w[2];
    for (int i = 0; i < 2; i++)
        w[i] = (struct sample_weights){must_alloc((size_t)n * 4), must_alloc(n_chunks * 4), must_alloc(n_chunks * 4)};
    for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++) {
        variants[v].ops->sample_weights(&w[v > 0], x, n, stat.max, inverse, least);
        if (v == 0) continue;
        assert_memory_equal(w[0].weights, w[1].weights, (size_t)n * 4);
        assert_memory_equal(w[0].chunk_sums, w[1].chunk_sums, n_chunks * 4);
        assert_memory_equal(w[0].chunk_maxima, w[1].chunk_maxima, n_chunks * 4);
    }
    for (size_t c = 0; c < n_chunks; c++) {
        double sum = 0, largest = 0;
        for (int i = (int)c * SAMPLE_CHUNK; i < n && i < (int)(c + 1) * SAMPLE_CHUNK; i++) {
            double got = (double)w[0].weights[i],
                   want = isnan(x[i]) ? 0 : exp(((double)x[i] - (double)stat.max) * (double)inverse);
            assert_true(got <= 1);
            if (fabs(want - (double)least) <= 1e-5 * (double)least) assert_true(got == 0 || fabs(got - want) <= 1e-5 * want);
            else if (want < (double)least || want < 2e-38) assert_true(got == 0);
            else if (want > 3e-38)
                assert_true(fabs(got - want) <= 1e-5 * want); /* the argument is rounded twice, at up to 87 */
            sum += got;
            if (got > largest) largest = got;
        }
        assert_true((double)w[0].chunk_maxima[c] == largest);
        assert_true(fabs((double)w[0].chunk_sums[c] - sum) <= 1e-6 * sum);
    }
    for (int i = 0; i < 2; i++) free(w[i].weights), free(w[i].chunk_sums), free(w[i].chunk_maxima);
}

static void weights_are_right_and_the_same_on_every_instruction_set(void **test) {
    const int columns[] = {1, 15, 16, 17, 255, 256, 257, 5000, 49152};
    random_seed(34);
    for (int round = 0; round < 90; round++) {
        int n = columns[round % 9];
        float *x = random_vector((size_t)n), inverse = (float[]){1, 0.5f, 3, 40}[round % 4];
        for (int i = 0; i < n; i++) x[i] = round % 3 == 0 && random_int(0, 9) == 0 ? NAN : 6 * x[i];
        check_weights(x, n, inverse, round % 2 ? 0 : random_float(0, 0.3f));
        free(x);
    }
}

static double mass_above_of_definition(const float *w, int n, int id) {
    double mass = 0;
    for (int i = 0; i < n; i++)
        if (w[i] > w[id] || (w[i] == w[id] && i < id)) mass += (double)w[i];
    return mass;
}

static void mass_above_and_bands_are_right_and_the_same_on_every_instruction_set(void **test) {
    const int columns[] = {1, 17, 255, 256, 257, 1000, 5003};
    random_seed(35);
    for (int round = 0; round < 70; round++) {
        struct variant variants[4];
        int n = columns[round % 7], n_found[4];
        float *x = random_vector((size_t)n), sums[20], maxs[20], least = random_float(0.001f, 0.2f),
              below = random_float(0.2f, 1.1f);
        struct sample_weights row = {must_alloc((size_t)n * 4), sums, maxs};
        struct candidate *found[2] = {must_alloc((size_t)n * sizeof(struct candidate)),
                                      must_alloc((size_t)n * sizeof(struct candidate))};
        for (int i = 0; i < n; i++) x[i] = roundf(4 * x[i]) / 2; /* many equals */
        cpu_lane_ops_plain.sample_weights(&row, x, n, stat_of_definition(x, n).max, 1, 0);
        double plain[8];
        for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++) {
            for (int i = 0; i < 8; i++) {
                int id = (int)((long long)i * (n - 1) / 7);
                if (row.weights[id] == 0) continue;
                double mass = variants[v].ops->sample_mass_above(&row, n, id),
                       want = mass_above_of_definition(row.weights, n, id);
                assert_true(fabs(mass - want) <= 1e-6 * want);
                if (v == 0) plain[i] = mass;
                else assert_memory_equal(&plain[i], &mass, sizeof mass);
            }
            n_found[v] = variants[v].ops->sample_band(found[v > 0], &row, n, least, below);
            assert_int_equal(n_found[v], n_found[0]);
            assert_memory_equal(found[0], found[v > 0], (size_t)n_found[v] * sizeof(struct candidate));
        }
        int at = 0;
        for (int i = 0; i < n; i++)
            if (row.weights[i] >= least && row.weights[i] < below) assert_int_equal(found[0][at++].id, i);
        assert_int_equal(at, n_found[0]);
        free(x), free(row.weights), free(found[0]), free(found[1]);
    }
}

static void rows_of_hardly_any_numbers_weigh_nothing(void **test) {
    float x[300];
    for (int i = 0; i < 300; i++) x[i] = i % 2 ? NAN : -INFINITY;
    check_weights(x, 300, 1, 0);
    x[299] = 5;
    check_weights(x, 300, 1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(the_lowest_of_equal_ids_wins),
        cmocka_unit_test(nan_counts_as_minus_infinity),
        cmocka_unit_test(weights_are_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(mass_above_and_bands_are_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(rows_of_hardly_any_numbers_weigh_nothing),
        cmocka_unit_test(an_infinite_logit_is_the_whole_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
