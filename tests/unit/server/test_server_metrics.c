#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_engine.c"
#include "fake_tokenizer.c"

#include "server/api_error.h"
#include "server/server_state.h"

static void buckets_hold_what_is_at_most_their_bound(void **unused) {
    struct histogram h = {0};
    metrics_observe(&h, 1000); /* exactly 1 ms */
    metrics_observe(&h, 1001);
    metrics_observe(&h, -5); /* a clock that went back counts as 0 */
    metrics_observe(&h, INT64_MAX);
    assert_int_equal(h.counts[0], 2);
    assert_int_equal(h.counts[1], 1);
    assert_int_equal(h.counts[N_BUCKETS], 1);
    assert_int_equal(h.n, 4);
    assert_true(isfinite(h.sum) && h.sum > 0);
    for (int i = 1; i < N_BUCKETS; i++) assert_true(metrics_bounds[i] > metrics_bounds[i - 1]);
}

static void http_codes_not_in_the_table_are_counted_as_other(void **unused) {
    struct metrics m = {0};
    int n = 0;
    while (api_error_http_codes[n]) n++;
    assert_true(n < MAX_HTTP_CODES);
    metrics_count_http(&m, 200);
    metrics_count_http(&m, 418);
    assert_int_equal(m.http[0], 1);
    assert_int_equal(m.http[n], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hold_what_is_at_most_their_bound),
        cmocka_unit_test(http_codes_not_in_the_table_are_counted_as_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
