/* A file's vocabulary: defaults, ranges, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/formats_gguf.h"
#include "tests/unit/engine/gguf_writer.h"

#define KEY(name) "tokenizer.ggml." name

static struct gguf_writer w;
static struct err err;
static struct gguf *g;
static struct vocab v;

static int fresh(void **state) {
    gw_init(&w);
    memset(&err, 0, sizeof err);
    memset(&v, 0, sizeof v);
    g = NULL;
    return 0;
}

static int clean(void **state) {
    vocab_free(&v);
    gguf_close(g);
    gw_free(&w);
    return 0;
}

static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "ab"};

/* The keys that every vocabulary has. */
static void begin(const char *model) {
    gw_text(&w, KEY("model"), model);
    gw_text_array(&w, KEY("tokens"), tokens, 5);
    if (!strcmp(model, "gpt2")) gw_text_array(&w, KEY("merges"), (const char *const[]){"a b"}, 1);
}

static enum status read_it(void) {
    char path[64];
    gw_temp(&w, path);
    if (gguf_open(&g, path, &err)) fail_msg("%s", err.text);
    unlink(path);
    return gguf_vocab(g, &v, &err);
}

static void assert_reads(void) {
    if (read_it()) fail_msg("%s", err.text);
}

static void assert_refused(enum status status, const char *key, const char *text) {
    assert_int_equal(read_it(), status);
    assert_int_equal(err.status, status);
    assert_string_equal(err.param, key);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_non_null(strstr(err.text, key));
    assert_null(v.tokens); /* nothing to free */
}

static void test_bpe_defaults(void **state) {
    begin("gpt2");
    assert_reads();
    assert_int_equal(v.model, VOCAB_BPE);
    assert_string_equal(v.pre, "");
    assert_int_equal(v.n_tokens, 5);
    assert_memory_equal(v.tokens[4].data, "ab", 2);
    assert_int_equal(v.n_merges, 1);
    assert_int_equal(v.merges[0].n, 3);
    assert_null(v.scores);
    assert_null(v.types);
    assert_true(v.bos == -1 && v.eos == -1 && v.unk == -1 && v.eot == -1);
    assert_false(v.add_bos);
    assert_false(v.add_space_prefix);
    assert_int_equal(v.chat_template.n, 0);
}

static void test_spm_defaults(void **state) {
    begin("llama");
    assert_reads();
    assert_int_equal(v.model, VOCAB_SPM);
    assert_true(v.bos == 1 && v.eos == 2 && v.unk == 0 && v.eot == -1);
    assert_true(v.add_bos);
    assert_true(v.add_space_prefix);
    assert_int_equal(v.n_merges, 0);
}

static void test_bos_by_default_follows_the_pre_tokenizer(void **state) {
    const struct {
        const char *pre;
        bool add_bos;
    } cases[] = {{"llama-bpe", true}, {"tekken", true}, {"llama3", true},   {"smollm", false},
                 {"qwen2", false},    {"gpt-2", false}, {"llama-bp", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fresh(state);
        begin("gpt2");
        gw_text(&w, KEY("pre"), cases[i].pre);
        assert_reads();
        assert_string_equal(v.pre, cases[i].pre);
        assert_int_equal(v.add_bos, cases[i].add_bos);
        clean(state);
    }
    fresh(state);
    begin("gpt2");
    gw_text(&w, KEY("pre"), "llama-bpe");
    gw_bool(&w, KEY("add_bos_token"), 0); /* the file's word is last */
    assert_reads();
    assert_false(v.add_bos);
}

static void test_everything_a_file_can_say(void **state) {
    begin("llama");
    gw_u32(&w, KEY("bos_token_id"), 3);
    gw_u32(&w, KEY("eos_token_id"), 4);
    gw_u32(&w, KEY("unknown_token_id"), 2);
    gw_u32(&w, KEY("eot_token_id"), 1);
    gw_bool(&w, KEY("add_bos_token"), 0);
    gw_bool(&w, KEY("add_space_prefix"), 0);
    gw_f32_array(&w, KEY("scores"), (float[]){0, -1, -2, -3, -4, 9}, 6); /* longer is allowed */
    gw_i32_array(&w, KEY("token_type"), (int32_t[]){2, 3, 3, 1, 6}, 5);
    gw_text(&w, "tokenizer.chat_template", "{{ x }}");
    assert_reads();
    assert_true(v.bos == 3 && v.eos == 4 && v.unk == 2 && v.eot == 1);
    assert_false(v.add_bos);
    assert_false(v.add_space_prefix);
    assert_true(v.scores[4] == -4);
    assert_int_equal(v.types[0], TOKEN_UNKNOWN);
    assert_int_equal(v.types[4], TOKEN_BYTE);
    assert_int_equal(v.chat_template.n, 7);
}

static void test_integer_scores_are_tolerated(void **state) {
    begin("llama");
    gw_i32_array(&w, KEY("scores"), (int32_t[]){0, -1, -2, -3, -4}, 5);
    assert_reads();
    assert_true(v.scores[3] == -3);
}

static void test_ids_that_name_no_token_are_ignored(void **state) {
    begin("gpt2");
    gw_u32(&w, KEY("bos_token_id"), 5);
    gw_u32(&w, KEY("eos_token_id"), UINT32_MAX);
    gw_i32(&w, KEY("unknown_token_id"), -1);
    gw_u64(&w, KEY("eot_token_id"), (uint64_t)1 << 40);
    assert_reads();
    assert_true(v.bos == -1 && v.eos == -1 && v.unk == -1 && v.eot == -1);
    clean(state);
    fresh(state);
    begin("llama");
    gw_u32(&w, KEY("bos_token_id"), 99);
    assert_reads();
    assert_int_equal(v.bos, 1); /* the default stands */
}

static void test_defaults_beyond_a_small_vocabulary(void **state) {
    gw_text(&w, KEY("model"), "llama");
    gw_text_array(&w, KEY("tokens"), tokens, 2);
    assert_reads();
    assert_true(v.unk == 0 && v.bos == 1 && v.eos == -1);
}

static void test_ids_of_another_type(void **state) {
    begin("gpt2");
    gw_text(&w, KEY("eos_token_id"), "2");
    assert_refused(STATUS_CORRUPT, KEY("eos_token_id"), "must be an integer");
}

static void test_other_tokenizers_are_named(void **state) {
    const char *const models[] = {"bert", "t5", "rwkv", "no_vocab", "none", "gemma4", "", "gpt2\n"};
    for (int i = 0; i < 8; i++) {
        fresh(state);
        begin(models[i]);
        assert_refused(STATUS_UNSUPPORTED, KEY("model"), i < 6 ? models[i] : "supported are \"gpt2\" and \"llama\"");
        clean(state);
    }
    fresh(state);
}

static void test_missing_keys_are_named(void **state) {
    gw_text(&w, "general.architecture", "llama");
    assert_refused(STATUS_CORRUPT, KEY("model"), "missing");
    clean(state);
    gw_text(&w, KEY("model"), "llama");
    assert_refused(STATUS_CORRUPT, KEY("tokens"), "missing");
    clean(state);
    gw_text(&w, KEY("model"), "gpt2");
    gw_text_array(&w, KEY("tokens"), tokens, 5);
    assert_refused(STATUS_CORRUPT, KEY("merges"), "missing");
}

static void test_an_empty_vocabulary(void **state) {
    gw_text(&w, KEY("model"), "llama");
    gw_text_array(&w, KEY("tokens"), tokens, 0);
    assert_refused(STATUS_CORRUPT, KEY("tokens"), "no tokens");
}

/* A u8 array of a gigabyte would ask for 16 as texts: its type is refused first. */
static void test_arrays_of_another_type(void **state) {
    gw_text(&w, KEY("model"), "llama");
    gw_i32_array(&w, KEY("tokens"), (int32_t[]){1, 2}, 2);
    assert_refused(STATUS_CORRUPT, KEY("tokens"), "must be string array");
    clean(state);
    begin("llama");
    gw_text_array(&w, KEY("scores"), tokens, 5);
    assert_refused(STATUS_CORRUPT, KEY("scores"), "must be an array of numbers");
    clean(state);
    begin("llama");
    gw_f32_array(&w, KEY("token_type"), (float[]){1, 1, 1, 1, 1}, 5);
    assert_refused(STATUS_CORRUPT, KEY("token_type"), "must be an array of integers");
    clean(state);
    gw_text(&w, KEY("model"), "gpt2");
    gw_text_array(&w, KEY("tokens"), tokens, 5);
    gw_text(&w, KEY("merges"), "a b");
    assert_refused(STATUS_CORRUPT, KEY("merges"), "must be an array");
}

/* CVE-2025-49847 and its kin: a per-token array must cover the tokens. */
static void test_arrays_shorter_than_the_tokens(void **state) {
    begin("llama");
    gw_f32_array(&w, KEY("scores"), (float[]){1, 2, 3, 4}, 4);
    assert_refused(STATUS_CORRUPT, KEY("scores"), "one for each of 5 tokens");
    clean(state);
    begin("llama");
    gw_i32_array(&w, KEY("token_type"), (int32_t[]){1}, 1);
    assert_refused(STATUS_CORRUPT, KEY("token_type"), "one for each of 5 tokens");
}

static void test_token_types_out_of_range(void **state) {
    const int32_t bad[] = {-1, 7, INT32_MIN};
    for (int i = 0; i < 3; i++) {
        fresh(state);
        begin("llama");
        gw_i32_array(&w, KEY("token_type"), (int32_t[]){1, 1, 1, bad[i], 1}, 5);
        assert_refused(STATUS_CORRUPT, KEY("token_type"), "token 3 has type");
        clean(state);
    }
    fresh(state);
}

static void test_scores_that_are_no_numbers(void **state) {
    begin("llama");
    gw_f32_array(&w, KEY("scores"), (float[]){0, 0, __builtin_nanf(""), 0, 0}, 5);
    assert_refused(STATUS_CORRUPT, KEY("scores"), "element 2");
}

static void test_names_of_pre_tokenizers_that_do_not_fit(void **state) {
    char name[65];
    memset(name, 'p', 64);
    name[64] = 0;
    begin("gpt2");
    gw_text(&w, KEY("pre"), name);
    assert_refused(STATUS_UNSUPPORTED, KEY("pre"), "at most 63 bytes");
    clean(state);
    begin("gpt2");
    gw_text_n(&w, KEY("pre"), "llama-bpe\0x", 11); /* must not pass for llama-bpe */
    assert_refused(STATUS_UNSUPPORTED, KEY("pre"), "no NUL");
    clean(state);
    begin("gpt2");
    gw_text(&w, KEY("pre"), name + 1);
    assert_reads();
    assert_string_equal(v.pre, name + 1);
}

static void test_flags_and_templates_of_another_type(void **state) {
    begin("gpt2");
    gw_u32(&w, KEY("add_bos_token"), 1);
    assert_refused(STATUS_CORRUPT, KEY("add_bos_token"), "must be bool");
    clean(state);
    begin("gpt2");
    gw_bool(&w, "tokenizer.chat_template", 1);
    assert_refused(STATUS_CORRUPT, "tokenizer.chat_template", "must be string");
}

int main(void) {
    log_set_level(LOG_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {
        T(test_bpe_defaults),
        T(test_spm_defaults),
        T(test_bos_by_default_follows_the_pre_tokenizer),
        T(test_everything_a_file_can_say),
        T(test_integer_scores_are_tolerated),
        T(test_ids_that_name_no_token_are_ignored),
        T(test_defaults_beyond_a_small_vocabulary),
        T(test_ids_of_another_type),
        T(test_other_tokenizers_are_named),
        T(test_missing_keys_are_named),
        T(test_an_empty_vocabulary),
        T(test_arrays_of_another_type),
        T(test_arrays_shorter_than_the_tokens),
        T(test_token_types_out_of_range),
        T(test_scores_that_are_no_numbers),
        T(test_names_of_pre_tokenizers_that_do_not_fit),
        T(test_flags_and_templates_of_another_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
