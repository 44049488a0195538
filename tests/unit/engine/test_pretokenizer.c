/* How texts are cut into words: by hand-made examples, and the compiled patterns against the interpreted ones. */
#include "tests/unit/engine/tokenizer_fixture.h"

#include <jansson.h>

static const char *const families[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
enum { N_FAMILIES = 4, MAX_WORDS = 1 << 16 };

struct words {
    const char *start[MAX_WORDS];
    size_t n[MAX_WORDS];
    size_t count;
};

static void take_word(void *context, const char *word, size_t n) {
    struct words *w = context;
    assert_in_range(w->count, 0, MAX_WORDS - 1);
    w->start[w->count] = word;
    w->n[w->count++] = n;
}

static struct pretokenizer *open_family(const char *name, struct pretokenizer_kind *kind) {
    struct pretokenizer *p = NULL;
    struct err err = {0};
    struct pretokenizer_kind unused;
    if (pretokenizer_open(&p, name, kind ? kind : &unused, &err)) fail_msg("%s", err.text);
    return p;
}

/* The words of text, separated by '|'. */
static const char *split(const char *family, const char *text) {
    static struct words w;
    static char out[4096];
    struct pretokenizer *p = open_family(family, NULL);
    struct pretokenizer_match *m = pretokenizer_match_open();
    size_t used = 0;
    w.count = 0;
    pretokenizer_split(p, m, text, strlen(text), true, take_word, &w);
    out[0] = 0;
    for (size_t i = 0; i < w.count; i++)
        used += (size_t)snprintf(out + used, sizeof out - used, i ? "|%.*s" : "%.*s", (int)w.n[i], w.start[i]);
    pretokenizer_match_close(m);
    pretokenizer_close(p);
    return out;
}

/* Words are not empty, follow each other, and end where the text ends. */
static void check_joined(const struct words *w, const char *text, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < w->count; i++) {
        assert_true(w->n[i] > 0);
        assert_ptr_equal(w->start[i], text + at);
        at += w->n[i];
    }
    assert_int_equal(at, n);
}

static void check_both_ways(const struct pretokenizer *p, struct pretokenizer_match *m, const char *text, size_t n) {
    static struct words compiled, interpreted;
    compiled.count = interpreted.count = 0;
    pretokenizer_split(p, m, text, n, true, take_word, &compiled);
    pretokenizer_split(p, m, text, n, false, take_word, &interpreted);
    check_joined(&compiled, text, n);
    assert_int_equal(compiled.count, interpreted.count);
    assert_memory_equal(compiled.n, interpreted.n, compiled.count * sizeof compiled.n[0]);
}

static void compiled_and_interpreted_patterns_agree(void **state) {
    json_error_t where;
    json_t *golden = json_load_file(TALLY_SOURCE_DIR "/tests/golden/smollm2.json", JSON_ALLOW_NUL, &where), *entry;
    if (!golden) fail_msg("smollm2.json: %s", where.text);
    struct pretokenizer_match *m = pretokenizer_match_open();
    for (int f = 0; f < N_FAMILIES; f++) {
        struct pretokenizer *p = open_family(families[f], NULL);
        size_t i;
        json_array_foreach(json_object_get(golden, "tokenize"), i, entry) {
            const json_t *text = json_object_get(entry, "text");
            check_both_ways(p, m, json_string_value(text), json_string_length(text));
        }
        assert_int_equal(i, 265);
        pretokenizer_close(p);
    }
    pretokenizer_match_close(m);
    json_decref(golden);
}

/* The interpreter has limits of its own, and it is what runs where executable memory is forbidden. */
static void long_words_are_cut_alike_without_compiled_patterns(void **state) {
    static const char *const units[] = {"a",   "1", " ",     "\n",       "!", "[", "\xcc\x81", "\xe3\x80\x80",
                                        " \n", "'", "\r\n ", "a\xcc\x81"};
    enum { N = 1 << 20 };
    char *text = malloc(N);
    struct pretokenizer_match *m = pretokenizer_match_open();
    for (int f = 0; f < N_FAMILIES; f++) {
        struct pretokenizer *p = open_family(families[f], NULL);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            bool is_one_word = units[u][0] != '1' && units[u][0] != 'a'; /* those are cut into many: fewer of them here */
            size_t unit = strlen(units[u]), n = (is_one_word && unit < 3 ? N : MAX_WORDS / 2) / unit * unit;
            for (size_t i = 0; i < n; i++) text[i] = units[u][i % unit];
            check_both_ways(p, m, text, n);
        }
        pretokenizer_close(p);
    }
    pretokenizer_match_close(m);
    free(text);
}

/* More steps than PCRE2 takes by default: ten million. */
static void a_word_of_twelve_megabytes_is_one_word(void **state) {
    enum { N = 12 << 20 };
    char *text = malloc(N);
    struct pretokenizer_match *m = pretokenizer_match_open();
    memset(text, ' ', N);
    for (int f = 0; f < N_FAMILIES; f++) {
        static struct words w;
        struct pretokenizer *p = open_family(families[f], NULL);
        for (int use_jit = 0; use_jit < 2; use_jit++) {
            w.count = 0;
            pretokenizer_split(p, m, text, N, use_jit, take_word, &w);
            assert_int_equal(w.count, 1);
            check_joined(&w, text, N);
        }
        pretokenizer_close(p);
    }
    pretokenizer_match_close(m);
    free(text);
}

static void gpt_2_keeps_a_space_with_the_word_after_it(void **state) {
    assert_string_equal(split("gpt-2", "Hello  world, it's 1234 o'clock!\n\n x"),
                        "Hello| | world|,| it|'s| 1234| o|'|clock|!|\n\n| x");
    assert_string_equal(split("gpt-2", "IT'S  "), "IT|'|S|  "); /* contractions in lower case only */
}

static void smollm_takes_digits_one_by_one(void **state) {
    assert_string_equal(split("smollm", "in 2024 it's"), "in| |2|0|2|4| it|'s");
    assert_string_equal(split("smollm", "a  1"), "a|  |1"); /* what is before a digit is cut as a text of its own */
}

static void llama_3_takes_up_to_three_digits(void **state) {
    assert_string_equal(split("llama-bpe", "in 12345, IT'S(now)\n x"), "in| |123|45|,| IT|'S|(now|)\n| x");
    assert_string_equal(split("llama-bpe", "a  \n  b"), "a|  \n| | b");
    assert_string_equal(split("llama-bpe", "x'\xc5\xbfy"), "x|'\xc5\xbf|y"); /* U+017F is an s in another case */
}

static void qwen_takes_one_digit(void **state) { assert_string_equal(split("qwen2", "in 123, x"), "in| |1|2|3|,| x"); }

static void white_space_is_unicodes(void **state) {
    for (int f = 0; f < N_FAMILIES; f++) {
        assert_string_equal(split(families[f], "!\xe1\xa0\x8e!"),
                            "!\xe1\xa0\x8e!"); /* U+180E has not been one since Unicode 6.3 */
        assert_string_equal(split(families[f], "!\xe3\x80\x80!"), "!|\xe3\x80\x80|!"); /* U+3000 is */
        assert_string_equal(split(families[f], "!\xc2\x85!"), "!|\xc2\x85|!");         /* U+0085 is */
        assert_string_equal(split(families[f], "!\xe2\x80\x8b!"), "!\xe2\x80\x8b!");   /* U+200B is not */
    }
}

static void an_unknown_name_is_refused_by_its_key(void **state) {
    static const char *const names[] = {"gpt-3", "gpt", "2", "qwen2 ", " ", "gpt-2 phi-2", "llama-bpe\n", "\x7fqwen2\xff\x01"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretokenizer *p = NULL;
        struct pretokenizer_kind kind;
        struct err err = {0};
        assert_int_equal(pretokenizer_open(&p, names[i], &kind, &err), STATUS_UNSUPPORTED);
        assert_null(p);
        assert_string_equal(err.param, "tokenizer.ggml.pre");
        assert_non_null(strstr(err.text, "tokenizer.ggml.pre"));
        assert_non_null(strstr(err.text, "qwen2"));
        for (const char *c = err.text; *c; c++) assert_in_range(*c, ' ', '~'); /* whatever the file holds */
    }
}

static void aliases_are_their_families(void **state) {
    static const char *const aliases[][2] = {
        {"", "gpt-2"}, {"starcoder", "smollm"}, {"llama3", "llama-bpe"}, {"deepseek-r1-qwen", "qwen2"}};
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        static const char text[] = "IT'S in 12345, (now)\n x  \n";
        char expected[128];
        struct pretokenizer_kind a, b;
        pretokenizer_close(open_family(aliases[i][0], &a));
        pretokenizer_close(open_family(aliases[i][1], &b));
        assert_true(a.ignore_merges == b.ignore_merges && a.nfc == b.nfc);
        snprintf(expected, sizeof expected, "%s", split(aliases[i][1], text));
        assert_string_equal(split(aliases[i][0], text), expected);
    }
}

static void kinds_are_those_of_the_families(void **state) {
    struct pretokenizer_kind kind;
    pretokenizer_close(open_family("llama-bpe", &kind));
    assert_true(kind.ignore_merges && !kind.nfc);
    pretokenizer_close(open_family("qwen2", &kind));
    assert_true(!kind.ignore_merges && kind.nfc);
    pretokenizer_close(open_family("smollm", &kind));
    assert_true(!kind.ignore_merges && !kind.nfc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_and_interpreted_patterns_agree),
        cmocka_unit_test(long_words_are_cut_alike_without_compiled_patterns),
        cmocka_unit_test(a_word_of_twelve_megabytes_is_one_word),
        cmocka_unit_test(gpt_2_keeps_a_space_with_the_word_after_it),
        cmocka_unit_test(smollm_takes_digits_one_by_one),
        cmocka_unit_test(llama_3_takes_up_to_three_digits),
        cmocka_unit_test(qwen_takes_one_digit),
        cmocka_unit_test(white_space_is_unicodes),
        cmocka_unit_test(an_unknown_name_is_refused_by_its_key),
        cmocka_unit_test(aliases_are_their_families),
        cmocka_unit_test(kinds_are_those_of_the_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
