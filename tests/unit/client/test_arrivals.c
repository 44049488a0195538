/* Arrivals and the random numbers under them: repeatable, and of the distribution that was asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "client/arrivals.h"

static void the_same_seed_arrives_the_same(void **state) {
    struct arrivals a, b, c;
    int same = 0;
    arrivals_open(&a, 100, 3);
    arrivals_open(&b, 100, 3);
    arrivals_open(&c, 100, 4);
    for (int i = 0; i < 1000; i++) {
        int64_t at = arrivals_next_us(&a);
        assert_int_equal(at, arrivals_next_us(&b));
        same += at == arrivals_next_us(&c);
    }
    assert_true(same < 5);
}

/* Gaps of a Poisson process: mean and standard deviation 1 / rate, and a fraction e^-1 longer than the mean. The bounds are five
 * standard errors wide; the seeds are fixed. */
static void gaps_are_exponential(void **state) {
    static const double rates[] = {0.5, 20, 5000};
    for (int k = 0; k < 3; k++) {
        struct arrivals a;
        double sum = 0, squares = 0, mean = 1e6 / rates[k];
        int64_t before = 0, longer = 0, n = 100000;
        arrivals_open(&a, rates[k], (uint64_t)k);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = arrivals_next_us(&a);
            assert_true(at >= before);
            sum += (double)(at - before);
            squares += (double)(at - before) * (double)(at - before);
            longer += (double)(at - before) > mean;
            before = at;
        }
        double measured = sum / (double)n, deviation = sqrt(squares / (double)n - measured * measured);
        assert_true(fabs(measured / mean - 1) < 0.016);
        assert_true(fabs(deviation / mean - 1) < 0.025);
        assert_true(fabs((double)longer / (double)n - exp(-1)) < 0.011);
    }
}

static void the_closed_loop_is_always_due(void **state) {
    struct arrivals a;
    arrivals_open(&a, 0, 1);
    for (int i = 0; i < 10; i++) assert_int_equal(arrivals_next_us(&a), 0);
}

static void numbers_below_n_are_even(void **state) {
    struct random_source r = random_open(1, 2);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t value = random_below(&r, 7);
        assert_true(value < 7);
        counts[value]++;
    }
    for (int i = 0; i < 7; i++) assert_in_range(counts[i], 9500, 10500);
    for (int i = 0; i < 100; i++) assert_int_equal(random_below(&r, 1), 0);
    for (int i = 0; i < 1000; i++) {
        double u = random_unit(&r);
        assert_true(u >= 0 && u < 1);
    }
}

static void streams_of_one_seed_differ(void **state) {
    struct random_source a = random_open(5, 0), b = random_open(5, 1), c = random_open(6, 0);
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = random_next(&a), y = random_next(&b), z = random_next(&c);
        same += (x == y) + (y == z) + (x == z);
    }
    assert_int_equal(same, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_arrives_the_same), cmocka_unit_test(gaps_are_exponential),
        cmocka_unit_test(the_closed_loop_is_always_due),  cmocka_unit_test(numbers_below_n_are_even),
        cmocka_unit_test(streams_of_one_seed_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
