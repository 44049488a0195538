/* The writer against jansson as an oracle: what it writes parses to what went in, for random values. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/utf8.h"
#include "server/json_out.h"

static uint64_t state;

static uint64_t next_random(void) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void commas_come_where_they_belong(void **unused) {
    char memory[256];
    struct json_out o;
    json_out_init(&o, memory, sizeof memory);
    json_out_open(&o, '{');
    json_out_key(&o, "a");
    json_out_open(&o, '[');
    json_out_int(&o, -1);
    json_out_uint(&o, UINT64_MAX);
    json_out_open(&o, '{');
    json_out_close(&o, '}');
    json_out_bool(&o, true);
    json_out_close(&o, ']');
    json_out_key(&o, "b");
    json_out_null(&o);
    json_out_key(&o, "c");
    json_out_cstr(&o, "{");
    json_out_key(&o, "d");
    json_out_cstr(&o, NULL);
    json_out_close(&o, '}');
    assert_false(o.overflow);
    assert_int_equal(o.n, strlen("{\"a\":[-1,18446744073709551615,{},true],\"b\":null,\"c\":\"{\",\"d\":null}"));
    assert_memory_equal(memory, "{\"a\":[-1,18446744073709551615,{},true],\"b\":null,\"c\":\"{\",\"d\":null}", o.n);
}

static void numbers_have_nine_digits_and_are_never_nan_or_infinite(void **unused) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.1, "0.1"},  {-1.2345678, "-1.2345678"}, {1e-7, "1e-07"},     {1, "1"},
        {NAN, "null"}, {INFINITY, "null"},         {-INFINITY, "null"}, {-9999, "-9999"},
    };
    char memory[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_out o;
        json_out_init(&o, memory, sizeof memory);
        json_out_number(&o, cases[i].value);
        memory[o.n] = 0;
        assert_string_equal(memory, cases[i].text);
    }
}

static void an_append_that_does_not_fit_is_dropped_whole_and_sticks(void **unused) {
    char memory[8];
    struct json_out o;
    json_out_init(&o, memory, sizeof memory);
    json_out_text(&o, "12345");
    json_out_text(&o, "6789");
    assert_true(o.overflow);
    assert_int_equal(o.n, 5);
    json_out_text(&o, "6");
    assert_int_equal(o.n, 5);
    json_out_init(&o, memory, sizeof memory);
    json_out_printf(&o, "%d", 12345678); /* its NUL does not fit */
    assert_true(o.overflow);
}

static size_t random_text(char *text, size_t max) {
    size_t n = next_random() % max;
    int kind = (int)(next_random() % 3);
    for (size_t i = 0; i < n; i++)
        text[i] = kind == 0   ? (char)next_random()
                  : kind == 1 ? (char)(next_random() % 128)
                              : "\xe2\x82\xac\"\\\n/"[next_random() % 7];
    return n;
}

/* The same text with invalid bytes replaced one by one. */
static size_t replaced(const char *text, size_t n, char *out) {
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        int length = utf8_decode(text + i, n - i, NULL);
        if (length) memcpy(out + m, text + i, (size_t)length);
        else memcpy(out + m, "\xef\xbf\xbd", 3);
        m += length ? (size_t)length : 3;
        i += length ? (size_t)length : 1;
    }
    return m;
}

static void random_strings_and_numbers_parse_back_with_jansson(void **unused) {
    static char text[200], wanted[700], memory[4096];
    for (int round = 0; round < 20000; round++) {
        struct json_out o;
        size_t n = random_text(text, sizeof text);
        double number = (double)(int64_t)next_random() / (double)((next_random() >> (next_random() % 64)) | 1);
        json_out_init(&o, memory, sizeof memory);
        json_out_open(&o, '{');
        json_out_key(&o, "s");
        json_out_string(&o, text, n);
        json_out_key(&o, "n");
        json_out_number(&o, number);
        json_out_close(&o, '}');
        assert_false(o.overflow);
        json_error_t error;
        json_t *root = json_loadb(memory, o.n, JSON_ALLOW_NUL, &error);
        if (!root) fail_msg("seed round %d: %s in %.*s", round, error.text, (int)o.n, memory);
        json_t *s = json_object_get(root, "s");
        size_t n_wanted = replaced(text, n, wanted);
        assert_int_equal(json_string_length(s), n_wanted);
        assert_memory_equal(json_string_value(s), wanted, n_wanted);
        assert_true(fabs(json_number_value(json_object_get(root, "n")) - number) <= fabs(number) * 1e-8);
        json_decref(root);
    }
}

int main(void) {
    state = (uint64_t)clock_us();
    if (getenv("TALLY_SEED")) state = strtoull(getenv("TALLY_SEED"), NULL, 10);
    printf("seed %llu\n", (unsigned long long)state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_come_where_they_belong),
        cmocka_unit_test(numbers_have_nine_digits_and_are_never_nan_or_infinite),
        cmocka_unit_test(an_append_that_does_not_fit_is_dropped_whole_and_sticks),
        cmocka_unit_test(random_strings_and_numbers_parse_back_with_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
