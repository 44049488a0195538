/* A model's description: what is read from a good header, and that everything wrong with a bad one is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/plan.h"
#include "tests/unit/engine/tiny_model.h"

static enum status open_source(const struct tiny_model *m, struct model_source *source, struct err *err) {
    char path[64];
    memset(err, 0, sizeof *err);
    tiny_write(m, path);
    enum status status = model_source_open(source, path, err);
    unlink(path);
    return status;
}

static void assert_refused(const struct tiny_model *m, enum status status, const char *param) {
    struct model_source source;
    struct err err;
    enum status got = open_source(m, &source, &err);
    if (got != status || err.status != status || strcmp(err.param, param) != 0)
        fail_msg("expected %s of '%s', got %s of '%s': %s", status_text(status), param, status_text(got), err.param, err.text);
    if (!strstr(err.text, param) && status != STATUS_UNSUPPORTED) fail_msg("'%s' does not name '%s'", err.text, param);
}

static struct model_desc described(const struct tiny_model *m) {
    struct model_source source;
    struct err err;
    if (open_source(m, &source, &err)) fail_msg("refused: %s", err.text);
    struct model_desc desc = source.desc;
    model_source_close(&source);
    return desc;
}

static struct tiny_model with_int(const char *key, uint32_t value) {
    struct tiny_model m = tiny_llama;
    m.change = key;
    m.to_int = value;
    return m;
}

static struct tiny_model with_float(const char *key, float value) {
    struct tiny_model m = tiny_llama;
    m.change = key;
    m.to_float = value;
    return m;
}

/* ---- good headers ---- */

static void a_llama_header_is_read_as_it_is(void **state) {
    struct model_desc d = described(&tiny_llama);
    assert_string_equal(d.architecture, "llama");
    assert_string_equal(d.name, "tiny");
    assert_int_equal(d.n_layers, 2);
    assert_int_equal(d.hidden, 64);
    assert_int_equal(d.n_heads, 4);
    assert_int_equal(d.n_kv_heads, 2);
    assert_int_equal(d.head_dim, 16);
    assert_int_equal(d.ffn, 96);
    assert_int_equal(d.vocab, 48);
    assert_int_equal(d.max_context, 512);
    assert_int_equal(d.n_rot, 16);
    assert_int_equal(d.rope_pairs, ROPE_ADJACENT);
    assert_true(d.attention_scale == 0.25f && d.rope_base == 10000 && d.rope_scale == 1 && d.norm_eps == 1e-5f);
    assert_false(d.tied_head || d.needs_qkv_bias || d.has_rope_factors);
    int64_t layer = 2 * 64 + 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96;
    assert_int_equal(d.n_params, 2 * 48 * 64 + 64 + 2 * layer);
}

static void qwen2_rotates_halves_and_needs_its_biases(void **state) {
    struct tiny_model m = tiny_llama;
    m.architecture = "qwen2";
    m.has_biases = m.is_tied = 1;
    struct model_desc d = described(&m);
    assert_int_equal(d.rope_pairs, ROPE_HALVES);
    assert_true(d.needs_qkv_bias && d.tied_head);
    m.drop = "blk.1.attn_k.bias";
    assert_refused(&m, STATUS_CORRUPT, m.drop);
}

static void keys_left_out_have_their_defaults(void **state) {
    struct tiny_model m = tiny_llama;
    m.head_dim = m.n_rot = 0;
    m.rope_base = 0;
    struct model_desc d = described(&m);
    assert_int_equal(d.head_dim, 16);
    assert_int_equal(d.n_rot, 16);
    assert_true(d.rope_base == 10000 && d.rope_scale == 1);
    m.n_kv_heads = 4;
    m.drop = "llama.attention.head_count_kv";
    assert_int_equal(described(&m).n_kv_heads, 4);
}

static void linear_rope_scaling_divides_positions(void **state) {
    struct tiny_model m = tiny_llama;
    m.rope_scale_factor = 4;
    assert_true(described(&m).rope_scale == 0.25f);
    m.scaling_type = "linear";
    assert_true(described(&m).rope_scale == 0.25f);
    m.scaling_type = "none";
    assert_true(described(&m).rope_scale == 1);
}

static void a_vocabulary_may_be_smaller_than_the_embedding(void **state) {
    struct tiny_model m = tiny_llama;
    m.n_tokens = 40;
    assert_int_equal(described(&m).vocab, 48);
}

/* ---- bad keys ---- */

static void an_architecture_must_be_named_and_known(void **state) {
    struct tiny_model m = tiny_llama;
    m.drop = "general.architecture";
    assert_refused(&m, STATUS_CORRUPT, "general.architecture");
    m = tiny_llama;
    m.architecture = "mamba";
    assert_refused(&m, STATUS_UNSUPPORTED, "general.architecture");
    m.architecture = "llama-of-a-name-longer-than-thirty-one-letters";
    assert_refused(&m, STATUS_UNSUPPORTED, "general.architecture");
}

static const char *const required[] = {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                                       "llama.context_length", "llama.attention.head_count"};

static void a_required_key_that_is_missing_is_named(void **state) {
    struct tiny_model m = tiny_llama;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        m.drop = required[i];
        assert_refused(&m, STATUS_CORRUPT, m.drop);
    }
    m.drop = "llama.attention.layer_norm_rms_epsilon";
    assert_refused(&m, STATUS_CORRUPT, m.drop);
}

static void zero_is_no_dimension(void **state) {
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        struct tiny_model m = with_int(required[i], 0);
        assert_refused(&m, STATUS_CORRUPT, m.change);
    }
    static const char *const others[] = {"llama.attention.head_count_kv", "llama.attention.key_length",
                                         "llama.attention.value_length", "llama.rope.dimension_count"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct tiny_model m = with_int(others[i], 0);
        assert_refused(&m, STATUS_CORRUPT, m.change);
    }
}

static void dimensions_over_their_limits_are_refused(void **state) {
    static const struct {
        const char *key;
        uint32_t value;
    } over[] = {{"llama.block_count", MODEL_MAX_LAYERS + 1},
                {"llama.embedding_length", (1 << 17) + 1},
                {"llama.feed_forward_length", (1 << 20) + 1},
                {"llama.context_length", (1 << 24) + 1},
                {"llama.attention.head_count", 4097},
                {"llama.attention.head_count_kv", 4097},
                {"llama.attention.key_length", 257},
                {"llama.attention.value_length", 257},
                {"llama.rope.dimension_count", 17}};
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        struct tiny_model m = with_int(over[i].key, over[i].value);
        assert_refused(&m, STATUS_CORRUPT, m.change);
        m.to_int = UINT32_MAX;
        assert_refused(&m, STATUS_CORRUPT, m.change);
        m.to_int = 0x80000000;
        assert_refused(&m, STATUS_CORRUPT, m.change);
    }
}

static void kv_heads_must_divide_heads(void **state) {
    struct tiny_model m = with_int("llama.attention.head_count_kv", 3);
    assert_refused(&m, STATUS_CORRUPT, "llama.attention.head_count_kv");
    m.to_int = 8;
    assert_refused(&m, STATUS_CORRUPT, "llama.attention.head_count_kv");
}

static void heads_must_be_equal_multiples_of_16(void **state) {
    struct tiny_model m = with_int("llama.attention.value_length", 32);
    assert_refused(&m, STATUS_UNSUPPORTED, "llama.attention.key_length");
    m = tiny_llama;
    m.head_dim = 24;
    assert_refused(&m, STATUS_UNSUPPORTED, "llama.attention.key_length");
    m = tiny_llama;
    m.head_dim = 0; /* 64 / 5 */
    m.n_heads = m.n_kv_heads = 5;
    assert_refused(&m, STATUS_UNSUPPORTED, "llama.attention.key_length");
    m.n_heads = m.n_kv_heads = 128; /* 64 / 128 */
    m.head_dim = 16, m.n_rot = 0;
    m.change = "llama.embedding_length"; /* never read: key_length says it */
    m.to_int = 64;
    assert_int_equal(described(&m).head_dim, 16);
}

static void rotated_dimensions_come_in_pairs(void **state) {
    struct tiny_model m = with_int("llama.rope.dimension_count", 7);
    assert_refused(&m, STATUS_CORRUPT, m.change);
    m.to_int = 1;
    assert_refused(&m, STATUS_CORRUPT, m.change);
}

static void floats_must_be_in_range_and_numbers(void **state) {
    struct tiny_model m = tiny_llama;
    m.rope_scale_factor = 2;
    static const char *const keys[] = {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base",
                                       "llama.rope.scaling.factor"};
    const float bad[] = {0, -1, NAN, INFINITY, -INFINITY, 2e12f};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            m.change = keys[i];
            m.to_float = bad[j];
            assert_refused(&m, STATUS_CORRUPT, m.change);
        }
}

static void a_rope_scaling_that_makes_no_angles_is_refused(void **state) {
    struct tiny_model m = with_float("llama.rope.scaling.factor", 1e-20f);
    m.rope_scale_factor = 2;
    assert_refused(&m, STATUS_CORRUPT, m.change);
    m.to_float = 1e-42f; /* its inverse is infinite */
    assert_refused(&m, STATUS_CORRUPT, m.change);
}

static void other_rope_scalings_are_not_supported(void **state) {
    struct tiny_model m = tiny_llama;
    m.scaling_type = "yarn";
    assert_refused(&m, STATUS_UNSUPPORTED, "llama.rope.scaling.type");
    m.scaling_type = "";
    assert_refused(&m, STATUS_UNSUPPORTED, "llama.rope.scaling.type");
}

/* ---- bad tensors ---- */

static const char *const tensors[] = {"token_embd.weight",        "output_norm.weight",    "blk.0.attn_norm.weight",
                                      "blk.1.attn_q.weight",      "blk.0.attn_k.weight",   "blk.1.attn_v.weight",
                                      "blk.1.attn_output.weight", "blk.1.ffn_norm.weight", "blk.0.ffn_gate.weight",
                                      "blk.1.ffn_up.weight",      "blk.1.ffn_down.weight"};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

static void a_tensor_that_is_missing_is_named(void **state) {
    struct tiny_model m = tiny_llama;
    for (int i = 0; i < N_TENSORS; i++) {
        m.drop = tensors[i];
        assert_refused(&m, STATUS_CORRUPT, m.drop);
    }
}

static void a_layer_more_than_the_file_has_is_named(void **state) {
    struct tiny_model m = with_int("llama.block_count", 3);
    assert_refused(&m, STATUS_CORRUPT, "blk.2.attn_q.weight");
}

static void a_tensor_of_another_shape_is_named(void **state) {
    static const int64_t shapes[][3] = {{63, 64, 1}, {64, 65, 1}, {64, 64, 2}, {96, 32, 1}, {1, 1, 1}};
    struct tiny_model m = tiny_llama;
    m.has_biases = m.has_factors = 1;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 1; i < N_TENSORS; i++) {
            m.reshape = tensors[i];
            memcpy(m.ne, shapes[s], sizeof m.ne);
            assert_refused(&m, STATUS_CORRUPT, m.reshape);
        }
    static const char *const others[] = {"output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "blk.1.attn_v.bias"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        m.reshape = others[i];
        memcpy(m.ne, (int64_t[]){16, 2, 1}, sizeof m.ne);
        assert_refused(&m, STATUS_CORRUPT, m.reshape);
    }
    m.reshape = "token_embd.weight";
    memcpy(m.ne, (int64_t[]){32, 48, 1}, sizeof m.ne);
    assert_refused(&m, STATUS_CORRUPT, m.reshape);
    memcpy(m.ne, (int64_t[]){64, 48, 2}, sizeof m.ne);
    assert_refused(&m, STATUS_CORRUPT, m.reshape);
}

static void a_quantized_vector_is_refused(void **state) {
    struct tiny_model m = tiny_llama;
    m.has_biases = m.has_factors = 1;
    m.to_type = GGML_Q8_0;
    static const char *const vectors[] = {"output_norm.weight", "blk.1.attn_norm.weight", "blk.0.ffn_norm.weight",
                                          "blk.0.attn_q.bias"};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        m.retype = vectors[i];
        assert_refused(&m, STATUS_UNSUPPORTED, m.retype);
    }
    m.retype = "rope_freqs.weight";
    m.to_type = GGML_F16;
    assert_refused(&m, STATUS_UNSUPPORTED, m.retype);
}

static void a_vocabulary_larger_than_the_embedding_is_refused(void **state) {
    struct tiny_model m = tiny_llama;
    m.n_tokens = 49;
    assert_refused(&m, STATUS_CORRUPT, "tokenizer.ggml.tokens");
}

static void a_file_that_is_not_there_is_an_error(void **state) {
    struct model_source source;
    struct err err = {0};
    assert_int_not_equal(model_source_open(&source, "/nonexistent/model.gguf", &err), STATUS_OK);
    assert_non_null(strstr(err.text, "model.gguf"));
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_header_is_read_as_it_is),
        cmocka_unit_test(qwen2_rotates_halves_and_needs_its_biases),
        cmocka_unit_test(keys_left_out_have_their_defaults),
        cmocka_unit_test(linear_rope_scaling_divides_positions),
        cmocka_unit_test(a_vocabulary_may_be_smaller_than_the_embedding),
        cmocka_unit_test(an_architecture_must_be_named_and_known),
        cmocka_unit_test(a_required_key_that_is_missing_is_named),
        cmocka_unit_test(zero_is_no_dimension),
        cmocka_unit_test(dimensions_over_their_limits_are_refused),
        cmocka_unit_test(kv_heads_must_divide_heads),
        cmocka_unit_test(heads_must_be_equal_multiples_of_16),
        cmocka_unit_test(rotated_dimensions_come_in_pairs),
        cmocka_unit_test(floats_must_be_in_range_and_numbers),
        cmocka_unit_test(a_rope_scaling_that_makes_no_angles_is_refused),
        cmocka_unit_test(other_rope_scalings_are_not_supported),
        cmocka_unit_test(a_tensor_that_is_missing_is_named),
        cmocka_unit_test(a_layer_more_than_the_file_has_is_named),
        cmocka_unit_test(a_tensor_of_another_shape_is_named),
        cmocka_unit_test(a_quantized_vector_is_refused),
        cmocka_unit_test(a_vocabulary_larger_than_the_embedding_is_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
