/* Byte-level BPE on vocabularies small enough to follow by hand. */
#include "tests/unit/engine/tokenizer_fixture.h"

/* a, b, c, d and the space are ids 0 to 4. */
static struct tiny *tiny_bpe(const char *pre) {
    static struct tiny v;
    tiny_init(&v, VOCAB_BPE);
    snprintf(v.vocab.pre, sizeof v.vocab.pre, "%s", pre);
    for (const char *const *c = (const char *const[]){"a", "b", "c", "d", "\xc4\xa0" /* Ġ */, NULL}; *c; c++)
        tiny_token(&v, *c, TOKEN_NORMAL);
    return &v;
}

static void merges_go_by_rank(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "ab", TOKEN_NORMAL); /* 5 */
    tiny_token(v, "bc", TOKEN_NORMAL); /* 6 */
    tiny_merge(v, "b c");
    tiny_merge(v, "a b");
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "abc", 0, "0 6");
    assert_ids(&s, "ab", 0, "5");
    assert_ids(&s, "abdbc", 0, "5 3 6");
    subject_close(&s);
}

static void among_equals_the_leftmost_is_merged_first(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "aa", TOKEN_NORMAL);   /* 5 */
    tiny_token(v, "aaaa", TOKEN_NORMAL); /* 6 */
    tiny_merge(v, "a a");
    tiny_merge(v, "aa aa");
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "aaa", 0, "5 0");
    assert_ids(&s, "aaaaaaa", 0, "6 5 0");
    subject_close(&s);
}

/* A word longer than the array on the stack goes through the tree, with the same ids. */
static void long_words_are_merged_like_short_ones(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "aa", TOKEN_NORMAL);
    tiny_token(v, "aaaa", TOKEN_NORMAL); /* 6 */
    tiny_merge(v, "a a");
    tiny_merge(v, "aa aa");
    struct subject s = subject_of(&v->vocab, 4096);
    for (size_t n = 1; n <= 4000; n = n < 300 ? n + 1 : n + 97) {
        static char text[4096];
        int32_t ids[4096];
        size_t n_ids;
        memset(text, 'a', n);
        assert_int_equal(tokenizer_encode(s.tokenizer, s.scratch, text, n, 0, ids, 4096, &n_ids, &(struct err){0}), 0);
        assert_int_equal(n_ids, n / 4 + n % 4 / 2 + n % 2);
        for (size_t i = 0; i < n_ids; i++) assert_int_equal(ids[i], i < n / 4 ? 6 : i < n / 4 + n % 4 / 2 ? 5 : 0);
    }
    subject_close(&s);
}

static void the_first_of_two_equal_merges_counts(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "ab", TOKEN_NORMAL); /* 5 */
    tiny_token(v, "bc", TOKEN_NORMAL); /* 6 */
    tiny_merge(v, "a b");
    tiny_merge(v, "b c");
    tiny_merge(v, "a b");
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "abc", 0, "5 2");
    subject_close(&s);
}

static void merges_of_texts_that_are_no_tokens_are_ignored(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "ab", TOKEN_NORMAL); /* 5 */
    const char *const bad[] = {"", " ", "a", "a ", " b", "a x", "x b", "c d", "ab c", "  ", "a  b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) tiny_merge(v, bad[i]);
    tiny_merge(v, "a b");
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "abcd", 0, "5 2 3");
    subject_close(&s);
}

static void a_token_that_merging_does_not_give_is_not_given(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "abc", TOKEN_NORMAL); /* 5: no merge makes it */
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "abc", 0, "0 1 2");
    subject_close(&s);
}

static void llama_3_takes_a_word_that_is_a_token_as_it_is(void **state) {
    struct tiny *v = tiny_bpe("llama-bpe");
    tiny_token(v, "abc", TOKEN_NORMAL); /* 5 */
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "abc", 0, "5");
    assert_ids(&s, "abca", 0, "0 1 2 0"); /* not within a word */
    subject_close(&s);
}

static void bytes_that_are_no_tokens_are_left_out(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v, "\xc3\xa9", TOKEN_NORMAL); /* 5: "é" spells byte 0xe9 */
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "axb", 0, "0 1");
    assert_ids(&s, "\xe9\xa4\x80", 0, "5"); /* of U+9900's three bytes, the one that is there */
    subject_close(&s);
}

static void every_byte_is_spelled_as_gpt_2_spells_it(void **state) {
    struct tiny v;
    char texts[256][3];
    tiny_init(&v, VOCAB_BPE);
    for (int b = 0, extra = 256; b < 256; b++) {
        bool is_itself = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        int c = is_itself ? b : extra++;
        snprintf(texts[b], sizeof texts[b], c < 128 ? "%c" : "%c%c", c < 128 ? c : 0xc0 | c >> 6, 0x80 | (c & 0x3f));
        tiny_token(&v, texts[b], TOKEN_NORMAL);
    }
    struct subject s = subject_of(&v.vocab, 4096);
    for (int b = 0; b < 256; b++) {
        struct text_view piece = tokenizer_piece(s.tokenizer, b);
        assert_int_equal(piece.n, 1);
        assert_int_equal((unsigned char)piece.data[0], b);
    }
    assert_ids(&s, "\xe2\x82\xac\n ~", 0, "226 130 172 10 32 126");
    subject_close(&s);
}

static void a_space_is_part_of_the_word_after_it(void **state) {
    struct tiny *v = tiny_bpe("gpt-2");
    tiny_token(v,
               "\xc4\xa0"
               "a",
               TOKEN_NORMAL); /* 5 */
    tiny_merge(v, "\xc4\xa0 a");
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "a a", 0, "0 5");
    assert_ids(&s, "a  a", 0, "0 4 5");
    assert_int_equal(tokenizer_find(s.tokenizer, " a", 2), 5);
    subject_close(&s);
}

static void texts_are_normalized_where_the_family_does_so(void **state) {
    struct tiny *v = tiny_bpe("qwen2");
    tiny_token(v, "\xc3\x83", TOKEN_NORMAL); /* 5: byte 0xc3 */
    tiny_token(v, "\xc2\xa9", TOKEN_NORMAL); /* 6: byte 0xa9 */
    struct subject s = subject_of(&v->vocab, 4096);
    assert_ids(&s, "e\xcc\x81", 0, "5 6"); /* é, composed */
    subject_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank),
        cmocka_unit_test(among_equals_the_leftmost_is_merged_first),
        cmocka_unit_test(long_words_are_merged_like_short_ones),
        cmocka_unit_test(the_first_of_two_equal_merges_counts),
        cmocka_unit_test(merges_of_texts_that_are_no_tokens_are_ignored),
        cmocka_unit_test(a_token_that_merging_does_not_give_is_not_given),
        cmocka_unit_test(llama_3_takes_a_word_that_is_a_token_as_it_is),
        cmocka_unit_test(bytes_that_are_no_tokens_are_left_out),
        cmocka_unit_test(every_byte_is_spelled_as_gpt_2_spells_it),
        cmocka_unit_test(a_space_is_part_of_the_word_after_it),
        cmocka_unit_test(texts_are_normalized_where_the_family_does_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
