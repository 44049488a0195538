/* A model's description from a GGUF header: which maths, which shapes, and that every tensor is there in the right one.
 *
 * Nothing past this file knows an architecture's name: an architecture is a row of the table below plus what its keys say. */
#include "engine/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model_internal.h"
#include "quant/import_gguf.h"

#define MAX_WIDTH (1 << 17)
#define MAX_HEADS 4096
#define MAX_VOCAB (1 << 22)
#define MAX_CONTEXT (1 << 24)
#define MAX_ANGLE 0x1p30 /* of det_sincos */

static const struct architecture {
    const char *name;
    enum rope_pairs pairs;
    enum gate_kind gate;
    bool needs_qkv_bias;
} architectures[] = {
    {"llama", ROPE_ADJACENT, GATE_SILU, false},
    {"qwen2", ROPE_HALVES, GATE_SILU, true},
};

struct reader {
    const struct gguf *g;
    const char *architecture;
    struct err *err;
    char key[160];
};

static const char *full_key(struct reader *r, const char *suffix) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->architecture, suffix);
    return r->key;
}

/* An integer key in [low, high]; *out keeps its value when the key is absent and not required. */
static enum status read_int(struct reader *r, const char *suffix, bool required, int low, int high, int *out) {
    uint32_t value = 0;
    int found = gguf_u32(r->g, full_key(r, suffix), &value, r->err);
    if (found < 0) return r->err ? r->err->status : STATUS_CORRUPT;
    if (!found && required) return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is missing", r->key);
    if (!found) return STATUS_OK;
    if (value < (uint32_t)low || value > (uint32_t)high)
        return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is %u, allowed are %d to %d", r->key, value, low,
                             high);
    *out = (int)value;
    return STATUS_OK;
}

/* A float key in (low, high]. */
static enum status read_float(struct reader *r, const char *suffix, bool required, double low, double high, float *out) {
    float value = 0;
    int found = gguf_f32(r->g, full_key(r, suffix), &value, r->err);
    if (found < 0) return r->err ? r->err->status : STATUS_CORRUPT;
    if (!found && required) return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is missing", r->key);
    if (!found) return STATUS_OK;
    if (!(value > low && value <= high)) /* also refuses NaN */
        return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is %g, allowed are values over %g up to %g", r->key,
                             value, low, high);
    *out = value;
    return STATUS_OK;
}

static void copy_text(char *out, size_t size, struct text_view text) {
    size_t n = text.n < size - 1 ? (size_t)text.n : size - 1;
    memcpy(out, text.data, n);
    out[n] = 0;
    for (size_t i = 0; i < n; i++) /* names end up in logs and answers */
        if ((unsigned char)out[i] < 0x20 || (unsigned char)out[i] > 0x7e) out[i] = '?';
}

static enum status read_architecture(const struct gguf *g, struct model_desc *d, struct err *err) {
    struct text_view text;
    int found = gguf_text(g, "general.architecture", &text, err);
    if (found < 0) return STATUS_CORRUPT;
    if (!found) return err_set_param(err, STATUS_CORRUPT, "general.architecture", "model: key general.architecture is missing");
    copy_text(d->architecture, sizeof d->architecture, text);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(d->architecture, architectures[i].name) == 0) {
            d->rope_pairs = architectures[i].pairs;
            d->gate = architectures[i].gate;
            d->needs_qkv_bias = architectures[i].needs_qkv_bias;
            return STATUS_OK;
        }
    return err_set_param(err, STATUS_UNSUPPORTED, "general.architecture",
                         "model: architecture '%s' is not supported, allowed are llama and qwen2", d->architecture);
}

static enum status read_dimensions(struct reader *r, struct model_desc *d) {
    enum status s;
    if ((s = read_int(r, "block_count", true, 1, MODEL_MAX_LAYERS, &d->n_layers))) return s;
    if ((s = read_int(r, "embedding_length", true, 1, MAX_WIDTH, &d->hidden))) return s;
    if ((s = read_int(r, "feed_forward_length", true, 1, MAX_WIDTH * 8, &d->ffn))) return s;
    if ((s = read_int(r, "context_length", true, 1, MAX_CONTEXT, &d->max_context))) return s;
    if ((s = read_int(r, "attention.head_count", true, 1, MAX_HEADS, &d->n_heads))) return s;
    d->n_kv_heads = d->n_heads;
    if ((s = read_int(r, "attention.head_count_kv", false, 1, MAX_HEADS, &d->n_kv_heads))) return s;
    if (d->n_heads % d->n_kv_heads != 0)
        return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is %d, which does not divide head_count %d", r->key,
                             d->n_kv_heads, d->n_heads);
    d->head_dim = d->hidden / d->n_heads;
    if ((s = read_int(r, "attention.key_length", false, 1, MODEL_MAX_HEAD_DIM, &d->head_dim))) return s;
    int value_length = d->head_dim;
    if ((s = read_int(r, "attention.value_length", false, 1, MODEL_MAX_HEAD_DIM, &value_length))) return s;
    if (value_length != d->head_dim || d->head_dim % 16 != 0 || d->head_dim > MODEL_MAX_HEAD_DIM || d->head_dim == 0)
        return err_set_param(
            r->err, STATUS_UNSUPPORTED, full_key(r, "attention.key_length"),
            "model: heads of %d keys and %d values are not supported, allowed are equal multiples of 16 up to %d", d->head_dim,
            value_length, MODEL_MAX_HEAD_DIM);
    return STATUS_OK;
}

/* Positions times the first, largest frequency stay within what sine and cosine are computed for. */
bool model_has_angles(const struct model_desc *d, double factor) {
    double angle = (double)d->max_context * (double)d->rope_scale / factor;
    return angle >= 0 && angle < MAX_ANGLE; /* also refuses NaN */
}

static enum status read_rope_scaling(struct reader *r, struct model_desc *d) {
    struct text_view type;
    int found = gguf_text(r->g, full_key(r, "rope.scaling.type"), &type, r->err);
    if (found < 0) return STATUS_CORRUPT;
    bool none = found && type.n == 4 && memcmp(type.data, "none", 4) == 0;
    bool linear = !found || (type.n == 6 && memcmp(type.data, "linear", 6) == 0);
    if (!none && !linear)
        return err_set_param(r->err, STATUS_UNSUPPORTED, r->key,
                             "model: rope scaling '%.*s' is not supported, allowed are none and linear",
                             (int)(type.n < 32 ? type.n : 32), type.data);
    float factor = 1;
    enum status s = read_float(r, "rope.scaling.factor", false, 0, 1e6, &factor);
    if (s) return s;
    d->rope_scale = none ? 1 : 1 / factor;
    if (!model_has_angles(d, 1))
        return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is %g, too small for a context of %d", r->key,
                             (double)factor, d->max_context);
    return STATUS_OK;
}

static enum status read_maths(struct reader *r, struct model_desc *d) {
    enum status s;
    if ((s = read_float(r, "attention.layer_norm_rms_epsilon", true, 0, 1, &d->norm_eps))) return s;
    d->attention_scale = 1.0f / sqrtf((float)d->head_dim);
    d->rope_base = 10000;
    if ((s = read_float(r, "rope.freq_base", false, 1, 1e12, &d->rope_base))) return s;
    d->n_rot = d->head_dim;
    if ((s = read_int(r, "rope.dimension_count", false, 2, d->head_dim, &d->n_rot))) return s;
    if (d->n_rot % 2 != 0)
        return err_set_param(r->err, STATUS_CORRUPT, r->key, "model: key %s is %d, allowed are even numbers", r->key, d->n_rot);
    return read_rope_scaling(r, d);
}

/* The tensor has these dimensions and, for matrices, a type that can be imported (gguf_open refused all others). */
static enum status check_tensor(const struct gguf *g, const char *name, bool required, int64_t cols, int64_t rows,
                                struct err *err) {
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    if (!t && !required) return STATUS_OK;
    if (!t) return err_set_param(err, STATUS_CORRUPT, name, "model: tensor %s is missing", name);
    if (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1)
        return err_set_param(err, STATUS_CORRUPT, name, "model: tensor %s is %lld × %lld, expected %lld × %lld", name,
                             (long long)t->ne[0], (long long)t->ne[1], (long long)cols, (long long)rows);
    if (rows == 1 && t->type != GGML_F32 && t->type != GGML_F16 && t->type != GGML_BF16)
        return err_set_param(err, STATUS_UNSUPPORTED, name, "model: tensor %s is of type %s, allowed are F32, F16 and BF16",
                             name, ggml_type_name(t->type));
    return STATUS_OK;
}

static enum status check_layers(const struct gguf *g, const struct model_desc *d, struct err *err) {
    for (int layer = 0; layer < d->n_layers; layer++)
        for (int i = 0; i < LAYER_TENSOR_COUNT; i++) {
            char name[TENSOR_NAME_MAX];
            struct tensor_shape shape = layer_tensor_shape(d, (enum layer_tensor)i);
            layer_tensor_name(name, layer, (enum layer_tensor)i);
            enum status s = check_tensor(g, name, !shape.optional, shape.cols, shape.rows, err);
            if (s) return s;
        }
    return STATUS_OK;
}

static enum status check_tensors(const struct gguf *g, struct model_desc *d, struct err *err) {
    const struct gguf_tensor *embedding = gguf_tensor_find(g, "token_embd.weight");
    if (!embedding)
        return err_set_param(err, STATUS_CORRUPT, "token_embd.weight", "model: tensor token_embd.weight is missing");
    if (embedding->ne[1] < 1 || embedding->ne[1] > MAX_VOCAB)
        return err_set_param(err, STATUS_CORRUPT, "token_embd.weight",
                             "model: token_embd.weight has %lld rows, allowed are 1 to %d", (long long)embedding->ne[1],
                             MAX_VOCAB);
    d->vocab = (int)embedding->ne[1];
    d->tied_head = gguf_tensor_find(g, "output.weight") == NULL;
    const struct gguf_tensor *factors = gguf_tensor_find(g, "rope_freqs.weight");
    d->has_rope_factors = factors != NULL;
    if (factors && factors->type != GGML_F32)
        return err_set_param(err, STATUS_UNSUPPORTED, "rope_freqs.weight",
                             "model: rope_freqs.weight is of type %s, allowed is F32", ggml_type_name(factors->type));
    enum status s;
    if ((s = check_tensor(g, "token_embd.weight", true, d->hidden, d->vocab, err))) return s;
    if ((s = check_tensor(g, "output.weight", false, d->hidden, d->vocab, err))) return s;
    if ((s = check_tensor(g, "output_norm.weight", true, d->hidden, 1, err))) return s;
    if ((s = check_tensor(g, "rope_freqs.weight", false, d->n_rot / 2, 1, err))) return s;
    return check_layers(g, d, err);
}

static int64_t count_parameters(const struct gguf *g) {
    int64_t n = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        n += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* gguf_open checked the product */
    }
    return n;
}

enum status model_desc_read(const struct gguf *g, struct model_desc *d, struct err *err) {
    memset(d, 0, sizeof *d);
    enum status s = read_architecture(g, d, err);
    if (s) return s;
    struct text_view name;
    if (gguf_text(g, "general.name", &name, NULL) == 1) copy_text(d->name, sizeof d->name, name);
    struct reader r = {.g = g, .architecture = d->architecture, .err = err};
    if ((s = read_dimensions(&r, d))) return s;
    if ((s = read_maths(&r, d))) return s;
    if ((s = check_tensors(g, d, err))) return s;
    d->n_params = count_parameters(g);
    return STATUS_OK;
}
