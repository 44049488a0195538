/* Tiny models as GGUF files, good ones by a shape and broken ones by one change, for tests of what reads and runs a model.
 *
 *     struct tiny_model m = tiny_llama;
 *     m.drop = "blk.1.ffn_up.weight";
 *     tiny_write(&m, path);      ... use it ...   unlink(path);
 *
 * Weights are pseudo-random by seed and tensor name: norms around 1, matrices of a spread that keeps activations near 1. */
#pragma once

#include <math.h>

#include "engine/base/f16.h"
#include "tests/unit/engine/gguf_writer.h"

struct tiny_model {
    const char *architecture;
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, context, n_rot; /* head_dim, n_rot: 0 leaves the key out */
    uint32_t type;           /* of matrices; K-quants need widths of 256 */
    uint32_t embedding_type; /* and of the embedding and the head */
    int is_tied, has_biases, has_factors, is_mixed /* every other matrix is F16 */;
    float rope_base, rope_scale_factor; /* 0: leaves the key out */
    const char *scaling_type;
    int n_tokens; /* of the vocabulary; 0: vocab */
    uint64_t seed;
    /* One change, by the name of a key or a tensor. */
    const char *drop;   /* key or tensor left out */
    const char *change; /* key of an integer or a float that becomes ... */
    uint32_t to_int;
    float to_float;
    const char *reshape, *retype; /* tensors */
    int64_t ne[3];
    uint32_t to_type;
    float factor; /* of rope_freqs.weight[1], when not 0 */
};

static const struct tiny_model tiny_llama = {.architecture = "llama",
                                             .n_layers = 2,
                                             .hidden = 64,
                                             .n_heads = 4,
                                             .n_kv_heads = 2,
                                             .head_dim = 16,
                                             .ffn = 96,
                                             .vocab = 48,
                                             .context = 512,
                                             .n_rot = 16,
                                             .type = GGML_F32,
                                             .embedding_type = GGML_F32,
                                             .rope_base = 10000,
                                             .seed = 1};

/* ---- numbers ---- */

static inline uint64_t tiny_next(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static inline float tiny_uniform(uint64_t *state) { return (float)(tiny_next(state) >> 40) * 0x1p-23f - 1; } /* [−1, 1) */

static inline void tiny_put_half(void *at, float value) {
    uint16_t half = f32_to_f16(value);
    memcpy(at, &half, 2);
}

/* A quantized block: random quanta, and scales for values of about ±spread. Where scales lie is the format's. */
static inline void tiny_block(uint8_t *block, uint32_t type, size_t bytes, float spread, uint64_t *state) {
    for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)tiny_next(state);
    switch (type) {
    case GGML_Q4_0: tiny_put_half(block, spread / 8); break;
    case GGML_Q5_0: tiny_put_half(block, spread / 16); break;
    case GGML_Q8_0: tiny_put_half(block, spread / 128); break;
    case GGML_Q4_1: tiny_put_half(block, spread / 7.5f), tiny_put_half(block + 2, -spread); break;
    case GGML_Q5_1: tiny_put_half(block, spread / 15.5f), tiny_put_half(block + 2, -spread); break;
    case GGML_Q4_K: tiny_put_half(block, spread / 7.5f / 63), tiny_put_half(block + 2, spread / 63); break;
    case GGML_Q5_K: tiny_put_half(block, spread / 15.5f / 63), tiny_put_half(block + 2, spread / 63); break;
    case GGML_Q6_K: tiny_put_half(block + bytes - 2, spread / 32 / 127); break;
    default: abort();
    }
}

/* A tensor's data: values of about center ± spread. The caller frees it. */
static inline void *tiny_values(uint32_t type, int64_t n, float center, float spread, uint64_t state, size_t *n_bytes) {
    int elements = 1, block = 0;
    if (!ggml_type_block(type, &elements, &block) || n % elements) abort();
    *n_bytes = (size_t)(n / elements) * (size_t)block;
    uint8_t *out = malloc(*n_bytes + 1);
    if (!out) abort();
    for (int64_t i = 0; i < n / elements; i++) {
        uint8_t *at = out + i * block;
        if (elements > 1) {
            tiny_block(at, type, (size_t)block, spread, &state);
            continue;
        }
        float value = center + spread * tiny_uniform(&state);
        uint32_t bits = f32_bits(value);
        uint16_t high = (uint16_t)(bits >> 16);
        if (type == GGML_F32) memcpy(at, &value, 4);
        else if (type == GGML_F16) tiny_put_half(at, value);
        else memcpy(at, &high, 2); /* BF16, cut */
    }
    return out;
}

/* ---- the file ---- */

static inline int tiny_is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

static inline const char *tiny_key(const struct tiny_model *m, const char *suffix) {
    static char key[128];
    snprintf(key, sizeof key, "%s.%s", m->architecture, suffix);
    return key;
}

static inline void tiny_int(struct gguf_writer *w, const struct tiny_model *m, const char *suffix, int value) {
    const char *key = tiny_key(m, suffix);
    if (!tiny_is(m->drop, key)) gw_u32(w, key, tiny_is(m->change, key) ? m->to_int : (uint32_t)value);
}

static inline void tiny_float(struct gguf_writer *w, const struct tiny_model *m, const char *suffix, float value) {
    const char *key = tiny_key(m, suffix);
    if (!tiny_is(m->drop, key)) gw_f32(w, key, tiny_is(m->change, key) ? m->to_float : value);
}

static inline void tiny_keys(struct gguf_writer *w, const struct tiny_model *m) {
    if (!tiny_is(m->drop, "general.architecture")) gw_text(w, "general.architecture", m->architecture);
    gw_text(w, "general.name", "tiny");
    tiny_int(w, m, "block_count", m->n_layers);
    tiny_int(w, m, "context_length", m->context);
    tiny_int(w, m, "embedding_length", m->hidden);
    tiny_int(w, m, "feed_forward_length", m->ffn);
    tiny_int(w, m, "attention.head_count", m->n_heads);
    tiny_int(w, m, "attention.head_count_kv", m->n_kv_heads);
    if (m->head_dim) tiny_int(w, m, "attention.key_length", m->head_dim);
    if (m->head_dim) tiny_int(w, m, "attention.value_length", m->head_dim);
    if (m->n_rot) tiny_int(w, m, "rope.dimension_count", m->n_rot);
    if (m->rope_base != 0) tiny_float(w, m, "rope.freq_base", m->rope_base);
    tiny_float(w, m, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (m->scaling_type) gw_text(w, tiny_key(m, "rope.scaling.type"), m->scaling_type);
    if (m->rope_scale_factor != 0) tiny_float(w, m, "rope.scaling.factor", m->rope_scale_factor);
}

/* A SentencePiece vocabulary: three special tokens, then texts of two letters. */
static inline void tiny_vocab(struct gguf_writer *w, const struct tiny_model *m) {
    int n = m->n_tokens ? m->n_tokens : m->vocab;
    gw_text(w, "tokenizer.ggml.model", "llama");
    gw_array(w, "tokenizer.ggml.tokens", 8, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        char text[8];
        snprintf(text, sizeof text,
                 i == 0   ? "<unk>"
                 : i == 1 ? "<s>"
                 : i == 2 ? "</s>"
                          : "%c%c%c",
                 'a' + i % 26, 'a' + i / 26 % 26, 'a' + i / 676);
        gw_put_text(&w->kv, text, strlen(text));
    }
    gw_array(w, "tokenizer.ggml.scores", 6, (uint64_t)n);
    for (int i = 0; i < n; i++) gw_put(&w->kv, &(float){(float)-i}, 4);
    gw_array(w, "tokenizer.ggml.token_type", 5, (uint64_t)n);
    for (int i = 0; i < n; i++) gw_put_u32(&w->kv, i == 0 ? 2 : i < 3 ? 3 : 1);
}

static inline void tiny_tensor(struct gguf_writer *w, const struct tiny_model *m, const char *name, uint32_t type, int64_t cols,
                               int64_t rows, float center, float spread) {
    int64_t ne[3] = {cols, rows, 1};
    uint64_t state = m->seed;
    size_t bytes;
    if (tiny_is(m->drop, name)) return;
    if (tiny_is(m->reshape, name)) memcpy(ne, m->ne, sizeof ne);
    if (tiny_is(m->retype, name)) type = m->to_type;
    for (const char *c = name; *c; c++) state = state * 0x100000001b3 ^ (uint8_t)*c;
    void *data = tiny_values(type, ne[0] * ne[1] * ne[2], center, spread, state, &bytes);
    if (m->factor != 0 && strcmp(name, "rope_freqs.weight") == 0) memcpy((float *)data + 1, &m->factor, 4);
    gw_tensor(w, name, type, ne[2] > 1 ? 3 : ne[1] > 1 ? 2 : 1, ne, data);
    free(data);
}

static inline void tiny_layer(struct gguf_writer *w, const struct tiny_model *m, int layer) {
    int head_dim = m->head_dim ? m->head_dim : m->hidden / m->n_heads, q = m->n_heads * head_dim, kv = m->n_kv_heads * head_dim;
    const struct {
        const char *name;
        int cols, rows, is_matrix;
    } tensors[] = {
        {"attn_norm.weight", m->hidden, 1, 0},
        {"attn_q.weight", m->hidden, q, 1},
        {"attn_k.weight", m->hidden, kv, 1},
        {"attn_v.weight", m->hidden, kv, 1},
        {"attn_output.weight", q, m->hidden, 1},
        {"ffn_norm.weight", m->hidden, 1, 0},
        {"ffn_gate.weight", m->hidden, m->ffn, 1},
        {"ffn_up.weight", m->hidden, m->ffn, 1},
        {"ffn_down.weight", m->ffn, m->hidden, 1},
        {"attn_q.bias", q, 1, 0},
        {"attn_k.bias", kv, 1, 0},
        {"attn_v.bias", kv, 1, 0},
    };
    int n = (int)(sizeof tensors / sizeof *tensors) - (m->has_biases ? 0 : 3);
    for (int i = 0; i < n; i++) {
        char name[64];
        int is_bias = i >= 9;
        snprintf(name, sizeof name, "blk.%d.%s", layer, tensors[i].name);
        if (tensors[i].is_matrix)
            tiny_tensor(w, m, name, m->is_mixed && i % 2 ? GGML_F16 : m->type, tensors[i].cols, tensors[i].rows, 0,
                        2 / sqrtf((float)tensors[i].cols));
        else tiny_tensor(w, m, name, GGML_F32, tensors[i].cols, 1, is_bias ? 0 : 1, 0.5f);
    }
}

static inline void tiny_build(const struct tiny_model *m, struct gguf_writer *w) {
    int n_rot = m->n_rot ? m->n_rot : m->head_dim ? m->head_dim : m->hidden / m->n_heads;
    gw_init(w);
    tiny_keys(w, m);
    tiny_vocab(w, m);
    tiny_tensor(w, m, "token_embd.weight", m->embedding_type, m->hidden, m->vocab, 0, 1);
    tiny_tensor(w, m, "output_norm.weight", GGML_F32, m->hidden, 1, 1, 0.5f);
    if (!m->is_tied) tiny_tensor(w, m, "output.weight", m->embedding_type, m->hidden, m->vocab, 0, 2 / sqrtf((float)m->hidden));
    if (m->has_factors) tiny_tensor(w, m, "rope_freqs.weight", GGML_F32, n_rot / 2, 1, 3, 2);
    for (int layer = 0; layer < m->n_layers; layer++) tiny_layer(w, m, layer);
}

static inline void tiny_write(const struct tiny_model *m, char path[64]) {
    struct gguf_writer w;
    tiny_build(m, &w);
    gw_temp(&w, path);
    gw_free(&w);
}
