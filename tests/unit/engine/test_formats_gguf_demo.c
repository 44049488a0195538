/* The demo model, a file that others wrote: everything opens, reads, and packs without loss. Skipped out loud where it is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/formats_gguf.h"
#include "quant/import_gguf.h"

static struct gguf *g;
static struct err err;

static const char *model_path(void) {
    static char path[4096];
    const char *given = getenv("TALLY_MODEL"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *name = "tally/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given) return given;
    if (cache && *cache) snprintf(path, sizeof path, "%s/%s", cache, name);
    else snprintf(path, sizeof path, "%s/.cache/%s", home ? home : "", name);
    return path;
}

static void test_tensors_are_those_of_the_model(void **state) {
    int n_q4_1 = 0, n_f32 = 0, n_q8_0 = 0;
    assert_int_equal(gguf_n_tensors(g), 272);
    assert_int_equal(gguf_file_bytes(g), 98362432);
    for (uint64_t i = 0; i < 272; i++) {
        uint32_t type = gguf_tensor_at(g, i)->type;
        n_q4_1 += type == GGML_Q4_1;
        n_f32 += type == GGML_F32;
        n_q8_0 += type == GGML_Q8_0;
    }
    assert_int_equal(n_q4_1, 210);
    assert_int_equal(n_f32, 61);
    assert_int_equal(n_q8_0, 1);
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    assert_int_equal(t->type, GGML_Q8_0);
    assert_int_equal(t->ne[0], 576);
    assert_int_equal(t->ne[1], 49152);
    t = gguf_tensor_find(g, "blk.29.ffn_down.weight");
    assert_int_equal(t->ne[0], 1536);
    assert_int_equal(t->ne[1], 576);
    assert_null(gguf_tensor_find(g, "output.weight"));
}

static void test_metadata_is_that_of_the_model(void **state) {
    const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"llama.block_count", 30},           {"llama.context_length", 8192},     {"llama.embedding_length", 576},
                {"llama.feed_forward_length", 1536}, {"llama.attention.head_count", 9},  {"llama.attention.head_count_kv", 3},
                {"llama.vocab_size", 49152},         {"llama.rope.dimension_count", 64}, {"general.file_type", 3}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint32_t value = 0;
        assert_int_equal(gguf_u32(g, keys[i].key, &value, &err), 1);
        assert_int_equal(value, keys[i].value);
    }
    float f = 0;
    struct text_view architecture;
    assert_int_equal(gguf_f32(g, "llama.rope.freq_base", &f, &err), 1);
    assert_true(f == 100000);
    assert_int_equal(gguf_f32(g, "llama.attention.layer_norm_rms_epsilon", &f, &err), 1);
    assert_true(f == 1e-5f);
    assert_int_equal(gguf_text(g, "general.architecture", &architecture, &err), 1);
    assert_int_equal(architecture.n, 5);
    assert_memory_equal(architecture.data, "llama", 5);
}

static void test_vocabulary_is_that_of_the_model(void **state) {
    struct vocab v;
    if (gguf_vocab(g, &v, &err)) fail_msg("%s", err.text);
    assert_int_equal(v.model, VOCAB_BPE);
    assert_string_equal(v.pre, "smollm");
    assert_int_equal(v.n_tokens, 49152);
    assert_int_equal(v.n_merges, 48900);
    assert_true(v.bos == 1 && v.eos == 2 && v.unk == 0 && v.eot == -1);
    assert_false(v.add_bos);
    assert_false(v.add_space_prefix);
    assert_int_equal(v.tokens[2].n, 10);
    assert_memory_equal(v.tokens[2].data, "<|im_end|>", 10);
    assert_int_equal(v.types[2], TOKEN_CONTROL);
    assert_null(v.scores);
    assert_true(v.chat_template.n > 100);
    vocab_free(&v);
}

/* Every seventh panel of every matrix, all its rows. */
static void test_matrices_pack_without_loss(void **state) {
    static uint8_t panel[1 << 16] __attribute__((aligned(64)));
    static float want[1536], got[1536];
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        enum wfmt fmt = import_gguf_format(t->type);
        int64_t n_rows = t->ne[1], n_cols = t->ne[0];
        assert_true(wfmt_panel_bytes(fmt, (int)n_cols) <= sizeof panel || t->n_dims == 1);
        for (int64_t first = 0; first < n_rows && t->n_dims == 2; first += 7 * PANEL_ROWS) {
            import_gguf_panel(panel, t->type, t->data, n_rows, n_cols, first);
            struct weight w = {fmt, PANEL_ROWS, (int)n_cols, panel};
            for (int r = 0; r < PANEL_ROWS && first + r < n_rows; r++) {
                ggml_row_f32(t->type, (const char *)t->data + (uint64_t)(first + r) * (t->bytes / (uint64_t)n_rows), n_cols,
                             want);
                weight_row_f32(&w, r, got);
                assert_memory_equal(got, want, (size_t)n_cols * sizeof *want);
            }
        }
    }
}

int main(void) {
    const char *path = model_path();
    if (access(path, R_OK)) {
        printf("SKIPPED: the demo model is not at %s; set TALLY_MODEL or fetch it\n", path);
        return 77;
    }
    if (gguf_open(&g, path, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_are_those_of_the_model),
        cmocka_unit_test(test_metadata_is_that_of_the_model),
        cmocka_unit_test(test_vocabulary_is_that_of_the_model),
        cmocka_unit_test(test_matrices_pack_without_loss),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gguf_close(g);
    return failed;
}
