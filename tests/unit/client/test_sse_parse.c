/* Server-sent events: the standard's rules, any chunking, and streams that mean harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/arrivals.h"
#include "client/sse_parse.h"

/* Events joined by |, so that a test says in one string what it expects. */
struct seen {
    char text[512];
    int n, stop_after;
};

static bool keep(void *context, const char *data, size_t n) {
    struct seen *seen = context;
    assert_int_equal(strlen(data), n);
    snprintf(seen->text + strlen(seen->text), sizeof seen->text - strlen(seen->text), "%s%s", seen->n ? "|" : "", data);
    return ++seen->n != seen->stop_after;
}

static const struct {
    const char *stream, *events;
} streams[] = {
    {"data: a\n\n", "a"},
    {"data: a\r\n\r\ndata: b\r\n\r\n", "a|b"},
    {"data: a\r\rdata: b\r\r", "a|b"},
    {"data:a\n\n", "a"},
    {"data:  a\n\n", " a"},
    {"data: a\ndata: b\n\n", "a\nb"},
    {"data: a\r\ndata: b\r\n\r\n", "a\nb"},
    {"data: a\rdata: b\r\r", "a\nb"},
    {"data: a\n\ndata: [DONE]\n\n", "a|[DONE]"},
    {": ping\n\ndata: a\n: ping\n\n", "a"},
    {"event: x\nid: 3\nretry: 10\ndata: a\n\n", "a"},
    {"data\n\n", ""},
    {"data:\n\n", ""},
    {"data\ndata\n\n", "\n"},
    {"data: a", ""},
    {"data: a\n", ""},
    {"\n\n\ndata: a\n\n\n\n", "a"},
    {"\xef\xbb\xbf"
     "data: a\n\n",
     "a"},
    {"datax: b\n\ndat: c\n\n data: d\n\nDATA: e\n\n", ""},
    {"data: \xc3\xa9\xe2\x82\xac\n\n", "\xc3\xa9\xe2\x82\xac"},
    {"data: a: b\n\n", "a: b"},
    {"data: a\n\r\ndata: b\r\n\n", "a|b"},
};

static void whole_streams_give_their_events(void **state) {
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        struct seen seen = {0};
        struct sse_parser p;
        sse_init(&p, keep, &seen);
        assert_true(sse_feed(&p, streams[i].stream, strlen(streams[i].stream)));
        assert_string_equal(seen.text, streams[i].events);
        sse_deinit(&p);
    }
}

static void any_chunking_gives_the_same_events(void **state) {
    uint64_t seed = 7;
    print_message("seed %llu\n", (unsigned long long)seed);
    struct random_source random = random_open(seed, 0);
    struct seen seen;
    struct sse_parser p;
    sse_init(&p, keep, &seen);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        for (int round = 0; round < 40; round++) {
            memset(&seen, 0, sizeof seen);
            sse_reset(&p);
            size_t n = strlen(streams[i].stream);
            for (size_t at = 0, count; at < n; at += count) {
                count = round == 0 ? 1 : 1 + random_below(&random, n - at);
                assert_true(sse_feed(&p, streams[i].stream + at, count));
                assert_true(sse_feed(&p, NULL, 0));
            }
            assert_string_equal(seen.text, streams[i].events);
        }
    sse_deinit(&p);
}

static void the_callback_can_end_it(void **state) {
    struct seen seen = {.stop_after = 1};
    struct sse_parser p;
    sse_init(&p, keep, &seen);
    assert_false(sse_feed(&p, "data: a\n\ndata: b\n\n", 18));
    assert_false(sse_feed(&p, "data: c\n\n", 9));
    assert_string_equal(seen.text, "a");
    sse_deinit(&p);
}

static bool ignore(void *context, const char *data, size_t n) { return true; }

/* A line without end, and an event of endless lines: both end with an error, holding no more than the bound and its rounding. */
static void endless_events_are_refused(void **state) {
    static const char *const pieces[] = {"data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                         "data: aaaaaaaaaaaaaaaaaaaaaaaaa\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                         ": comment"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct sse_parser p;
        size_t n = strlen(pieces[i]), fed = 0;
        sse_init(&p, ignore, NULL);
        while (fed <= 3 * SSE_MAX_EVENT && sse_feed(&p, pieces[i], n)) fed += n;
        assert_true(fed <= 2 * SSE_MAX_EVENT);
        assert_true(p.line_capacity <= 2 * SSE_MAX_EVENT && p.data_capacity <= 2 * SSE_MAX_EVENT);
        sse_deinit(&p);
    }
}

static void endless_comments_take_no_memory(void **state) {
    struct sse_parser p;
    sse_init(&p, ignore, NULL);
    for (int i = 0; i < 200000; i++) assert_true(sse_feed(&p, ": still here\n\n", 14));
    assert_true(p.line_capacity < 4096 && p.data_capacity < 4096);
    sse_deinit(&p);
}

static void noise_never_breaks_it(void **state) {
    uint64_t seed = 11;
    print_message("seed %llu\n", (unsigned long long)seed);
    struct random_source random = random_open(seed, 0);
    static const char alphabet[] = "data: \n\r\n:\xef\xbb\xbf\0x[]";
    struct sse_parser p;
    sse_init(&p, ignore, NULL);
    for (int i = 0; i < 20000; i++) {
        char piece[32];
        size_t n = random_below(&random, sizeof piece);
        for (size_t j = 0; j < n; j++) piece[j] = alphabet[random_below(&random, sizeof alphabet)];
        assert_true(sse_feed(&p, piece, n));
    }
    sse_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_streams_give_their_events), cmocka_unit_test(any_chunking_gives_the_same_events),
        cmocka_unit_test(the_callback_can_end_it),         cmocka_unit_test(endless_events_are_refused),
        cmocka_unit_test(endless_comments_take_no_memory), cmocka_unit_test(noise_never_breaks_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
