/* det_exp, det_log and det_sincos against the C library's long double versions, over their whole ranges. */
#include "engine/base/fmath.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t state = 20240817;

static double uniform(double low, double high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * ((double)(state >> 11) * 0x1p-53);
}

static double relative(double got, long double want) {
    if (want == 0) return got == 0 ? 0 : 1;
    return (double)(fabsl((long double)got - want) / fabsl(want));
}

static void exp_is_accurate_over_its_range(void **test) {
    double worst = 0;
    for (int i = 0; i < 300000; i++) {
        double x = i % 3 == 0 ? uniform(-708, 709.7) : i % 3 == 1 ? uniform(-2, 2) : uniform(-1e-6, 1e-6);
        worst = fmax(worst, relative(det_exp(x), expl((long double)x)));
    }
    print_message("det_exp: worst relative error %.3g\n", worst);
    assert_true(worst < 4e-16);
}

static void exp_has_the_right_ends(void **test) {
    assert_true(det_exp(0) == 1 && det_exp(-0.0) == 1);
    assert_true(det_exp(-INFINITY) == 0 && det_exp(-800) == 0 && det_exp(-1e300) == 0);
    assert_true(det_exp(INFINITY) == INFINITY && det_exp(710) == INFINITY);
    assert_true(isnan(det_exp(NAN)));
    assert_true(det_exp(-744) > 0 && det_exp(-744) < 1e-320); /* gradual underflow */
    assert_true(isfinite(det_exp(709.78)));
}

static void log_is_accurate_over_its_range(void **test) {
    double worst = 0;
    for (int i = 0; i < 300000; i++) {
        double x = i % 3 == 0 ? exp2(uniform(-1074, 1023)) : i % 3 == 1 ? uniform(0.3, 3) : 1 + uniform(-1e-5, 1e-5);
        worst = fmax(worst, relative(det_log(x), logl((long double)x)));
    }
    print_message("det_log: worst relative error %.3g\n", worst);
    assert_true(worst < 4e-16);
}

static void log_has_the_right_ends(void **test) {
    assert_true(det_log(1) == 0);
    assert_true(det_log(0) == -INFINITY && det_log(INFINITY) == INFINITY);
    assert_true(isnan(det_log(-1)) && isnan(det_log(NAN)));
    assert_true(relative(det_log(5e-324), logl((long double)5e-324)) < 4e-16);
}

static void check_sincos(double x, double *worst) {
    double s, c;
    det_sincos(x, &s, &c);
    *worst = fmax(*worst, fmax(relative(s, sinl((long double)x)), relative(c, cosl((long double)x))));
}

static void sine_and_cosine_are_accurate_below_a_million(void **test) {
    double worst = 0;
    for (int i = 0; i < 300000; i++) check_sincos(i % 2 ? uniform(-0x1p20, 0x1p20) : uniform(-4, 4), &worst);
    for (int i = 0; i < 100000; i++) check_sincos(i, &worst);                      /* positions, frequency 1 */
    for (int i = 0; i < 600000; i++) check_sincos(i * 1.5707963267948966, &worst); /* beside multiples of π/2 */
    print_message("det_sincos: worst relative error %.3g\n", worst);
    assert_true(worst < 4e-16);
}

static void sine_and_cosine_have_the_right_ends(void **test) {
    double s, c;
    det_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    det_sincos(-1e-300, &s, &c);
    assert_true(s == -1e-300 && c == 1);
    det_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
    det_sincos(NAN, &s, &c);
    assert_true(isnan(s) && isnan(c));
    det_sincos(1e300, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* A digest of many results. It is a constant of the project: a compiler or CPU that changes it breaks reproducibility. */
static void results_are_the_same_bits_everywhere(void **test) {
    uint64_t digest = 1469598103934665603u;
    state = 7;
    for (int i = 0; i < 20000; i++) {
        double results[4];
        results[0] = det_exp(uniform(-740, 700));
        results[1] = det_log(uniform(1e-6, 1e6));
        det_sincos(uniform(-1e6, 1e6), &results[2], &results[3]);
        for (int j = 0; j < 4; j++) {
            uint64_t bits;
            memcpy(&bits, &results[j], sizeof bits);
            digest = (digest ^ bits) * 1099511628211u;
        }
    }
    print_message("digest %016llx\n", (unsigned long long)digest);
    assert_true(digest == 0x612efa8a9fa633b7);
}

int main(void) {
    print_message("seed 20240817\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate_over_its_range),
        cmocka_unit_test(exp_has_the_right_ends),
        cmocka_unit_test(log_is_accurate_over_its_range),
        cmocka_unit_test(log_has_the_right_ends),
        cmocka_unit_test(sine_and_cosine_are_accurate_below_a_million),
        cmocka_unit_test(sine_and_cosine_have_the_right_ends),
        cmocka_unit_test(results_are_the_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
