/* Stop strings against the definition: the text up to where the first stop string ends, less that string, however the text was
 * cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "server/stop.h"

static uint64_t state;
static uint16_t tables[MAX_STOPS][MAX_STOP_BYTES];

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void prepare(struct stop_set *set, int n, const char *const *strings) {
    set->n = n;
    for (int i = 0; i < n; i++) {
        set->strings[i] = (struct stop_string){strings[i], (uint16_t)strlen(strings[i]), tables[i]};
        stop_prepare(strings[i], set->strings[i].n, tables[i]);
    }
}

/* Pushes text in the given pieces; everything given out, and the hit. */
static int run(const struct stop_set *set, const char *text, size_t piece, char *out) {
    struct stop_state at = {{0}};
    char given[MAX_STOP_BYTES + 64];
    size_t n = strlen(text), w = 0, n_given;
    int hit = -1;
    for (size_t i = 0; i < n && hit < 0; i += piece) {
        hit = stop_push(set, &at, text + i, n - i < piece ? n - i : piece, given, &n_given);
        memcpy(out + w, given, n_given);
        w += n_given;
    }
    if (hit < 0) {
        n_given = stop_flush(set, &at, given);
        memcpy(out + w, given, n_given);
        w += n_given;
    }
    out[w] = 0;
    return hit;
}

/* The definition, by search. */
static int defined(const struct stop_set *set, const char *text, char *out) {
    size_t n = strlen(text);
    for (size_t end = 1; end <= n; end++) {
        int best = -1;
        for (int i = 0; i < set->n; i++) {
            size_t m = set->strings[i].n;
            if (m <= end && memcmp(text + end - m, set->strings[i].text, m) == 0 && (best < 0 || m > set->strings[best].n))
                best = i;
        }
        if (best < 0) continue;
        memcpy(out, text, end - set->strings[best].n);
        out[end - set->strings[best].n] = 0;
        return best;
    }
    strcpy(out, text);
    return -1;
}

static void only_a_real_partial_match_is_held_back(void **unused) {
    struct stop_set set;
    struct stop_state at = {{0}};
    char given[MAX_STOP_BYTES + 64];
    size_t n;
    prepare(&set, 2, (const char *const[]){"\n\nUser:", "END"});
    assert_int_equal(stop_push(&set, &at, "Hello\n", 6, given, &n), -1);
    assert_int_equal(n, 5); /* the newline may begin a stop */
    assert_int_equal(stop_push(&set, &at, "x", 1, given, &n), -1);
    assert_int_equal(n, 2);
    assert_memory_equal(given, "\nx", 2);
    assert_int_equal(stop_push(&set, &at, "yEN", 3, given, &n), -1);
    assert_int_equal(n, 1);
    assert_int_equal(stop_flush(&set, &at, given), 2);
    assert_memory_equal(given, "EN", 2);
}

static void without_stops_all_is_given_at_once(void **unused) {
    struct stop_set set = {0};
    struct stop_state at = {{0}};
    char given[MAX_STOP_BYTES + 64];
    size_t n;
    assert_int_equal(stop_push(&set, &at, "abc", 3, given, &n), -1);
    assert_int_equal(n, 3);
    assert_int_equal(stop_flush(&set, &at, given), 0);
}

static void random_texts_and_stops_agree_with_the_definition_however_cut(void **unused) {
    for (int round = 0; round < 200000; round++) {
        char strings[4][12], text[40], got[64], wanted[64];
        const char *pointers[4];
        struct stop_set set;
        int n = 1 + (int)(next_random() % 4);
        for (int i = 0; i < n; i++) {
            int length = 1 + (int)(next_random() % 6);
            for (int k = 0; k < length; k++) strings[i][k] = "ab"[next_random() % 2];
            strings[i][length] = 0;
            pointers[i] = strings[i];
        }
        int length = (int)(next_random() % 39);
        for (int k = 0; k < length; k++) text[k] = "aabc"[next_random() % 4];
        text[length] = 0;
        prepare(&set, n, pointers);
        int hit = defined(&set, text, wanted);
        for (size_t piece = 1; piece < 8; piece++) {
            int found = run(&set, text, piece, got);
            if (strcmp(got, wanted) != 0)
                fail_msg("text %s, first stop %s, pieces of %zu: %s, not %s", text, strings[0], piece, got, wanted);
            assert_int_equal(found < 0, hit < 0);
            if (hit >= 0) assert_string_equal(strings[found], strings[hit]);
        }
    }
}

int main(void) {
    state = (uint64_t)clock_us() | 1;
    if (getenv("TALLY_SEED")) state = strtoull(getenv("TALLY_SEED"), NULL, 10) | 1;
    printf("seed %llu\n", (unsigned long long)state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_real_partial_match_is_held_back),
        cmocka_unit_test(without_stops_all_is_given_at_once),
        cmocka_unit_test(random_texts_and_stops_agree_with_the_definition_however_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
