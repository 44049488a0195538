/* SentencePiece-BPE on vocabularies small enough to follow by hand. */
#include "tests/unit/engine/tokenizer_fixture.h"

#define MARK "\xe2\x96\x81" /* ▁ */

enum { UNK, BYTE_E2, BYTE_82, BYTE_AC, BYTE_LF };

/* Ids 0 to 4 as above, then a, b, c, d and the space as 5 to 9. */
static struct tiny *tiny_spm(void) {
    static struct tiny v;
    tiny_init(&v, VOCAB_SPM);
    tiny_token(&v, "<unk>", TOKEN_UNKNOWN);
    tiny_token(&v, "<0xE2>", TOKEN_BYTE);
    tiny_token(&v, "<0x82>", TOKEN_BYTE);
    tiny_token(&v, "<0xAC>", TOKEN_BYTE);
    tiny_token(&v, "<0x0A>", TOKEN_BYTE);
    for (const char *const *c = (const char *const[]){"a", "b", "c", "d", MARK, NULL}; *c; c++)
        tiny_scored(&v, *c, TOKEN_NORMAL, -100);
    return &v;
}

static void the_best_score_is_merged_first(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, "ab", TOKEN_NORMAL, -2); /* 10 */
    tiny_scored(v, "bc", TOKEN_NORMAL, -1); /* 11 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "abc", 0, "5 11");
    assert_ids(&s, "ab", 0, "10");
    subject_close(&s);
}

static void scores_may_be_of_either_sign_and_not_numbers(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, "ab", TOKEN_NORMAL, 1.5f);               /* 10 */
    tiny_scored(v, "bc", TOKEN_NORMAL, 2.5f);               /* 11 */
    tiny_scored(v, "cd", TOKEN_NORMAL, (float)-1e-30);      /* 12 */
    tiny_scored(v, "da", TOKEN_NORMAL, __builtin_nanf("")); /* 13: worst, but merges */
    tiny_scored(v, "ac", TOKEN_NORMAL, -__builtin_inff());  /* 14 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "abcd", 0, "5 11 8");
    assert_ids(&s, "bcd", 0, "11 8");
    assert_ids(&s, "cda", 0, "12 5");
    assert_ids(&s, "dac", 0, "8 14");
    assert_ids(&s, "da", 0, "13");
    subject_close(&s);
}

static void among_equals_the_leftmost_is_merged_first(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, "aa", TOKEN_NORMAL, -1); /* 10 */
    tiny_scored(v, "ab", TOKEN_NORMAL, -1); /* 11 */
    tiny_scored(v, "ba", TOKEN_NORMAL, -1); /* 12 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "aaa", 0, "10 5");
    assert_ids(&s, "aba", 0, "11 5");
    assert_ids(&s, "bab", 0, "12 6");
    subject_close(&s);
}

static void without_scores_earlier_tokens_are_better(void **state) {
    struct tiny *v = tiny_spm();
    tiny_token(v, "bc", TOKEN_NORMAL); /* 10 */
    tiny_token(v, "ab", TOKEN_NORMAL); /* 11 */
    v->vocab.scores = NULL;
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "abc", 0, "5 10");
    subject_close(&s);
}

static void a_character_that_is_no_token_is_its_bytes(void **state) {
    struct tiny *v = tiny_spm();
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s,
               "a\xe2\x82\xac"
               "b",
               0, "5 1 2 3 6");
    assert_ids(&s, "\n", 0, "4");
    assert_ids(&s, "\xf0\x9f\x98\x82", 0, "2"); /* bytes that are no tokens are left out */
    assert_ids(&s, "<0x0A>", 0, "");            /* a byte's name in a text is not that byte */
    subject_close(&s);
}

static void bytes_that_are_no_tokens_are_the_unknown_token_once(void **state) {
    struct tiny *v = tiny_spm();
    v->vocab.unk = UNK;
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "axyzb", 0, "5 0 6");
    assert_ids(&s, "x y", 0, "0 9 0");
    assert_ids(&s, "\xe2\x82\xac!", 0, "1 2 3 0");
    assert_ids(&s, "\xf0\x9f\x98\x82?", 0, "0 2 0");
    subject_close(&s);
}

/* A run of spaces as a token of its own, as Gemma has them: spelled with marks, found in text that has spaces. */
static void a_user_defined_run_of_marks_is_found_as_spaces(void **state) {
    struct tiny *v = tiny_spm();
    tiny_token(v, MARK MARK, TOKEN_USER_DEFINED);      /* 10 */
    tiny_token(v, MARK MARK MARK, TOKEN_USER_DEFINED); /* 11 */
    tiny_scored(v, MARK "a", TOKEN_NORMAL, -1);        /* 12 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "b  a", 0, "6 10 5");
    assert_ids(&s, "b    a", 0, "6 11 12");
    assert_ids(&s, "b  a", ENCODE_SPECIAL, "6 10 5");
    assert_int_equal(tokenizer_find(s.tokenizer, "  ", 2), 10);
    struct text_view piece = tokenizer_piece(s.tokenizer, 11);
    assert_true(piece.n == 3 && memcmp(piece.data, "   ", 3) == 0);
    subject_close(&s);
}

static void spaces_and_their_marks_are_the_same(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, MARK "a", TOKEN_NORMAL, -1); /* 10 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "b a", 0, "6 10");
    assert_ids(&s, "b" MARK "a", 0, "6 10");
    assert_ids(&s, "b  a", 0, "6 9 10");
    struct text_view piece = tokenizer_piece(s.tokenizer, 10);
    assert_true(piece.n == 2 && memcmp(piece.data, " a", 2) == 0);
    subject_close(&s);
}

static void a_text_gets_a_space_in_front_if_the_vocabulary_says_so(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, MARK "a", TOKEN_NORMAL, -1); /* 10 */
    v->vocab.add_space_prefix = true;
    struct subject s = subject_of(&v->vocab, 256);
    assert_true(tokenizer_drops_first_space(s.tokenizer));
    assert_ids(&s, "a", 0, "10");
    assert_ids(&s, " a", 0, "9 10");
    assert_ids(&s, "", 0, "");
    subject_close(&s);
}

static void a_piece_that_spans_words_is_still_found(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, "a" MARK, TOKEN_NORMAL, -1); /* 10: the text may not be cut before its space */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "ba b", 0, "6 10 6");
    subject_close(&s);
}

static void unused_and_control_tokens_are_never_merged(void **state) {
    struct tiny *v = tiny_spm();
    tiny_scored(v, "ab", TOKEN_UNUSED, -1);
    tiny_scored(v, "cd", TOKEN_CONTROL, -1);
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "abcd", 0, "5 6 7 8");
    assert_ids(&s, "abcd", ENCODE_SPECIAL, "5 6 11");
    subject_close(&s);
}

static uint64_t random_below(uint64_t *state, uint64_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % n;
}

/* Short words, which are cut apart and looked up whole, against the text as one long word, merged in a tree. */
static void check_cuts(struct subject *s, const char *const *units, size_t n_units) {
    static int32_t cut[4096], whole[4096];
    uint64_t seed = 12345;
    assert_true(s->tokenizer->cuts_words);
    for (int round = 0; round < 2000; round++) {
        char text[1024];
        size_t n = 0, n_cut, n_whole;
        struct err err;
        for (uint64_t k = random_below(&seed, 100); k > 0; k--) {
            const char *unit = units[random_below(&seed, n_units)];
            memcpy(text + n, unit, strlen(unit));
            n += strlen(unit);
        }
        assert_int_equal(tokenizer_encode(s->tokenizer, s->scratch, text, n, 0, cut, 4096, &n_cut, &err), 0);
        s->tokenizer->cuts_words = false;
        assert_int_equal(tokenizer_encode(s->tokenizer, s->scratch, text, n, 0, whole, 4096, &n_whole, &err), 0);
        s->tokenizer->cuts_words = true;
        assert_int_equal(n_cut, n_whole);
        assert_memory_equal(cut, whole, n_cut * sizeof *cut);
    }
}

static void cutting_changes_no_id(void **state) {
    static const char *const units[] = {"a", "b", "c", " ", " ", "ab", "\xe2\x82\xac"};
    struct tiny *v = tiny_spm();
    static const char *const more[] = {"ab", "bc", MARK "a", MARK MARK, "abc", MARK "ab", MARK MARK "a", "ca", "bca"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) tiny_scored(v, more[i], TOKEN_NORMAL, -(float)(i % 4));
    struct subject s = subject_of(&v->vocab, 1024);
    check_cuts(&s, units, sizeof units / sizeof *units);
    subject_close(&s);
}

static void cutting_changes_no_id_of_mistral(void **state) {
    static const char *const units[] = {"the", "re", "in",           " ",   " ", "  ", "token", "s", "\n",
                                        "1",   ".",  "\xe2\x82\xac", "ing", "A"};
    const char *path = vocab_path("mistral-v3");
    if (!path) skip();
    struct subject s = subject_open(path, 1024);
    check_cuts(&s, units, sizeof units / sizeof *units);
    subject_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_score_is_merged_first),
        cmocka_unit_test(scores_may_be_of_either_sign_and_not_numbers),
        cmocka_unit_test(among_equals_the_leftmost_is_merged_first),
        cmocka_unit_test(without_scores_earlier_tokens_are_better),
        cmocka_unit_test(a_character_that_is_no_token_is_its_bytes),
        cmocka_unit_test(bytes_that_are_no_tokens_are_the_unknown_token_once),
        cmocka_unit_test(a_user_defined_run_of_marks_is_found_as_spaces),
        cmocka_unit_test(spaces_and_their_marks_are_the_same),
        cmocka_unit_test(a_text_gets_a_space_in_front_if_the_vocabulary_says_so),
        cmocka_unit_test(a_piece_that_spans_words_is_still_found),
        cmocka_unit_test(unused_and_control_tokens_are_never_merged),
        cmocka_unit_test(cutting_changes_no_id),
        cmocka_unit_test(cutting_changes_no_id_of_mistral),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
