/* Linear layers: the same bits on every instruction set, for any batch, tile and number of threads, and the right numbers. */
#include "tests/unit/kernels/act_rows.h"

#include "engine/base/f16.h"
#include "kernels/cpu/linear.h"

#ifdef TALLY_HAVE_SIMDE
void linear_span_simde(const struct linear_span *span); /* linear_avx512.c through SIMDe */
#endif

struct linear_variant {
    const char *name;
    void (*span)(const struct linear_span *span);
};

static int find_linear_variants(struct linear_variant *variants) {
    int n = 0;
    variants[n++] = (struct linear_variant){"plain", linear_span_plain};
#ifdef TALLY_X86
    if (cpu_isa_available(CPU_ISA_AVX2)) variants[n++] = (struct linear_variant){"avx2", linear_span_avx2};
    else say_once("avx2, this CPU has none");
    if (cpu_isa_available(CPU_ISA_AVX512)) variants[n++] = (struct linear_variant){"avx512", linear_span_avx512};
    else say_once("avx512 natively, this CPU has none");
#endif
#ifdef TALLY_HAVE_SIMDE
    if (cpu_isa_available(CPU_ISA_AVX2)) variants[n++] = (struct linear_variant){"avx512 through SIMDe", linear_span_simde};
#else
    say_once("avx512 through SIMDe, which was not found at build time");
#endif
    return n;
}

/* ---- weights and activations ---- */

static bool is_int4(enum wfmt fmt) { return fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M; }
static bool has_min(enum wfmt fmt) { return fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M; }
static size_t quant_bytes(enum wfmt fmt) { return is_int4(fmt) ? 256 : 512; }

static int panels_of(const struct weight *w) { return (w->n_rows + PANEL_ROWS - 1) / PANEL_ROWS; }

static uint8_t *group_at(const struct weight *w, int panel, int g) {
    uint8_t *data = (uint8_t *)(uintptr_t)w->data;
    return data + (size_t)panel * wfmt_panel_bytes(w->fmt, w->n_cols) + (size_t)g * wfmt_group_bytes(w->fmt);
}

static void put_f16(uint8_t *at, float value) {
    uint16_t h = f32_to_f16(value);
    memcpy(at, &h, sizeof h);
}

/* Every scale and minimum of an integer matrix. */
static void set_scales(struct weight *w, float scale, float minimum) {
    for (int p = 0; p < panels_of(w); p++)
        for (int g = 0; g < w->n_cols / GROUP_COLS; g++)
            for (int r = 0; r < PANEL_ROWS; r++) {
                uint8_t *scales = group_at(w, p, g) + quant_bytes(w->fmt);
                put_f16(scales + 2 * r, scale);
                if (has_min(w->fmt)) put_f16(scales + 32 + 2 * r, minimum);
            }
}

static void random_group(enum wfmt fmt, uint8_t *group) {
    for (size_t i = 0; i < quant_bytes(fmt); i++) group[i] = (uint8_t)random_u32();
    for (size_t i = quant_bytes(fmt); i < wfmt_group_bytes(fmt); i += 2) put_f16(group + i, random_float(-0.1f, 0.1f));
}

static void random_values(enum wfmt fmt, uint8_t *panel, int n) {
    for (int i = 0; i < n; i++) {
        float value = random_normal();
        uint32_t bits = f32_bits(value);
        if (fmt == WFMT_F32) memcpy(panel + 4 * i, &bits, 4);
        else if (fmt == WFMT_F16) put_f16(panel + 2 * i, value);
        else memcpy(panel + 2 * i, (const uint8_t *)&bits + 2, 2);
    }
}

/* Rows past the matrix hold numbers too: nobody may let them through. */
static struct weight random_weight(enum wfmt fmt, int n_rows, int n_cols) {
    struct weight w = {fmt, n_rows, n_cols, must_alloc(weight_bytes(fmt, n_rows, n_cols))};
    for (int p = 0; p < panels_of(&w); p++) {
        uint8_t *panel = (uint8_t *)(uintptr_t)w.data + (size_t)p * wfmt_panel_bytes(fmt, n_cols);
        if (!wfmt_is_integer(fmt)) random_values(fmt, panel, n_cols * PANEL_ROWS);
        for (int g = 0; wfmt_is_integer(fmt) && g < n_cols / GROUP_COLS; g++) random_group(fmt, group_at(&w, p, g));
    }
    return w;
}

static void free_weight(struct weight *w) { free((void *)(uintptr_t)w->data); }

/* Random rows in every kind; only F32 where there are no groups. One group in seven is zeros. */
static struct act_rows random_act(int n_tokens, int n_cols) {
    struct act_rows r = make_act(n_tokens, n_cols);
    bool groups = n_cols % GROUP_COLS == 0;
    for (int i = 0; i < n_tokens * n_cols; i++) r.a.f[i] = groups && i / GROUP_COLS % 7 == 3 ? 0 : random_normal();
    if (groups) cpu_lane_ops_plain.quantize(&r.a, ACT_INT8 | ACT_INT16, r.a.f, 0, n_tokens);
    return r;
}

/* ---- outputs ---- */

struct output {
    float *y, *bias;
    int stride, n_tokens, n_rows;
    bool add;
};

/* y filled with numbers; rows lie a little apart, and what lies between must stay. */
static struct output make_output(int n_tokens, int n_rows, bool bias, bool add) {
    struct output o = {.stride = n_rows + 3, .n_tokens = n_tokens, .n_rows = n_rows, .add = add};
    o.y = must_alloc((size_t)(n_tokens * o.stride) * sizeof(float));
    for (int i = 0; i < n_tokens * o.stride; i++) o.y[i] = (float)(i % 101) * 0.37f - 5;
    if (!bias) return o;
    o.bias = must_alloc((size_t)n_rows * sizeof(float));
    for (int r = 0; r < n_rows; r++) o.bias[r] = (float)(r % 13) - 6.3f;
    return o;
}

static void free_output(struct output *o) { free(o->y), free(o->bias); }

static struct linear_job job_of(const struct weight *w, const struct output *o) {
    return (struct linear_job){.w = w, .bias = o->bias, .y = o->y, .y_stride = o->stride, .add = o->add};
}

static void run_span(const struct linear_variant *v, const struct weight *w, const struct act *x, const struct output *o,
                     bool use_f32) {
    struct linear_job job = job_of(w, o);
    struct linear_span span = {.job = &job, .x = x, .use_f32 = use_f32, .n_panels = panels_of(w), .n_tokens = o->n_tokens};
    v->span(&span);
}

static void assert_same_bits(const struct output *expected, const struct output *o, const char *name, const struct weight *w) {
    if (memcmp(expected->y, o->y, (size_t)(o->n_tokens * o->stride) * sizeof(float)) == 0) return;
    for (int i = 0; i < o->n_tokens * o->stride; i++)
        if (f32_bits(expected->y[i]) != f32_bits(o->y[i]))
            fail_msg("%s: %s %d × %d: token %d of %d, row %d: %a instead of %a", name, wfmt_name(w->fmt), w->n_rows, w->n_cols,
                     i / o->stride, o->n_tokens, i % o->stride, (double)o->y[i], (double)expected->y[i]);
}

/* All variants against plain C. */
static void check_bits(const struct weight *w, const struct act_rows *x, bool use_f32, bool bias, bool add) {
    struct linear_variant variants[4];
    struct output plain = make_output(x->n_tokens, w->n_rows, bias, add);
    for (int n = find_linear_variants(variants), v = 0; v < n; v++) {
        struct output o = make_output(x->n_tokens, w->n_rows, bias, add);
        run_span(&variants[v], w, &x->a, v ? &o : &plain, use_f32);
        if (v) assert_same_bits(&plain, &o, variants[v].name, w);
        free_output(&o);
    }
    free_output(&plain);
}

/* ---- the same bits ---- */

static void check_shape(enum wfmt fmt, int n_rows, int n_cols, int n_tokens) {
    struct weight w = random_weight(fmt, n_rows, n_cols);
    struct act_rows x = random_act(n_tokens, n_cols);
    for (int how = 0; how < 4; how++) check_bits(&w, &x, false, how & 1, how & 2);
    if (wfmt_is_integer(fmt)) check_bits(&w, &x, true, false, true);
    free_weight(&w);
    free_act(&x);
}

static void every_instruction_set_gives_the_bits_of_plain_c(void **test) {
    static const struct {
        int rows, cols, tokens;
    } shapes[] = {
        {1, 32, 1}, {16, 64, 2}, {17, 96, 3}, {40, 576, 9}, {33, 1536, 4}, {5, 4096, 2}, {130, 128, 17},
    };
    random_seed(31);
    for (int fmt = 0; fmt < WFMT_COUNT; fmt++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            check_shape(fmt, shapes[s].rows, shapes[s].cols, shapes[s].tokens);
}

static void any_number_of_tokens_gives_the_bits_of_plain_c(void **test) {
    random_seed(32);
    for (int fmt = 0; fmt < WFMT_COUNT; fmt++)
        for (int n_tokens = 1; n_tokens <= 40; n_tokens++) check_shape(fmt, 19, 64, n_tokens);
}

static void float_weights_take_any_number_of_columns(void **test) {
    static const int cols[] = {1, 2, 15, 17, 33, 575};
    random_seed(33);
    for (int fmt = WFMT_F32; fmt <= WFMT_BF16; fmt++)
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) check_shape(fmt, 18, cols[i], 7);
}

static void scales_that_are_hardly_numbers_give_the_same_bits(void **test) {
    static const float scales[] = {0, -0.0f, 0x1p-24f, 0x1.5p-16f, 65504, INFINITY, -INFINITY};
    random_seed(34);
    for (int fmt = WFMT_INT8_G32; fmt < WFMT_COUNT; fmt++)
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
            struct weight w = random_weight(fmt, 20, 96);
            struct act_rows x = random_act(6, 96);
            set_scales(&w, scales[i], scales[6 - i]);
            check_bits(&w, &x, false, true, false);
            check_bits(&w, &x, true, false, false);
            free_weight(&w);
            free_act(&x);
        }
}

/* ---- the right numbers ---- */

/* What column c of a token counts as for a format, from the quants by their definition. */
static double activation(const struct act *x, enum wfmt fmt, bool use_f32, int token, int c) {
    static const int wide[4] = {0, 2, 1, 3};
    size_t at = (size_t)token * (size_t)x->n_cols + (size_t)c;
    if (use_f32 || !wfmt_is_integer(fmt)) return (double)x->f[at];
    if (is_int4(fmt)) return (double)x->q[at] * (double)x->scale[at / ACT_GROUP_COLS];
    return (double)x->wide[at / 4 * 4 + (size_t)wide[c % 4]] * (double)x->wide_scale[at / GROUP_COLS];
}

static void check_against_double(enum wfmt fmt, int n_rows, int n_cols, int n_tokens, bool use_f32) {
    struct weight w = random_weight(fmt, n_rows, n_cols);
    struct act_rows x = random_act(n_tokens, n_cols);
    struct linear_variant plain = {"plain", linear_span_plain};
    struct output before = make_output(n_tokens, n_rows, true, true), o = make_output(n_tokens, n_rows, true, true);
    float *row = must_alloc((size_t)n_cols * sizeof(float));
    run_span(&plain, &w, &x.a, &o, use_f32);
    for (int r = 0; r < n_rows; r++) {
        weight_row_f32(&w, r, row);
        for (int t = 0; t < n_tokens; t++) {
            double sum = (double)o.bias[r] + (double)before.y[t * o.stride + r], size = fabs(sum);
            for (int c = 0; c < n_cols; c++) {
                double product = (double)row[c] * activation(&x.a, fmt, use_f32, t, c);
                sum += product;
                size += fabs(product);
            }
            /* A dequantized weight is rounded, and a minimum's product stands apart from its scale's: both small against `size`. */
            double error = fabs((double)o.y[t * o.stride + r] - sum);
            if (!(error <= 4e-6 * size)) fail_msg("%s row %d token %d: off by %g of %g", wfmt_name(fmt), r, t, error, size);
        }
    }
    free(row);
    free_output(&before), free_output(&o);
    free_weight(&w);
    free_act(&x);
}

static void outputs_are_the_dot_products_bias_and_residual(void **test) {
    random_seed(35);
    for (int fmt = 0; fmt < WFMT_COUNT; fmt++)
        for (int use_f32 = 0; use_f32 <= wfmt_is_integer(fmt); use_f32++) {
            check_against_double(fmt, 37, 320, 5, use_f32);
            check_against_double(fmt, 16, 32, 1, use_f32);
        }
}

/* Activations all `x`, with the sums that go with them; scale 1. */
static struct act_rows constant_act(int n_tokens, int n_cols, int q, int wide) {
    struct act_rows r = make_act(n_tokens, n_cols);
    size_t n = (size_t)(n_tokens * n_cols);
    for (size_t i = 0; i < n; i++) r.a.q[i] = (int8_t)q, r.a.wide[i] = (int16_t)wide, r.a.f[i] = (float)q;
    for (size_t g = 0; g < n / ACT_GROUP_COLS; g++) r.a.scale[g] = 1, r.a.zero[g] = -8 * q * ACT_GROUP_COLS;
    for (size_t g = 0; g < n / GROUP_COLS; g++)
        r.a.wide_scale[g] = 1, r.a.sum[g] = (float)(q * GROUP_COLS), r.a.wide_sum[g] = (float)(wide * GROUP_COLS);
    return r;
}

/* Every quant byte is `byte`, scale 1, minimum 2: each step of a dot is as large as it can be, and the result an exact number. */
static void check_extreme(enum wfmt fmt, uint8_t byte, int q, int wide) {
    struct linear_variant variants[4];
    int n_cols = 64, n_tokens = 9;
    struct weight w = random_weight(fmt, 16, n_cols);
    struct act_rows x = constant_act(n_tokens, n_cols, q, wide);
    for (int g = 0; g < n_cols / GROUP_COLS; g++) memset(group_at(&w, 0, g), byte, quant_bytes(fmt));
    set_scales(&w, 1, 2);
    int value = is_int4(fmt) ? byte & 15 : (int8_t)byte;
    if (fmt == WFMT_INT4_G32) value -= 8;
    if (has_min(fmt)) value += 2;
    float expected = (float)((int64_t)value * (is_int4(fmt) ? q : wide) * n_cols);
    for (int n = find_linear_variants(variants), v = 0; v < n; v++) {
        struct output o = make_output(n_tokens, 16, false, false);
        run_span(&variants[v], &w, &x.a, &o, false);
        for (int t = 0; t < n_tokens; t++)
            for (int r = 0; r < 16; r++) assert_true(o.y[t * o.stride + r] == expected);
        free_output(&o);
    }
    free_weight(&w);
    free_act(&x);
}

static void the_largest_products_do_not_overflow(void **test) {
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int fmt = WFMT_INT4_G32; fmt <= WFMT_INT4_G32M; fmt++) {
            check_extreme(fmt, 0xff, sign * 127, 0);
            check_extreme(fmt, 0x00, sign * 127, 0);
        }
        for (int fmt = WFMT_INT8_G32; fmt <= WFMT_INT8_G32M; fmt++) {
            check_extreme(fmt, 0x80, 0, sign * 32767);
            check_extreme(fmt, 0x7f, 0, sign * 32767);
        }
    }
}

static void bias_is_added_before_the_residual(void **test) {
    struct linear_variant variants[4];
    float one = 1, big = 1e8f, minus_big = -1e8f;
    struct act x = {.n_cols = 1, .f = &big};
    struct weight w = {WFMT_F32, 1, 1, must_alloc(weight_bytes(WFMT_F32, 1, 1))};
    memset((void *)(uintptr_t)w.data, 0, weight_bytes(WFMT_F32, 1, 1));
    memcpy((void *)(uintptr_t)w.data, &one, sizeof one);
    for (int n = find_linear_variants(variants), v = 0; v < n; v++) {
        float y = 1; /* lost if it were added to 1e8 first */
        struct output o = {.y = &y, .bias = &minus_big, .stride = 1, .n_tokens = 1, .n_rows = 1, .add = true};
        run_span(&variants[v], &w, &x, &o, false);
        assert_true(y == 1);
    }
    free_weight(&w);
}

/* ---- invariance ---- */

static void check_alone(const struct linear_variant *v, enum wfmt fmt, int n_tokens, bool use_f32) {
    int n_cols = 160, n_rows = 35;
    struct weight w = random_weight(fmt, n_rows, n_cols);
    struct act_rows x = random_act(n_tokens, n_cols);
    struct output batch = make_output(n_tokens, n_rows, true, false), alone = make_output(n_tokens, n_rows, true, false);
    run_span(v, &w, &x.a, &batch, use_f32);
    struct linear_job job = job_of(&w, &alone);
    for (int t = n_tokens - 1; t >= 0; t--) { /* panel by panel, the last first */
        struct linear_span span = {.job = &job, .x = &x.a, .use_f32 = use_f32, .n_panels = 1, .first_token = t, .n_tokens = 1};
        for (span.first_panel = panels_of(&w) - 1; span.first_panel >= 0; span.first_panel--) v->span(&span);
    }
    assert_same_bits(&batch, &alone, v->name, &w);
    free_output(&batch), free_output(&alone);
    free_weight(&w);
    free_act(&x);
}

static void a_token_in_a_batch_has_the_bits_it_has_alone(void **test) {
    struct linear_variant variants[4];
    random_seed(36);
    for (int n = find_linear_variants(variants), v = 0; v < n; v++)
        for (int fmt = 0; fmt < WFMT_COUNT; fmt++)
            for (int n_tokens = 1; n_tokens <= 24; n_tokens += n_tokens < 9 ? 1 : 5) {
                check_alone(&variants[v], fmt, n_tokens, false);
                if (wfmt_is_integer(fmt)) check_alone(&variants[v], fmt, n_tokens, true);
            }
}

#define N_JOBS 3

static void run_backend(enum cpu_isa isa, int n_threads, const struct linear_job *jobs, const struct act *x, int n_tokens) {
    struct cpu_backend_options options = {
        .isa = isa, .n_threads = n_threads, .max_tokens = n_tokens, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    struct err err;
    void *workspace = must_alloc(cpu_backend_workspace_bytes(&options));
    struct backend *b = cpu_backend_open(&options, workspace, &err);
    assert_non_null(b);
    b->linear(b, jobs, 0, x, n_tokens, false);
    b->linear(b, jobs, N_JOBS, x, 0, false); /* nothing to do */
    b->linear(b, jobs, N_JOBS, x, n_tokens, false);
    b->close(b);
    free(workspace);
}

/* Jobs of different formats and heights, cut into chunks over jobs and token blocks as cpu_linear likes, against one span each. */
static void check_threads(int n_cols, int n_tokens) {
    static const int rows[N_JOBS] = {100, 33, 272};
    static const enum wfmt fmts[N_JOBS] = {WFMT_INT4_G32M, WFMT_INT8_G32, WFMT_F16};
    struct linear_variant plain = {"plain", linear_span_plain};
    struct act_rows x = random_act(n_tokens, n_cols);
    struct weight w[N_JOBS];
    struct output expected[N_JOBS];
    for (int j = 0; j < N_JOBS; j++) {
        w[j] = random_weight(fmts[j], rows[j], n_cols);
        expected[j] = make_output(n_tokens, rows[j], j == 0, j == 1);
        run_span(&plain, &w[j], &x.a, &expected[j], false);
    }
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
        for (int n_threads = 1; cpu_isa_available(isa) && n_threads <= 5; n_threads++) {
            struct output o[N_JOBS];
            struct linear_job jobs[N_JOBS];
            for (int j = 0; j < N_JOBS; j++)
                o[j] = make_output(n_tokens, rows[j], j == 0, j == 1), jobs[j] = job_of(&w[j], &o[j]);
            run_backend(isa, n_threads, jobs, &x.a, n_tokens);
            for (int j = 0; j < N_JOBS; j++)
                assert_same_bits(&expected[j], &o[j], cpu_isa_name(isa), &w[j]), free_output(&o[j]);
        }
    for (int j = 0; j < N_JOBS; j++) free_weight(&w[j]), free_output(&expected[j]);
    free_act(&x);
}

static void any_number_of_threads_gives_the_same_bits(void **test) {
    random_seed(37);
    check_threads(64, 1);
    check_threads(576, 1);
    check_threads(256, 9);
    check_threads(2048, 43); /* more than one token block */
    check_threads(32, 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_bits_of_plain_c),
        cmocka_unit_test(any_number_of_tokens_gives_the_bits_of_plain_c),
        cmocka_unit_test(float_weights_take_any_number_of_columns),
        cmocka_unit_test(scales_that_are_hardly_numbers_give_the_same_bits),
        cmocka_unit_test(outputs_are_the_dot_products_bias_and_residual),
        cmocka_unit_test(the_largest_products_do_not_overflow),
        cmocka_unit_test(bias_is_added_before_the_residual),
        cmocka_unit_test(a_token_in_a_batch_has_the_bits_it_has_alone),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
