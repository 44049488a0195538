/* Import against golden/quant.bin, whose floats are from the numpy code of the `gguf` package (golden/make_quant.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/f16.h"
#include "quant/import_gguf.h"

struct fixture {
    uint32_t type, n_rows, n_cols, row_bytes;
    const uint8_t *rows;
    const uint8_t *expected; /* f32, unaligned */
};

#define MAX_FIXTURES 16
static struct fixture fixtures[MAX_FIXTURES];
static int n_fixtures;
static uint8_t *file;

static int load_fixtures(void **state) {
    FILE *f = fopen(TALLY_SOURCE_DIR "/tests/golden/quant.bin", "rb");
    if (!f || fseek(f, 0, SEEK_END)) return -1;
    long n = ftell(f);
    file = malloc((size_t)n);
    rewind(f);
    if (!file || fread(file, 1, (size_t)n, f) != (size_t)n) return -1;
    fclose(f);
    for (uint8_t *p = file; p < file + n && n_fixtures < MAX_FIXTURES; n_fixtures++) {
        struct fixture *x = &fixtures[n_fixtures];
        memcpy(x, p, 16);
        x->rows = p + 16;
        x->expected = x->rows + (size_t)x->n_rows * x->row_bytes;
        p = file + (x->expected - file) + (size_t)x->n_rows * x->n_cols * 4;
    }
    return 0;
}

static int free_fixtures(void **state) {
    free(file);
    return 0;
}

static float expected_at(const struct fixture *x, uint32_t row, uint32_t col) {
    float value;
    memcpy(&value, x->expected + ((size_t)row * x->n_cols + col) * 4, 4);
    return value;
}

static bool is_lossless(uint32_t type) { return type != GGML_Q4_K && type != GGML_Q5_K && type != GGML_Q6_K; }

static void test_all_importable_types_are_there(void **state) {
    assert_int_equal(n_fixtures, 11);
    int n = 0, elements, bytes;
    for (uint32_t type = 0; type < 100; type++) n += ggml_type_block(type, &elements, &bytes);
    assert_int_equal(n, 11);
    for (int i = 0; i < n_fixtures; i++) {
        assert_true(ggml_type_block(fixtures[i].type, &elements, &bytes));
        assert_int_equal(fixtures[i].row_bytes, fixtures[i].n_cols / (uint32_t)elements * (uint32_t)bytes);
    }
}

static void test_names_of_types(void **state) {
    assert_string_equal(ggml_type_name(GGML_Q4_K), "Q4_K");
    assert_string_equal(ggml_type_name(10), "Q2_K");
    assert_string_equal(ggml_type_name(20), "IQ4_NL");
    assert_string_equal(ggml_type_name(39), "MXFP4");
    assert_string_equal(ggml_type_name(4), "type 4"); /* removed from the format */
    assert_string_equal(ggml_type_name(77), "type 77");
    assert_string_equal(ggml_type_name(UINT32_MAX), "type 4294967295");
}

static void test_formats_of_types(void **state) {
    assert_int_equal(import_gguf_format(GGML_Q4_0), WFMT_INT4_G32);
    assert_int_equal(import_gguf_format(GGML_Q4_1), WFMT_INT4_G32M);
    assert_int_equal(import_gguf_format(GGML_Q5_0), WFMT_INT8_G32);
    assert_int_equal(import_gguf_format(GGML_Q5_1), WFMT_INT8_G32M);
    assert_int_equal(import_gguf_format(GGML_Q8_0), WFMT_INT8_G32);
    assert_int_equal(import_gguf_format(GGML_Q4_K), WFMT_INT4_G32M);
    assert_int_equal(import_gguf_format(GGML_Q5_K), WFMT_INT8_G32M);
    assert_int_equal(import_gguf_format(GGML_Q6_K), WFMT_INT8_G32);
    assert_int_equal(import_gguf_format(GGML_F32), WFMT_F32);
    assert_int_equal(import_gguf_format(GGML_F16), WFMT_F16);
    assert_int_equal(import_gguf_format(GGML_BF16), WFMT_BF16);
}

/* numpy's order of operations is that of the format's definition, so even rounding agrees. Zeros may differ in sign. */
static void test_rows_have_the_bits_of_the_reference(void **state) {
    for (int i = 0; i < n_fixtures; i++) {
        const struct fixture *x = &fixtures[i];
        float row[256];
        for (uint32_t r = 0; r < x->n_rows; r++) {
            ggml_row_f32(x->type, x->rows + (size_t)r * x->row_bytes, x->n_cols, row);
            for (uint32_t c = 0; c < x->n_cols; c++)
                if (row[c] != expected_at(x, r, c))
                    fail_msg("%s row %u column %u: %a, expected %a", ggml_type_name(x->type), r, c, (double)row[c],
                             (double)expected_at(x, r, c));
        }
    }
}

/* Packs a whole fixture; *w borrows the memory, which the caller frees. */
static void *pack(const struct fixture *x, struct weight *w) {
    *w = (struct weight){import_gguf_format(x->type), (int)x->n_rows, (int)x->n_cols, NULL};
    size_t bytes = weight_bytes(w->fmt, x->n_rows, x->n_cols);
    uint8_t *data = aligned_alloc(64, bytes);
    assert_non_null(data);
    memset(data, 0xa5, bytes);
    for (int64_t r = 0; r < x->n_rows; r += PANEL_ROWS)
        import_gguf_panel(data + (size_t)(r / PANEL_ROWS) * wfmt_panel_bytes(w->fmt, (int)x->n_cols), x->type, x->rows,
                          x->n_rows, x->n_cols, r);
    w->data = data;
    return data;
}

/* scale and min of a row's group in a packed matrix. */
static float packed_scale(const struct weight *w, uint32_t row, uint32_t col, bool min) {
    size_t quants = wfmt_group_bytes(w->fmt) % 512 < 256 ? 512 : 256;
    const uint8_t *group =
        (const uint8_t *)w->data + row / 16 * wfmt_panel_bytes(w->fmt, w->n_cols) + col / 32 * wfmt_group_bytes(w->fmt);
    uint16_t h;
    memcpy(&h, group + quants + (min ? 32 : 0) + row % 16 * 2, sizeof h);
    return f16_to_f32(h);
}

/* The largest magnitude of the group that column `c` of row `r` is in. */
static float group_amax(const struct fixture *x, uint32_t r, uint32_t c) {
    float largest = 0;
    for (uint32_t j = c / 32 * 32; j < c / 32 * 32 + 32; j++) largest = fmaxf(largest, fabsf(expected_at(x, r, j)));
    return largest;
}

/* What packing may cost. F16 rounds by 2^-11 of a value or, when it is subnormal, by 2^-25; q is at most 15 or 31 in Q4_K, Q5_K. */
static float bound(const struct fixture *x, const struct weight *w, uint32_t r, uint32_t c, float value) {
    if (is_lossless(x->type)) return 0;
    float scale = fabsf(packed_scale(w, r, c, false)), slack = 0x1p-20f * fabsf(value);
    if (x->type == GGML_Q6_K) return group_amax(x, r, c) / 254 * 1.0005f + slack + (scale < 0x1p-14f ? 127 * 0x1p-25f : 0);
    float q_max = x->type == GGML_Q4_K ? 15 : 31;
    return q_max * (scale * 0x1.01p-11f + 0x1p-25f) + fabsf(packed_scale(w, r, c, true)) * 0x1.01p-11f + 0x1p-25f + slack;
}

static void test_panels_mean_what_the_file_says(void **state) {
    for (int i = 0; i < n_fixtures; i++) {
        const struct fixture *x = &fixtures[i];
        struct weight w;
        void *data = pack(x, &w);
        float row[256], worst = 0;
        for (uint32_t r = 0; r < x->n_rows; r++) {
            weight_row_f32(&w, (int)r, row);
            for (uint32_t c = 0; c < x->n_cols; c++) {
                float want = expected_at(x, r, c), off = fabsf(row[c] - want), allowed = bound(x, &w, r, c, want);
                if (!(off <= allowed))
                    fail_msg("%s row %u column %u: %a, expected %a, allowed %g", ggml_type_name(x->type), r, c, (double)row[c],
                             (double)want, (double)allowed);
                worst = fmaxf(worst, off);
            }
        }
        assert_true((worst == 0) == is_lossless(x->type)); /* the bounds above are there for a reason */
        free(data);
    }
}

static void test_rows_that_do_not_exist_are_zero(void **state) {
    for (int i = 0; i < n_fixtures; i++) {
        struct weight w;
        uint8_t *data = pack(&fixtures[i], &w);
        float row[256];
        w.n_rows = 2 * PANEL_ROWS; /* the padded rows, read as if they were */
        for (int r = (int)fixtures[i].n_rows; r < w.n_rows; r++) {
            weight_row_f32(&w, r, row);
            for (uint32_t c = 0; c < fixtures[i].n_cols; c++) assert_true(row[c] == 0);
        }
        free(data);
    }
}

static void test_every_byte_of_a_panel_is_written(void **state) {
    const struct {
        uint32_t type;
        int n_cols;
    } shapes[] = {{GGML_Q4_0, 32}, {GGML_F16, 3}, {GGML_BF16, 7}, {GGML_F32, 1}};
    for (int i = 0; i < 4; i++) {
        uint8_t rows[16 * 64] = {0}, panels[2][1024];
        for (int k = 0; k < 2; k++) {
            memset(panels[k], k ? 0xff : 0, sizeof panels[k]);
            import_gguf_panel(panels[k], shapes[i].type, rows, 16, shapes[i].n_cols, 0);
        }
        assert_memory_equal(panels[0], panels[1], wfmt_panel_bytes(import_gguf_format(shapes[i].type), shapes[i].n_cols));
    }
}

static void test_sources_need_no_alignment(void **state) {
    for (int i = 0; i < n_fixtures; i++) {
        struct fixture moved = fixtures[i];
        size_t bytes = (size_t)moved.n_rows * moved.row_bytes;
        uint8_t *copy = malloc(bytes + 1);
        memcpy(copy + 1, moved.rows, bytes);
        moved.rows = copy + 1;
        struct weight a, b;
        void *packed[2] = {pack(&fixtures[i], &a), pack(&moved, &b)};
        assert_memory_equal(packed[0], packed[1], weight_bytes(a.fmt, a.n_rows, a.n_cols));
        free(packed[0]);
        free(packed[1]);
        free(copy);
    }
}

/* Any bytes, many of them scales of infinity or NaN: nothing to compare, but sanitizers watch. */
static void test_hostile_scales_are_harmless(void **state) {
    uint32_t seed = 12345;
    printf("seed %u\n", seed);
    for (int i = 0; i < n_fixtures; i++) {
        struct fixture x = fixtures[i];
        size_t bytes = (size_t)x.n_rows * x.row_bytes;
        uint8_t *noise = malloc(bytes);
        for (size_t k = 0; k < bytes; k++) noise[k] = (seed = seed * 1664525 + 1013904223) >> 28 ? (uint8_t)(seed >> 20) : 0x7c;
        x.rows = noise;
        struct weight w;
        void *data = pack(&x, &w);
        float row[256];
        for (uint32_t r = 0; r < x.n_rows; r++) ggml_row_f32(x.type, noise + (size_t)r * x.row_bytes, x.n_cols, row);
        free(data);
        free(noise);
    }
}

/* The largest of 32 values of Q6_K takes ±127, of either sign, and the smaller half of the group is rounded by at most half a step. */
static void test_q6_k_uses_the_range(void **state) {
    uint8_t block[210] = {0};
    uint16_t d = f32_to_f16(0.5f);
    memcpy(block + 208, &d, 2);
    for (int i = 0; i < 16; i++) block[192 + i] = i % 2 ? 100 : 3; /* all quants are 0 − 32 */
    uint8_t panel[8 * 544];
    import_gguf_panel(panel, GGML_Q6_K, block, 1, 256, 0);
    struct weight w = {WFMT_INT8_G32, 1, 256, panel};
    float row[256];
    weight_row_f32(&w, 0, row);
    for (int c = 0; c < 256; c++) {
        float want = c / 16 % 2 ? -1600 : -48;
        assert_true(fabsf(row[c] - want) <= 1600.f / 127 / 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_importable_types_are_there),
        cmocka_unit_test(test_names_of_types),
        cmocka_unit_test(test_formats_of_types),
        cmocka_unit_test(test_rows_have_the_bits_of_the_reference),
        cmocka_unit_test(test_panels_mean_what_the_file_says),
        cmocka_unit_test(test_rows_that_do_not_exist_are_zero),
        cmocka_unit_test(test_every_byte_of_a_panel_is_written),
        cmocka_unit_test(test_sources_need_no_alignment),
        cmocka_unit_test(test_hostile_scales_are_harmless),
        cmocka_unit_test(test_q6_k_uses_the_range),
    };
    return cmocka_run_group_tests(tests, load_fixtures, free_fixtures);
}
