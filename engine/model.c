/* The forward pass: one linear function for the whole Llama family, read top to bottom. Shapes stand beside each step.
 *
 * Every row of every operation depends on its own inputs alone (kernels/backend.h), so what a token gets does not depend on the
 * batch it came in. Rows whose logits nobody wants stop after the last layer's keys and values: the rest of that layer is computed
 * for wanted rows only.
 *
 * Owner: the engine thread. A step allocates nothing. */
#include "engine/model.h"

#include <string.h>

#include "engine/base/checked.h"
#include "engine/model_internal.h"

/* ---- buffers ---- */

size_t act_bytes(int n_tokens, int n_cols) {
    size_t n = (size_t)n_tokens, cols = (size_t)n_cols, groups = (cols + GROUP_COLS - 1) / GROUP_COLS;
    return round_up(n * cols * sizeof(float), 64) + round_up(n * cols, 64) + round_up(n * cols * sizeof(int16_t), 64) +
           3 * round_up(n * groups * sizeof(float), 64) + round_up(2 * n * groups * sizeof(float), 64) +
           round_up(2 * n * groups * sizeof(int32_t), 64);
}

void act_alloc(struct act *a, struct ledger *ledger, enum ledger_line_id line, int n_tokens, int n_cols) {
    size_t n = (size_t)n_tokens, cols = (size_t)n_cols, groups = (cols + GROUP_COLS - 1) / GROUP_COLS;
    a->n_cols = n_cols;
    a->f = ledger_alloc(ledger, line, n * cols * sizeof(float));
    a->q = ledger_alloc(ledger, line, n * cols);
    a->scale = ledger_alloc(ledger, line, 2 * n * groups * sizeof(float)); /* groups of 16 */
    a->sum = ledger_alloc(ledger, line, n * groups * sizeof(float));
    a->zero = ledger_alloc(ledger, line, 2 * n * groups * sizeof(int32_t));
    a->wide = ledger_alloc(ledger, line, n * cols * sizeof(int16_t));
    a->wide_scale = ledger_alloc(ledger, line, n * groups * sizeof(float));
    a->wide_sum = ledger_alloc(ledger, line, n * groups * sizeof(float));
}

size_t model_activation_bytes(const struct model_desc *d, int max_batch_tokens) {
    size_t n = (size_t)max_batch_tokens, q = (size_t)d->n_heads * (size_t)d->head_dim,
           kv = (size_t)d->n_kv_heads * (size_t)d->head_dim;
    size_t rows[] = {(size_t)d->hidden, q, kv, kv, q, (size_t)d->ffn, (size_t)d->ffn, (size_t)d->hidden};
    size_t total = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) total += round_up(n * rows[i] * sizeof(float), 64);
    return total + act_bytes(max_batch_tokens, d->hidden) + act_bytes(max_batch_tokens, d->n_heads * d->head_dim) +
           act_bytes(max_batch_tokens, d->ffn);
}

size_t model_logit_bytes(const struct model_desc *d, int max_logit_rows) {
    return act_bytes(max_logit_rows, d->hidden) + round_up((size_t)max_logit_rows * (size_t)d->vocab * sizeof(float), 64);
}

void model_close(struct model *m) { (void)m; /* all of it lives in the ledger's arenas */ }

const struct model_desc *model_description(const struct model *m) { return &m->desc; }

/* ---- forward ---- */

static struct linear_job job(const struct layer_weights *w, enum layer_tensor matrix, enum layer_tensor bias, float *y,
                             bool add) {
    const struct weight *weight = &w->matrices[matrix];
    return (struct linear_job){weight, w->vectors[bias], y, weight->n_rows, add};
}

static void project(struct model *m, const struct linear_job *jobs, int n_jobs, const struct act *in, int n) {
    m->backend->linear(m->backend, jobs, n_jobs, in, n, m->options.activations == ACTIVATIONS_F32);
}

/* q, k, v of all rows, rotated; k and v into the cache. */
static void project_and_append(struct model *m, int layer, const struct batch *batch, const struct kv_view *kv) {
    struct backend *be = m->backend;
    struct activation_buffers *b = &m->buffers;
    const struct layer_weights *w = &m->layers[layer];
    int n = batch->n_tokens, q_cols = m->desc.n_heads * m->desc.head_dim, kv_cols = m->desc.n_kv_heads * m->desc.head_dim;
    be->rms_norm(be, &b->normed, w->attn_kinds, b->x, w->vectors[LAYER_ATTN_NORM], m->desc.norm_eps, n);
    struct linear_job jobs[] = {job(w, LAYER_Q, LAYER_Q_BIAS, b->q, false), job(w, LAYER_K, LAYER_K_BIAS, b->k, false),
                                job(w, LAYER_V, LAYER_V_BIAS, b->v, false)};
    project(m, jobs, 3, &b->normed, n); /* [n, heads·head_dim] */
    be->rope_append(be, b->q, q_cols, b->k, b->v, kv_cols, &m->rope, &m->shape, kv, layer, batch->seqs, batch->n_seqs);
}

/* x += O · attended, x += down · (gate ⊙ up), for n rows of x and attended. */
static void mix(struct model *m, int layer, float *x, const float *attended, int n) {
    struct backend *be = m->backend;
    struct activation_buffers *b = &m->buffers;
    const struct layer_weights *w = &m->layers[layer];
    be->quantize(be, &b->attended_in, w->o_kinds, attended, n);
    struct linear_job out = job(w, LAYER_O, LAYER_O_BIAS, x, true);
    project(m, &out, 1, &b->attended_in, n); /* [n, hidden] */
    be->rms_norm(be, &b->normed, w->ffn_kinds, x, w->vectors[LAYER_FFN_NORM], m->desc.norm_eps, n);
    struct linear_job gate_up[] = {job(w, LAYER_GATE, LAYER_GATE_BIAS, b->gate, false),
                                   job(w, LAYER_UP, LAYER_UP_BIAS, b->up, false)};
    project(m, gate_up, 2, &b->normed, n); /* [n, ffn] */
    be->gated(be, &b->gated, w->down_kinds, m->desc.gate, b->gate, b->up, n);
    struct linear_job down = job(w, LAYER_DOWN, LAYER_DOWN_BIAS, x, true);
    project(m, &down, 1, &b->gated, n); /* [n, hidden] */
}

/* Gathers rows (ascending) of `from` to the front of `to`, which may be the same array. */
static void gather_rows(float *to, const float *from, const int32_t *rows, int n, int cols) {
    for (int i = 0; i < n; i++)
        memmove(to + (size_t)i * (size_t)cols, from + (size_t)rows[i] * (size_t)cols, (size_t)cols * sizeof *to);
}

void model_forward(struct model *m, const struct batch *batch, const struct kv_view *kv) {
    struct backend *be = m->backend;
    struct activation_buffers *b = &m->buffers;
    const struct model_desc *d = &m->desc;
    int q_cols = d->n_heads * d->head_dim;
    be->embed(be, b->x, &m->embedding, batch->tokens, batch->n_tokens, 1.0f); /* [n_tokens, hidden] */
    for (int layer = 0; layer < d->n_layers; layer++) {
        bool is_last = layer == d->n_layers - 1;
        project_and_append(m, layer, batch, kv);
        if (is_last && batch->n_logits == 0) return;
        be->attention(be, b->attended, b->q, q_cols, &m->shape, kv, layer, batch->seqs, batch->n_seqs);
        if (!is_last) mix(m, layer, b->x, b->attended, batch->n_tokens);
    }
    gather_rows(b->wanted, b->x, batch->logit_rows, batch->n_logits, d->hidden);
    gather_rows(b->attended, b->attended, batch->logit_rows, batch->n_logits, q_cols);
    mix(m, d->n_layers - 1, b->wanted, b->attended, batch->n_logits);
}

float *model_logits(struct model *m, int first, int n) {
    if (n > m->options.max_logit_rows) BUG("model_logits: %d rows asked, at most %d", n, m->options.max_logit_rows);
    struct backend *be = m->backend;
    const float *rows = m->buffers.wanted + (size_t)first * (size_t)m->desc.hidden;
    be->rms_norm(be, &m->buffers.head_in, m->head_kinds, rows, m->output_norm, m->desc.norm_eps, n);
    struct linear_job head = {&m->head, NULL, m->logits, m->desc.vocab, false};
    project(m, &head, 1, &m->buffers.head_in, n); /* [n, vocab] */
    return m->logits;
}
