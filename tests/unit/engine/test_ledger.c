#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/host_memory.h"
#include "engine/ledger.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1 /* shadow memory is resident too: what the process holds cannot be compared with a plan */
#else
#define IS_SANITIZED 0
#endif

static struct plan two_lines(size_t small, size_t large) {
    struct plan p = {0};
    for (int i = 0; i < LINE_COUNT; i++) p.lines[i].id = "line", p.lines[i].is_arena = true;
    p.lines[LINE_ROPE].bytes = small;
    p.lines[LINE_ROPE].granted = (small + 4095) / 4096 * 4096;
    p.lines[LINE_KV_POOL].bytes = large;
    p.lines[LINE_KV_POOL].granted = (large + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    for (int i = 0; i < LINE_COUNT; i++) p.total += p.lines[i].granted;
    return p;
}

static struct ledger *open_ledger(const struct plan *p) {
    struct err err;
    struct ledger *l = NULL;
    assert_int_equal(ledger_open(&l, p, &err), STATUS_OK);
    return l;
}

static void pieces_are_zeroed_aligned_and_apart(void **state) {
    struct plan p = two_lines(10000, 3 << 20);
    struct ledger *l = open_ledger(&p);
    char *a = ledger_alloc(l, LINE_ROPE, 100), *b = ledger_alloc(l, LINE_ROPE, 100),
         *c = ledger_alloc(l, LINE_KV_POOL, 3 << 20);
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0 && (uintptr_t)c % 64 == 0);
    assert_true(b >= a + 100);
    for (int i = 0; i < 100; i++) assert_int_equal(a[i] | b[i], 0);
    memset(c, 0xff, 3 << 20);
    assert_int_equal(a[0] | b[99], 0);
    struct ledger_reading r;
    ledger_read(l, &r);
    assert_int_equal(r.used[LINE_ROPE], 256);
    assert_int_equal(r.allocs, 3);
    ledger_close(l);
}

static void what_the_machine_has_not_left_is_refused(void **state) {
    struct plan p = two_lines(4096, host_memory_available() + ((size_t)1 << 30));
    struct err err = {0};
    struct ledger *l = NULL;
    assert_int_equal(ledger_open(&l, &p, &err), STATUS_NO_MEMORY);
    assert_string_equal(err.param, "memory_budget");
    assert_null(l);
}

static void a_source_refuses_what_its_line_does_not_hold(void **state) {
    struct plan p = two_lines(4096, 0);
    struct ledger *l = open_ledger(&p);
    struct memory_source s = ledger_source(l, LINE_ROPE);
    assert_non_null(s.alloc(s.context, 4000));
    assert_null(s.alloc(s.context, 4000));
    assert_null(s.alloc(s.context, SIZE_MAX));
    assert_non_null(s.alloc(s.context, 64));
    ledger_close(l);
}

static void asking_for_more_than_was_planned_is_a_bug(void **state) {
    struct plan p = two_lines(4096, 0);
    struct ledger *l = open_ledger(&p);
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        ledger_alloc(l, LINE_ROPE, 4097);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    ledger_close(l);
}

static void allocations_after_ready_are_counted(void **state) {
    struct plan p = two_lines(8192, 0);
    struct ledger *l = open_ledger(&p);
    struct ledger_reading r;
    ledger_alloc(l, LINE_ROPE, 64);
    ledger_ready(l);
    ledger_read(l, &r);
    assert_int_equal(r.allocs_after_ready, 0);
    ledger_alloc(l, LINE_ROPE, 64);
    ledger_read(l, &r);
    assert_int_equal(r.allocs_after_ready, 1);
    ledger_close(l);
}

static void what_was_planned_is_held_at_once(void **state) {
    if (IS_SANITIZED) {
        print_message("skipped: a sanitizer's own memory is resident too\n");
        skip();
    }
    struct plan p = two_lines(1 << 20, 200 << 20);
    struct ledger *l = open_ledger(&p);
    struct ledger_reading r;
    ledger_read(l, &r);
    assert_in_range(r.measured, p.total - (1 << 20), p.total + (1 << 20));
    assert_in_range(r.unaccounted + (1 << 20), 0, 2 << 20);
    ledger_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(what_the_machine_has_not_left_is_refused),
        cmocka_unit_test(a_source_refuses_what_its_line_does_not_hold),
        cmocka_unit_test(asking_for_more_than_was_planned_is_a_bug),
        cmocka_unit_test(allocations_after_ready_are_counted),
        cmocka_unit_test(what_was_planned_is_held_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
