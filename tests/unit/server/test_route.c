#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fake_engine.c"
#include "fake_tokenizer.c"

#include "server/route.h"

static void a_route_is_found_by_method_and_whole_path(void **unused) {
    const char *allow;
    const struct route *route = route_find("POST", "/v1/completions", &allow);
    assert_non_null(route);
    assert_true(route->takes_body && route->is_watched);
    assert_non_null(route_find("GET", "/metrics", &allow));
    assert_ptr_equal(route_find("HEAD", "/health", &allow), route_find("GET", "/health", &allow));
}

static void a_wrong_method_names_those_allowed_and_an_unknown_path_none(void **unused) {
    const char *allow;
    assert_null(route_find("GET", "/v1/completions", &allow));
    assert_string_equal(allow, "POST, OPTIONS");
    assert_null(route_find("OPTIONS", "/health", &allow));
    assert_string_equal(allow, "GET, HEAD, OPTIONS");
    static const char *const unknown[] = {"",        "/", "/v1", "/v1/completions/", "/v1/completionsx", "/V1/COMPLETIONS",
                                          "//health"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_null(route_find("GET", unknown[i], &allow));
        assert_null(allow);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_route_is_found_by_method_and_whole_path),
        cmocka_unit_test(a_wrong_method_names_those_allowed_and_an_unknown_path_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
