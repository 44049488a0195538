/* Tiny models of every kind through the evaluator, against a forward written out here in double over the file's own weights: each
 * architecture, MHA, GQA and MQA, tied and untied heads, biases, rotary factors, scalings and partial rotations, every type of
 * weight, widths that are no multiple of a vector.
 *
 * The reference rounds keys and values to F16 as the cache does. With float activations what is left is the rounding of sums,
 * and of F16 keys that fall on the other side; with INT8 activations an error of some per cent of the logits' spread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/evaluator.h"
#include "engine/model_tensors.h"
#include "engine/plan.h"
#include "tests/unit/engine/tiny_model.h"

enum { MAX_TOKENS = 40 };

/* ---- the reference ---- */

struct reference {
    struct model_source source;
    int n_tokens;
    double *keys, *values; /* [layer][token][kv] */
    double *factors;       /* [n_rot/2] or NULL */
};

static double *numbers(int64_t n) {
    double *out = calloc((size_t)n, sizeof *out);
    assert_non_null(out);
    return out;
}

/* A tensor as doubles, [rows][cols]; NULL when the file has none. */
static double *weights(const struct gguf *g, const char *name) {
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    if (!t) return NULL;
    double *out = numbers(t->ne[0] * t->ne[1]);
    float *row = malloc((size_t)t->ne[0] * sizeof *row);
    assert_non_null(row);
    for (int64_t r = 0; r < t->ne[1]; r++) {
        ggml_row_f32(t->type, (const char *)t->data + (size_t)r * (t->bytes / (size_t)t->ne[1]), t->ne[0], row);
        for (int64_t c = 0; c < t->ne[0]; c++) out[r * t->ne[0] + c] = (double)row[c];
    }
    free(row);
    return out;
}

static double *layer_weights_of(const struct reference *r, int layer, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
    return weights(r->source.file, name);
}

/* y [rows] = W x, + bias; the weights by their names. */
static void matvec(const struct reference *r, int layer, const char *name, double *y, const double *x, int rows, int cols) {
    char matrix[32], vector[32];
    snprintf(matrix, sizeof matrix, "%s.weight", name);
    snprintf(vector, sizeof vector, "%s.bias", name);
    double *w = layer_weights_of(r, layer, matrix), *bias = layer_weights_of(r, layer, vector);
    for (int i = 0; i < rows; i++) {
        y[i] = bias ? bias[i] : 0;
        for (int j = 0; j < cols; j++) y[i] += w[(size_t)i * (size_t)cols + (size_t)j] * x[j];
    }
    free(w);
    free(bias);
}

static void norm(double *y, const double *x, double *weight, int n, double eps) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(squares / n + eps) * weight[i];
    free(weight);
}

static void rotate(const struct reference *r, double *head, int position) {
    const struct model_desc *d = &r->source.desc;
    bool adjacent = strcmp(d->architecture, "llama") == 0;
    for (int i = 0; i < d->n_rot / 2; i++) {
        double angle = position * (double)d->rope_scale * pow((double)d->rope_base, -2.0 * i / d->n_rot) /
                       (r->factors ? r->factors[i] : 1);
        double *a = head + (adjacent ? 2 * i : i), *b = adjacent ? a + 1 : a + d->n_rot / 2;
        double x = *a, y = *b;
        *a = x * cos(angle) - y * sin(angle);
        *b = y * cos(angle) + x * sin(angle);
    }
}

static void attend_head(const struct reference *r, double *out, const double *q, const double *keys, const double *values,
                        int kv_cols) {
    int head_dim = r->source.desc.head_dim;
    double scores[MAX_TOKENS], sum = 0, most = -INFINITY;
    for (int t = 0; t <= r->n_tokens; t++) {
        scores[t] = 0;
        for (int i = 0; i < head_dim; i++) scores[t] += q[i] * keys[t * kv_cols + i];
        scores[t] /= sqrt(head_dim);
        most = fmax(most, scores[t]);
    }
    for (int t = 0; t <= r->n_tokens; t++) sum += scores[t] = exp(scores[t] - most);
    for (int i = 0; i < head_dim; i++) {
        out[i] = 0;
        for (int t = 0; t <= r->n_tokens; t++) out[i] += scores[t] / sum * values[t * kv_cols + i];
    }
}

static void attend(struct reference *r, int layer, double *x) {
    const struct model_desc *d = &r->source.desc;
    int q_cols = d->n_heads * d->head_dim, kv_cols = d->n_kv_heads * d->head_dim;
    double *h = numbers(d->hidden), *q = numbers(q_cols), *out = numbers(q_cols), *mixed = numbers(d->hidden);
    double *keys = r->keys + (size_t)layer * MAX_TOKENS * (size_t)kv_cols,
           *values = r->values + (size_t)layer * MAX_TOKENS * (size_t)kv_cols;
    double *k = keys + (size_t)r->n_tokens * (size_t)kv_cols, *v = values + (size_t)r->n_tokens * (size_t)kv_cols;
    norm(h, x, layer_weights_of(r, layer, "attn_norm.weight"), d->hidden, (double)d->norm_eps);
    matvec(r, layer, "attn_q", q, h, q_cols, d->hidden);
    matvec(r, layer, "attn_k", k, h, kv_cols, d->hidden);
    matvec(r, layer, "attn_v", v, h, kv_cols, d->hidden);
    for (int i = 0; i < d->n_heads; i++) rotate(r, q + i * d->head_dim, r->n_tokens);
    for (int i = 0; i < d->n_kv_heads; i++) rotate(r, k + i * d->head_dim, r->n_tokens);
    for (int i = 0; i < kv_cols; i++)
        k[i] = (double)f16_to_f32(f32_to_f16((float)k[i])), v[i] = (double)f16_to_f32(f32_to_f16((float)v[i]));
    for (int i = 0; i < d->n_heads; i++) {
        int kv_head = i / (d->n_heads / d->n_kv_heads) * d->head_dim;
        attend_head(r, out + i * d->head_dim, q + i * d->head_dim, keys + kv_head, values + kv_head, kv_cols);
    }
    matvec(r, layer, "attn_output", mixed, out, d->hidden, q_cols);
    for (int i = 0; i < d->hidden; i++) x[i] += mixed[i];
    free(h), free(q), free(out), free(mixed);
}

static void feed_forward(struct reference *r, int layer, double *x) {
    const struct model_desc *d = &r->source.desc;
    double *h = numbers(d->hidden), *gate = numbers(d->ffn), *up = numbers(d->ffn), *down = numbers(d->hidden);
    norm(h, x, layer_weights_of(r, layer, "ffn_norm.weight"), d->hidden, (double)d->norm_eps);
    matvec(r, layer, "ffn_gate", gate, h, d->ffn, d->hidden);
    matvec(r, layer, "ffn_up", up, h, d->ffn, d->hidden);
    for (int i = 0; i < d->ffn; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    matvec(r, layer, "ffn_down", down, up, d->hidden, d->ffn);
    for (int i = 0; i < d->hidden; i++) x[i] += down[i];
    free(h), free(gate), free(up), free(down);
}

/* Appends a token; logits [vocab]. */
static void reference_append(struct reference *r, int32_t id, double *logits) {
    const struct model_desc *d = &r->source.desc;
    double *embedding = weights(r->source.file, "token_embd.weight"), *head = weights(r->source.file, "output.weight");
    double *x = numbers(d->hidden);
    memcpy(x, embedding + (size_t)id * (size_t)d->hidden, (size_t)d->hidden * sizeof *x);
    for (int layer = 0; layer < d->n_layers; layer++) {
        attend(r, layer, x);
        feed_forward(r, layer, x);
    }
    norm(x, x, weights(r->source.file, "output_norm.weight"), d->hidden, (double)d->norm_eps);
    for (int i = 0; i < d->vocab; i++) {
        logits[i] = 0;
        for (int j = 0; j < d->hidden; j++)
            logits[i] += (head ? head : embedding)[(size_t)i * (size_t)d->hidden + (size_t)j] * x[j];
    }
    r->n_tokens++;
    free(embedding), free(head), free(x);
}

static void reference_open(struct reference *r, const char *path) {
    struct err err = {0};
    memset(r, 0, sizeof *r);
    if (model_source_open(&r->source, path, &err)) fail_msg("%s", err.text);
    const struct model_desc *d = &r->source.desc;
    int64_t n = (int64_t)d->n_layers * MAX_TOKENS * d->n_kv_heads * d->head_dim;
    r->keys = numbers(n);
    r->values = numbers(n);
    r->factors = weights(r->source.file, "rope_freqs.weight");
}

static void reference_close(struct reference *r) {
    free(r->keys), free(r->values), free(r->factors);
    model_source_close(&r->source);
}

/* ---- the comparison ---- */

struct comparison {
    struct reference *r;
    const int32_t *ids;
    double *logits;       /* [MAX_TOKENS][vocab] of the reference */
    double error, spread; /* sums of squares: of differences, of the reference's logits */
    double worst_sum;
    int n_rows;
};

static void compare_row(void *context, int position, const float *logits, float log_sum_exp) {
    struct comparison *c = context;
    int vocab = c->r->source.desc.vocab;
    const double *exact = c->logits + (size_t)position * (size_t)vocab;
    double sum = 0;
    assert_int_equal(position, c->n_rows);
    for (int i = 0; i < vocab; i++) {
        c->error += ((double)logits[i] - exact[i]) * ((double)logits[i] - exact[i]);
        c->spread += exact[i] * exact[i];
        sum += exp((double)logits[i]);
    }
    c->worst_sum = fmax(c->worst_sum, fabs(log(sum) - (double)log_sum_exp));
    c->n_rows++;
}

/* Root mean square error of the logits, of their own root mean square, when n tokens come `at_once` at a time. */
static double error_of(const struct tiny_model *m, bool f32, int n, int at_once) {
    char path[64];
    struct reference r;
    struct evaluator *e;
    struct err err = {0};
    int32_t ids[MAX_TOKENS];
    uint64_t state = m->seed;
    tiny_write(m, path);
    reference_open(&r, path);
    struct comparison c = {&r, ids, numbers((int64_t)MAX_TOKENS * m->vocab), 0, 0, 0, 0};
    for (int i = 0; i < n; i++) {
        ids[i] = (int32_t)(tiny_next(&state) % (uint64_t)m->vocab);
        reference_append(&r, ids[i], c.logits + (size_t)i * (size_t)m->vocab);
    }
    struct engine_options options = {
        .model_path = path, .n_threads = 2, .activations_f32 = f32, .memory_budget = (size_t)256 << 20};
    if (evaluator_open(&e, &options, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < n; i += at_once)
        if (evaluator_append(e, ids + i, n - i < at_once ? n - i : at_once, true, compare_row, &c, &err))
            fail_msg("%s", err.text);
    evaluator_close(e);
    assert_int_equal(c.n_rows, n);
    assert_true(c.worst_sum < 1e-4);
    reference_close(&r);
    free(c.logits);
    unlink(path);
    return sqrt(c.error / c.spread);
}

static void assert_exact(const struct tiny_model *m, double limit, const char *what) {
    for (int at_once = 1; at_once <= MAX_TOKENS; at_once += MAX_TOKENS - 1) {
        double error = error_of(m, true, MAX_TOKENS, at_once);
        print_message("%s, %d at once: error %.2e\n", what, at_once, error);
        if (!(error < limit)) fail_msg("%s: error %g of the logits, allowed is %g", what, error, limit);
    }
}

#define ROUNDING 2e-4 /* measured: 1e-7 to 4e-5 */

/* ---- kinds of models ---- */

static void every_grouping_of_heads(void **state) {
    struct tiny_model m = tiny_llama;
    for (int kv = 1; kv <= 4; kv *= 2) {
        m.n_kv_heads = kv;
        assert_exact(&m, ROUNDING, kv == 1 ? "MQA" : kv == 2 ? "GQA" : "MHA");
    }
}

static void qwen2_with_biases(void **state) {
    struct tiny_model m = tiny_llama;
    m.architecture = "qwen2";
    m.has_biases = 1;
    assert_exact(&m, ROUNDING, "qwen2");
    m.is_tied = 1;
    m.n_kv_heads = 1;
    m.n_heads = 3;
    m.head_dim = 32; /* wider in all than hidden */
    m.n_rot = 0;
    assert_exact(&m, ROUNDING, "qwen2, tied, 3 heads of 32");
}

static void biases_of_a_llama(void **state) {
    struct tiny_model m = tiny_llama;
    m.has_biases = 1;
    assert_exact(&m, ROUNDING, "llama with biases");
}

static void tied_heads(void **state) {
    struct tiny_model m = tiny_llama;
    m.is_tied = 1;
    assert_exact(&m, ROUNDING, "tied");
}

static void rotary_factors_and_scaling(void **state) {
    struct tiny_model m = tiny_llama;
    m.has_factors = 1;
    assert_exact(&m, ROUNDING, "factors");
    m.rope_scale_factor = 4;
    m.rope_base = 500000;
    assert_exact(&m, ROUNDING, "factors and scaling");
}

static void partial_rotations(void **state) {
    static const int rotated[] = {2, 6, 8, 14, 30};
    for (size_t i = 0; i < sizeof rotated / sizeof *rotated; i++)
        for (int qwen = 0; qwen < 2; qwen++) {
            struct tiny_model m = tiny_llama;
            m.architecture = qwen ? "qwen2" : "llama";
            m.has_biases = qwen;
            m.head_dim = 32;
            m.n_rot = rotated[i];
            assert_exact(&m, ROUNDING, "partial rotation");
        }
}

static void widths_that_are_no_multiple_of_a_vector(void **state) {
    struct tiny_model m = tiny_llama;
    m.hidden = 39;
    m.ffn = 53;
    m.vocab = 37;
    m.n_heads = 2, m.n_kv_heads = 1;
    m.head_dim = 48, m.n_rot = 0;
    assert_exact(&m, ROUNDING, "odd widths");
    m.n_layers = 1, m.hidden = 1, m.ffn = 1, m.vocab = 5;
    assert_exact(&m, ROUNDING, "widths of 1");
}

static const struct {
    uint32_t type;
    double limit; /* with float activations */
} types[] = {{GGML_F16, ROUNDING},  {GGML_BF16, ROUNDING}, {GGML_Q4_0, ROUNDING}, {GGML_Q4_1, ROUNDING},
             {GGML_Q5_0, ROUNDING}, {GGML_Q5_1, ROUNDING}, {GGML_Q8_0, ROUNDING}, {GGML_Q4_K, 5e-3} /* scales become F16 */,
             {GGML_Q5_K, 5e-3},     {GGML_Q6_K, 2e-2} /* requantized */};

static struct tiny_model of_type(uint32_t type) {
    struct tiny_model m = tiny_llama;
    m.type = m.embedding_type = type;
    if (type == GGML_Q4_K || type == GGML_Q5_K || type == GGML_Q6_K)
        m.hidden = m.ffn = 256, m.n_heads = 4, m.head_dim = 64, m.n_rot = 0;
    return m;
}

static void every_type_of_weight(void **state) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_model m = of_type(types[i].type);
        assert_exact(&m, types[i].limit, ggml_type_name(m.type));
        m.is_tied = 1;
        assert_exact(&m, types[i].limit, ggml_type_name(m.type));
    }
}

static void types_mixed_within_a_layer(void **state) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_model m = of_type(types[i].type);
        m.is_mixed = 1;
        assert_exact(&m, types[i].limit, "mixed");
        m.embedding_type = GGML_F32;
        double error = error_of(&m, false, MAX_TOKENS, 7);
        print_message("mixed %s with F16, INT8 activations: error %.2e\n", ggml_type_name(m.type), error);
        assert_true(error < 0.05);
    }
}

static void int8_activations_lose_little(void **state) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_model m = of_type(types[i].type);
        double error = error_of(&m, false, MAX_TOKENS, MAX_TOKENS);
        print_message("%s, INT8 activations: error %.2e\n", ggml_type_name(m.type), error);
        assert_true(error < 0.05);
    }
}

/* ---- bad files whose fault shows only in the data ---- */

static void rotary_factors_must_be_numbers_over_zero(void **state) {
    static const float bad[] = {-1, NAN, INFINITY * 0, 1e-30f, -INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tiny_model m = tiny_llama;
        struct evaluator *e;
        struct err err = {0};
        char path[64];
        m.has_factors = 1;
        m.factor = bad[i];
        tiny_write(&m, path);
        struct engine_options options = {.model_path = path, .n_threads = 1, .memory_budget = (size_t)64 << 20};
        assert_int_equal(evaluator_open(&e, &options, &err), STATUS_CORRUPT);
        assert_string_equal(err.param, "rope_freqs.weight");
        unlink(path);
    }
}

static void the_evaluator_refuses_what_it_cannot_hold(void **state) {
    struct tiny_model m = tiny_llama;
    struct evaluator *e;
    struct err err = {0};
    char path[64];
    tiny_write(&m, path);
    struct engine_options options = {.model_path = path, .n_threads = 1, .memory_budget = (size_t)64 << 20, .max_context = 20};
    assert_int_equal(evaluator_open(&e, &options, &err), STATUS_OK);
    int32_t ids[21] = {0};
    assert_int_equal(evaluator_max_context(e), 20);
    assert_int_equal(evaluator_append(e, ids, 21, false, NULL, NULL, &err), STATUS_TOO_LARGE);
    assert_int_equal(evaluator_append(e, ids, 20, false, NULL, NULL, &err), STATUS_OK);
    assert_int_equal(evaluator_append(e, ids, 1, false, NULL, NULL, &err), STATUS_TOO_LARGE);
    evaluator_reset(e);
    ids[3] = 48;
    assert_int_equal(evaluator_append(e, ids, 4, false, NULL, NULL, &err), STATUS_INVALID);
    ids[3] = -1;
    assert_int_equal(evaluator_append(e, ids, 4, false, NULL, NULL, &err), STATUS_INVALID);
    evaluator_close(e);
    unlink(path);
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_grouping_of_heads),
        cmocka_unit_test(qwen2_with_biases),
        cmocka_unit_test(biases_of_a_llama),
        cmocka_unit_test(tied_heads),
        cmocka_unit_test(rotary_factors_and_scaling),
        cmocka_unit_test(partial_rotations),
        cmocka_unit_test(widths_that_are_no_multiple_of_a_vector),
        cmocka_unit_test(every_type_of_weight),
        cmocka_unit_test(types_mixed_within_a_layer),
        cmocka_unit_test(int8_activations_lose_little),
        cmocka_unit_test(rotary_factors_must_be_numbers_over_zero),
        cmocka_unit_test(the_evaluator_refuses_what_it_cannot_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
