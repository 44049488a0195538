/* The table of options, over one of each kind. The server's table is tested in tests/unit/server/test_config.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/base/options.h"

struct values {
    const char *text;
    int64_t count, size;
    double ratio;
    int kind;
    bool is_on;
    struct option_list items;
};

static const struct option options[] = {
    {"text", OPTION_TEXT, "none", 0, 0, "", "TEXT", "A text.", offsetof(struct values, text)},
    {"the_count", OPTION_INT, "auto", 1, 9007199254740991.0, "", "N", "A count.", offsetof(struct values, count)},
    {"size", OPTION_BYTES, "3KiB", 1024, 1048576, "", "BYTES", "A size.", offsetof(struct values, size)},
    {"ratio", OPTION_REAL, "0.5", -1, 1.5, "", "R", "A ratio.", offsetof(struct values, ratio)},
    {"kind", OPTION_CHOICE, "b", 0, 0, "a|b|ccc", "KIND", "A kind.", offsetof(struct values, kind)},
    {"is_on", OPTION_BOOL, "false", 0, 0, "", "", "A switch.", offsetof(struct values, is_on)},
    {"item", OPTION_LIST, "", 0, 0, "", "ITEM", "Items.", offsetof(struct values, items)},
};
#define N (int)(sizeof options / sizeof *options)

static struct values v;
static enum option_source sources[N];
static const struct option_table t = {options, N, &v, sources};

static int reset(void **state) {
    options_init(&t);
    return 0;
}

static enum status flags(struct err *err, const char **operands, int max_operands, const char *const *arguments) {
    char *argv[48] = {(char[]){"x"}};
    int argc = 1;
    for (; *arguments; arguments++) argv[argc++] = (char *)(uintptr_t)*arguments;
    memset(err, 0, sizeof *err);
    return options_from_flags(&t, argc, argv, operands, max_operands, err);
}
#define FLAGS(err, ...) flags(err, NULL, 0, (const char *const[]){__VA_ARGS__, NULL})

static void defaults_are_set(void **state) {
    assert_string_equal(v.text, "none");
    assert_int_equal(v.count, 0);
    assert_int_equal(v.size, 3072);
    assert_true(v.ratio == 0.5);
    assert_int_equal(v.kind, 1);
    assert_false(v.is_on);
    assert_int_equal(v.items.n, 0);
}

static void each_kind_is_read_and_printed(void **state) {
    struct err err;
    char text[64];
    static const char *const printed[] = {"t", "9007199254740991", "1MiB", "-0.25", "ccc", "true", "2 given"};
    assert_int_equal(FLAGS(&err, "--text", "t", "--the-count=9007199254740991", "--size", "1024K", "--ratio", "-.25", "--kind",
                           "ccc", "--is-on", "--item", "x", "--item=y=z"),
                     STATUS_OK);
    for (int i = 0; i < N; i++) {
        option_format(&t, &options[i], text, sizeof text);
        assert_string_equal(text, printed[i]);
        assert_int_equal(sources[i], SOURCE_FLAG);
    }
    assert_string_equal(v.items.items[1], "y=z");
    assert_int_equal(FLAGS(&err, "--no-is-on", "--the_count", "auto"), STATUS_OK);
    assert_false(v.is_on);
    assert_int_equal(v.count, 0);
}

static void the_last_one_given_wins(void **state) {
    struct err err;
    assert_int_equal(FLAGS(&err, "--the-count", "3", "--the-count", "4"), STATUS_OK);
    assert_int_equal(v.count, 4);
}

static void bad_values_name_option_and_range(void **state) {
    static const char *const bad[][3] = {
        {"--the-count", "0", "1 to 9007199254740991, or auto"},
        {"--the-count", "+1", "1 to"},
        {"--the-count", "1.0", "1 to"},
        {"--size", "1023", "1KiB to 1MiB"},
        {"--size", "2M", "1KiB to 1MiB"},
        {"--ratio", "nan", "-1 to 1.5"},
        {"--ratio", "inf", "-1 to 1.5"},
        {"--ratio", "1.51", "-1 to 1.5"},
        {"--ratio", "0x1", "-1 to 1.5"},
        {"--ratio", "1e999", "-1 to 1.5"},
        {"--kind", "cc", "a or b or ccc"},
        {"--kind", "a|b", "a or b or ccc"},
        {"--kind", "", "a or b or ccc"},
        {"--is-on=2", "", "true or false"},
        {"--is-on=", "", "true or false"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err;
        assert_int_equal(FLAGS(&err, bad[i][0], *bad[i][1] || strcmp(bad[i][0], "--kind") == 0 ? bad[i][1] : NULL),
                         STATUS_INVALID);
        if (!strstr(err.text, bad[i][2])) fail_msg("%s %s: \"%s\"", bad[i][0], bad[i][1], err.text);
    }
    struct values before = v;
    options_init(&t);
    assert_memory_equal(&before, &v, sizeof v); /* a refused value changes nothing */
}

static void a_list_has_an_end(void **state) {
    struct err err;
    for (int i = 0; i < OPTION_LIST_MAX; i++) assert_int_equal(FLAGS(&err, "--item", "x"), STATUS_OK);
    assert_int_equal(FLAGS(&err, "--item", "x"), STATUS_INVALID);
    assert_int_equal(v.items.n, OPTION_LIST_MAX);
}

static void operands_and_the_end_of_flags(void **state) {
    struct err err;
    const char *operands[2];
    assert_int_equal(flags(&err, operands, 2, (const char *const[]){"a", "--is-on", "--", "--kind", NULL}), STATUS_OK);
    assert_string_equal(operands[0], "a");
    assert_string_equal(operands[1], "--kind");
    assert_int_equal(flags(&err, operands, 1, (const char *const[]){"-", NULL}), STATUS_OK); /* a file named - */
    assert_int_equal(flags(&err, operands, 1, (const char *const[]){"a", "b", NULL}), STATUS_INVALID);
    assert_int_equal(flags(&err, operands, 1, (const char *const[]){"-x", NULL}), STATUS_INVALID);
}

static void the_environment_is_matched_whole(void **state) {
    struct err err;
    char *environment[] = {(char[]){"APP_THE_COUNT=5"}, (char[]){"APP_KINDS=a"}, (char[]){"XAPP_KIND=a"}, (char[]){"APP_KIN=a"},
                           (char[]){"app_kind=a"},      (char[]){"APP_ITEM=x"},  (char[]){"APP_SIZE"},    NULL};
    assert_int_equal(options_from_environment(&t, environment, "APP", &err), STATUS_OK);
    assert_int_equal(v.count, 5);
    assert_int_equal(v.kind, 1);
    assert_int_equal(v.items.n, 0);
    char *bad[] = {(char[]){"APP_THE_COUNT=five"}, NULL};
    assert_int_equal(options_from_environment(&t, bad, "APP", &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "environment: APP_THE_COUNT: \"five\""));
}

static void long_names_and_values_are_cut_in_errors(void **state) {
    struct err err;
    char name[3000] = "--", value[3000];
    memset(name + 2, 'k', sizeof name - 3);
    memset(value, '9', sizeof value - 1);
    value[sizeof value - 1] = 0;
    assert_int_equal(FLAGS(&err, name), STATUS_INVALID);
    assert_int_equal(FLAGS(&err, "--the-count", value), STATUS_INVALID);
    assert_non_null(strstr(err.text, "or auto"));
    assert_int_equal(FLAGS(&err, "--size", value), STATUS_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_are_set, reset),
        cmocka_unit_test_setup(each_kind_is_read_and_printed, reset),
        cmocka_unit_test_setup(the_last_one_given_wins, reset),
        cmocka_unit_test_setup(bad_values_name_option_and_range, reset),
        cmocka_unit_test_setup(a_list_has_an_end, reset),
        cmocka_unit_test_setup(operands_and_the_end_of_flags, reset),
        cmocka_unit_test_setup(the_environment_is_matched_whole, reset),
        cmocka_unit_test_setup(long_names_and_values_are_cut_in_errors, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
