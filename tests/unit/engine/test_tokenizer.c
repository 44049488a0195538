/* What both families share: special tokens, BOS, ends, bounds of memory, and texts made to be slow. */
#include "tests/unit/engine/tokenizer_fixture.h"

#include "tests/unit/engine/count_allocations.h"

/* Byte-level: a to d and the space are 0 to 4, then the tokens a test adds. */
static struct tiny *tiny_bpe(void) {
    static struct tiny v;
    tiny_init(&v, VOCAB_BPE);
    for (const char *const *c = (const char *const[]){"a", "b", "c", "d", "\xc4\xa0" /* Ġ */, NULL}; *c; c++)
        tiny_token(&v, *c, TOKEN_NORMAL);
    return &v;
}

/* --- special tokens --- */

static void special_tokens_are_text_unless_asked_for(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "aba", TOKEN_CONTROL); /* 5 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "cabad", 0, "2 0 1 0 3");
    assert_ids(&s, "cabad", ENCODE_SPECIAL, "2 5 3");
    assert_ids(&s, "aba", ENCODE_SPECIAL, "5");
    assert_ids(&s, "abaaba", ENCODE_SPECIAL, "5 5");
    assert_ids(&s, "ab", ENCODE_SPECIAL, "0 1");
    subject_close(&s);
}

static void the_leftmost_special_token_is_found_then_the_longest(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "ab", TOKEN_CONTROL);    /* 5 */
    tiny_token(v, "abcd", TOKEN_CONTROL);  /* 6 */
    tiny_token(v, "bcdaa", TOKEN_CONTROL); /* 7 */
    tiny_token(v, "abc", TOKEN_CONTROL);   /* 8 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "abcd", ENCODE_SPECIAL, "6");
    assert_ids(&s, "abcdaa", ENCODE_SPECIAL, "6 0 0"); /* leftmost, though a longer one begins one further */
    assert_ids(&s, "abca", ENCODE_SPECIAL, "8 0");
    assert_ids(&s, "abd", ENCODE_SPECIAL, "5 3");
    assert_ids(&s, "bcdaa", ENCODE_SPECIAL, "7");
    subject_close(&s);
}

static void user_defined_tokens_are_found_in_plain_text_too(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "ab", TOKEN_USER_DEFINED); /* 5 */
    tiny_token(v, "abc", TOKEN_CONTROL);     /* 6 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "dabcd", 0, "3 5 2 3"); /* the longer one is not to be found here */
    assert_ids(&s, "dabcd", ENCODE_SPECIAL, "3 6 3");
    assert_false(tokenizer_is_control(s.tokenizer, 5));
    assert_true(tokenizer_is_control(s.tokenizer, 6));
    subject_close(&s);
}

static void special_text_is_found_by_id_and_id_by_text(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "<|x|>", TOKEN_CONTROL); /* 5 */
    struct subject s = subject_of(&v->vocab, 256);
    assert_int_equal(tokenizer_find(s.tokenizer, "<|x|>", 5), 5);
    assert_int_equal(tokenizer_find(s.tokenizer, "a", 1), 0);
    assert_int_equal(tokenizer_find(s.tokenizer, "<|x|", 4), -1);
    assert_int_equal(tokenizer_find(s.tokenizer, "", 0), -1);
    struct text_view piece = tokenizer_piece(s.tokenizer, 5);
    assert_true(piece.n == 5 && memcmp(piece.data, "<|x|>", 5) == 0);
    assert_int_equal(tokenizer_n_tokens(s.tokenizer), 6);
    assert_int_equal(tokenizer_piece(s.tokenizer, 6).n, 0);
    assert_int_equal(tokenizer_piece(s.tokenizer, -1).n, 0);
    assert_false(tokenizer_is_control(s.tokenizer, 6));
    assert_false(tokenizer_is_end(s.tokenizer, -1));
    subject_close(&s);
}

/* --- BOS --- */

static void bos_is_put_in_front_once(void **state) {
    struct tiny *v = tiny_bpe();
    v->vocab.bos = tiny_token(v, "<s>", TOKEN_CONTROL); /* 5 */
    v->vocab.add_bos = true;
    struct subject s = subject_of(&v->vocab, 256);
    assert_int_equal(tokenizer_bos(s.tokenizer), 5);
    assert_ids(&s, "ab", ENCODE_BOS, "5 0 1");
    assert_ids(&s, "", ENCODE_BOS, "5");
    assert_ids(&s, "ab", 0, "0 1");
    assert_ids(&s, "<s>ab", ENCODE_BOS | ENCODE_SPECIAL, "5 0 1"); /* never doubled */
    assert_ids(&s, "a<s>", ENCODE_BOS | ENCODE_SPECIAL, "5 0 5");
    subject_close(&s);
}

static void a_vocabulary_that_wants_no_bos_gets_none(void **state) {
    struct tiny *v = tiny_bpe();
    v->vocab.bos = tiny_token(v, "<s>", TOKEN_CONTROL);
    struct subject s = subject_of(&v->vocab, 256);
    assert_ids(&s, "ab", ENCODE_BOS, "0 1");
    subject_close(&s);
    v->vocab.bos = -1;
    v->vocab.add_bos = true; /* there is none to add */
    s = subject_of(&v->vocab, 256);
    assert_ids(&s, "ab", ENCODE_BOS, "0 1");
    subject_close(&s);
}

/* --- ends --- */

static void generation_ends_at_ids_and_at_known_texts(void **state) {
    struct tiny *v = tiny_bpe();
    v->vocab.eos = tiny_token(v, "<stop>", TOKEN_CONTROL); /* 5: by id */
    v->vocab.eot = tiny_token(v, "<turn>", TOKEN_NORMAL);  /* 6: by id */
    const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|endoftext|>", "<|file_sep|>"};
    for (size_t i = 0; i < 6; i++) tiny_token(v, ends[i], i % 2 ? TOKEN_CONTROL : TOKEN_USER_DEFINED); /* 7 to 12: by text */
    tiny_token(v, "<|end|>", TOKEN_NORMAL);       /* 13: a word like others */
    tiny_token(v, "<|im_start|>", TOKEN_CONTROL); /* 14 */
    struct subject s = subject_of(&v->vocab, 256);
    for (int32_t id = 0; id < 15; id++) assert_int_equal(tokenizer_is_end(s.tokenizer, id), id >= 5 && id <= 12);
    subject_close(&s);
}

/* --- refusals --- */

/* A refused tokenizer's memory stays with its source, here a block that is freed. */
static void *block_alloc(void *context, size_t bytes) {
    void **block = context;
    return *block = heap_alloc(NULL, bytes);
}

static void assert_refused(const struct vocab *vocab, enum status status, const char *param, const char *word) {
    struct err err = {0};
    void *block = NULL;
    assert_null(tokenizer_create(vocab, (struct memory_source){block_alloc, &block}, &err));
    assert_int_equal(err.status, status);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.text, word));
    free(block);
}

static void two_tokens_of_one_text_are_refused(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "b", TOKEN_NORMAL); /* 5 */
    assert_refused(&v->vocab, STATUS_CORRUPT, "tokenizer.ggml.tokens", "1 and 5");
}

static void two_special_tokens_of_one_text_are_refused(void **state) {
    struct tiny *v = tiny_bpe();
    tiny_token(v, "<x>", TOKEN_CONTROL);      /* 5 */
    tiny_token(v, "<y>", TOKEN_CONTROL);      /* 6 */
    tiny_token(v, "<x>", TOKEN_USER_DEFINED); /* 7 */
    assert_refused(&v->vocab, STATUS_CORRUPT, "tokenizer.ggml.tokens", "5 and 7");
    v = tiny_bpe();
    tiny_token(v, "b", TOKEN_CONTROL); /* 5; 1 is an ordinary "b" */
    assert_refused(&v->vocab, STATUS_CORRUPT, "tokenizer.ggml.tokens", "1 and 5");
}

static void an_unknown_pretokenizer_is_refused(void **state) {
    struct tiny *v = tiny_bpe();
    snprintf(v->vocab.pre, sizeof v->vocab.pre, "invented");
    assert_refused(&v->vocab, STATUS_UNSUPPORTED, "tokenizer.ggml.pre", "invented");
}

static void *no_memory(void *context, size_t bytes) { return NULL; }

static void no_memory_is_refused_in_bytes(void **state) {
    struct tiny *v = tiny_bpe();
    struct err err = {0};
    struct memory_source memory = {no_memory, NULL};
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%zu", tokenizer_bytes(&v->vocab));
    assert_null(tokenizer_create(&v->vocab, memory, &err));
    assert_int_equal(err.status, STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, bytes));
    assert_null(tokenizer_scratch_create(memory, 100, &err));
    assert_int_equal(err.status, STATUS_NO_MEMORY);
}

static void too_little_room_still_gives_the_count(void **state) {
    struct tiny *v = tiny_bpe();
    v->vocab.bos = tiny_token(v, "<s>", TOKEN_CONTROL); /* 5 */
    v->vocab.add_bos = true;
    struct subject s = subject_of(&v->vocab, 256);
    static const struct {
        const char *text;
        const char *ids;
        size_t n;
    } cases[] = {{"abcd", "\5\0\1\2\3", 5}, {"<s>abc", "\5\0\1\2", 4}};
    for (size_t c = 0; c < 2; c++)
        for (size_t max = 0; max <= cases[c].n; max++) {
            int32_t *ids = malloc(max * sizeof *ids + 1); /* so that a sanitizer sees one id more */
            size_t n;
            struct err err = {0};
            enum status status = tokenizer_encode(s.tokenizer, s.scratch, cases[c].text, strlen(cases[c].text),
                                                  ENCODE_BOS | ENCODE_SPECIAL, ids, max, &n, &err);
            assert_int_equal(status, max < cases[c].n ? STATUS_TOO_LARGE : STATUS_OK);
            assert_int_equal(n, cases[c].n);
            for (size_t i = 0; i < max; i++) assert_int_equal(ids[i], cases[c].ids[i]);
            free(ids);
        }
    subject_close(&s);
}

static void a_text_larger_than_the_scratch_is_refused(void **state) {
    struct tiny *v = tiny_bpe();
    struct subject s = subject_of(&v->vocab, 4);
    int32_t ids[8];
    size_t n;
    struct err err = {0};
    assert_ids(&s, "abcd", 0, "0 1 2 3");
    assert_int_equal(tokenizer_encode(s.tokenizer, s.scratch, "abcda", 5, 0, ids, 8, &n, &err), STATUS_TOO_LARGE);
    assert_string_equal(err.param, "prompt");
    assert_int_equal(n, 0);
    subject_close(&s);
}

static void a_text_that_nfc_lengthens_too_much_is_refused(void **state) {
    enum { N = 4000 };
    static char text[N];
    struct tiny *v = tiny_bpe();
    snprintf(v->vocab.pre, sizeof v->vocab.pre, "qwen2");
    struct subject s = subject_of(&v->vocab, N);
    int32_t ids[8];
    size_t n;
    struct err err = {0};
    for (size_t i = 0; i < N; i += 4) memcpy(text + i, "\xf0\x9d\x85\xa0", 4); /* U+1D160 becomes three times as long */
    assert_int_equal(tokenizer_encode(s.tokenizer, s.scratch, text, N, 0, ids, 8, &n, &err), STATUS_TOO_LARGE);
    assert_string_equal(err.param, "prompt");
    subject_close(&s);
}

/* --- memory --- */

static void check_bound(const struct tokenizer *t, size_t bound) {
    assert_int_equal(t->arena.size, bound);
    assert_true(t->arena.used <= bound);
    assert_true(t->arena.used >= bound / 2);
}

static void a_tokenizer_takes_what_was_said(void **state) {
    struct tiny *v = tiny_bpe();
    for (int i = 0; i < 50; i++) {
        static char texts[50][16];
        snprintf(texts[i], sizeof texts[i], "<|special_%d|>", i);
        tiny_token(v, texts[i], i % 2 ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
        tiny_merge(v, "a b");
    }
    for (int model = 0; model < 2; model++) {
        v->vocab.model = model ? VOCAB_SPM : VOCAB_BPE;
        struct subject s = subject_of(&v->vocab, 256);
        check_bound(s.tokenizer, tokenizer_bytes(&v->vocab));
        subject_close(&s);
    }
}

static void check_bound_of_file(const char *path) {
    struct gguf *g;
    struct vocab vocab;
    struct err err = {0};
    if (!path) skip();
    if (gguf_open(&g, path, &err) || gguf_vocab(g, &vocab, &err)) fail_msg("%s", err.text);
    struct subject s = subject_of(&vocab, 256);
    check_bound(s.tokenizer, tokenizer_bytes(&vocab));
    subject_close(&s);
    vocab_free(&vocab);
    gguf_close(g);
}

static void the_demo_tokenizer_takes_what_was_said(void **state) { check_bound_of_file(demo_model_path()); }
static void the_mistral_tokenizer_takes_what_was_said(void **state) { check_bound_of_file(vocab_path("mistral-v3")); }

/* --- hostile texts --- */

static const char *const hostile_units[] = {
    "a",
    "1",
    " ",
    "\n",
    "!",
    "[",
    "\xcc\x81",
    "<|im_",
    "<|im_start|>",
    "e\xcc\x81",
    " \n",
    "\xf0\x9f\x98\x80",
    "\xe3\x80\x80",
    "ab",
    "'",
    "\xe1\x84\x92",
    "\r\n\t",
    "A1 ",
    "\xe2\x96\x81",
    "[INST",
};

static size_t decoded_bytes(const struct tokenizer *t, const int32_t *ids, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += (size_t)tokenizer_piece(t, ids[i]).n;
    return total;
}

/* A megabyte of each unit is encoded, without an allocation; that it is in linear time shows in that this ends. */
static void check_hostile(const char *path, bool is_lossless) {
    enum { N = 1 << 20 };
    if (!path) skip();
    struct subject s = subject_open(path, N);
    char *text = malloc(N);
    int32_t *ids = malloc((N + 1) * sizeof *ids);
    for (size_t u = 0; u < sizeof hostile_units / sizeof *hostile_units; u++) {
        size_t unit = strlen(hostile_units[u]), n = N / unit * unit, n_ids;
        struct err err = {0};
        for (size_t i = 0; i < n; i++) text[i] = hostile_units[u][i % unit];
        size_t before = count_allocations();
        if (tokenizer_encode(s.tokenizer, s.scratch, text, n, ENCODE_SPECIAL, ids, N + 1, &n_ids, &err))
            fail_msg("%s", err.text);
        if (count_allocations() != before) fail_msg("encoding \"%s\" again and again allocates", hostile_units[u]);
        if (is_lossless) assert_int_equal(decoded_bytes(s.tokenizer, ids, n_ids), n);
    }
    free(text);
    free(ids);
    subject_close(&s);
}

static void hostile_texts_are_encoded_by_the_demo_vocabulary(void **state) { check_hostile(demo_model_path(), true); }
static void hostile_texts_are_encoded_by_llama_3s(void **state) { check_hostile(vocab_path("llama-bpe"), true); }
static void hostile_texts_are_encoded_by_qwens(void **state) { check_hostile(vocab_path("qwen2"), false); /* NFC */ }
static void hostile_texts_are_encoded_by_mistrals(void **state) { check_hostile(vocab_path("mistral-v3"), false); /* ▁ */ }

static void allocations_are_counted(void **state) { /* or the tests above show nothing */
    size_t before = count_allocations();
    void *volatile p = malloc(100);
    free(p);
    assert_int_equal(count_allocations(), before + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_are_text_unless_asked_for),
        cmocka_unit_test(the_leftmost_special_token_is_found_then_the_longest),
        cmocka_unit_test(user_defined_tokens_are_found_in_plain_text_too),
        cmocka_unit_test(special_text_is_found_by_id_and_id_by_text),
        cmocka_unit_test(bos_is_put_in_front_once),
        cmocka_unit_test(a_vocabulary_that_wants_no_bos_gets_none),
        cmocka_unit_test(generation_ends_at_ids_and_at_known_texts),
        cmocka_unit_test(two_tokens_of_one_text_are_refused),
        cmocka_unit_test(two_special_tokens_of_one_text_are_refused),
        cmocka_unit_test(an_unknown_pretokenizer_is_refused),
        cmocka_unit_test(no_memory_is_refused_in_bytes),
        cmocka_unit_test(too_little_room_still_gives_the_count),
        cmocka_unit_test(a_text_larger_than_the_scratch_is_refused),
        cmocka_unit_test(a_text_that_nfc_lengthens_too_much_is_refused),
        cmocka_unit_test(a_tokenizer_takes_what_was_said),
        cmocka_unit_test(the_demo_tokenizer_takes_what_was_said),
        cmocka_unit_test(the_mistral_tokenizer_takes_what_was_said),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(hostile_texts_are_encoded_by_the_demo_vocabulary),
        cmocka_unit_test(hostile_texts_are_encoded_by_llama_3s),
        cmocka_unit_test(hostile_texts_are_encoded_by_qwens),
        cmocka_unit_test(hostile_texts_are_encoded_by_mistrals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
