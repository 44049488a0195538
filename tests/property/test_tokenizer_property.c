/* Random valid UTF-8 through real vocabularies: test_tokenizer_property [seed] */
#include "tests/unit/engine/tokenizer_fixture.h"

#include <time.h>

#include "engine/base/utf8.h"

enum { MAX_TEXT = 2048, MAX_IDS = 3 * MAX_TEXT, ROUNDS = 4000 };

static uint64_t seed, random_state;

static uint64_t next(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static uint32_t between(uint32_t low, uint32_t high) { return low + (uint32_t)(next() % (high - low + 1)); }

static size_t put_character(char *out, uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    out[0] = (char)((0xf0 << (3 - more) & 0xff) | c >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return (size_t)more + 1;
}

/* Stretches of characters from one range each, of words, or of one character repeated. */
static size_t random_text(char *text) {
    static const uint32_t ranges[][2] = {
        {0, 0x7f},          {'a', 'z'},         {'a', 'z'},       {'0', '9'},       {9, 13},
        {' ', ' '},         {' ', '/'},         {0x80, 0x24f},    {0x300, 0x36f},   {0x400, 0x5ff},
        {0x900, 0xfff},     {0x2000, 0x206f},   {0x3000, 0x9fff}, {0xac00, 0xd7a3}, {0xe000, 0xffff},
        {0x1f300, 0x1faff}, {0x10000, 0x10ffff}};
    static const char *const words[] = {" the", "<|im_start|>", "<|im_end|>",   "'s",      "ing",
                                        "  ",   "\r\n",         "\xe2\x96\x81", "http://", "<|"};
    size_t n = 0, stretches = between(0, 12);
    while (stretches-- > 0 && n < MAX_TEXT - 400) {
        const uint32_t *range = ranges[between(0, sizeof ranges / sizeof *ranges - 1)];
        uint32_t kind = between(0, 3), count = between(1, between(0, 7) ? 12 : 80), one = between(range[0], range[1]);
        for (; count > 0; count--) {
            const char *word = words[between(0, sizeof words / sizeof *words - 1)];
            if (kind == 0 && count < 12) n += (size_t)(stpcpy(text + n, word) - (text + n));
            else if (kind > 0) n += put_character(text + n, kind == 1 ? one : between(range[0], range[1]));
        }
    }
    return n;
}

struct encoding {
    int32_t ids[MAX_IDS];
    size_t n;
};

static void encode(const struct subject *s, const char *text, size_t n, unsigned flags, struct encoding *e) {
    struct err err = {0};
    if (tokenizer_encode(s->tokenizer, s->scratch, text, n, flags, e->ids, MAX_IDS, &e->n, &err))
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
}

static void check_same(const struct encoding *a, const struct encoding *b, const char *what, int round) {
    if (a->n != b->n || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) != 0)
        fail_msg("seed %llu: round %d: %s", (unsigned long long)seed, round, what);
}

static size_t decode(const struct tokenizer *t, const struct encoding *e, char *out, size_t max) {
    struct detokenizer d;
    size_t used = 0;
    detokenizer_init(&d, true, true);
    for (size_t i = 0; i < e->n; i++) used += detokenizer_push(&d, t, e->ids[i], out + used, max - used);
    return used + detokenizer_finish(&d, out + used, max - used);
}

static void begin(void) {
    random_state = seed;
    printf("seed %llu\n", (unsigned long long)seed);
}

/* The demo vocabulary has no token for some bytes that real texts never have (U+0004, the lead bytes of planes 4 to 11), and encoding
 * leaves them out. Takes the characters that have such bytes out of a text; returns its bytes then. */
static size_t without_missing_bytes(const struct tokenizer *t, char *text, size_t n) {
    size_t used = 0;
    for (size_t i = 0, length; i < n; i += length) {
        bool is_missing = false;
        length = (size_t)utf8_decode(text + i, n - i, NULL);
        for (size_t k = 0; k < length; k++) is_missing |= t->byte_ids[(unsigned char)text[i + k]] < 0;
        if (is_missing) continue;
        memmove(text + used, text + i, length);
        used += length;
    }
    return used;
}

static void check_round_trips(const char *path) {
    static char text[MAX_TEXT], out[8 * MAX_TEXT];
    static struct encoding e;
    if (!path) skip();
    struct subject s = subject_open(path, MAX_TEXT);
    begin();
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = without_missing_bytes(s.tokenizer, text, random_text(text));
        encode(&s, text, n, round % 2 ? ENCODE_SPECIAL : 0, &e);
        size_t used = decode(s.tokenizer, &e, out, sizeof out);
        if (used != n || memcmp(out, text, n) != 0)
            fail_msg("seed %llu: round %d: %zu bytes decode as %zu others", (unsigned long long)seed, round, n, used);
    }
    subject_close(&s);
}

static void the_demo_vocabulary_decodes_what_it_encoded(void **state) { check_round_trips(demo_model_path()); }
static void llama_3_decodes_what_it_encoded(void **state) { check_round_trips(vocab_path("llama-bpe")); }

/* The scratch that has encoded everything before, and one that has encoded nothing: the same ids. */
static void check_history(const char *path) {
    static char text[MAX_TEXT];
    static struct encoding used, fresh;
    if (!path) skip();
    struct subject s = subject_open(path, MAX_TEXT);
    begin();
    for (int round = 0; round < ROUNDS / 4; round++) {
        struct err err = {0};
        struct subject other = {s.tokenizer, tokenizer_scratch_create(heap_source, MAX_TEXT, &err)};
        if (!other.scratch) fail_msg("%s", err.text);
        size_t n = random_text(text);
        encode(&s, text, n, ENCODE_SPECIAL, &used);
        encode(&other, text, n, ENCODE_SPECIAL, &fresh);
        check_same(&used, &fresh, "ids depend on what was encoded before", round);
        tokenizer_scratch_destroy(other.scratch);
        free(other.scratch);
    }
    subject_close(&s);
}

static void ids_do_not_depend_on_earlier_texts(void **state) { check_history(demo_model_path()); }
static void ids_of_qwen_do_not_depend_on_earlier_texts(void **state) { check_history(vocab_path("qwen2")); }
static void ids_of_mistral_do_not_depend_on_earlier_texts(void **state) { check_history(vocab_path("mistral-v3")); }

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_vocabulary_decodes_what_it_encoded),
        cmocka_unit_test(llama_3_decodes_what_it_encoded),
        cmocka_unit_test(ids_do_not_depend_on_earlier_texts),
        cmocka_unit_test(ids_of_qwen_do_not_depend_on_earlier_texts),
        cmocka_unit_test(ids_of_mistral_do_not_depend_on_earlier_texts),
    };
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
