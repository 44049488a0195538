/* Vector operations cut into tasks of whole rows. A row's arithmetic is in *_lanes.h and knows nothing of other rows, so neither
 * the number of threads nor that of rows can change a bit. Little work stays on the calling thread: waking another costs more. */
#include "kernels/cpu/lane_ops.h"

#include <stdint.h>

#include "engine/base/err.h"

/* Elements below which a second thread does not pay: some 5 µs of work. */
#define PARALLEL_ELEMENTS 24576
#define TASKS_PER_THREAD 4

/* Rows [0, n_rows) in tasks of rows_per_task. */
struct rows_job {
    void (*rows)(const struct rows_job *job, int first, int end);
    const struct cpu_backend *cpu;
    int n_rows, rows_per_task;
    /* What the operations need of these. */
    struct act *y;
    unsigned kinds;
    const float *x, *u, *weight;
    float eps, factor;
    enum gate_kind gate;
    struct row_stat *stats;
    int n_cols;
    const struct weight *w;
    const int32_t *ids;
    float *out;
    const struct rope_append_args *rope;
    const struct attn_seq *seqs;
};

static void rows_task(void *arg, int index, int thread) {
    const struct rows_job *job = arg;
    int first = index * job->rows_per_task;
    int end = job->n_rows - first < job->rows_per_task ? job->n_rows : first + job->rows_per_task;
    job->rows(job, first, end);
}

static void run_rows(struct rows_job *job, int n_rows, int64_t elements_per_row) {
    int n_threads = job->cpu->n_threads;
    job->n_rows = n_rows;
    if (n_rows <= 0) return;
    if (n_threads == 1 || n_rows == 1 || n_rows * elements_per_row < PARALLEL_ELEMENTS) {
        job->rows(job, 0, n_rows);
        return;
    }
    job->rows_per_task = 1 + (n_rows - 1) / (n_threads * TASKS_PER_THREAD);
    threadpool_run(job->cpu->pool, rows_task, job, 1 + (n_rows - 1) / job->rows_per_task);
}

static const struct cpu_backend *cpu_of(const struct backend *b) { return (const struct cpu_backend *)(const void *)b; }

static void rms_norm_task(const struct rows_job *j, int first, int end) {
    j->cpu->lane_ops->rms_norm(j->y, j->kinds, j->x, j->weight, j->eps, first, end);
}

static void cpu_rms_norm(struct backend *b, struct act *y, unsigned kinds, const float *x, const float *weight, float eps,
                         int n_tokens) {
    struct rows_job job = {rms_norm_task, cpu_of(b), .y = y, .kinds = kinds, .x = x, .weight = weight, .eps = eps};
    run_rows(&job, n_tokens, y->n_cols);
}

static void quantize_task(const struct rows_job *j, int first, int end) {
    j->cpu->lane_ops->quantize(j->y, j->kinds, j->x, first, end);
}

static void cpu_quantize(struct backend *b, struct act *y, unsigned kinds, const float *x, int n_tokens) {
    struct rows_job job = {quantize_task, cpu_of(b), .y = y, .kinds = kinds, .x = x};
    run_rows(&job, n_tokens, y->n_cols);
}

static void gated_task(const struct rows_job *j, int first, int end) {
    j->cpu->lane_ops->gated(j->y, j->kinds, j->gate, j->x, j->u, first, end);
}

static void cpu_gated(struct backend *b, struct act *y, unsigned kinds, enum gate_kind kind, const float *g, const float *u,
                      int n_tokens) {
    struct rows_job job = {gated_task, cpu_of(b), .y = y, .kinds = kinds, .gate = kind, .x = g, .u = u};
    run_rows(&job, n_tokens, 3 * (int64_t)y->n_cols); /* exp and a division */
}

static void row_stats_task(const struct rows_job *j, int first, int end) {
    for (int r = first; r < end; r++)
        j->cpu->lane_ops->row_stats(&j->stats[r], j->x + (size_t)r * (size_t)j->n_cols, j->n_cols);
}

static void cpu_row_stats(struct backend *b, struct row_stat *stats, const float *logits, int n_rows, int n_cols) {
    struct rows_job job = {row_stats_task, cpu_of(b), .stats = stats, .x = logits, .n_cols = n_cols};
    run_rows(&job, n_rows, 2 * (int64_t)n_cols);
}

static void cpu_sample_weights(struct backend *b, const struct sample_weights *out, const float *logits, int n_cols, float max,
                               float inverse_temperature, float least) {
    cpu_of(b)->lane_ops->sample_weights(out, logits, n_cols, max, inverse_temperature, least);
}

static double cpu_sample_mass_above(struct backend *b, const struct sample_weights *row, int n_cols, int32_t id) {
    return cpu_of(b)->lane_ops->sample_mass_above(row, n_cols, id);
}

static int cpu_sample_band(struct backend *b, struct candidate *found, const struct sample_weights *row, int n_cols,
                           float least, float below) {
    return cpu_of(b)->lane_ops->sample_band(found, row, n_cols, least, below);
}

static void embed_task(const struct rows_job *j, int first, int end) {
    int n_cols = j->w->n_cols;
    for (int t = first; t < end; t++) {
        float *row = j->out + (size_t)t * (size_t)n_cols;
        weight_row_f32(j->w, j->ids[t], row);
        if (j->factor != 1)
            for (int i = 0; i < n_cols; i++) row[i] *= j->factor;
    }
}

static void cpu_embed(struct backend *b, float *x, const struct weight *w, const int32_t *ids, int n_tokens, float factor) {
    struct rows_job job = {embed_task, cpu_of(b), .out = x, .w = w, .ids = ids, .factor = factor};
    run_rows(&job, n_tokens, 4 * (int64_t)w->n_cols); /* a row is gathered from a panel of 16 */
}

/* Rows counted through the sequences: sequence 0's rows first. */
static void rope_append_task(const struct rows_job *j, int first, int end) {
    const struct attn_seq *seq = j->seqs;
    int skipped = 0;
    for (int n = first; n < end; n++) {
        while (n - skipped >= seq->n_rows) skipped += (seq++)->n_rows;
        int i = n - skipped;
        j->cpu->lane_ops->rope_append(j->rope, seq->first_row + i, seq->first_position + i, seq->blocks);
    }
}

static void cpu_rope_append(struct backend *b, float *q, int q_stride, const float *k, const float *v, int kv_stride,
                            const struct rope_table *rope, const struct attention_shape *shape, const struct kv_view *kv,
                            int layer, const struct attn_seq *seqs, int n_seqs) {
    const struct rope_append_args args = {q, k, v, q_stride, kv_stride, layer, rope, shape, kv};
    struct rows_job job = {rope_append_task, cpu_of(b), .rope = &args, .seqs = seqs};
    int n_rows = 0;
    if (shape->head_dim > MAX_HEAD_DIM || shape->head_dim % 16 != 0) BUG("head_dim %d", shape->head_dim);
    for (int s = 0; s < n_seqs; s++) n_rows += seqs[s].n_rows;
    run_rows(&job, n_rows, 3 * (int64_t)(shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim);
}

const struct cpu_lane_ops *cpu_lane_ops_of(enum cpu_isa isa) {
    switch (isa) {
    case CPU_ISA_PLAIN: return &cpu_lane_ops_plain;
#ifdef TALLY_X86
    case CPU_ISA_AVX2: return &cpu_lane_ops_avx2;
    case CPU_ISA_AVX512: return &cpu_lane_ops_avx512;
#endif
    default: return NULL;
    }
}

void cpu_install_lane_ops(struct cpu_backend *b) {
    b->lane_ops = cpu_lane_ops_of(b->isa);
    b->ops.embed = cpu_embed;
    b->ops.rms_norm = cpu_rms_norm;
    b->ops.quantize = cpu_quantize;
    b->ops.rope_append = cpu_rope_append;
    b->ops.attention = cpu_attention;
    b->ops.gated = cpu_gated;
    b->ops.row_stats = cpu_row_stats;
    b->ops.sample_weights = cpu_sample_weights;
    b->ops.sample_mass_above = cpu_sample_mass_above;
    b->ops.sample_band = cpu_sample_band;
}
