/* NFC against Python's, and what a hostile text may cost. */
#include "tests/unit/engine/tokenizer_fixture.h"

#include <jansson.h>

#include "engine/normalizer.h"

/* Into a block of exactly `max` bytes, so that a sanitizer sees one byte more. */
static size_t normalize(const char *text, size_t n, size_t max, char *out) {
    char *room = malloc(max + !max);
    size_t used = normalizer_nfc(text, n, room, max);
    if (used != (size_t)-1) memcpy(out, room, used);
    free(room);
    return used;
}

static void check_nfc(const char *text, size_t n, const char *expected, size_t n_expected) {
    static char out[1 << 17];
    size_t used = normalize(text, n, n_expected, out);
    assert_int_equal(used, n_expected);
    assert_memory_equal(out, expected, n_expected);
    if (n_expected > 0) assert_true(normalize(text, n, n_expected - 1, out) == (size_t)-1);
}

static void texts_are_normalized_as_python_normalizes_them(void **state) {
    json_error_t where;
    json_t *golden = json_load_file(TALLY_SOURCE_DIR "/tests/golden/text.json", JSON_ALLOW_NUL, &where), *entry;
    if (!golden) fail_msg("text.json: %s", where.text);
    size_t i;
    json_array_foreach(json_object_get(golden, "nfc"), i, entry) {
        const json_t *text = json_array_get(entry, 0), *expected = json_array_get(entry, 1);
        check_nfc(json_string_value(text), json_string_length(text), json_string_value(expected), json_string_length(expected));
        check_nfc(json_string_value(expected), json_string_length(expected), json_string_value(expected),
                  json_string_length(expected));
    }
    assert_int_equal(i, 505);
    json_decref(golden);
}

static void ascii_is_copied(void **state) {
    check_nfc("", 0, "", 0);
    check_nfc("a\0b <>", 6, "a\0b <>", 6);
}

static void the_last_ascii_character_combines(void **state) {
    check_nfc("cafe\xcc\x81", 6, "caf\xc3\xa9", 5);
    check_nfc("e\xcc\x81", 3, "\xc3\xa9", 2);
    check_nfc("1 <\xcc\xb8 2", 7, "1 \xe2\x89\xae 2", 7); /* ≮ */
}

static void what_does_not_fit_is_refused(void **state) {
    char out[16];
    assert_true(normalize("abc", 3, 2, out) == (size_t)-1);
    assert_true(normalize("abc", 3, 0, out) == (size_t)-1);
    assert_true(normalize("\xf0\x9d\x85\xa0", 4, 11, out) == (size_t)-1); /* U+1D160 becomes three characters, 12 bytes */
    assert_int_equal(normalize("\xf0\x9d\x85\xa0", 4, 12, out), 12);
}

static void a_megabyte_of_combining_marks_is_normalized(void **state) {
    enum { N = 1 << 20 };
    char *text = malloc(N), *out = malloc(N);
    for (size_t i = 0; i < N; i += 2)
        memcpy(text + i, i / 2 % 2 ? "\xcc\x81" : "\xcc\xa3", 2); /* above, below: all to be reordered */
    assert_int_equal(normalizer_nfc(text, N, out, N), N);
    for (size_t i = 0; i < N; i += 2) assert_true(out[i] == '\xcc');
    free(text);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_normalized_as_python_normalizes_them),
        cmocka_unit_test(ascii_is_copied),
        cmocka_unit_test(the_last_ascii_character_combines),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_megabyte_of_combining_marks_is_normalized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
