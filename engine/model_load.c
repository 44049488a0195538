/* From a file to packed weights in the ledger's lines.
 *
 * Packing is one flat list of panels over all matrices, claimed by the backend's threads: a matrix is too small and too uneven a
 * unit. Pages of the file are given back matrix by matrix once all is packed, so the peak is the packed weights plus what of the
 * file's mapping the kernel keeps, which is its page cache and not ours. */
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/fmath.h"
#include "engine/model_internal.h"
#include "quant/import_gguf.h"

/* ---- bytes, for the plan ---- */

static size_t matrix_bytes(const struct gguf_tensor *t) {
    return t ? round_up(weight_bytes(import_gguf_format(t->type), t->ne[1], t->ne[0]), 64) : 0;
}

static size_t vector_bytes(const struct gguf_tensor *t) { return t ? round_up((size_t)t->ne[0] * sizeof(float), 64) : 0; }

static const struct gguf_tensor *layer_tensor_find(const struct gguf *g, int layer, enum layer_tensor which) {
    char name[TENSOR_NAME_MAX];
    layer_tensor_name(name, layer, which);
    return gguf_tensor_find(g, name);
}

size_t model_weight_bytes(const struct gguf *g, const struct model_desc *desc) {
    size_t total = matrix_bytes(gguf_tensor_find(g, "token_embd.weight")) + matrix_bytes(gguf_tensor_find(g, "output.weight"));
    for (int layer = 0; layer < desc->n_layers; layer++)
        for (int i = 0; i < LAYER_MATRIX_COUNT; i++) total += matrix_bytes(layer_tensor_find(g, layer, (enum layer_tensor)i));
    return total;
}

size_t model_norm_bytes(const struct gguf *g, const struct model_desc *desc) {
    size_t total = vector_bytes(gguf_tensor_find(g, "output_norm.weight"));
    for (int layer = 0; layer < desc->n_layers; layer++)
        for (int i = LAYER_MATRIX_COUNT; i < LAYER_TENSOR_COUNT; i++)
            total += vector_bytes(layer_tensor_find(g, layer, (enum layer_tensor)i));
    return total + round_up((size_t)desc->n_layers * sizeof(struct layer_weights), 64) + round_up(sizeof(struct model), 64);
}

size_t model_rope_bytes(const struct model_desc *desc, int max_context) {
    return round_up((size_t)max_context * (size_t)desc->n_rot * sizeof(float), 64);
}

/* ---- rotary table ---- */

/* cos and sin of position·scale·base^(−2i/n_rot), in double, by our own functions: the same table on every machine. */
static void fill_rope(float *table, const struct model_desc *d, const float *factors, int max_context) {
    int half = d->n_rot / 2;
    for (int i = 0; i < half; i++) {
        double frequency = det_exp(-2.0 * i / d->n_rot * det_log((double)d->rope_base)) * (double)d->rope_scale;
        if (factors) frequency /= (double)factors[i];
        for (int position = 0; position < max_context; position++) {
            double sine, cosine;
            det_sincos(position * frequency, &sine, &cosine);
            float *pair = table + ((size_t)position * (size_t)half + (size_t)i) * 2;
            pair[0] = (float)cosine;
            pair[1] = (float)sine;
        }
    }
}

/* ---- packing ---- */

struct packing_job {
    const struct gguf_tensor *tensor;
    char *to;
    int first_panel; /* index of this matrix's first panel in the flat list */
};

struct packing {
    struct packing_job *jobs; /* ascending by first_panel */
    int n_jobs, n_panels;
};

static int panels_of(const struct gguf_tensor *t) { return (int)((t->ne[1] + PANEL_ROWS - 1) / PANEL_ROWS); }

static void pack_panel(void *arg, int index) {
    const struct packing *p = arg;
    int low = 0, high = p->n_jobs - 1;
    while (low < high) { /* the last job that starts at or before index */
        int middle = (low + high + 1) / 2;
        if (p->jobs[middle].first_panel <= index) low = middle;
        else high = middle - 1;
    }
    const struct packing_job *job = &p->jobs[low];
    const struct gguf_tensor *t = job->tensor;
    int64_t panel = index - job->first_panel;
    size_t bytes = wfmt_panel_bytes(import_gguf_format(t->type), (int)t->ne[0]);
    import_gguf_panel(job->to + (size_t)panel * bytes, t->type, t->data, t->ne[1], t->ne[0], panel * PANEL_ROWS);
}

struct loader {
    const struct gguf *g;
    struct model *m;
    struct ledger *ledger;
    struct packing packing;
};

static void add_matrix(struct loader *l, struct weight *w, const struct gguf_tensor *t) {
    enum wfmt fmt = import_gguf_format(t->type);
    char *to = ledger_alloc(l->ledger, LINE_WEIGHTS, weight_bytes(fmt, t->ne[1], t->ne[0]));
    *w = (struct weight){fmt, (int)t->ne[1], (int)t->ne[0], to};
    l->packing.jobs[l->packing.n_jobs++] = (struct packing_job){t, to, l->packing.n_panels};
    l->packing.n_panels += panels_of(t);
}

static const float *load_vector(struct loader *l, const struct gguf_tensor *t) {
    if (!t) return NULL;
    float *to = ledger_alloc(l->ledger, LINE_NORMS, (size_t)t->ne[0] * sizeof(float));
    ggml_row_f32(t->type, t->data, t->ne[0], to);
    return to;
}

static unsigned kind_of(const struct model *m, enum wfmt fmt) {
    if (m->options.activations == ACTIVATIONS_F32 || !wfmt_is_integer(fmt)) return ACT_F32;
    return fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M ? ACT_INT8 : ACT_INT16;
}

static unsigned kinds_of(const struct model *m, const struct weight *matrices, int first, int last) {
    unsigned kinds = 0;
    for (int i = first; i <= last; i++) kinds |= kind_of(m, matrices[i].fmt);
    return kinds;
}

static void load_layer(struct loader *l, int layer) {
    struct layer_weights *w = &l->m->layers[layer];
    for (int i = 0; i < LAYER_TENSOR_COUNT; i++) {
        const struct gguf_tensor *t = layer_tensor_find(l->g, layer, (enum layer_tensor)i);
        if (i < LAYER_MATRIX_COUNT) add_matrix(l, &w->matrices[i], t);
        else w->vectors[i] = load_vector(l, t);
    }
    w->attn_kinds = kinds_of(l->m, w->matrices, LAYER_Q, LAYER_V);
    w->o_kinds = kinds_of(l->m, w->matrices, LAYER_O, LAYER_O);
    w->ffn_kinds = kinds_of(l->m, w->matrices, LAYER_GATE, LAYER_UP);
    w->down_kinds = kinds_of(l->m, w->matrices, LAYER_DOWN, LAYER_DOWN);
}

static void load_all(struct loader *l) {
    struct model *m = l->m;
    const struct model_desc *d = &m->desc;
    add_matrix(l, &m->embedding, gguf_tensor_find(l->g, "token_embd.weight"));
    if (d->tied_head) m->head = m->embedding;
    else add_matrix(l, &m->head, gguf_tensor_find(l->g, "output.weight"));
    m->head_kinds = kinds_of(m, &m->head, 0, 0);
    for (int layer = 0; layer < d->n_layers; layer++) load_layer(l, layer);
    m->output_norm = load_vector(l, gguf_tensor_find(l->g, "output_norm.weight"));
    m->backend->parallel(m->backend, pack_panel, &l->packing, l->packing.n_panels);
    for (int i = 0; i < l->packing.n_jobs; i++) gguf_tensor_drop(l->g, l->packing.jobs[i].tensor);
}

static enum status check_factors(const struct model_desc *d, const float *factors, struct err *err) {
    for (int i = 0; i < d->n_rot / 2; i++)
        if (!(factors[i] > 0) || !model_has_angles(d, (double)factors[i]))
            return err_set_param(err, STATUS_CORRUPT, "rope_freqs.weight",
                                 "model: rope_freqs.weight[%d] is %g, allowed are factors over 0", i, (double)factors[i]);
    return STATUS_OK;
}

static enum status load_rope(struct loader *l, struct err *err) {
    struct model *m = l->m;
    const struct model_desc *d = &m->desc;
    float *table = ledger_alloc(l->ledger, LINE_ROPE, model_rope_bytes(d, m->options.max_context));
    const struct gguf_tensor *factors = d->has_rope_factors ? gguf_tensor_find(l->g, "rope_freqs.weight") : NULL;
    float values[MODEL_MAX_HEAD_DIM / 2];
    if (factors) {
        ggml_row_f32(factors->type, factors->data, factors->ne[0], values);
        enum status s = check_factors(d, values, err);
        if (s) return s;
    }
    fill_rope(table, d, factors ? values : NULL, m->options.max_context);
    m->rope = (struct rope_table){d->rope_pairs, d->n_rot, table};
    return STATUS_OK;
}

static void alloc_buffers(struct model *m, struct ledger *ledger) {
    const struct model_desc *d = &m->desc;
    struct activation_buffers *b = &m->buffers;
    int n = m->options.max_batch_tokens, q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;
#define ROWS(cols) ledger_alloc(ledger, LINE_ACTIVATIONS, (size_t)n *(size_t)(cols) * sizeof(float))
    b->x = ROWS(d->hidden);
    b->q = ROWS(q);
    b->k = ROWS(kv);
    b->v = ROWS(kv);
    b->attended = ROWS(q);
    b->gate = ROWS(d->ffn);
    b->up = ROWS(d->ffn);
    b->wanted = ROWS(d->hidden);
#undef ROWS
    act_alloc(&b->normed, ledger, LINE_ACTIVATIONS, n, d->hidden);
    act_alloc(&b->attended_in, ledger, LINE_ACTIVATIONS, n, q);
    act_alloc(&b->gated, ledger, LINE_ACTIVATIONS, n, d->ffn);
    act_alloc(&b->head_in, ledger, LINE_LOGITS, m->options.max_logit_rows, d->hidden);
    m->logits = ledger_alloc(ledger, LINE_LOGITS, (size_t)m->options.max_logit_rows * (size_t)d->vocab * sizeof(float));
}

enum status model_load(struct model **out, const struct gguf *g, const struct model_desc *desc,
                       const struct model_options *options, struct backend *backend, struct ledger *ledger, struct err *err) {
    struct packing_job jobs[2 + LAYER_MATRIX_COUNT * MODEL_MAX_LAYERS]; /* 100 KiB of stack at load */
    if (desc->n_layers > MODEL_MAX_LAYERS)
        return err_set(err, STATUS_UNSUPPORTED, "model: more than %d layers", MODEL_MAX_LAYERS);
    struct model *m = ledger_alloc(ledger, LINE_NORMS, sizeof *m);
    m->desc = *desc;
    m->options = *options;
    m->backend = backend;
    m->layers = ledger_alloc(ledger, LINE_NORMS, (size_t)desc->n_layers * sizeof *m->layers);
    m->shape = (struct attention_shape){desc->n_heads, desc->n_kv_heads, desc->head_dim, desc->attention_scale};
    struct loader loader = {g, m, ledger, {jobs, 0, 0}};
    enum status s = load_rope(&loader, err);
    if (s) return s;
    load_all(&loader);
    alloc_buffers(m, ledger);
    *out = m;
    return STATUS_OK;
}
