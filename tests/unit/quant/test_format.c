/* The layouts of quant/format.h, byte by byte: panels are filled here by hand from the header's text, and read by weight_row_f32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/f16.h"
#include "quant/format.h"

static void test_sizes_are_those_of_the_header(void **state) {
    assert_int_equal(wfmt_group_bytes(WFMT_INT4_G32), 256 + 32);
    assert_int_equal(wfmt_group_bytes(WFMT_INT4_G32M), 256 + 64);
    assert_int_equal(wfmt_group_bytes(WFMT_INT8_G32), 512 + 32);
    assert_int_equal(wfmt_group_bytes(WFMT_INT8_G32M), 512 + 64);
    assert_int_equal(wfmt_panel_bytes(WFMT_INT4_G32M, 576), 18 * 320);
    assert_int_equal(wfmt_panel_bytes(WFMT_INT4_G32, 32), 320); /* 288, rounded to 64 */
    assert_int_equal(wfmt_panel_bytes(WFMT_F32, 3), 192);
    assert_int_equal(wfmt_panel_bytes(WFMT_F16, 1), 64);
    assert_int_equal(wfmt_panel_bytes(WFMT_BF16, 5), 192); /* 160, rounded */
}

static void test_the_last_panel_is_whole(void **state) {
    assert_int_equal(weight_bytes(WFMT_INT8_G32, 16, 64), wfmt_panel_bytes(WFMT_INT8_G32, 64));
    assert_int_equal(weight_bytes(WFMT_INT8_G32, 17, 64), 2 * wfmt_panel_bytes(WFMT_INT8_G32, 64));
    assert_int_equal(weight_bytes(WFMT_F32, 0, 64), 0);
}

static void test_the_largest_dimensions_do_not_wrap(void **state) {
    assert_true(weight_bytes(WFMT_F32, INT32_MAX, INT32_MAX) == SIZE_MAX - ((size_t)1 << 33) + 1);
    assert_true(weight_bytes(WFMT_INT4_G32, INT32_MAX, 32) == (size_t)134217728 * 320);
}

static void test_every_format_has_a_name(void **state) {
    for (int f = 0; f < WFMT_COUNT; f++) assert_true(strlen(wfmt_name((enum wfmt)f)) >= 3);
    assert_string_equal(wfmt_name(WFMT_INT4_G32M), "INT4_G32M");
    assert_false(wfmt_is_integer(WFMT_BF16));
    assert_true(wfmt_is_integer(WFMT_INT8_G32));
}

static uint8_t *zeroed(size_t bytes) {
    uint8_t *p = aligned_alloc(64, bytes);
    assert_non_null(p);
    return memset(p, 0, bytes);
}

static void put_f16(uint8_t *at, float value) {
    uint16_t h = f32_to_f16(value);
    memcpy(at, &h, sizeof h);
}

/* q[r][c] that no two of near rows or columns share. */
static int int8_quant(int r, int c) { return (r * 37 + c * 11) % 255 - 127; }

static void check_int8(enum wfmt fmt, bool has_min) {
    uint8_t *panel = zeroed(weight_bytes(fmt, 16, 64));
    for (int g = 0; g < 2; g++)
        for (int r = 0; r < 16; r++) {
            uint8_t *group = panel + (size_t)g * wfmt_group_bytes(fmt);
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 4; j++) group[64 * i + 4 * r + j] = (uint8_t)(int8_t)int8_quant(r, 32 * g + 4 * i + j);
            put_f16(group + 512 + 2 * r, 0.5f + (float)r);
            if (has_min) put_f16(group + 544 + 2 * r, (float)(g - r));
        }
    struct weight w = {fmt, 16, 64, panel};
    float row[64];
    for (int r = 0; r < 16; r++) {
        weight_row_f32(&w, r, row);
        for (int c = 0; c < 64; c++)
            assert_true(row[c] == (0.5f + (float)r) * (float)int8_quant(r, c) + (has_min ? (float)(c / 32 - r) : 0));
    }
    free(panel);
}

static void test_int8_lies_as_stated(void **state) {
    check_int8(WFMT_INT8_G32, false);
    check_int8(WFMT_INT8_G32M, true);
}

static int int4_quant(int r, int c) { return (r * 7 + c * 5) % 16; }

static void check_int4(enum wfmt fmt, bool has_min) {
    uint8_t *panel = zeroed(weight_bytes(fmt, 16, 64));
    for (int g = 0; g < 2; g++)
        for (int r = 0; r < 16; r++) {
            uint8_t *group = panel + (size_t)g * wfmt_group_bytes(fmt);
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    group[64 * i + 4 * r + j] =
                        (uint8_t)(int4_quant(r, 32 * g + 4 * i + j) | int4_quant(r, 32 * g + 16 + 4 * i + j) << 4);
            put_f16(group + 256 + 2 * r, 2 + (float)r);
            if (has_min) put_f16(group + 288 + 2 * r, (float)(r - g));
        }
    struct weight w = {fmt, 16, 64, panel};
    float row[64];
    for (int r = 0; r < 16; r++) {
        weight_row_f32(&w, r, row);
        for (int c = 0; c < 64; c++) {
            float q = (float)int4_quant(r, c);
            assert_true(row[c] == (has_min ? (2 + (float)r) * q + (float)(r - c / 32) : (2 + (float)r) * (q - 8)));
        }
    }
    free(panel);
}

static void test_int4_lies_as_stated(void **state) {
    check_int4(WFMT_INT4_G32, false);
    check_int4(WFMT_INT4_G32M, true);
}

static void test_floats_lie_column_by_column(void **state) {
    const enum wfmt formats[] = {WFMT_F32, WFMT_F16, WFMT_BF16};
    for (int f = 0; f < 3; f++) {
        uint8_t *data = zeroed(weight_bytes(formats[f], 20, 3));
        size_t panel_bytes = wfmt_panel_bytes(formats[f], 3), width = f ? 2 : 4;
        for (int r = 0; r < 20; r++)
            for (int c = 0; c < 3; c++) {
                float value = (float)(r * 4 + c) / 8;
                uint32_t bits = f == 0 ? f32_bits(value) : f == 1 ? f32_to_f16(value) : f32_bits(value) >> 16;
                memcpy(data + (size_t)(r / 16) * panel_bytes + ((size_t)c * 16 + (size_t)(r % 16)) * width, &bits, width);
            }
        struct weight w = {formats[f], 20, 3, data};
        float row[3];
        for (int r = 0; r < 20; r++) {
            weight_row_f32(&w, r, row);
            for (int c = 0; c < 3; c++) assert_true(row[c] == (float)(r * 4 + c) / 8);
        }
        free(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_those_of_the_header),
        cmocka_unit_test(test_the_last_panel_is_whole),
        cmocka_unit_test(test_the_largest_dimensions_do_not_wrap),
        cmocka_unit_test(test_every_format_has_a_name),
        cmocka_unit_test(test_int8_lies_as_stated),
        cmocka_unit_test(test_int4_lies_as_stated),
        cmocka_unit_test(test_floats_lie_column_by_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
