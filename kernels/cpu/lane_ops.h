/* The vector operations of one instruction set, as a table, and their place in the CPU backend.
 *
 * lane_ops_{plain,avx2,avx512}.c fill a table each from the same source (lanes.h); lane_ops.c and attention.c cut an operation
 * into tasks for the threads. Entries are called with ranges that exist, and from any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_ops.h"

#define MAX_HEAD_DIM 256
/* Query rows a task of attention takes at most: enough that a segment's keys and values are used many times while in cache. */
#define ATTENTION_ROWS 24
/* Floats between the scores of two rows: rows must not fall on the same lines of the L1 cache. */
#define SCORE_STRIDE (ATTENTION_SEGMENT + 16)
#define AHEAD_TILES 4
#define SEGMENT_TILES (ATTENTION_SEGMENT / KV_TILE_TOKENS)

struct rope_append_args {
    float *q;
    const float *k, *v;
    int q_stride, kv_stride, layer;
    const struct rope_table *rope;
    const struct attention_shape *shape;
    const struct kv_view *kv;
};

/* Up to ATTENTION_ROWS query rows of one sequence that read one kv head, positions ascending. */
struct attention_task {
    const float *q[ATTENTION_ROWS];
    float *out[ATTENTION_ROWS];
    int position[ATTENTION_ROWS];
    int n_rows, head_dim;
    float scale;
    const struct kv_view *kv;
    const int32_t *blocks;
    size_t key_offset, value_offset; /* of the head in a block */
};

/* What one thread needs for a task. Vectors of head_dim floats lie `stride` apart. */
struct attention_scratch {
    float *scores;  /* [ATTENTION_ROWS, SCORE_STRIDE] */
    float *partial; /* [ATTENTION_ROWS, stride] values of the segment at hand */
    float *total;   /* [ATTENTION_ROWS, stride] of all segments so far */
    size_t stride;
    float partial_max[ATTENTION_ROWS], partial_sum[ATTENTION_ROWS];
    float total_max[ATTENTION_ROWS], total_sum[ATTENTION_ROWS];
    int visible[ATTENTION_ROWS];                            /* keys of the segment that a row sees; may be below 1 */
    const uint16_t *tiles[2 * SEGMENT_TILES + AHEAD_TILES]; /* all of a segment's, and some to fetch ahead */
    const uint16_t *const *keys, *const *values;            /* in tiles */
};

struct cpu_lane_ops {
    /* Rows [first, end) of the operations of backend.h. */
    void (*rms_norm)(struct act *y, unsigned kinds, const float *x, const float *weight, float eps, int first, int end);
    void (*quantize)(struct act *y, unsigned kinds, const float *x, int first, int end);
    void (*gated)(struct act *y, unsigned kinds, enum gate_kind kind, const float *g, const float *u, int first, int end);
    void (*row_stats)(struct row_stat *stat, const float *logits, int n_cols);
    void (*sample_weights)(const struct sample_weights *out, const float *logits, int n_cols, float max,
                           float inverse_temperature, float least);
    double (*sample_mass_above)(const struct sample_weights *row, int n_cols, int32_t id);
    int (*sample_band)(struct candidate *found, const struct sample_weights *row, int n_cols, float least, float below);
    void (*rope_append)(const struct rope_append_args *args, int row, int position, const int32_t *blocks);
    /* Fills w->partial, partial_max and partial_sum for the rows that see a key of the segment; the last row does. Returns the
     * first such row; those after it are too. */
    int (*attention_segment)(struct attention_scratch *w, const struct attention_task *task, int segment);
    /* Merges a later segment into o, max, sum. */
    void (*attention_merge)(float *o, float *max, float *sum, const float *segment_o, float segment_max, float segment_sum,
                            int head_dim);
    /* out = o / sum */
    void (*attention_finish)(float *out, const float *o, float sum, int head_dim);
    /* y = e^x */
    void (*exp)(float *y, const float *x, int n);
};

extern const struct cpu_lane_ops cpu_lane_ops_plain;
#ifdef TALLY_X86
extern const struct cpu_lane_ops cpu_lane_ops_avx2, cpu_lane_ops_avx512;
#endif

/* The table of an instruction set that this build has; NULL otherwise. */
const struct cpu_lane_ops *cpu_lane_ops_of(enum cpu_isa isa);

/* Bytes of attention's workspace: each thread's scratch, and partial results of rows whose segments threads share. */
size_t cpu_attention_workspace_bytes(const struct cpu_backend_options *options);

/* Fills b->lane_ops for b->isa, and every operation of b->ops but linear, parallel and close. */
void cpu_install_lane_ops(struct cpu_backend *b);

/* The operations of attention.c. */
void cpu_attention(struct backend *b, float *out, const float *q, int q_stride, const struct attention_shape *shape,
                   const struct kv_view *kv, int layer, const struct attn_seq *seqs, int n_seqs);
