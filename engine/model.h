/* A model: its description, read from a file's header alone, and its weights, packed; one forward for the whole Llama family.
 *
 * The description decides the maths (model_forward reads it, nothing else knows an architecture's name). */
#pragma once

#include "engine/base/err.h"
#include "engine/batch.h"
#include "engine/formats_gguf.h"
#include "engine/ledger.h"
#include "kernels/backend.h"

#define MODEL_MAX_LAYERS 512
#define MODEL_MAX_HEAD_DIM 256

struct model_desc {
    char architecture[32], name[128];
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, max_context;
    float attention_scale; /* of q·k */
    float norm_eps, rope_base, rope_scale /* positions are multiplied by it */;
    enum rope_pairs rope_pairs;
    int n_rot;
    bool has_rope_factors; /* rope_freqs.weight: each frequency divided by its factor */
    bool needs_qkv_bias;   /* biases of q, k and v must be there */
    bool tied_head;        /* no output.weight: the embedding is the head */
    enum gate_kind gate;
    int64_t n_params;
};

/* Reads and checks the description; every dimension and the shape and type of every tensor. Errors name key or tensor. */
enum status model_desc_read(const struct gguf *g, struct model_desc *desc, struct err *err);

enum activations { ACTIVATIONS_INT8, ACTIVATIONS_F32 };

/* Bytes for the plan; each a pure function of header and options. */
size_t model_weight_bytes(const struct gguf *g, const struct model_desc *desc);
size_t model_norm_bytes(const struct gguf *g, const struct model_desc *desc);
size_t model_rope_bytes(const struct model_desc *desc, int max_context);
size_t model_activation_bytes(const struct model_desc *desc, int max_batch_tokens);
size_t model_logit_bytes(const struct model_desc *desc, int max_logit_rows);

struct model_options {
    int max_context, max_batch_tokens;
    int max_logit_rows; /* rows of logits one chunk holds */
    enum activations activations;
};

struct model;
/* Packs the weights into the ledger's lines, on the backend's threads; pages of the file are dropped as they are used. */
enum status model_load(struct model **out, const struct gguf *g, const struct model_desc *desc,
                       const struct model_options *options, struct backend *backend, struct ledger *ledger, struct err *err);
void model_close(struct model *m);

/* Computes the step's layers: appends keys and values to the cache and keeps the wanted rows' final hidden states. */
void model_forward(struct model *m, const struct batch *batch, const struct kv_view *kv);
/* Logits of wanted rows [first, first + n) of the last forward, n ≤ max_logit_rows: [n, vocab], valid until the next call. */
float *model_logits(struct model *m, int first, int n);
const struct model_desc *model_description(const struct model *m);
