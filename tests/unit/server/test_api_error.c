#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/api_error.h"

static void every_status_has_an_http_code_that_is_counted(void **unused) {
#define X(name, text)                                                                                                          \
    {                                                                                                                          \
        const struct api_error *e = api_error_of(STATUS_##name);                                                               \
        bool is_counted = false;                                                                                               \
        for (int i = 0; api_error_http_codes[i]; i++) is_counted = is_counted || api_error_http_codes[i] == e->http;           \
        assert_true(is_counted);                                                                                               \
        assert_non_null(e->type);                                                                                              \
        assert_non_null(e->code);                                                                                              \
    }
    STATUS_TABLE(X)
#undef X
    assert_int_equal(api_error_of(STATUS_BUSY)->http, 429);
    assert_int_equal(api_error_of((enum status)999)->http, 500);
}

static void the_object_has_message_type_param_and_code(void **unused) {
    char memory[2048];
    struct err err;
    struct json_out o;
    err_set_param(&err, STATUS_INVALID, "top_p", "top_p: \"quoted\"\n");
    json_out_init(&o, memory, sizeof memory);
    api_error_write(&o, &err, NULL);
    json_t *root = json_loadb(memory, o.n, 0, NULL), *error = json_object_get(root, "error");
    assert_string_equal(json_string_value(json_object_get(error, "message")), "top_p: \"quoted\"\n");
    assert_string_equal(json_string_value(json_object_get(error, "type")), "invalid_request_error");
    assert_string_equal(json_string_value(json_object_get(error, "param")), "top_p");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "invalid_value");
    json_decref(root);
}

static void a_message_that_does_not_fit_is_answered_by_the_statuss_own_text(void **unused) {
    char memory[512], long_text[500];
    struct err err;
    struct json_out o;
    memset(long_text, 1, sizeof long_text - 1); /* six bytes each, escaped */
    long_text[sizeof long_text - 1] = 0;
    err_set(&err, STATUS_TOO_LARGE, "%s", long_text);
    json_out_init(&o, memory, sizeof memory);
    api_error_write(&o, &err, NULL);
    assert_false(o.overflow);
    json_t *root = json_loadb(memory, o.n, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "error"), "message")),
                        status_text(STATUS_TOO_LARGE));
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_an_http_code_that_is_counted),
        cmocka_unit_test(the_object_has_message_type_param_and_code),
        cmocka_unit_test(a_message_that_does_not_fit_is_answered_by_the_statuss_own_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
