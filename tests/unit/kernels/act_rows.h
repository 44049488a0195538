/* Rows of struct act for tests: made, compared and checked against their definition. */
#pragma once

#include "tests/unit/kernels/lane_variants.h"

struct act_rows {
    struct act a;
    int n_tokens;
};

static inline struct act_rows make_act(int n_tokens, int n_cols) {
    size_t n = (size_t)n_tokens * (size_t)n_cols, groups = n / GROUP_COLS + 1;
    struct act_rows r = {.n_tokens = n_tokens, .a = {.n_cols = n_cols}};
    r.a.f = must_alloc(n * sizeof(float));
    r.a.q = must_alloc(n);
    r.a.scale = must_alloc(2 * groups * sizeof(float));
    r.a.sum = must_alloc(groups * sizeof(float));
    r.a.zero = must_alloc(2 * groups * sizeof(int32_t));
    r.a.wide = must_alloc(n * sizeof(int16_t));
    r.a.wide_scale = must_alloc(groups * sizeof(float));
    r.a.wide_sum = must_alloc(groups * sizeof(float));
    return r;
}

static inline void free_act(struct act_rows *r) {
    free(r->a.f), free(r->a.q), free(r->a.scale), free(r->a.sum), free(r->a.zero), free(r->a.wide), free(r->a.wide_scale),
        free(r->a.wide_sum);
}

static inline void assert_act_equal(const struct act_rows *x, const struct act_rows *y, unsigned kinds) {
    size_t n = (size_t)x->n_tokens * (size_t)x->a.n_cols, groups = n / GROUP_COLS;
    if (kinds & ACT_F32) assert_memory_equal(x->a.f, y->a.f, n * sizeof(float));
    if (kinds & ACT_INT16) {
        assert_memory_equal(x->a.wide, y->a.wide, n * sizeof(int16_t));
        assert_memory_equal(x->a.wide_scale, y->a.wide_scale, groups * sizeof(float));
        assert_memory_equal(x->a.wide_sum, y->a.wide_sum, groups * sizeof(float));
    }
    if (!(kinds & ACT_INT8)) return;
    assert_memory_equal(x->a.q, y->a.q, n);
    assert_memory_equal(x->a.scale, y->a.scale, 2 * groups * sizeof(float));
    assert_memory_equal(x->a.sum, y->a.sum, groups * sizeof(float));
    assert_memory_equal(x->a.zero, y->a.zero, 2 * groups * sizeof(int32_t));
}

/* INT16 rows too, each four columns in the order 0, 2, 1, 3. */
static inline void assert_int16_follows_from_f32(const struct act_rows *r) {
    static const int from[4] = {0, 2, 1, 3};
    for (size_t g = 0; g < (size_t)r->n_tokens * (size_t)r->a.n_cols / GROUP_COLS; g++) {
        const float *x = r->a.f + g * GROUP_COLS;
        float amax = 0;
        int sum = 0;
        for (int i = 0; i < GROUP_COLS; i++) amax = fmaxf(amax, fabsf(x[i]));
        bool is_zero = !isnormal(amax / 32767);
        for (int i = 0; i < GROUP_COLS; i++) {
            int q = is_zero ? 0 : (int)rintf(x[i / 4 * 4 + from[i % 4]] * (32767 / amax));
            assert_int_equal(q, r->a.wide[g * GROUP_COLS + (size_t)i]);
            sum += q;
        }
        float scale = is_zero ? 0 : amax / 32767;
        assert_true(r->a.wide_scale[g] == scale && r->a.wide_sum[g] == scale * (float)sum);
    }
}

/* INT8 rows are exactly what backend.h says of the floats beside them. */
static inline void assert_int8_follows_from_f32(const struct act_rows *r) {
    float scales[2];
    int sums[2];
    for (size_t g = 0; g < (size_t)r->n_tokens * (size_t)r->a.n_cols / ACT_GROUP_COLS; g++) {
        const float *x = r->a.f + g * ACT_GROUP_COLS;
        float amax = 0;
        int sum = 0;
        for (int i = 0; i < ACT_GROUP_COLS; i++) amax = fmaxf(amax, fabsf(x[i]));
        bool is_zero = !isnormal(amax / 127);
        for (int i = 0; i < ACT_GROUP_COLS; i++) {
            int q = is_zero ? 0 : (int)rintf(x[i] * (127 / amax));
            assert_int_equal(q, r->a.q[g * ACT_GROUP_COLS + (size_t)i]);
            sum += q;
        }
        scales[g % 2] = is_zero ? 0 : amax / 127;
        sums[g % 2] = sum;
        assert_true(r->a.scale[g] == scales[g % 2] && r->a.zero[g] == -8 * sum);
        if (g % 2) assert_true(r->a.sum[g / 2] == fmaf(scales[1], (float)sums[1], scales[0] * (float)sums[0]));
    }
}
