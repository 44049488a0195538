/* quantize and the gates: right, the same on every instruction set, and sane on values that are hardly numbers. */
#include "tests/unit/kernels/act_rows.h"

#include <float.h>

static double gate(enum gate_kind kind, double g) {
    if (kind == GATE_SILU) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
}

static void check_gated(enum gate_kind kind, int n_tokens, int n_cols, unsigned kinds, int n_threads) {
    struct variant variants[4];
    size_t n = (size_t)(n_tokens * n_cols);
    struct act_rows plain = make_act(n_tokens, n_cols);
    float *g = random_vector(n), *u = random_vector(n);
    struct cpu_backend_options options = {
        .n_threads = n_threads, .max_tokens = n_tokens, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    for (size_t i = 0; i < n; i++) g[i] *= i % 50 == 0 ? 40.0f : 3.0f;
    for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++) {
        struct act_rows y = make_act(n_tokens, n_cols);
        struct test_backend *b = open_backend(variants[v].ops, &options);
        b->cpu.ops.gated(&b->cpu.ops, v ? &y.a : &plain.a, kinds, kind, g, u, n_tokens);
        if (v) assert_act_equal(&plain, &y, kinds);
        close_backend(b);
        free_act(&y);
    }
    for (size_t i = 0; kinds & ACT_F32 && i < n; i++) {
        double exact = gate(kind, (double)g[i]) * (double)u[i];
        assert_true(fabs((double)plain.a.f[i] - exact) <= 2e-6 * fabs(exact) + 1e-7 * fabs((double)u[i]));
    }
    if (kinds & ACT_F32 && kinds & ACT_INT8) assert_int8_follows_from_f32(&plain);
    if (kinds & ACT_F32 && kinds & ACT_INT16) assert_int16_follows_from_f32(&plain);
    free_act(&plain);
    free(g), free(u);
}

static void gates_are_right_and_the_same_on_every_instruction_set(void **test) {
    random_seed(21);
    for (int kind = GATE_SILU; kind <= GATE_GELU_TANH; kind++) {
        check_gated(kind, 3, 1536, ACT_F32 | ACT_INT8 | ACT_INT16, 1);
        check_gated(kind, 60, 96, ACT_F32 | ACT_INT8 | ACT_INT16, 2);
        check_gated(kind, 1, 4864, ACT_INT8, 2);
        check_gated(kind, 7, 50, ACT_F32, 1);
        check_gated(kind, 2, 1, ACT_F32, 1);
        check_gated(kind, 1, 33, ACT_F32, 1);
    }
}

static void gates_of_large_arguments_are_the_argument_or_nothing(void **test) {
    const float g[] = {200, -200, 1e30f, -1e30f, 88.8f, -88.8f, 0, -0.0f};
    float u[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct variant variants[4];
    for (int n = find_variants(variants), v = 0; v < n; v++)
        for (int kind = GATE_SILU; kind <= GATE_GELU_TANH; kind++) {
            struct act_rows y = make_act(1, 8);
            variants[v].ops->gated(&y.a, ACT_F32, kind, g, u, 0, 1);
            assert_true(y.a.f[0] == 200 && y.a.f[1] == 0 && y.a.f[2] == 1e30f && y.a.f[3] == 0);
            assert_true(y.a.f[4] == 88.8f && fabsf(y.a.f[5]) < 1e-36f && y.a.f[6] == 0 && y.a.f[7] == 0);
            free_act(&y);
        }
}

static void check_quantize(float *x, int n_tokens, int n_cols, int n_threads) {
    struct variant variants[4];
    struct act_rows plain = make_act(n_tokens, n_cols);
    struct cpu_backend_options options = {
        .n_threads = n_threads, .max_tokens = n_tokens, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    for (int n_variants = find_variants(variants), v = 0; v < n_variants; v++) {
        struct act_rows y = make_act(n_tokens, n_cols);
        struct test_backend *b = open_backend(variants[v].ops, &options);
        b->cpu.ops.quantize(&b->cpu.ops, v ? &y.a : &plain.a, ACT_F32 | ACT_INT8 | ACT_INT16, x, n_tokens);
        if (v) assert_act_equal(&plain, &y, ACT_F32 | ACT_INT8 | ACT_INT16);
        close_backend(b);
        free_act(&y);
    }
    assert_memory_equal(plain.a.f, x, (size_t)(n_tokens * n_cols) * sizeof(float));
    assert_int8_follows_from_f32(&plain);
    assert_int16_follows_from_f32(&plain);
    free_act(&plain);
}

static void quantize_follows_its_definition_at_every_magnitude(void **test) {
    random_seed(22);
    for (int exponent = -149; exponent <= 127; exponent += 3) {
        float *x = random_vector(8 * 64);
        for (int i = 0; i < 8 * 64; i++) x[i] = fmaxf(-1, fminf(1, x[i])) * ldexpf(1, exponent);
        check_quantize(x, 8, 64, 1 + (exponent & 1));
        free(x);
    }
    float *x = random_vector(300 * 576);
    check_quantize(x, 300, 576, 3);
    free(x);
}

static void quantize_rounds_ties_to_even(void **test) {
    float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, 125.5f};
    check_quantize(x, 1, 32, 1);
}

static void quantize_gives_zeros_where_there_is_no_scale(void **test) {
    const float ends[] = {0, -0.0f, FLT_MIN, FLT_TRUE_MIN, 126 * FLT_MIN, INFINITY, -INFINITY};
    struct variant variants[4];
    for (int n = find_variants(variants), v = 0; v < n; v++)
        for (int e = 0; e < 7; e++) {
            float x[32] = {0};
            struct act_rows y = make_act(1, 32);
            x[random_int(0, 31)] = ends[e];
            variants[v].ops->quantize(&y.a, ACT_INT8, x, 0, 1);
            for (int i = 0; i < 32; i++) assert_int_equal(y.a.q[i], 0);
            assert_true(y.a.scale[0] == 0 && y.a.sum[0] == 0 && y.a.zero[0] == 0 && y.a.zero[1] == 0);
            free_act(&y);
        }
}

static void quantize_of_nan_is_the_same_on_every_instruction_set(void **test) {
    struct variant variants[4];
    struct act_rows plain = make_act(1, 64);
    random_seed(23);
    for (int round = 0; round < 500; round++) {
        float x[64];
        for (int i = 0; i < 64; i++) x[i] = random_int(0, 9) == 0 ? NAN : random_normal();
        for (int n = find_variants(variants), v = 0; v < n; v++) {
            struct act_rows y = make_act(1, 64);
            variants[v].ops->quantize(v ? &y.a : &plain.a, ACT_INT8, x, 0, 1);
            if (v) assert_act_equal(&plain, &y, ACT_INT8);
            free_act(&y);
        }
    }
    free_act(&plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_are_right_and_the_same_on_every_instruction_set),
        cmocka_unit_test(gates_of_large_arguments_are_the_argument_or_nothing),
        cmocka_unit_test(quantize_follows_its_definition_at_every_magnitude),
        cmocka_unit_test(quantize_rounds_ties_to_even),
        cmocka_unit_test(quantize_gives_zeros_where_there_is_no_scale),
        cmocka_unit_test(quantize_of_nan_is_the_same_on_every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
