/* Ids of 265 hostile strings against the vocabularies' own engines: the demo model's, and Llama 3, Qwen, Mistral v1 and v3. */
#include "tests/unit/engine/tokenizer_fixture.h"

#include <jansson.h>

#define MAX_TEXT (1 << 16)

static json_t *load(const char *name) {
    char path[1024];
    json_error_t where;
    snprintf(path, sizeof path, "%s/tests/golden/%s", TALLY_SOURCE_DIR, name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root) fail_msg("%s: %s", path, where.text);
    return root;
}

static void check_ids(const struct subject *s, const json_t *text, unsigned flags, const json_t *expected, const char *what,
                      size_t index) {
    static int32_t ids[MAX_TEXT];
    size_t n;
    struct err err = {0};
    if (tokenizer_encode(s->tokenizer, s->scratch, json_string_value(text), json_string_length(text), flags, ids, MAX_TEXT, &n,
                         &err))
        fail_msg("%s %zu: %s", what, index, err.text);
    size_t wanted = json_array_size(expected);
    for (size_t i = 0; i < n || i < wanted; i++) {
        long long id = i < wanted ? json_integer_value(json_array_get(expected, i)) : -1;
        if (i >= n || i >= wanted || ids[i] != id)
            fail_msg("%s: string %zu \"%s\": id %zu is %d, expected %lld (%zu ids, expected %zu)", what, index,
                     json_string_value(text), i, i < n ? ids[i] : -1, id, n, wanted);
    }
}

/* Byte-level ids decode to the very text, whatever it holds. */
static void check_round_trip(const struct subject *s, const json_t *text) {
    static int32_t ids[MAX_TEXT];
    static char out[4 * MAX_TEXT];
    size_t n, used = 0;
    struct detokenizer d;
    struct err err;
    assert_int_equal(tokenizer_encode(s->tokenizer, s->scratch, json_string_value(text), json_string_length(text), 0, ids,
                                      MAX_TEXT, &n, &err),
                     0);
    detokenizer_init(&d, true, true);
    for (size_t i = 0; i < n; i++) used += detokenizer_push(&d, s->tokenizer, ids[i], out + used, sizeof out - used);
    used += detokenizer_finish(&d, out + used, sizeof out - used);
    assert_int_equal(used, json_string_length(text));
    assert_memory_equal(out, json_string_value(text), used);
}

static void the_demo_vocabulary_gives_the_golden_ids(void **state) {
    const char *path = demo_model_path();
    if (!path) skip();
    struct subject s = subject_open(path, MAX_TEXT);
    json_t *golden = load("smollm2.json");
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(golden, "tokenize"), i, entry) {
        const json_t *text = json_object_get(entry, "text");
        check_ids(&s, text, ENCODE_BOS, json_object_get(entry, "ids"), "plain", i);
        check_ids(&s, text, ENCODE_BOS | ENCODE_SPECIAL, json_object_get(entry, "ids_with_special"), "special", i);
        check_round_trip(&s, text);
    }
    assert_int_equal(i, 265);
    json_array_foreach(json_object_get(golden, "chat"), i, entry)
        check_ids(&s, json_object_get(entry, "prompt"), ENCODE_SPECIAL, json_object_get(entry, "ids"), "chat", i);
    json_decref(golden);
    subject_close(&s);
}

static void check_vocabulary(const char *name) {
    const char *path = vocab_path(name);
    if (!path) skip();
    struct subject s = subject_open(path, MAX_TEXT);
    json_t *strings = load("smollm2.json"), *golden = load("tokenizers.json");
    const json_t *expected = json_object_get(json_object_get(golden, name), "ids");
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(strings, "tokenize"), i, entry)
        check_ids(&s, json_object_get(entry, "text"), 0, json_array_get(expected, i), name, i);
    json_decref(strings);
    json_decref(golden);
    subject_close(&s);
}

static void llama_3_gives_the_golden_ids(void **state) { check_vocabulary("llama-bpe"); }
static void qwen_gives_the_golden_ids(void **state) { check_vocabulary("qwen2"); }
static void mistral_v1_gives_the_golden_ids(void **state) { check_vocabulary("mistral-v1"); }
static void mistral_v3_gives_the_golden_ids(void **state) { check_vocabulary("mistral-v3"); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_vocabulary_gives_the_golden_ids),
        cmocka_unit_test(llama_3_gives_the_golden_ids),
        cmocka_unit_test(qwen_gives_the_golden_ids),
        cmocka_unit_test(mistral_v1_gives_the_golden_ids),
        cmocka_unit_test(mistral_v3_gives_the_golden_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
