/* Random linear layers: matrices packed here by the letter of quant/format.h from numbers that are kept, so that the results can be
 * compared with sums in double that know nothing of the layout; and every instruction set, cut into spans, batch and number of
 * threads with one another, bit for bit. TALLY_SEED repeats a run, TALLY_ROUNDS makes it longer. */
#include "tests/unit/kernels/act_rows.h"

#include "engine/base/f16.h"
#include "kernels/cpu/linear.h"

#ifdef TALLY_HAVE_SIMDE
void linear_span_simde(const struct linear_span *span); /* linear_avx512.c through SIMDe */
#endif

#define N_JOBS 3
#define MAX_TOKENS 40
#define MAX_VARIANTS 4

typedef void span_fn(const struct linear_span *span);

static int find_spans(span_fn **spans) {
    int n = 0;
    spans[n++] = linear_span_plain;
#ifdef TALLY_X86
    if (cpu_isa_available(CPU_ISA_AVX2)) spans[n++] = linear_span_avx2;
    else say_once("avx2, this CPU has none");
    if (cpu_isa_available(CPU_ISA_AVX512)) spans[n++] = linear_span_avx512;
    else say_once("avx512 natively, this CPU has none");
#endif
#ifdef TALLY_HAVE_SIMDE
    if (cpu_isa_available(CPU_ISA_AVX2)) spans[n++] = linear_span_simde;
#else
    say_once("avx512 through SIMDe, which was not found at build time");
#endif
    return n;
}

/* ---- a matrix, as numbers and packed ---- */

struct matrix {
    struct weight w;
    double *steps;       /* [n_rows, n_cols]: what multiplies the scale */
    double *scale, *min; /* [n_rows, n_groups]; float formats: 1, 0 in one group as wide as the matrix */
    int group_cols;
};

enum kind {
    KIND_PLAIN,
    KIND_ENDS /* quants and activations at their ends */,
    KIND_WILD /* scales 0, subnormal, huge and infinite too */
};

static bool is_int4(enum wfmt fmt) { return fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M; }
static bool has_min(enum wfmt fmt) { return fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M; }

static int random_quant(enum wfmt fmt, enum kind kind) {
    int low = is_int4(fmt) ? 0 : -128, high = is_int4(fmt) ? 15 : 127;
    return kind == KIND_ENDS ? (random_u32() >> 31 ? low : high) : random_int(low, high);
}

static float random_scale(enum kind kind) {
    static const float wild[] = {0, -0.0f, 0x1p-24f, -0x1p-24f, 0x1.8p-15f, 65504, -65504, INFINITY, -INFINITY};
    if (kind == KIND_WILD && random_int(0, 3) == 0) return wild[random_int(0, 8)];
    return f16_to_f32(f32_to_f16(random_float(-0.2f, 0.2f)));
}

static void put_half(uint8_t *at, uint16_t half) { memcpy(at, &half, sizeof half); }

static void pack_quant(enum wfmt fmt, uint8_t *group, int lane, int c, int q) {
    if (!is_int4(fmt)) {
        group[c / 4 * 64 + 4 * lane + c % 4] = (uint8_t)(int8_t)q;
        return;
    }
    uint8_t *byte = &group[c % 16 / 4 * 64 + 4 * lane + c % 4];
    *byte = (uint8_t)(c < 16 ? (*byte & 0xf0) | q : (*byte & 0x0f) | q << 4);
}

/* Row r of an integer matrix; its panel's bytes hold rubbish where no row has been. */
static void fill_integer_row(struct matrix *m, int r, enum kind kind) {
    enum wfmt fmt = m->w.fmt;
    size_t group_bytes = wfmt_group_bytes(fmt), quants = is_int4(fmt) ? 256 : 512;
    int n_groups = m->w.n_cols / GROUP_COLS, lane = r % PANEL_ROWS;
    uint8_t *group = (uint8_t *)(uintptr_t)m->w.data + (size_t)(r / PANEL_ROWS) * wfmt_panel_bytes(fmt, m->w.n_cols);
    for (int g = 0; g < n_groups; g++, group += group_bytes) {
        float scale = random_scale(kind), min = has_min(fmt) ? random_scale(kind) : 0;
        put_half(group + quants + 2 * lane, f32_to_f16(scale));
        if (has_min(fmt)) put_half(group + quants + 32 + 2 * lane, f32_to_f16(min));
        m->scale[r * n_groups + g] = (double)scale;
        m->min[r * n_groups + g] = (double)min;
        for (int c = 0; c < GROUP_COLS; c++) {
            int q = random_quant(fmt, kind);
            pack_quant(fmt, group, lane, c, q);
            m->steps[(size_t)r * (size_t)m->w.n_cols + (size_t)(g * GROUP_COLS + c)] = fmt == WFMT_INT4_G32 ? q - 8 : q;
        }
    }
}

static void fill_float_row(struct matrix *m, int r) {
    size_t size = m->w.fmt == WFMT_F32 ? 4 : 2;
    uint8_t *panel = (uint8_t *)(uintptr_t)m->w.data + (size_t)(r / PANEL_ROWS) * wfmt_panel_bytes(m->w.fmt, m->w.n_cols);
    m->scale[r] = 1, m->min[r] = 0;
    for (int c = 0; c < m->w.n_cols; c++) {
        float value = random_normal();
        uint8_t *at = panel + ((size_t)c * PANEL_ROWS + (size_t)(r % PANEL_ROWS)) * size;
        if (m->w.fmt == WFMT_F16) value = f16_to_f32(f32_to_f16(value));
        if (m->w.fmt == WFMT_BF16) value = f32_from_bits(f32_bits(value) & 0xffff0000u);
        if (m->w.fmt == WFMT_F32) memcpy(at, &value, sizeof value);
        else put_half(at, m->w.fmt == WFMT_F16 ? f32_to_f16(value) : (uint16_t)(f32_bits(value) >> 16));
        m->steps[(size_t)r * (size_t)m->w.n_cols + (size_t)c] = (double)value;
    }
}

static struct matrix random_matrix(enum wfmt fmt, int n_rows, int n_cols, enum kind kind) {
    struct matrix m = {.w = {fmt, n_rows, n_cols, must_alloc(weight_bytes(fmt, n_rows, n_cols))}};
    m.group_cols = wfmt_is_integer(fmt) ? GROUP_COLS : n_cols;
    size_t n = (size_t)n_rows * (size_t)n_cols, groups = n / (size_t)m.group_cols;
    m.steps = must_alloc(n * sizeof(double));
    m.scale = must_alloc(groups * sizeof(double));
    m.min = must_alloc(groups * sizeof(double));
    for (int r = 0; r < n_rows; r++) {
        if (wfmt_is_integer(fmt)) fill_integer_row(&m, r, kind);
        else fill_float_row(&m, r);
    }
    return m;
}

static void free_matrix(struct matrix *m) { free((void *)(uintptr_t)m->w.data), free(m->steps), free(m->scale), free(m->min); }

/* ---- activations ---- */

/* INT8 and INT16 rows at their ends, with what goes with them by definition. */
static void push_to_ends(struct act_rows *x) {
    size_t n = (size_t)x->n_tokens * (size_t)x->a.n_cols;
    for (size_t g = 0; g < n / ACT_GROUP_COLS; g++) {
        int sum = 0;
        for (size_t i = g * ACT_GROUP_COLS; i < (g + 1) * ACT_GROUP_COLS; i++) {
            x->a.q[i] = random_u32() >> 31 ? 127 : -127;
            x->a.wide[i] = random_u32() >> 31 ? 32767 : -32767;
            sum += x->a.q[i];
        }
        x->a.zero[g] = -8 * sum;
        x->a.sum[g / 2] = g % 2 ? fmaf(x->a.scale[g], (float)sum, x->a.sum[g / 2]) : x->a.scale[g] * (float)sum;
    }
    for (size_t g = 0; g < n / GROUP_COLS; g++) {
        int sum = 0;
        for (int i = 0; i < GROUP_COLS; i++) sum += x->a.wide[g * GROUP_COLS + (size_t)i];
        x->a.wide_sum[g] = x->a.wide_scale[g] * (float)sum;
    }
}

static struct act_rows random_act(int n_tokens, int n_cols, enum kind kind) {
    struct act_rows x = make_act(n_tokens, n_cols);
    bool has_groups = n_cols % GROUP_COLS == 0;
    for (int i = 0; i < n_tokens * n_cols; i++) {
        bool is_zero = has_groups && i / ACT_GROUP_COLS % 5 == 2;
        x.a.f[i] = is_zero ? 0 : random_normal() * (kind == KIND_WILD ? ldexpf(1, random_int(-60, 20)) : 1);
    }
    if (!has_groups) return x;
    cpu_lane_ops_plain.quantize(&x.a, ACT_INT8 | ACT_INT16, x.a.f, 0, n_tokens);
    if (kind == KIND_ENDS) push_to_ends(&x);
    return x;
}

/* The one row `token`, as a batch of its own. */
static struct act row_alone(const struct act *x, int token) {
    size_t at = (size_t)token * (size_t)x->n_cols, g = at / GROUP_COLS;
    return (struct act){.n_cols = x->n_cols,
                        .f = x->f + at,
                        .q = x->q + at,
                        .scale = x->scale + 2 * g,
                        .sum = x->sum + g,
                        .zero = x->zero + 2 * g,
                        .wide = x->wide + at,
                        .wide_scale = x->wide_scale + g,
                        .wide_sum = x->wide_sum + g};
}

/* What column c of a token counts as for a format. */
static double activation(const struct act *x, enum wfmt fmt, bool use_f32, int token, int c) {
    static const int wide[4] = {0, 2, 1, 3};
    size_t at = (size_t)token * (size_t)x->n_cols + (size_t)c;
    if (use_f32 || !wfmt_is_integer(fmt)) return (double)x->f[at];
    if (is_int4(fmt)) return (double)x->q[at] * (double)x->scale[at / ACT_GROUP_COLS];
    return (double)x->wide[at / 4 * 4 + (size_t)wide[c % 4]] * (double)x->wide_scale[at / GROUP_COLS];
}

/* ---- a layer: jobs over one input ---- */

struct layer {
    long seed;
    struct matrix m[N_JOBS];
    struct act_rows x;
    float *bias[N_JOBS], *y[N_JOBS], *expected[N_JOBS];
    int stride[N_JOBS];
    bool add[N_JOBS], use_f32;
    enum kind kind;
};

static size_t output_floats(const struct layer *l, int j) { return (size_t)l->x.n_tokens * (size_t)l->stride[j]; }

/* The residual that outputs are added to, and that stays between their rows. */
static float before(size_t i) { return (float)(i % 97) * 0.25f - 11; }

static void clear_outputs(struct layer *l) {
    for (int j = 0; j < N_JOBS; j++)
        for (size_t i = 0; i < output_floats(l, j); i++) l->y[j][i] = before(i);
}

static void jobs_of(const struct layer *l, struct linear_job *jobs, int first_token) {
    for (int j = 0; j < N_JOBS; j++)
        jobs[j] = (struct linear_job){.w = &l->m[j].w,
                                      .bias = l->bias[j],
                                      .y = l->y[j] + (size_t)first_token * (size_t)l->stride[j],
                                      .y_stride = l->stride[j],
                                      .add = l->add[j]};
}

/* All jobs are of one class, integer or float: one input serves them. */
static struct layer random_layer(enum kind kind) {
    bool is_integer = random_int(0, 3) > 0;
    int n_cols = is_integer || random_int(0, 1) ? GROUP_COLS * random_int(1, 20) : random_int(1, 300);
    if (random_int(0, 19) == 0) n_cols = 4096;
    struct layer l = {
        .kind = kind, .x = random_act(random_int(1, MAX_TOKENS), n_cols, kind), .use_f32 = is_integer && random_int(0, 4) == 0};
    for (int j = 0; j < N_JOBS; j++) {
        enum wfmt fmt = (enum wfmt)(is_integer ? random_int(WFMT_INT8_G32, WFMT_COUNT - 1) : random_int(WFMT_F32, WFMT_BF16));
        int n_rows = random_int(1, 70);
        l.m[j] = random_matrix(fmt, n_rows, n_cols, kind);
        l.stride[j] = n_rows + random_int(0, 5);
        l.add[j] = random_int(0, 1);
        l.bias[j] = random_int(0, 1) ? random_vector((size_t)n_rows) : NULL;
        l.y[j] = must_alloc(output_floats(&l, j) * sizeof(float));
        l.expected[j] = must_alloc(output_floats(&l, j) * sizeof(float));
    }
    return l;
}

static void free_layer(struct layer *l) {
    for (int j = 0; j < N_JOBS; j++) free_matrix(&l->m[j]), free(l->bias[j]), free(l->y[j]), free(l->expected[j]);
    free_act(&l->x);
}

static void assert_expected(const struct layer *l, const char *who) {
    for (int j = 0; j < N_JOBS; j++)
        for (size_t i = 0; i < output_floats(l, j); i++)
            if (f32_bits(l->y[j][i]) != f32_bits(l->expected[j][i]))
                fail_msg("seed %ld, %s: job %d, %s %d × %d%s: token %zu of %d, row %zu: %a instead of %a", l->seed, who, j,
                         wfmt_name(l->m[j].w.fmt), l->m[j].w.n_rows, l->m[j].w.n_cols, l->use_f32 ? " in F32" : "",
                         i / (size_t)l->stride[j], l->x.n_tokens, i % (size_t)l->stride[j], (double)l->y[j][i],
                         (double)l->expected[j][i]);
}

/* ---- the properties ---- */

static void expect_plain(struct layer *l) {
    struct linear_job jobs[N_JOBS];
    clear_outputs(l);
    jobs_of(l, jobs, 0);
    for (int j = 0; j < N_JOBS; j++) {
        int n_panels = (l->m[j].w.n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
        linear_span_plain(&(struct linear_span){
            .job = &jobs[j], .x = &l->x.a, .use_f32 = l->use_f32, .n_panels = n_panels, .n_tokens = l->x.n_tokens});
        memcpy(l->expected[j], l->y[j], output_floats(l, j) * sizeof(float));
    }
}

/* Sums in double. A float sum of n terms is off by n roundings of what it adds up at most; group sums round less often than that. */
static void check_numbers(const struct layer *l, int j) {
    const struct matrix *m = &l->m[j];
    int n_cols = m->w.n_cols, n_groups = n_cols / m->group_cols;
    for (int t = 0; t < l->x.n_tokens; t++)
        for (int r = 0; r < m->w.n_rows; r++) {
            size_t at = (size_t)t * (size_t)l->stride[j] + (size_t)r;
            double sum = (l->bias[j] ? (double)l->bias[j][r] : 0) + (l->add[j] ? (double)before(at) : 0), size = fabs(sum) + 20;
            for (int c = 0; c < n_cols; c++) {
                double x = activation(&l->x.a, m->w.fmt, l->use_f32, t, c),
                       steps = m->steps[(size_t)r * (size_t)n_cols + (size_t)c];
                double scale = m->scale[r * n_groups + c / m->group_cols], min = m->min[r * n_groups + c / m->group_cols];
                sum += (scale * steps + min) * x;
                size += (fabs(scale * steps) + fabs(min) + (m->w.fmt == WFMT_INT4_G32 ? fabs(8 * scale) : 0)) * fabs(x);
            }
            double error = fabs((double)l->expected[j][at] - sum), allowed = (double)(n_cols + 8) * 0x1p-24 * size;
            if (!(error <= allowed))
                fail_msg("seed %ld, %s row %d token %d: %g, off by %g", l->seed, wfmt_name(m->w.fmt), r, t,
                         (double)l->expected[j][at], error);
        }
}

/* One job in spans of random panels and tokens. */
static void run_in_pieces(span_fn *run, const struct layer *l, const struct linear_job *job) {
    int n_panels = (job->w->n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int p = 0, panels; p < n_panels; p += panels) {
        panels = random_int(1, n_panels - p);
        for (int t = 0, tokens; t < l->x.n_tokens; t += tokens) {
            tokens = random_int(1, l->x.n_tokens - t);
            run(&(struct linear_span){.job = job,
                                      .x = &l->x.a,
                                      .use_f32 = l->use_f32,
                                      .first_panel = p,
                                      .n_panels = panels,
                                      .first_token = t,
                                      .n_tokens = tokens});
        }
    }
}

static void check_pieces(struct layer *l) {
    span_fn *spans[MAX_VARIANTS];
    struct linear_job jobs[N_JOBS];
    for (int n = find_spans(spans), v = 0; v < n; v++) {
        char who[32];
        snprintf(who, sizeof who, "variant %d", v);
        clear_outputs(l);
        jobs_of(l, jobs, 0);
        for (int j = 0; j < N_JOBS; j++) run_in_pieces(spans[v], l, &jobs[j]);
        assert_expected(l, who);
    }
}

/* backend.linear with so many threads, all tokens at once or each alone, the last first. */
static void check_backend(struct layer *l, enum cpu_isa isa, int n_threads, bool is_batch) {
    struct cpu_backend_options options = {
        .isa = isa, .n_threads = n_threads, .max_tokens = MAX_TOKENS, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
    struct err err;
    void *workspace = must_alloc(cpu_backend_workspace_bytes(&options));
    struct backend *b = cpu_backend_open(&options, workspace, &err);
    struct linear_job jobs[N_JOBS];
    assert_non_null(b);
    clear_outputs(l);
    jobs_of(l, jobs, 0);
    if (is_batch) b->linear(b, jobs, N_JOBS, &l->x.a, l->x.n_tokens, l->use_f32);
    for (int t = l->x.n_tokens - 1; !is_batch && t >= 0; t--) {
        struct act alone = row_alone(&l->x.a, t);
        jobs_of(l, jobs, t);
        b->linear(b, jobs, N_JOBS, &alone, 1, l->use_f32);
    }
    assert_expected(l, b->name);
    b->close(b);
    free(workspace);
}

static void check_layer(struct layer *l) {
    static const int threads[] = {1, 2, 3, 5};
    expect_plain(l);
    for (int j = 0; j < N_JOBS && l->kind != KIND_WILD; j++) check_numbers(l, j);
    check_pieces(l);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_available((enum cpu_isa)isa)) continue;
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) check_backend(l, (enum cpu_isa)isa, threads[i], true);
        check_backend(l, (enum cpu_isa)isa, 1 + random_int(0, 1), false);
    }
}

#if defined(__SANITIZE_THREAD__)
#define DEFAULT_ROUNDS 40
#else
#define DEFAULT_ROUNDS 150
#endif

static long from_environment(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : fallback;
}

static void random_layers_are_right_and_the_same_bits_in_any_way(void **state) {
    long seed = from_environment("TALLY_SEED", 41), rounds = from_environment("TALLY_ROUNDS", DEFAULT_ROUNDS);
    print_message("seed=%ld rounds=%ld\n", seed, rounds);
    for (long end = seed + rounds; seed < end; seed++) {
        random_state = (uint64_t)seed * 0x9e3779b97f4a7c15u;
        struct layer l = random_layer((enum kind)((unsigned long)seed % 3));
        l.seed = seed;
        check_layer(&l);
        free_layer(&l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_layers_are_right_and_the_same_bits_in_any_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
