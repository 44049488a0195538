/* The operations a forward pass is made of, as a table: the model knows shapes and order, a backend knows a device.
 *
 * All pointers are device memory that the caller owns (host memory for the CPU backend). Calls are made by one thread, in order;
 * each is complete for the next one when it returns. Shapes are [rows, columns], row-major, rows of activations are tokens.
 *
 * Promise: a row of any result depends only on that row's inputs, never on how many rows came along or on the number of
 * threads, and every instruction set gives the same bits. The order of every float sum is part of the contract:
 *   linear     groups of 32 columns ascending. INT4 weights with INT8 activations: s = x_scale₀·(float)dot₀ of the group's first 16
 *              columns, s = fma(x_scale₁, (float)dot₁, s) with its last 16, acc = fma(w_scale, s, acc); INT8 weights with INT16
 *              activations: acc = fma(w_scale·x_scale, (float)dot, acc); with a minimum then acc = fma(w_min, x_sum, acc);
 *              float weights: columns ascending, acc = fma(w, x, acc). acc starts at 0; bias, then the residual, are added last.
 *   vectors    16 lanes, lane = index mod 16, then lanes i and i+8, i+4, i+2, i+1
 *   attention  q·k: dimensions ascending, one fma each; keys in segments of ATTENTION_SEGMENT positions counted from 0, each with
 *              its own maximum, its exp sum in 16 lanes (lane = position mod 16) and values added keys ascending, one fma each;
 *              segments merged ascending. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kv_layout.h"
#include "quant/format.h"

#define ATTENTION_SEGMENT 256

/* A linear layer's input.
 *   INT8   per group of 16 columns scale = amax/127 (F32), q = round to nearest even(x·(127/amax)), zero = −8·Σq; per 32 columns
 *          sum = fma(scale₁, Σq₁, scale₀·Σq₀). Groups of 16 lose half of what groups of 32 lose, for a seventh more time.
 *   INT16  per group of 32 columns, 32767 for 127: with INT8 weights its products cost on AVX2 what INT8's do, and it is all but exact.
 * An all-zero (or non-normal) amax gives zeros. */
#define ACT_GROUP_COLS 16
struct act {
    int n_cols;
    float *f;          /* [n_tokens, n_cols] */
    int8_t *q;         /* [n_tokens, n_cols]; n_cols % 32 = 0 */
    float *scale;      /* [n_tokens, n_cols/16] */
    float *sum;        /* [n_tokens, n_cols/32] */
    int32_t *zero;     /* [n_tokens, n_cols/16]: what makes the dot with an unsigned nibble q that with q − 8 */
    int16_t *wide;     /* [n_tokens, n_cols], each four columns in the order 0, 2, 1, 3, as products of pairs want them */
    float *wide_scale; /* [n_tokens, n_cols/32] */
    float *wide_sum;   /* [n_tokens, n_cols/32] */
};
enum act_kind { ACT_F32 = 1, ACT_INT8 = 2, ACT_INT16 = 4 }; /* which an operation writes; a set of flags */

struct linear_job {
    const struct weight *w; /* [n_rows, x->n_cols] */
    const float *bias;      /* [n_rows] or NULL */
    float *y;               /* y[t·y_stride + r] */
    int y_stride;
    bool add; /* y += instead of y = */
};

/* The rows of one sequence in a step: tokens at positions first_position ... of the sequence, rows first_row ... of the batch. */
struct attn_seq {
    int first_row, n_rows, first_position;
    const int32_t *blocks; /* block numbers of the sequence from position 0, enough for first_position + n_rows tokens */
};

struct kv_view {
    struct kv_layout layout;
    void *base; /* block b at base + b·kv_block_bytes */
};

enum rope_pairs { ROPE_NONE, ROPE_ADJACENT /* (2i, 2i+1): llama */, ROPE_HALVES /* (i, i + n/2): qwen2 */ };

struct rope_table {
    enum rope_pairs pairs;
    int n_rot;            /* dimensions rotated, even, at most head_dim; the rest pass through */
    const float *cos_sin; /* [max_positions][n_rot/2][2]: cos, sin */
};

struct attention_shape {
    int n_heads, n_kv_heads, head_dim; /* head_dim % 16 = 0 */
    float scale;                       /* score = scale·(q·k) */
};

/* Ids that share a sum and a maximum in sample_weights. */
#define SAMPLE_CHUNK 256

/* What a draw from a row of logits needs. Owned by the caller. */
struct sample_weights {
    float *weights;                   /* [n_cols] */
    float *chunk_sums, *chunk_maxima; /* [n_cols / SAMPLE_CHUNK, rounded up] */
};

/* An id that may be drawn, and its weight in sample_weights. */
struct candidate {
    int32_t id;
    float weight;
};

enum gate_kind { GATE_SILU, GATE_GELU_TANH };

/* What sampling needs of a row of logits before it looks at single ids. NaN logits count as −infinity. */
struct row_stat {
    float max;
    int32_t argmax;    /* the lowest id among equals */
    float log_sum_exp; /* natural; logprob of id = logits[id] − log_sum_exp */
};

struct backend {
    const char *name; /* "cpu plain", "cpu avx2", ... */
    /* x [n_tokens, w->n_cols] = rows of w (weight_row_f32), times factor if it is not 1. Ids are in range. */
    void (*embed)(struct backend *b, float *x, const struct weight *w, const int32_t *ids, int n_tokens, float factor);
    /* y = x / sqrt(mean(x²) + eps) · weight, written as the kinds asked for. */
    void (*rms_norm)(struct backend *b, struct act *y, unsigned kinds, const float *x, const float *weight, float eps,
                     int n_tokens);
    /* x [n_tokens, n_cols] as it is, into the kinds asked for: the input of a linear layer that follows no norm. */
    void (*quantize)(struct backend *b, struct act *y, unsigned kinds, const float *x, int n_tokens);
    /* Every job reads the same x. Integer weights with INT8 activations, or exactly in F32 when use_f32; float weights read x->f. */
    void (*linear)(struct backend *b, const struct linear_job *jobs, int n_jobs, const struct act *x, int n_tokens,
                   bool use_f32);
    /* Rotates q [n_tokens, n_heads·head_dim] in place (row stride q_stride), and stores rotated k and v (row stride kv_stride,
     * heads side by side) as F16 in the blocks of each sequence. */
    void (*rope_append)(struct backend *b, float *q, int q_stride, const float *k, const float *v, int kv_stride,
                        const struct rope_table *rope, const struct attention_shape *shape, const struct kv_view *kv, int layer,
                        const struct attn_seq *seqs, int n_seqs);
    /* out [n_tokens, n_heads·head_dim] = attention of q over the cache, causal. Grouped heads: q head h reads kv head
     * h / (n_heads/n_kv_heads). Written as F32; follow with quantize. */
    void (*attention)(struct backend *b, float *out, const float *q, int q_stride, const struct attention_shape *shape,
                      const struct kv_view *kv, int layer, const struct attn_seq *seqs, int n_seqs);
    /* y = gate(g)·u for g, u [n_tokens, y->n_cols]. */
    void (*gated)(struct backend *b, struct act *y, unsigned kinds, enum gate_kind kind, const float *g, const float *u,
                  int n_tokens);
    /* stats [n_rows] of logits [n_rows, n_cols]. */
    void (*row_stats)(struct backend *b, struct row_stat *stats, const float *logits, int n_rows, int n_cols);
    /* weights [n_cols] = exp((logits − max)·inverse_temperature), at most 1, where that is at least `least`, else 0; 0 also for NaN and
     * below 2.7e-38. max is the row's. And each chunk's sum and largest. On the calling thread: a row takes microseconds. */
    void (*sample_weights)(struct backend *b, const struct sample_weights *out, const float *logits, int n_cols, float max,
                           float inverse_temperature, float least);
    /* Sum of the weights that are better than id's: larger, or as large with a lower id. On the calling thread. */
    double (*sample_mass_above)(struct backend *b, const struct sample_weights *row, int n_cols, int32_t id);
    /* Ids whose weight is in [least, below), ascending, into found [as many as there are]; returns how many. 0 < least. On the calling
     * thread. */
    int (*sample_band)(struct backend *b, struct candidate *found, const struct sample_weights *row, int n_cols, float least,
                       float below);
    /* Runs task(arg, i) for i in [0, n) on the backend's threads, for load-time packing. NULL where there are none. */
    void (*parallel)(struct backend *b, void (*task)(void *arg, int i), void *arg, int n);
    void (*close)(struct backend *b);
};
