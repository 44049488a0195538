/* What the loader fills and the forward reads. Private to engine/model*.c. */
#pragma once

#include "engine/model.h"
#include "engine/model_tensors.h"

struct layer_weights {
    struct weight matrices[LAYER_MATRIX_COUNT];
    const float *vectors[LAYER_TENSOR_COUNT];            /* norms and biases, by layer_tensor; NULL where the model has none */
    unsigned attn_kinds, o_kinds, ffn_kinds, down_kinds; /* the activations each group of matrices reads: enum act_kind flags */
};

/* Every buffer of a step, rows = tokens of the batch. */
struct activation_buffers {
    float *x;          /* [n_tokens, hidden] residual stream */
    struct act normed; /* [n_tokens, hidden] */
    float *q, *k, *v;  /* [n_tokens, heads·head_dim] */
    float *attended;   /* [n_tokens, n_heads·head_dim] */
    struct act attended_in;
    float *gate, *up; /* [n_tokens, ffn] */
    struct act gated;
    float *wanted;      /* [n_tokens, hidden] residuals of the rows whose logits are wanted */
    struct act head_in; /* [max_logit_rows, hidden] */
};

struct model {
    struct model_desc desc;
    struct model_options options;
    struct backend *backend;
    struct weight embedding, head;
    unsigned head_kinds;
    const float *output_norm;
    struct layer_weights *layers;
    struct rope_table rope;
    struct attention_shape shape;
    struct activation_buffers buffers;
    float *logits; /* [max_logit_rows, vocab] */
};

/* Bytes of struct act's arrays for this many tokens, and the same carved from a line. */
size_t act_bytes(int n_tokens, int n_cols);
void act_alloc(struct act *a, struct ledger *ledger, enum ledger_line_id line, int n_tokens, int n_cols);

/* Can this model's positions be rotated, its frequencies divided by `factor`? */
bool model_has_angles(const struct model_desc *d, double factor);
