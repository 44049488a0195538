/* Samples and their figures, against values computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "client/stats.h"

#define CLOSE(a, b) assert_true(fabs((a) - (b)) < 1e-9)

static void no_samples_give_zero(void **state) {
    struct samples s = {0};
    CLOSE(samples_mean(&s), 0);
    CLOSE(samples_std(&s), 0);
    CLOSE(samples_max(&s), 0);
    CLOSE(samples_percentile(&s, 99), 0);
    samples_free(&s);
}

static void percentiles_are_exact_and_linear_between_ranks(void **state) {
    struct samples s = {0};
    for (int i = 101; i-- > 0;) assert_true(samples_add(&s, i)); /* 100 .. 0 */
    CLOSE(samples_percentile(&s, 0), 0);
    CLOSE(samples_percentile(&s, 50), 50);
    CLOSE(samples_percentile(&s, 90), 90);
    CLOSE(samples_percentile(&s, 99), 99);
    CLOSE(samples_percentile(&s, 100), 100);
    samples_clear(&s);
    for (int i = 1; i <= 4; i++) samples_add(&s, i); /* numpy.percentile([1, 2, 3, 4], ...) */
    CLOSE(samples_percentile(&s, 50), 2.5);
    CLOSE(samples_percentile(&s, 90), 3.7);
    CLOSE(samples_percentile(&s, 99), 3.97);
    samples_free(&s);
}

static void a_sample_after_a_percentile_counts(void **state) {
    struct samples s = {0};
    samples_add(&s, 1);
    CLOSE(samples_percentile(&s, 50), 1);
    samples_add(&s, -3);
    CLOSE(samples_percentile(&s, 0), -3);
    samples_free(&s);
}

static void mean_std_and_max(void **state) {
    struct samples s = {0}, more = {0};
    static const double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
    for (int i = 0; i < 8; i++) samples_add(i < 3 ? &s : &more, values[i]);
    assert_true(samples_append(&s, &more));
    assert_int_equal(s.n, 8);
    CLOSE(samples_mean(&s), 5);
    CLOSE(samples_std(&s), 2);
    CLOSE(samples_max(&s), 9);
    samples_free(&s);
    samples_free(&more);
}

static void thousands_of_samples_are_all_kept(void **state) {
    struct samples s = {0};
    for (int i = 0; i < 100000; i++) assert_true(samples_add(&s, (i * 7919) % 100000));
    assert_int_equal(s.n, 100000);
    CLOSE(samples_percentile(&s, 50), 49999.5);
    CLOSE(samples_mean(&s), 49999.5);
    samples_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_samples_give_zero),
        cmocka_unit_test(percentiles_are_exact_and_linear_between_ranks),
        cmocka_unit_test(a_sample_after_a_percentile_counts),
        cmocka_unit_test(mean_std_and_max),
        cmocka_unit_test(thousands_of_samples_are_all_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
