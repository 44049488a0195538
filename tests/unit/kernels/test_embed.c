/* embed: rows of a packed matrix as weight_row_f32 gives them, whatever the format, the factor and the number of threads. */
#include "tests/unit/kernels/lane_variants.h"

#include "engine/base/f16.h"

/* A matrix of random bytes whose scales and minima are ordinary F16 numbers; float formats get ordinary numbers. */
static struct weight random_weight(enum wfmt fmt, int n_rows, int n_cols) {
    size_t bytes = weight_bytes(fmt, n_rows, n_cols), panel = wfmt_panel_bytes(fmt, n_cols);
    uint8_t *data = must_alloc(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)random_u32();
    if (fmt == WFMT_F32)
        for (size_t i = 0; i < bytes / 4; i++) ((float *)(void *)data)[i] = random_normal();
    if (fmt == WFMT_F16 || fmt == WFMT_BF16)
        for (size_t i = 0; i < bytes / 2; i++) ((uint16_t *)(void *)data)[i] = (uint16_t)(0x3000 + random_int(0, 0x0bff));
    if (wfmt_is_integer(fmt)) {
        size_t group = wfmt_group_bytes(fmt), quants = fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M ? 256 : 512;
        for (size_t p = 0; p < bytes; p += panel)
            for (size_t g = 0; g + group <= panel; g += group)
                for (size_t i = quants; i < group; i += 2) {
                    uint16_t half = f32_to_f16(random_normal() * 0.01f);
                    memcpy(data + p + g + i, &half, 2);
                }
    }
    return (struct weight){fmt, n_rows, n_cols, data};
}

static void rows_are_those_of_the_matrix(void **test) {
    enum { N = 70, ROWS = 53 };
    struct variant variants[4];
    float row[608];
    random_seed(51);
    int n_variants = find_variants(variants);
    for (int fmt = 0; fmt < WFMT_COUNT; fmt++)
        for (int round = 0; round < 4; round++) {
            int n_cols = 32 * random_int(1, 19), n = round ? N : 1;
            float factor = round % 2 ? 1.0f : 24.5f, *x = must_alloc((size_t)(N * n_cols) * sizeof *x);
            struct weight w = random_weight((enum wfmt)fmt, ROWS, n_cols);
            struct cpu_backend_options options = {
                .n_threads = 1 + round, .max_tokens = N, .max_positions = 1, .max_head_dim = 16, .max_heads = 1};
            struct test_backend *b = open_backend(variants[round % n_variants].ops, &options);
            int32_t ids[N];
            for (int i = 0; i < n; i++) ids[i] = random_int(0, ROWS - 1);
            b->cpu.ops.embed(&b->cpu.ops, x, &w, ids, n, factor);
            for (int t = 0; t < n; t++) {
                weight_row_f32(&w, ids[t], row);
                for (int i = 0; i < n_cols; i++) assert_true(x[t * n_cols + i] == row[i] * factor && isfinite(row[i]));
            }
            close_backend(b);
            free(x);
            free((void *)(uintptr_t)w.data);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_those_of_the_matrix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
