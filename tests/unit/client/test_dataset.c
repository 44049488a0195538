/* Prompts: exact counts, the same for the same seed, and files that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/dataset.h"

static void random_ids_are_exactly_as_many_and_in_range(void **state) {
    struct dataset d = {.kind = DATASET_TOKENS, .seed = 1, .n_tokens = 300, .vocab = 50};
    bool seen[50] = {false};
    json_t *prompt = dataset_prompt(&d, 0);
    assert_int_equal(json_array_size(prompt), 300);
    for (size_t i = 0; i < 300; i++) {
        json_int_t id = json_integer_value(json_array_get(prompt, i));
        assert_in_range(id, 0, 49);
        seen[id] = true;
    }
    int n = 0;
    for (int i = 0; i < 50; i++) n += seen[i];
    assert_true(n > 40);
    json_decref(prompt);
}

static void a_prompt_depends_on_seed_and_index_alone(void **state) {
    for (enum dataset_kind kind = DATASET_TOKENS; kind <= DATASET_WORDS; kind++) {
        struct dataset d = {.kind = kind, .seed = 1, .n_tokens = 20, .vocab = 50000}, other = d;
        other.seed = 2;
        json_t *a = dataset_prompt(&d, 3), *next = dataset_prompt(&d, 4), *b = dataset_prompt(&d, 3),
               *c = dataset_prompt(&other, 3);
        assert_true(json_equal(a, b));
        assert_false(json_equal(a, next));
        assert_false(json_equal(a, c));
        json_decref(a), json_decref(b), json_decref(c), json_decref(next);
    }
}

static void words_are_as_many_as_asked(void **state) {
    struct dataset d = {.kind = DATASET_WORDS, .seed = 9, .n_tokens = 1000};
    json_t *prompt = dataset_prompt(&d, 0);
    const char *text = json_string_value(prompt);
    int spaces = 0;
    for (const char *p = text; *p; p++) {
        assert_true(*p == ' ' || (*p >= 'a' && *p <= 'z'));
        assert_false(*p == ' ' && p[1] == ' ');
        spaces += *p == ' ';
    }
    assert_int_equal(spaces, 999);
    json_decref(prompt);
}

static enum status read_text(struct dataset *d, const char *text, size_t n, struct err *err) {
    char path[] = "/tmp/tally_prompts_XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    close(fd);
    memset(d, 0, sizeof *d);
    memset(err, 0, sizeof *err);
    enum status status = dataset_read_file(d, path, err);
    unlink(path);
    return status;
}

static void a_file_gives_its_lines_in_turn(void **state) {
    static const char text[] = "first one\n\n{\"prompt\": \"second\\n\\u00e9\", \"other\": 3}\r\nlast without end";
    static const char *const expected[] = {"first one", "second\n\xc3\xa9", "last without end", "first one"};
    struct dataset d;
    struct err err;
    assert_int_equal(read_text(&d, text, sizeof text - 1, &err), STATUS_OK);
    assert_int_equal(d.n_prompts, 3);
    for (uint64_t i = 0; i < 4; i++) {
        json_t *prompt = dataset_prompt(&d, i);
        assert_string_equal(json_string_value(prompt), expected[i]);
        json_decref(prompt);
    }
    dataset_free(&d);
}

static void many_lines_are_all_read(void **state) {
    char text[20000];
    size_t n = 0;
    for (int i = 0; i < 1500; i++) n += (size_t)snprintf(text + n, sizeof text - n, "prompt %d\n", i);
    struct dataset d;
    struct err err;
    assert_int_equal(read_text(&d, text, n, &err), STATUS_OK);
    assert_int_equal(d.n_prompts, 1500);
    assert_string_equal(d.prompts[1499], "prompt 1499");
    dataset_free(&d);
}

static void a_bad_file_names_its_line(void **state) {
    static const struct {
        const char *text;
        size_t n;
        const char *says;
    } files[] = {
        {"good\n{\"prompt\": 3}\n", 19, "line 2"},
        {"good\n\n{broken\n", 14, "line 3"},
        {"a\0b\n", 4, "line 1"},
        {"", 0, "no prompts"},
        {"\n\n", 2, "no prompts"},
        {"{}\n", 3, "line 1"},
        {"{\"prompt\": \"\\ud800\"}\n", 21, "line 1"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct dataset d;
        struct err err;
        assert_int_equal(read_text(&d, files[i].text, files[i].n, &err), STATUS_INVALID);
        if (!strstr(err.text, files[i].says)) fail_msg("\"%s\" does not say %s", err.text, files[i].says);
        assert_string_equal(err.param, "prompts");
        dataset_free(&d);
    }
    struct dataset d = {0};
    struct err err;
    assert_int_equal(dataset_read_file(&d, "/nonexistent/prompts", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/prompts"));
}

/* A line that is not UTF-8 cannot be sent as JSON. */
static void a_line_that_is_not_utf8_is_refused(void **state) {
    struct dataset d;
    struct err err;
    assert_int_equal(read_text(&d, "good\nbad \xff\n", 11, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "line 2"));
    dataset_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_ids_are_exactly_as_many_and_in_range),
        cmocka_unit_test(a_prompt_depends_on_seed_and_index_alone),
        cmocka_unit_test(words_are_as_many_as_asked),
        cmocka_unit_test(a_file_gives_its_lines_in_turn),
        cmocka_unit_test(many_lines_are_all_read),
        cmocka_unit_test(a_bad_file_names_its_line),
        cmocka_unit_test(a_line_that_is_not_utf8_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
