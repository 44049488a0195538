#include "engine/model_tensors.h"

#include <stdio.h>

static const char *const names[LAYER_TENSOR_COUNT] = {
    "attn_q.weight",    "attn_k.weight",    "attn_v.weight",   "attn_output.weight", "ffn_gate.weight", "ffn_up.weight",
    "ffn_down.weight",  "attn_norm.weight", "ffn_norm.weight", "attn_q.bias",        "attn_k.bias",     "attn_v.bias",
    "attn_output.bias", "ffn_gate.bias",    "ffn_up.bias",     "ffn_down.bias",
};

struct tensor_shape layer_tensor_shape(const struct model_desc *d, enum layer_tensor which) {
    int64_t hidden = d->hidden, ffn = d->ffn;
    int64_t q = (int64_t)d->n_heads * d->head_dim, kv = (int64_t)d->n_kv_heads * d->head_dim;
    switch (which) {
    case LAYER_Q: return (struct tensor_shape){hidden, q, false};
    case LAYER_K:
    case LAYER_V: return (struct tensor_shape){hidden, kv, false};
    case LAYER_O: return (struct tensor_shape){q, hidden, false};
    case LAYER_GATE:
    case LAYER_UP: return (struct tensor_shape){hidden, ffn, false};
    case LAYER_DOWN: return (struct tensor_shape){ffn, hidden, false};
    case LAYER_ATTN_NORM:
    case LAYER_FFN_NORM: return (struct tensor_shape){hidden, 1, false};
    case LAYER_Q_BIAS: return (struct tensor_shape){q, 1, !d->needs_qkv_bias};
    case LAYER_K_BIAS:
    case LAYER_V_BIAS: return (struct tensor_shape){kv, 1, !d->needs_qkv_bias};
    case LAYER_O_BIAS:
    case LAYER_DOWN_BIAS: return (struct tensor_shape){hidden, 1, true};
    case LAYER_GATE_BIAS:
    case LAYER_UP_BIAS: return (struct tensor_shape){ffn, 1, true};
    default: return (struct tensor_shape){0, 0, true};
    }
}

void layer_tensor_name(char out[TENSOR_NAME_MAX], int layer, enum layer_tensor which) {
    snprintf(out, TENSOR_NAME_MAX, "blk.%d.%s", layer, names[which]);
}
