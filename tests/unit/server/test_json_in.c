#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/json_in.h"

static char memory[1 << 20];
static const struct json_value *root;
static struct err err;

static enum status parse(const char *text) {
    json_in_done(root);
    memset(&err, 0, sizeof err);
    return json_in_parse(text, strlen(text), &root, &err);
}

static void documents_that_are_not_one_clean_object_are_refused(void **unused) {
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "[1]",
        "null",
        "5",
        "\"x\"",
        "{} x",
        "{\"a\":1,}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":1e999}",
        "{\"a\":99999999999999999999}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udc00\\ud800\"}",
        "{\"a\":\"\\u0000\"}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\xed\xa0\x80\"}",
        "\xef\xbb\xbf{}",
        "{'a':1}",
        "{a:1}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(bad[i]), STATUS_INVALID);
        assert_non_null(strstr(err.text, "body: "));
        assert_null(root);
    }
    assert_int_equal(parse("{\"a\":\"\\ud83d\\ude00\"}"), STATUS_OK);
}

static void errors_say_where_and_quote_nothing_of_the_body(void **unused) {
    assert_int_equal(parse("{\n  \"a\": secret}"), STATUS_INVALID);
    assert_non_null(strstr(err.text, "line 2"));
    assert_null(strstr(err.text, "secret"));
}

static void nesting_past_the_parsers_depth_is_refused(void **unused) {
    static char deep[200000];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"a\":", 5);
    assert_int_equal(parse(deep), STATUS_INVALID);
}

static void a_document_that_needs_more_than_the_bound_memory_is_too_large(void **unused) {
    static char many[100000];
    json_in_done(root);
    root = NULL;
    json_in_bind(memory, 65536);
    strcpy(many, "{\"a\":[1");
    for (size_t i = 7; i + 4 < sizeof many; i += 2) memcpy(many + i, ",1", 2);
    assert_int_equal(parse(many), STATUS_TOO_LARGE);
    assert_int_equal(parse("{\"a\":1}"), STATUS_OK); /* and the next starts over */
    json_in_done(root);
    root = NULL;
    json_in_bind(memory, sizeof memory);
}

static void getters_check_type_and_range_and_name_the_path(void **unused) {
    int64_t n = 7;
    double x = 0.5;
    bool b = true;
    const struct json_value *o;
    parse("{\"n\":5,\"real\":1.5,\"big\":4294967297,\"s\":\"x\",\"t\":false,\"null\":null,\"o\":{\"k\":1}}");
    assert_int_equal(json_in_int(root, "", "absent", 0, 1, &n, &err), STATUS_OK);
    assert_int_equal(json_in_int(root, "", "null", 0, 1, &n, &err), STATUS_OK);
    assert_int_equal(n, 7);
    assert_int_equal(json_in_int(root, "", "n", 0, 5, &n, &err), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_in_int(root, "", "n", 6, 9, &n, &err), STATUS_INVALID);
    assert_string_equal(err.param, "n");
    assert_string_equal(err.text, "n: must be from 6 to 9, not 5");
    assert_int_equal(json_in_int(root, "", "real", 0, 9, &n, &err), STATUS_INVALID);
    assert_int_equal(json_in_int(root, "", "s", 0, 9, &n, &err), STATUS_INVALID);
    assert_string_equal(err.text, "s: must be an integer, not a string");
    assert_int_equal(json_in_int(root, "", "t", 0, 9, &n, &err), STATUS_INVALID);
    assert_int_equal(json_in_int(root, "", "big", 0, INT32_MAX, &n, &err), STATUS_INVALID); /* not cut to 1 */
    assert_int_equal(json_in_number(root, "", "n", 0, 9, &x, &err), STATUS_OK);             /* an integer is a number */
    assert_true(x == 5);
    assert_int_equal(json_in_number(root, "", "real", 0, 1, &x, &err), STATUS_INVALID);
    assert_int_equal(json_in_number(root, "", "s", 0, 1, &x, &err), STATUS_INVALID);
    assert_int_equal(json_in_bool(root, "", "t", &b, &err), STATUS_OK);
    assert_false(b);
    assert_int_equal(json_in_bool(root, "", "n", &b, &err), STATUS_INVALID);
    assert_int_equal(json_in_object(root, "", "o", &o, &err), STATUS_OK);
    assert_int_equal(json_in_bool(o, "o", "k", &b, &err), STATUS_INVALID);
    assert_string_equal(err.param, "o.k");
    assert_int_equal(json_in_object(root, "", "s", &o, &err), STATUS_INVALID);
}

static void long_paths_are_cut_not_overflowing(void **unused) {
    char key[300];
    int64_t n = 0;
    char text[400];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    snprintf(text, sizeof text, "{\"%s\":\"x\"}", key);
    parse(text);
    assert_int_equal(json_in_int(root, "a.very.long.path", key, 0, 1, &n, &err), STATUS_INVALID);
    assert_int_equal(strlen(err.param), sizeof err.param - 1);
}

static int start(void **unused) {
    json_in_init();
    json_in_bind(memory, sizeof memory);
    return 0;
}

static int end(void **unused) {
    json_in_done(root);
    json_in_bind(NULL, 0);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_that_are_not_one_clean_object_are_refused),
        cmocka_unit_test(errors_say_where_and_quote_nothing_of_the_body),
        cmocka_unit_test(nesting_past_the_parsers_depth_is_refused),
        cmocka_unit_test(a_document_that_needs_more_than_the_bound_memory_is_too_large),
        cmocka_unit_test(getters_check_type_and_range_and_name_the_path),
        cmocka_unit_test(long_paths_are_cut_not_overflowing),
    };
    return cmocka_run_group_tests(tests, start, end);
}
