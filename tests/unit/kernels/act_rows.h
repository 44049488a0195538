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
    r.a.scale = must_alloc(groups * sizeof(float));
    r.a.sum = must_alloc(groups * sizeof(float));
    r.a.zero = must_alloc(groups * sizeof(int32_t));
    return r;
}

static inline void free_act(struct act_rows *r) {
    free(r->a.f), free(r->a.q), free(r->a.scale), free(r->a.sum), free(r->a.zero);
}

static inline void assert_act_equal(const struct act_rows *x, const struct act_rows *y, unsigned kinds) {
    size_t n = (size_t)x->n_tokens * (size_t)x->a.n_cols, groups = n / GROUP_COLS;
    if (kinds & ACT_F32) assert_memory_equal(x->a.f, y->a.f, n * sizeof(float));
    if (!(kinds & ACT_INT8)) return;
    assert_memory_equal(x->a.q, y->a.q, n);
    assert_memory_equal(x->a.scale, y->a.scale, groups * sizeof(float));
    assert_memory_equal(x->a.sum, y->a.sum, groups * sizeof(float));
    assert_memory_equal(x->a.zero, y->a.zero, groups * sizeof(int32_t));
}

/* INT8 rows are exactly what backend.h says of the floats beside them. */
static inline void assert_int8_follows_from_f32(const struct act_rows *r) {
    for (size_t g = 0; g < (size_t)r->n_tokens * (size_t)r->a.n_cols / GROUP_COLS; g++) {
        const float *x = r->a.f + g * GROUP_COLS;
        float amax = 0;
        int sum = 0;
        for (int i = 0; i < GROUP_COLS; i++) amax = fmaxf(amax, fabsf(x[i]));
        bool is_zero = !isnormal(amax / 127);
        for (int i = 0; i < GROUP_COLS; i++) {
            int q = is_zero ? 0 : (int)rintf(x[i] * (127 / amax));
            assert_int_equal(q, r->a.q[g * GROUP_COLS + (size_t)i]);
            sum += q;
        }
        float scale = is_zero ? 0 : amax / 127;
        assert_true(r->a.scale[g] == scale && r->a.sum[g] == scale * (float)sum && r->a.zero[g] == -8 * sum);
    }
}
