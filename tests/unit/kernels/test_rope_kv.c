/* rope_append: the rotation, and where and how keys and values land in the cache. */
#include "tests/unit/kernels/lane_variants.h"

#include "engine/base/f16.h"
#include "engine/base/fmath.h"

#define MAX_POSITIONS 300

static float *make_table(int n_rot) {
    float *table = must_alloc((size_t)(MAX_POSITIONS * n_rot + 2) * sizeof(float));
    for (int p = 0; p < MAX_POSITIONS; p++)
        for (int i = 0; i < n_rot / 2; i++) {
            double s, c;
            det_sincos(p / pow(10000, 2.0 * i / n_rot), &s, &c);
            table[p * n_rot + 2 * i] = (float)c;
            table[p * n_rot + 2 * i + 1] = (float)s;
        }
    return table;
}

/* The definition, in the order of operations that rope_kv_lanes.h gives. */
static void rotate(float *out, const float *x, const struct rope_table *rope, int position, int head_dim) {
    int half = rope->n_rot / 2;
    memcpy(out, x, (size_t)head_dim * sizeof *x);
    for (int i = 0; rope->pairs != ROPE_NONE && i < half; i++) {
        int a = rope->pairs == ROPE_ADJACENT ? 2 * i : i, b = rope->pairs == ROPE_ADJACENT ? 2 * i + 1 : i + half;
        float c = rope->cos_sin[position * rope->n_rot + 2 * i], s = rope->cos_sin[position * rope->n_rot + 2 * i + 1];
        out[a] = fmaf(x[a], c, -(x[b] * s));
        out[b] = fmaf(x[b], c, x[a] * s);
    }
}

struct rope_case {
    enum rope_pairs pairs;
    int n_rot, n_heads, n_kv_heads, head_dim, block_tokens, n_threads;
};

static void check_key(const struct kv_view *kv, int head, int block, int slot, const float *rotated) {
    const struct kv_layout *l = &kv->layout;
    const uint16_t *k =
        (const uint16_t *)(const void *)((char *)kv->base + (size_t)block * kv_block_bytes(l) + kv_head_offset(l, 1, 0, head));
    for (int d = 0; d < l->head_dim; d++) assert_int_equal(k[kv_key_index(l, slot) + (size_t)(16 * d)], f32_to_f16(rotated[d]));
}

static void check_value(const struct kv_view *kv, int head, int block, int slot, const float *x) {
    const struct kv_layout *l = &kv->layout;
    const uint16_t *v =
        (const uint16_t *)(const void *)((char *)kv->base + (size_t)block * kv_block_bytes(l) + kv_head_offset(l, 1, 1, head));
    for (int d = 0; d < l->head_dim; d++) assert_int_equal(v[kv_value_index(l, slot) + (size_t)d], f32_to_f16(x[d]));
}

/* Three sequences of a batch, checked against the definition bit by bit; slots of no token stay as they were. */
static void check(const struct cpu_lane_ops *ops, const struct rope_case *c) {
    enum { N_BLOCKS = 24, LAYERS = 3 };
    struct attn_seq seqs[] = {{0, 1, 17, NULL}, {1, 40, 0, NULL}, {41, 9, 250 - 250 % c->block_tokens, NULL}};
    int32_t blocks[3][20];
    const int n_rows = 50, q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim,
              stride = q_width + 2 * kv_width;
    struct kv_view kv = {.layout = {LAYERS, c->n_kv_heads, c->head_dim, c->block_tokens}};
    struct attention_shape shape = {c->n_heads, c->n_kv_heads, c->head_dim, 1};
    float *table = make_table(c->n_rot), *x = random_vector((size_t)(n_rows * stride)),
          *q = must_alloc((size_t)(n_rows * stride) * sizeof *q);
    struct rope_table rope = {c->pairs, c->n_rot, table};
    size_t cache_bytes = kv_block_bytes(&kv.layout) * N_BLOCKS, tokens_written = 0, changed = 0;
    kv.base = must_alloc(cache_bytes);
    memset(kv.base, 0x7f, cache_bytes); /* F16 NaN, which no token gives */
    for (int s = 0, next = N_BLOCKS; s < 3; s++) {
        seqs[s].blocks = blocks[s];
        for (int i = 0; i < 20; i++) blocks[s][i] = -1000000; /* blocks not needed must not be looked at */
        for (int i = seqs[s].first_position / c->block_tokens;
             i <= (seqs[s].first_position + seqs[s].n_rows - 1) / c->block_tokens; i++)
            blocks[s][i] = --next;
        assert_true(next >= 0);
    }
    memcpy(q, x, (size_t)(n_rows * stride) * sizeof *q);
    struct cpu_backend_options options = {.n_threads = c->n_threads,
                                          .max_tokens = n_rows,
                                          .max_positions = 1,
                                          .max_head_dim = c->head_dim,
                                          .max_heads = c->n_heads};
    struct test_backend *b = open_backend(ops, &options);
    b->cpu.ops.rope_append(&b->cpu.ops, q, stride, x + q_width, x + q_width + kv_width, stride, &rope, &shape, &kv, 1, seqs, 3);
    close_backend(b);
    for (int s = 0; s < 3; s++)
        for (int t = 0; t < seqs[s].n_rows; t++, tokens_written++) {
            int row = seqs[s].first_row + t, position = seqs[s].first_position + t;
            int block = blocks[s][position / c->block_tokens], slot = position % c->block_tokens;
            float rotated[256];
            for (int h = 0; h < c->n_heads; h++) {
                rotate(rotated, x + row * stride + h * c->head_dim, &rope, position, c->head_dim);
                assert_memory_equal(rotated, q + row * stride + h * c->head_dim, (size_t)c->head_dim * sizeof(float));
            }
            for (int h = 0; h < c->n_kv_heads; h++) {
                rotate(rotated, x + row * stride + q_width + h * c->head_dim, &rope, position, c->head_dim);
                check_key(&kv, h, block, slot, rotated);
                check_value(&kv, h, block, slot, x + row * stride + q_width + kv_width + h * c->head_dim);
            }
        }
    for (size_t i = 0; i < cache_bytes / 2; i++) changed += ((uint16_t *)kv.base)[i] != 0x7f7f;
    assert_true(changed == tokens_written * 2 * (size_t)kv_width);
    free(kv.base), free(table), free(x), free(q);
}

static void it_rotates_and_stores_as_defined_on_every_instruction_set(void **test) {
    static const struct rope_case cases[] = {
        {ROPE_ADJACENT, 64, 9, 3, 64, 16, 1}, {ROPE_HALVES, 64, 14, 2, 64, 16, 2}, {ROPE_NONE, 64, 4, 4, 64, 32, 1},
        {ROPE_HALVES, 32, 4, 1, 80, 16, 3},   {ROPE_ADJACENT, 6, 2, 2, 16, 48, 1}, {ROPE_ADJACENT, 256, 2, 1, 256, 16, 2},
        {ROPE_HALVES, 48, 3, 3, 48, 64, 1},   {ROPE_HALVES, 0, 2, 2, 32, 16, 1},
    };
    struct variant variants[4];
    random_seed(41);
    for (int n = find_variants(variants), v = 0; v < n; v++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(variants[v].ops, &cases[i]);
}

static void halves_are_rounded_to_nearest_even_like_f16c(void **test) {
    /* Values through the cache of one token of one head of 16 dimensions: every instruction set stores what f16.h gives. */
    struct variant variants[4];
    uint16_t cache[2 * 16 * 16], want[16];
    struct kv_view kv = {{1, 1, 16, 16}, cache};
    struct attention_shape shape = {1, 1, 16, 1};
    struct rope_table rope = {.pairs = ROPE_NONE};
    int32_t block = 0;
    random_seed(42);
    for (int round = 0; round < 20000; round++) {
        float x[16], q[16] = {0};
        for (int i = 0; i < 16; i++) {
            x[i] = f32_from_bits(random_u32());
            if (round % 2)
                x[i] = f16_to_f32((uint16_t)random_u32()) * (1 + (float)random_int(-2, 2) * 0x1p-12f); /* near ties */
            if (isnan(x[i])) x[i] = 1;
            want[i] = f32_to_f16(x[i]);
        }
        for (int n = find_variants(variants), v = 0; v < n; v++) {
            struct rope_append_args args = {q, x, x, 16, 16, 0, &rope, &shape, &kv};
            variants[v].ops->rope_append(&args, 0, 3, &block);
            assert_memory_equal(want, cache + 16 * 16 + 3 * 16, sizeof want);
            for (int d = 0; d < 16; d++) assert_int_equal(cache[16 * d + 3], want[d]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_rotates_and_stores_as_defined_on_every_instruction_set),
        cmocka_unit_test(halves_are_rounded_to_nearest_even_like_f16c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
