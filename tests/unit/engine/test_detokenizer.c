/* Streams of tokens against decodes of the whole text: however characters are cut, what comes out is the same. */
#include "tests/unit/engine/tokenizer_fixture.h"

#include <jansson.h>

/* A SentencePiece vocabulary: ids 0 to 255 are the bytes. */
enum { SPACE_A = 256, CONTROL, SPACE, WHOLE_EMOJI };

static char byte_texts[256][8];

static struct subject byte_subject(bool add_space_prefix) {
    static struct tiny v;
    tiny_init(&v, VOCAB_SPM);
    for (int b = 0; b < 256; b++) {
        snprintf(byte_texts[b], sizeof byte_texts[b], "<0x%02X>", b);
        tiny_token(&v, byte_texts[b], TOKEN_BYTE);
    }
    assert_int_equal(tiny_token(&v,
                                "\xe2\x96\x81"
                                "a",
                                TOKEN_NORMAL),
                     SPACE_A);
    assert_int_equal(tiny_token(&v, "<ctl>", TOKEN_CONTROL), CONTROL);
    assert_int_equal(tiny_token(&v, "\xe2\x96\x81", TOKEN_NORMAL), SPACE);
    assert_int_equal(tiny_token(&v, "\xf0\x9f\x98\x80", TOKEN_NORMAL), WHOLE_EMOJI);
    v.vocab.add_space_prefix = add_space_prefix;
    return subject_of(&v.vocab, 64);
}

struct stream {
    struct detokenizer d;
    char out[4096];
    size_t used;
};

static void stream_begin(struct stream *s, bool at_start, bool show_control) {
    detokenizer_init(&s->d, at_start, show_control);
    s->used = 0;
}

/* Hands over exactly the room that the contract asks for, so that a sanitizer or BUG sees one byte more. */
static void stream_push(struct stream *s, const struct tokenizer *t, int32_t id) {
    size_t max = 3 * (size_t)tokenizer_piece(t, id).n + DETOKENIZER_GROWTH;
    char *room = malloc(max);
    size_t n = detokenizer_push(&s->d, t, id, room, max);
    assert_true(n <= max);
    memcpy(s->out + s->used, room, n);
    s->used += n;
    free(room);
}

static const char *stream_end(struct stream *s) {
    s->used += detokenizer_finish(&s->d, s->out + s->used, 12);
    s->out[s->used] = 0;
    return s->out;
}

static const char *stream_ids(const struct tokenizer *t, bool at_start, bool show_control, const int32_t *ids, size_t n) {
    static struct stream s;
    stream_begin(&s, at_start, show_control);
    for (size_t i = 0; i < n; i++) stream_push(&s, t, ids[i]);
    return stream_end(&s);
}
#define STREAM(t, at_start, show, ...)                                                                                         \
    stream_ids(t, at_start, show, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Every way to cut bytes[0..n) in two or three tokens, each a piece of its own vocabulary. */
static void check_splits(const char *bytes, size_t n, const char *expected, size_t n_expected) {
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b++) {
            static struct tiny v;
            tiny_init(&v, VOCAB_SPM);
            const struct text_view cuts[] = {{bytes, a}, {bytes + a, b - a}, {bytes + b, n - b}};
            for (int i = 0; i < 3; i++) v.tokens[tiny_token(&v, "", TOKEN_UNDEFINED)] = cuts[i];
            for (int i = 0; i < 3; i++) v.types[i] = TOKEN_UNUSED; /* pieces only: they may be equal */
            struct subject s = subject_of(&v.vocab, 64);
            static struct stream out;
            stream_begin(&out, false, false);
            for (int32_t id = 0; id < 3; id++) stream_push(&out, s.tokenizer, id);
            stream_end(&out);
            assert_int_equal(out.used, n_expected);
            assert_memory_equal(out.out, expected, n_expected);
            subject_close(&s);
        }
}

static void every_split_of_characters_is_the_whole_decode(void **state) {
    static const char *const texts[] = {
        "h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z",                                   /* é€😀 */
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7", /* a family, joined by ZWJ */
        "\xf0\x9f\x8f\xb3\xef\xb8\x8f\xe2\x80\x8d\xf0\x9f\x8c\x88",
        "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_splits(texts[i], strlen(texts[i]), texts[i], strlen(texts[i]));
}

static size_t unhex(const char *hex, char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) out[i] = (char)strtoul((char[]){hex[2 * i], hex[2 * i + 1], 0}, NULL, 16);
    return n;
}

static void invalid_bytes_are_replaced_as_python_replaces_them(void **state) {
    json_error_t where;
    json_t *golden = json_load_file(TALLY_SOURCE_DIR "/tests/golden/text.json", JSON_ALLOW_NUL, &where), *entry;
    if (!golden) fail_msg("text.json: %s", where.text);
    struct subject s = byte_subject(false);
    size_t i;
    json_array_foreach(json_object_get(golden, "replace"), i, entry) {
        char bytes[64];
        const json_t *expected = json_array_get(entry, 1);
        size_t n = unhex(json_string_value(json_array_get(entry, 0)), bytes), n_expected = json_string_length(expected);
        static struct stream out;
        stream_begin(&out, false, false);
        for (size_t k = 0; k < n; k++) stream_push(&out, s.tokenizer, (unsigned char)bytes[k]);
        stream_end(&out);
        assert_int_equal(out.used, n_expected);
        assert_memory_equal(out.out, json_string_value(expected), n_expected);
        if (n <= 12) check_splits(bytes, n, json_string_value(expected), n_expected);
    }
    assert_int_equal(i, 600);
    subject_close(&s);
    json_decref(golden);
}

static void the_first_space_of_a_text_is_not_shown(void **state) {
    struct subject s = byte_subject(true);
    assert_string_equal(STREAM(s.tokenizer, true, false, SPACE_A, SPACE_A), "a a");
    assert_string_equal(STREAM(s.tokenizer, true, false, CONTROL, SPACE_A), "a"); /* a BOS before it changes nothing */
    assert_string_equal(STREAM(s.tokenizer, true, false, SPACE, SPACE_A), " a");  /* only one of two */
    assert_string_equal(STREAM(s.tokenizer, true, false, ' ', 'x', SPACE_A), "x a");
    assert_string_equal(STREAM(s.tokenizer, true, false, 'x', SPACE_A), "x a"); /* not the first */
    subject_close(&s);
}

static void a_completion_keeps_its_first_space(void **state) {
    struct subject s = byte_subject(true);
    assert_string_equal(STREAM(s.tokenizer, false, false, SPACE_A), " a");
    subject_close(&s);
}

static void without_a_space_prefix_the_first_space_is_text(void **state) {
    struct subject s = byte_subject(false);
    assert_string_equal(STREAM(s.tokenizer, true, false, SPACE_A), " a");
    subject_close(&s);
}

static void control_tokens_are_shown_on_demand_only(void **state) {
    struct subject s = byte_subject(false);
    assert_string_equal(STREAM(s.tokenizer, false, false, 'x', CONTROL, 'y'), "xy");
    assert_string_equal(STREAM(s.tokenizer, false, true, 'x', CONTROL, 'y'), "x<ctl>y");
    subject_close(&s);
}

static void a_hidden_control_token_does_not_break_a_character(void **state) {
    struct subject s = byte_subject(false);
    assert_string_equal(STREAM(s.tokenizer, false, false, 0xf0, 0x9f, CONTROL, 0x98, 0x80), "\xf0\x9f\x98\x80");
    assert_string_equal(STREAM(s.tokenizer, false, true, 0xf0, 0x9f, CONTROL, 0x98, 0x80),
                        "\xef\xbf\xbd<ctl>\xef\xbf\xbd\xef\xbf\xbd"); /* shown, its text is in between */
    subject_close(&s);
}

static void a_character_is_never_emitted_in_halves(void **state) {
    struct subject s = byte_subject(false);
    static struct stream out;
    stream_begin(&out, false, false);
    const unsigned char bytes[] = {0xf0, 0x9f, 0x98};
    for (int i = 0; i < 3; i++) {
        stream_push(&out, s.tokenizer, bytes[i]);
        assert_int_equal(out.used, 0);
    }
    stream_push(&out, s.tokenizer, 0x80);
    assert_int_equal(out.used, 4);
    assert_string_equal(stream_end(&out), "\xf0\x9f\x98\x80");
    subject_close(&s);
}

static void the_end_of_a_text_shows_what_was_held_once(void **state) {
    struct subject s = byte_subject(false);
    static struct stream out;
    stream_begin(&out, false, false);
    stream_push(&out, s.tokenizer, 0xf0);
    stream_push(&out, s.tokenizer, 0x9f);
    assert_string_equal(stream_end(&out), "\xef\xbf\xbd");
    assert_string_equal(stream_end(&out), "\xef\xbf\xbd"); /* a second finish adds nothing */
    subject_close(&s);
}

static void an_id_out_of_range_is_no_text(void **state) {
    struct subject s = byte_subject(false);
    assert_string_equal(STREAM(s.tokenizer, false, true, -1, 'x', 100000, INT32_MAX, INT32_MIN), "x");
    subject_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_of_characters_is_the_whole_decode),
        cmocka_unit_test(invalid_bytes_are_replaced_as_python_replaces_them),
        cmocka_unit_test(the_first_space_of_a_text_is_not_shown),
        cmocka_unit_test(a_completion_keeps_its_first_space),
        cmocka_unit_test(without_a_space_prefix_the_first_space_is_text),
        cmocka_unit_test(control_tokens_are_shown_on_demand_only),
        cmocka_unit_test(a_hidden_control_token_does_not_break_a_character),
        cmocka_unit_test(a_character_is_never_emitted_in_halves),
        cmocka_unit_test(the_end_of_a_text_shows_what_was_held_once),
        cmocka_unit_test(an_id_out_of_range_is_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
