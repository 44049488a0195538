/* The tensors of a layer: names in GGUF and shapes by the description. Shared by the description's check and the loader. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model.h"

#define TENSOR_NAME_MAX 64

/* Matrices first, then vectors: the order of both tables in model_tensors.c. */
enum layer_tensor {
    LAYER_Q,
    LAYER_K,
    LAYER_V,
    LAYER_O,
    LAYER_GATE,
    LAYER_UP,
    LAYER_DOWN,
    LAYER_ATTN_NORM,
    LAYER_FFN_NORM,
    LAYER_Q_BIAS,
    LAYER_K_BIAS,
    LAYER_V_BIAS,
    LAYER_O_BIAS,
    LAYER_GATE_BIAS,
    LAYER_UP_BIAS,
    LAYER_DOWN_BIAS,
    LAYER_TENSOR_COUNT,
    LAYER_MATRIX_COUNT = LAYER_ATTN_NORM,
};

struct tensor_shape {
    int64_t cols, rows; /* ne[0], ne[1] */
    bool optional;
};

struct tensor_shape layer_tensor_shape(const struct model_desc *d, enum layer_tensor which);
/* "blk.7.attn_q.weight" */
void layer_tensor_name(char out[TENSOR_NAME_MAX], int layer, enum layer_tensor which);
