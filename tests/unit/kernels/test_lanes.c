/* e^x of every instruction set: the same bits, and right, over all floats. */
#include "tests/unit/kernels/lane_variants.h"

#include "engine/base/f16.h"

#define CHUNK 4096

static double ulps(float got, double want) {
    if (want == 0) return got == 0 ? 0 : 1e9;
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

/* Bits of every `step`-th float through `ops`, into y. */
static void exp_of_bits(const struct cpu_lane_ops *ops, float *y, float *x, uint64_t first, uint64_t step, int n) {
    for (int i = 0; i < n; i++) x[i] = f32_from_bits((uint32_t)(first + (uint64_t)i * step));
    ops->exp(y, x, n);
}

static void exp_is_within_one_ulp_over_the_whole_range(void **test) {
    static float x[CHUNK], y[CHUNK];
    struct variant variants[4];
    int n = find_variants(variants);
    const struct variant *v = &variants[n > 1 ? 1 : 0]; /* a fast one; the others are its equal below */
    double worst = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 97 * CHUNK) {
        exp_of_bits(v->ops, y, x, bits, 97, CHUNK);
        for (int i = 0; i < CHUNK; i++) {
            if (x[i] != x[i]) assert_true(y[i] != y[i]);
            else if (x[i] < -86.5f) assert_true(f32_bits(y[i]) == 0);
            else if (x[i] > 88.72283f) assert_true(y[i] == INFINITY);
            else worst = fmax(worst, ulps(y[i], exp((double)x[i])));
        }
    }
    print_message("exp: worst %.3f ulp\n", worst);
    assert_true(worst < 1.1);
}

static void exp_has_the_right_ends(void **test) {
    const float x[] = {0, -0.0f, -INFINITY, INFINITY, NAN, -1e30f, 1e30f, -86.5f, -86.50001f, 88.72283f, 88.7229f, 1};
    float y[12];
    struct variant variants[4];
    for (int n = find_variants(variants), v = 0; v < n; v++) {
        variants[v].ops->exp(y, x, 12);
        assert_true(y[0] == 1 && y[1] == 1);
        assert_true(f32_bits(y[2]) == 0 && y[3] == INFINITY && isnan(y[4]));
        assert_true(f32_bits(y[5]) == 0 && y[6] == INFINITY);
        assert_true(y[7] > 2.6e-38f && y[8] == 0);
        assert_true(y[9] > 3.40e38f && isfinite(y[9]) && y[10] == INFINITY);
        assert_true(y[11] == 2.7182817f);
    }
}

static void exp_is_the_same_bits_on_every_instruction_set(void **test) {
    static float x[CHUNK], want[CHUNK], got[CHUNK];
    struct variant variants[4];
    int n = find_variants(variants);
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 1511 * CHUNK) {
        exp_of_bits(variants[0].ops, want, x, bits, 1511, CHUNK);
        for (int v = 1; v < n; v++) {
            exp_of_bits(variants[v].ops, got, x, bits, 1511, CHUNK);
            for (int i = 0; i < CHUNK; i++)
                assert_true(f32_bits(want[i]) == f32_bits(got[i]) || (isnan(x[i]) && isnan(got[i])));
        }
    }
}

static void a_vector_of_any_length_is_read_and_written_to_its_end_only(void **test) {
    struct variant variants[4];
    for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++)
        for (int n = 0; n < 40; n++) {
            float *x = malloc((size_t)n * sizeof *x + 1),
                  *y = malloc((size_t)(n + 1) * sizeof *y); /* for the address sanitizer */
            for (int i = 0; i < n; i++) x[i] = 0;
            y[n] = 7;
            variants[v].ops->exp(y, x, n);
            for (int i = 0; i < n; i++) assert_true(y[i] == 1);
            assert_true(y[n] == 7);
            free(x);
            free(y);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_ulp_over_the_whole_range),
        cmocka_unit_test(exp_has_the_right_ends),
        cmocka_unit_test(exp_is_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(a_vector_of_any_length_is_read_and_written_to_its_end_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
