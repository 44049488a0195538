#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/arena.h"
#include "engine/base/checked.h"
#include "engine/base/cpus.h"
#include "engine/base/err.h"
#include "engine/base/f16.h"
#include "engine/base/host_memory.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"

static void an_error_keeps_status_field_and_text_and_never_overflows(void **state) {
    struct err err;
    char large[2000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    assert_int_equal(err_set_param(&err, STATUS_INVALID, large, "%s", large), STATUS_INVALID);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(strlen(err.param), sizeof err.param - 1);
    assert_int_equal(err_set(NULL, STATUS_IO, "nobody listens"), STATUS_IO);
    assert_string_equal(status_text(STATUS_BUSY), "busy");
    assert_string_equal(status_text((enum status)99), "unknown status");
}

static void an_arena_refuses_what_does_not_fit_and_gives_all_back(void **state) {
    static _Alignas(64) char memory[1024];
    struct arena a;
    arena_init(&a, memory, sizeof memory);
    char *one = arena_alloc(&a, 1), *two = arena_alloc(&a, 1);
    assert_int_equal(two - one, 64);
    assert_null(arena_alloc(&a, 1024));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_copy(&a, "x", SIZE_MAX));
    assert_string_equal(arena_copy(&a, "text", 4), "text");
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 1024));
    assert_int_equal(a.peak, 1024);
}

static void half_floats_survive_the_round_trip(void **state) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint16_t back = f32_to_f16(f);
        bool is_nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff);
        if (is_nan) assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        else assert_int_equal(back, h);
    }
}

static void half_floats_round_to_nearest_even(void **state) {
    for (uint32_t h = 0; h < 0x7bff;
         h++) { /* the middle between neighbours goes to the even one, a hair beside it to the nearer */
        float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(f32_to_f16(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f32_to_f16(f32_from_bits(f32_bits(middle) + 1)), h + 1);
        assert_int_equal(f32_to_f16(f32_from_bits(f32_bits(middle) - 1)), h);
    }
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
}

static void utf8_refuses_overlong_surrogates_and_beyond(void **state) {
    static const char *const bad[] = {
        "\xc0\x80",         "\xc1\xbf",         "\xe0\x80\x80",     "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\x80",         "\xff",         "\xc3",
        "\xe2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(utf8_is_valid(bad[i], strlen(bad[i])));
    uint32_t c;
    assert_int_equal(utf8_decode("\xf4\x8f\xbf\xbf", 4, &c), 4);
    assert_int_equal(c, 0x10ffff);
    assert_true(utf8_is_valid("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", 10));
    assert_true(utf8_is_valid("\0", 1));
}

static void an_incomplete_tail_is_what_could_still_become_a_character(void **state) {
    static const struct {
        const char *s;
        size_t tail;
    } cases[] = {
        {"", 0},         {"a", 0},        {"\xc3", 1},     {"a\xe2\x82", 2}, {"\xf0\x9f\x99", 3}, {"\xf0\x9f\x99\x82", 0},
        {"\xed\xa0", 0}, {"\xe0\x80", 0}, {"\xf4\x90", 0}, {"\x80", 0},      {"\xf0\x9f", 2},     {"\xc3\xa9", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_incomplete_tail(cases[i].s, strlen(cases[i].s)), cases[i].tail);
}

static void checked_arithmetic_tells_overflow(void **state) {
    size_t n;
    assert_false(checked_mul_size(SIZE_MAX / 2, 3, &n));
    assert_false(checked_add_size(SIZE_MAX, 1, &n));
    assert_true(checked_mul_size(1 << 20, 1 << 20, &n));
    assert_int_equal(round_up(65, 64), 128);
}

static void the_machine_has_cpus_and_memory(void **state) {
    assert_in_range(cpus_usable(), 1, 1 << 20);
    assert_true(host_memory_available() > 1 << 20);
}

static void a_log_level_has_a_name(void **state) {
    enum log_level level;
    assert_true(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_DEBUG);
    assert_false(log_level_parse("verbose", &level));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_keeps_status_field_and_text_and_never_overflows),
        cmocka_unit_test(an_arena_refuses_what_does_not_fit_and_gives_all_back),
        cmocka_unit_test(half_floats_survive_the_round_trip),
        cmocka_unit_test(half_floats_round_to_nearest_even),
        cmocka_unit_test(utf8_refuses_overlong_surrogates_and_beyond),
        cmocka_unit_test(an_incomplete_tail_is_what_could_still_become_a_character),
        cmocka_unit_test(checked_arithmetic_tells_overflow),
        cmocka_unit_test(the_machine_has_cpus_and_memory),
        cmocka_unit_test(a_log_level_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
