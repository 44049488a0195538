/* Attention over the paged cache: right, and the same bits however the work is cut, batched, chunked, threaded or placed. */
#include "tests/unit/kernels/lane_variants.h"

#include "engine/base/f16.h"

struct shape_case {
    int n_heads, n_kv_heads, head_dim, block_tokens;
};

static const struct shape_case shapes[] = {
    {9, 3, 64, 16},  {8, 8, 32, 32},  {4, 1, 128, 16}, {7, 1, 48, 48},
    {14, 2, 64, 64}, {2, 2, 256, 16}, {32, 1, 16, 16}, {5, 5, 80, 16},
};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))

/* Sequences with all their queries, and the keys and values that a cache is filled with. */
struct world {
    struct attention_shape shape;
    struct kv_view kv;
    int n_blocks, n_seqs, width /* floats of a row of q */;
    int length[8];
    float *q[8];        /* [length, width] */
    float *k[8], *v[8]; /* [length, n_kv_heads·head_dim], rounded to F16 */
    int32_t *blocks[8];
    float *out[8]; /* what attention answered, [length, width] */
};

static const struct rope_table no_rope = {.pairs = ROPE_NONE};

static float *random_halves(size_t n) {
    float *x = random_vector(n);
    for (size_t i = 0; i < n; i++) x[i] = f16_to_f32(f32_to_f16(x[i]));
    return x;
}

/* Every slot of the cache holds NaN until it is written. */
static void spoil_cache(struct world *w) {
    uint16_t *cache = w->kv.base;
    for (size_t i = 0; i < kv_block_bytes(&w->kv.layout) / 2 * (size_t)w->n_blocks; i++)
        cache[i] = i % 3 ? 0x7e00 : i % 2 ? 0xfc00 : 0x7c00;
}

/* Gives the sequences blocks in a random order, of a pool with more than they need. */
static void deal_blocks(struct world *w) {
    int32_t *order = must_alloc((size_t)w->n_blocks * sizeof *order);
    for (int i = 0; i < w->n_blocks; i++) order[i] = i;
    for (int i = w->n_blocks - 1; i > 0; i--) {
        int j = random_int(0, i);
        int32_t other = order[i];
        order[i] = order[j], order[j] = other;
    }
    int next = 0;
    for (int s = 0; s < w->n_seqs; s++)
        for (int i = 0; i * w->kv.layout.block_tokens < w->length[s]; i++) w->blocks[s][i] = order[next++];
    assert_true(next <= w->n_blocks);
    free(order);
}

static void build_world(struct world *w, const struct shape_case *c, int n_seqs, const int *lengths) {
    *w = (struct world){.shape = {c->n_heads, c->n_kv_heads, c->head_dim, 1 / sqrtf((float)c->head_dim)}};
    w->kv.layout = (struct kv_layout){2, c->n_kv_heads, c->head_dim, c->block_tokens};
    w->n_seqs = n_seqs;
    w->width = c->n_heads * c->head_dim;
    w->n_blocks = 3;
    for (int s = 0; s < n_seqs; s++) {
        size_t n = (size_t)lengths[s];
        w->length[s] = lengths[s];
        w->n_blocks += lengths[s] / c->block_tokens + 1;
        w->q[s] = random_vector(n * (size_t)w->width);
        w->k[s] = random_halves(n * (size_t)(c->n_kv_heads * c->head_dim));
        w->v[s] = random_halves(n * (size_t)(c->n_kv_heads * c->head_dim));
        w->out[s] = must_alloc(n * (size_t)w->width * sizeof(float));
        w->blocks[s] = must_alloc((n / (size_t)c->block_tokens + 1) * sizeof(int32_t));
    }
    w->kv.base = must_alloc(kv_block_bytes(&w->kv.layout) * (size_t)w->n_blocks);
    spoil_cache(w);
    deal_blocks(w);
}

static void free_world(struct world *w) {
    for (int s = 0; s < w->n_seqs; s++) {
        free(w->q[s]), free(w->k[s]), free(w->v[s]), free(w->out[s]), free(w->blocks[s]);
    }
    free(w->kv.base);
}

/* One step: n[s] more tokens of each sequence that has computed[s] already; layer 1. Rows of the batch are in random order. */
static void step(struct world *w, struct backend *b, const int *computed, const int *n) {
    struct attn_seq seqs[8];
    int n_seqs = 0, rows = 0, who[8];
    int kv_width = w->shape.n_kv_heads * w->shape.head_dim, q_stride = w->width + 2 * kv_width;
    for (int s = 0; s < w->n_seqs; s++) {
        if (n[s] == 0) continue;
        int at = random_int(0, n_seqs); /* where in the batch */
        memmove(&who[at + 1], &who[at], (size_t)(n_seqs - at) * sizeof *who);
        who[at] = s;
        n_seqs++;
    }
    for (int i = 0; i < n_seqs; rows += n[who[i++]])
        seqs[i] = (struct attn_seq){rows, n[who[i]], computed[who[i]], w->blocks[who[i]]};
    float *qkv = must_alloc((size_t)rows * (size_t)q_stride * sizeof(float));
    float *out = must_alloc((size_t)rows * (size_t)w->width * sizeof(float));
    for (int i = 0; i < n_seqs; i++)
        for (int t = 0; t < n[who[i]]; t++) {
            float *row = qkv + (size_t)(seqs[i].first_row + t) * (size_t)q_stride;
            size_t token = (size_t)(computed[who[i]] + t);
            memcpy(row, w->q[who[i]] + token * (size_t)w->width, (size_t)w->width * sizeof(float));
            memcpy(row + w->width, w->k[who[i]] + token * (size_t)kv_width, (size_t)kv_width * sizeof(float));
            memcpy(row + w->width + kv_width, w->v[who[i]] + token * (size_t)kv_width, (size_t)kv_width * sizeof(float));
        }
    b->rope_append(b, qkv, q_stride, qkv + w->width, qkv + w->width + kv_width, q_stride, &no_rope, &w->shape, &w->kv, 1, seqs,
                   n_seqs);
    b->attention(b, out, qkv, q_stride, &w->shape, &w->kv, 1, seqs, n_seqs);
    for (int i = 0; i < n_seqs; i++)
        memcpy(w->out[who[i]] + (size_t)computed[who[i]] * (size_t)w->width, out + (size_t)seqs[i].first_row * (size_t)w->width,
               (size_t)n[who[i]] * (size_t)w->width * sizeof(float));
    free(qkv);
    free(out);
}

/* All tokens, in chunks of up to `max_chunk` at random; sequences start and end at different steps. */
static void run(struct world *w, struct backend *b, int max_chunk) {
    int computed[8] = {0}, n[8];
    for (bool more = true; more;) {
        int rows = 0;
        more = false;
        for (int s = 0; s < w->n_seqs; s++) {
            n[s] = random_int(max_chunk == 1, max_chunk);
            if (n[s] > w->length[s] - computed[s]) n[s] = w->length[s] - computed[s];
            rows += n[s];
        }
        if (rows) step(w, b, computed, n);
        for (int s = 0; s < w->n_seqs; s++) {
            computed[s] += n[s];
            more |= computed[s] < w->length[s];
        }
    }
}

static struct test_backend *backend_for(const struct world *w, const struct cpu_lane_ops *ops, int n_threads) {
    struct cpu_backend_options options = {.n_threads = n_threads,
                                          .max_tokens = 4096,
                                          .max_positions = 2048,
                                          .max_head_dim = w->shape.head_dim,
                                          .max_heads = w->shape.n_heads};
    return open_backend(ops, &options);
}

static float **copy_outputs(const struct world *w) {
    float **copies = must_alloc(sizeof(float *) * 8);
    for (int s = 0; s < w->n_seqs; s++) {
        size_t bytes = (size_t)w->length[s] * (size_t)w->width * sizeof(float);
        copies[s] = must_alloc(bytes);
        memcpy(copies[s], w->out[s], bytes);
    }
    return copies;
}

static void assert_outputs_equal(const struct world *w, float **want) {
    for (int s = 0; s < w->n_seqs; s++)
        for (int t = 0; t < w->length[s]; t++)
            if (memcmp(want[s] + (size_t)t * (size_t)w->width, w->out[s] + (size_t)t * (size_t)w->width,
                       (size_t)w->width * sizeof(float)) != 0)
                fail_msg("sequence %d, token %d of %d differs", s, t, w->length[s]);
}

static void free_copies(const struct world *w, float **copies) {
    for (int s = 0; s < w->n_seqs; s++) free(copies[s]);
    free(copies);
}

/* Attention of one query in double, straight from the formula. */
static void exact_attention(const struct world *w, int s, int token, int head, double *out) {
    int head_dim = w->shape.head_dim, kv_width = w->shape.n_kv_heads * head_dim;
    int kv_head = head / (w->shape.n_heads / w->shape.n_kv_heads);
    double *p = must_alloc((size_t)(token + 1) * sizeof *p), largest = -INFINITY, sum = 0;
    const float *q = w->q[s] + (size_t)token * (size_t)w->width + (size_t)(head * head_dim);
    for (int t = 0; t <= token; t++) {
        const float *k = w->k[s] + (size_t)t * (size_t)kv_width + (size_t)(kv_head * head_dim);
        p[t] = 0;
        for (int d = 0; d < head_dim; d++) p[t] += (double)q[d] * (double)k[d];
        p[t] *= (double)w->shape.scale;
        largest = fmax(largest, p[t]);
    }
    for (int t = 0; t <= token; t++) sum += p[t] = exp(p[t] - largest);
    for (int d = 0; d < head_dim; d++) out[d] = 0;
    for (int t = 0; t <= token; t++)
        for (int d = 0; d < head_dim; d++)
            out[d] += p[t] / sum * (double)w->v[s][(size_t)t * (size_t)kv_width + (size_t)(kv_head * head_dim + d)];
    free(p);
}

static double worst_error(const struct world *w) {
    double worst = 0, exact[256];
    for (int s = 0; s < w->n_seqs; s++)
        for (int i = 0; i < 12; i++) {
            int token = i == 0 ? w->length[s] - 1 : random_int(0, w->length[s] - 1), head = random_int(0, w->shape.n_heads - 1);
            exact_attention(w, s, token, head, exact);
            for (int d = 0; d < w->shape.head_dim; d++) {
                float got = w->out[s][(size_t)token * (size_t)w->width + (size_t)(head * w->shape.head_dim + d)];
                worst = fmax(worst, isfinite(got) ? fabs((double)got - exact[d]) : INFINITY);
            }
        }
    return worst;
}

static void it_is_right_and_the_same_on_every_instruction_set(void **test) {
    const int lengths[] = {1, 17, 255, 257, 600};
    struct variant variants[4];
    int n_variants = find_variants(variants);
    random_seed(1);
    for (int i = 0; i < N_SHAPES; i++) {
        struct world w;
        float **plain = NULL;
        build_world(&w, &shapes[i], 5, lengths);
        for (int v = 0; v < n_variants; v++) {
            struct test_backend *b = backend_for(&w, variants[v].ops, 1);
            spoil_cache(&w);
            run(&w, &b->cpu.ops, 128);
            close_backend(b);
            if (v == 0) plain = copy_outputs(&w);
            else assert_outputs_equal(&w, plain);
        }
        double error = worst_error(&w);
        print_message("%d heads, %d kv heads, head_dim %d: worst error %.2g\n", w.shape.n_heads, w.shape.n_kv_heads,
                      w.shape.head_dim, error);
        assert_true(error < 3e-6);
        free_copies(&w, plain);
        free_world(&w);
    }
}

static void chunks_batches_blocks_and_threads_leave_no_trace(void **test) {
    const int lengths[] = {900, 33, 310, 1, 512}, chunks[] = {1, 7, 40, 300, 1000}, threads[] = {1, 2, 3, 5};
    struct variant variants[4];
    int n_variants = find_variants(variants);
    const struct cpu_lane_ops *ops = variants[n_variants > 1 ? 1 : 0].ops;
    random_seed(2);
    for (int i = 0; i < N_SHAPES; i += 2) {
        struct world w;
        build_world(&w, &shapes[i], 5, lengths);
        struct test_backend *b = backend_for(&w, ops, 1);
        run(&w, &b->cpu.ops, 1); /* one by one */
        close_backend(b);
        float **want = copy_outputs(&w);
        for (int c = 0; c < 5; c++) {
            b = backend_for(&w, ops, threads[random_int(0, 3)]);
            spoil_cache(&w);
            deal_blocks(&w);
            run(&w, &b->cpu.ops, chunks[c]);
            close_backend(b);
            assert_outputs_equal(&w, want);
        }
        free_copies(&w, want);
        free_world(&w);
    }
}

/* A sequence alone, then the same among others that come and go. */
static void company_leaves_no_trace(void **test) {
    const int lengths[] = {700, 20, 400, 260}, alone[] = {700, 0, 0, 0}, none[] = {0, 0, 0, 0};
    struct variant variants[4];
    const struct cpu_lane_ops *ops = variants[find_variants(variants) > 1 ? 1 : 0].ops;
    struct world w;
    random_seed(3);
    build_world(&w, &shapes[0], 4, lengths);
    struct test_backend *b = backend_for(&w, ops, 2);
    step(&w, &b->cpu.ops, none, alone);
    float *want = must_alloc((size_t)700 * (size_t)w.width * sizeof(float));
    memcpy(want, w.out[0], (size_t)700 * (size_t)w.width * sizeof(float));
    spoil_cache(&w);
    deal_blocks(&w);
    run(&w, &b->cpu.ops, 90);
    assert_memory_equal(want, w.out[0], (size_t)700 * (size_t)w.width * sizeof(float));
    close_backend(b);
    free(want);
    free_world(&w);
}

/* Deep decodes are what threads share segment by segment, with slots to spare and with too few. */
static void deep_decodes_are_cut_and_merged_without_a_trace(void **test) {
    const int lengths[] = {2048, 1, 1500};
    struct variant variants[4];
    const struct cpu_lane_ops *ops = variants[find_variants(variants) > 1 ? 1 : 0].ops;
    struct world w;
    random_seed(4);
    build_world(&w, &shapes[0], 3, lengths);
    struct test_backend *b = backend_for(&w, ops, 1);
    const int none[3] = {0}, most[] = {2040, 0, 1499}, rest[] = {8, 1, 1};
    step(&w, &b->cpu.ops, none, most);
    step(&w, &b->cpu.ops, most, rest);
    close_backend(b);
    float **want = copy_outputs(&w);
    for (int n_threads = 2; n_threads <= 8; n_threads++)
        for (int max_positions = 256; max_positions <= 2048; max_positions *= 2) { /* fewer slots, all other things the same */
            struct cpu_backend_options options = {
                .n_threads = n_threads, .max_tokens = 4096, .max_positions = max_positions, .max_head_dim = 64, .max_heads = 9};
            b = open_backend(ops, &options);
            for (int s = 0; s < 3; s++)
                memset(w.out[s] + (size_t)most[s] * (size_t)w.width, 0, (size_t)rest[s] * (size_t)w.width * sizeof(float));
            step(&w, &b->cpu.ops, most, rest);
            close_backend(b);
            assert_outputs_equal(&w, want);
        }
    free_copies(&w, want);
    free_world(&w);
}

static void large_scores_do_not_overflow(void **test) {
    const int length[] = {40};
    struct variant variants[4];
    const struct cpu_lane_ops *ops = variants[find_variants(variants) > 1 ? 1 : 0].ops;
    struct world w;
    random_seed(5);
    build_world(&w, &shapes[0], 1, length);
    for (int i = 0; i < 40 * w.width; i++) w.q[0][i] *= 300; /* differences of scores far beyond e^88 */
    struct test_backend *b = backend_for(&w, ops, 1);
    run(&w, &b->cpu.ops, 40);
    assert_true(worst_error(&w) < 1e-3);
    close_backend(b);
    free_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(chunks_batches_blocks_and_threads_leave_no_trace),
        cmocka_unit_test(company_leaves_no_trace),
        cmocka_unit_test(deep_decodes_are_cut_and_merged_without_a_trace),
        cmocka_unit_test(large_scores_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
