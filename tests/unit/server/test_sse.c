/* Streams and whole answers from the same records: cut into buffers of any size, they are the same bytes, and parse. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_engine.c"
#include "fake_tokenizer.c"

#include "server/sse.h"

#define N 6

static struct completion completion;
static struct completion_prompt prompt;
static struct completion_choice choices[2];
static struct token_record records[2][N];
static struct top_record tops[2][N];
static struct render_scratch scratch;
static struct err failure;
static bool has_failed;

/* "a", half a euro, the other half, "llo", "wor", "\"" for choice 0; two tokens for choice 1. */
static void set_up(bool logprobs) {
    static const int32_t ids[2][N] = {{'a', 261, 0xac, 258, 259, '"'}, {'x', '\n'}};
    static const int32_t prompt_ids[] = {'p'};
    completion = (struct completion){.n = 2,
                                     .max_tokens = N,
                                     .n_logprobs = logprobs ? 1 : -1,
                                     .n_prompts = 1,
                                     .n_choices = 2,
                                     .prompts = &prompt,
                                     .choices = choices,
                                     .id = "cmpl-1",
                                     .created = 5,
                                     .model_name = "m\"x",
                                     .include_usage = true};
    prompt = (struct completion_prompt){.ids = prompt_ids, .n = 1};
    has_failed = false;
    for (int c = 0; c < 2; c++) {
        choices[c] = (struct completion_choice){
            .records = records[c], .tops = logprobs ? tops[c] : NULL, .stop_hit = -1, .is_prompt_given = true};
        text_cursor_init(&choices[c].given, false);
        char_counter_init(&choices[c].given_chars, false);
        choices[c].arrived = choices[c].given;
        for (int i = 0; i < (c ? 2 : N); i++) {
            int hit;
            records[c][i] = (struct token_record){.id = ids[c][i], .logprob = i ? -0.5f : -INFINITY, .n_top = logprobs};
            tops[c][i] = (struct top_record){ids[c][i], records[c][i].logprob};
            records[c][i].is_releasing = text_cursor_push(&choices[c].arrived, engine_tokenizer(NULL), &completion.stops,
                                                          ids[c][i], &scratch.text, &hit) > 0;
        }
    }
}

static void arrive(int choice, int n, enum choice_end end) {
    choices[choice].n_records = choices[choice].n_generated = n;
    choices[choice].end = end;
}

static long take(struct renderer *r, render_item item, char *out, size_t max) {
    struct render_job job = {&completion, engine_tokenizer(NULL), has_failed ? &failure : NULL};
    return render_fill(&job, r, item, &scratch, out, max);
}

static size_t take_all(render_item item, size_t piece, char *out) {
    struct renderer r = {0};
    size_t n = 0;
    long got;
    while ((got = take(&r, item, out + n, piece)) > 0) n += (size_t)got;
    assert_int_equal(got, -1);
    out[n] = 0;
    return n;
}

static void the_bytes_do_not_depend_on_how_they_are_taken(void **unused) {
    static char whole[1 << 16], cut[1 << 16];
    static const render_item items[] = {sse_item, render_body_item};
    for (int logprobs = 0; logprobs < 2; logprobs++)
        for (int i = 0; i < 2; i++)
            for (size_t piece = 1; piece < 300; piece += 7) {
                set_up(logprobs);
                arrive(0, N, END_STOP);
                arrive(1, 2, END_LENGTH);
                size_t n = take_all(items[i], sizeof whole, whole);
                set_up(logprobs);
                arrive(0, N, END_STOP);
                arrive(1, 2, END_LENGTH);
                assert_int_equal(take_all(items[i], piece, cut), n);
                assert_memory_equal(whole, cut, n);
            }
}

static void the_body_is_json_with_texts_and_logprobs(void **unused) {
    static char out[1 << 16];
    set_up(true);
    arrive(0, N, END_STOP);
    arrive(1, 2, END_LENGTH);
    size_t n = take_all(render_body_item, sizeof out, out);
    json_error_t error;
    json_t *root = json_loadb(out, n, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s: %s", error.text, out);
    json_t *first = json_array_get(json_object_get(root, "choices"), 0), *logprobs = json_object_get(first, "logprobs");
    assert_string_equal(json_string_value(json_object_get(first, "text")), "a€llowor\"");
    assert_string_equal(json_string_value(json_array_get(json_object_get(logprobs, "tokens"), 1)), "bytes:\\xe2\\x82");
    assert_true(json_number_value(json_array_get(json_object_get(logprobs, "token_logprobs"), 0)) == -9999);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(logprobs, "text_offset"), 3)), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "completion_tokens")), N + 2);
    json_decref(root);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

static void one_event_a_token_that_releases_text_and_none_empty(void **unused) {
    static char out[1 << 16];
    struct renderer r = {0};
    set_up(false);
    assert_false(sse_is_pending(&completion));
    assert_int_equal(take(&r, sse_item, out, sizeof out), 0);
    arrive(0, 1, END_NONE);
    assert_true(sse_is_pending(&completion));
    long n = take(&r, sse_item, out, sizeof out - 1);
    out[n] = 0;
    assert_int_equal(count(out, "data: "), 1);
    arrive(0, 2, END_NONE); /* half a character */
    assert_false(sse_is_pending(&completion));
    arrive(0, 5, END_NONE);
    n = take(&r, sse_item, out, sizeof out - 1);
    out[n] = 0;
    assert_int_equal(count(out, "data: "), 3);
    assert_non_null(strstr(out, "\"text\":\"€\""));
    arrive(0, N, END_STOP);
    arrive(1, 2, END_LENGTH);
    n = take(&r, sse_item, out, sizeof out - 1);
    out[n] = 0;
    assert_int_equal(count(out, "data: "), 5); /* the last of choice 0, two of choice 1, usage, [DONE] */
    assert_int_equal(count(out, "\"finish_reason\":\"stop\""), 1);
    assert_int_equal(take(&r, sse_item, out, sizeof out), -1);
}

static void an_error_ends_the_stream_after_the_event_that_was_begun(void **unused) {
    static char out[1 << 16];
    struct renderer r = {0};
    set_up(false);
    arrive(0, 1, END_NONE);
    assert_int_equal(take(&r, sse_item, out, 20), 20);
    has_failed = true;
    err_set(&failure, STATUS_INTERNAL, "gone");
    long n = take(&r, sse_item, out + 20, sizeof out - 21);
    out[20 + n] = 0;
    assert_int_equal(count(out, "\n\n"), 3);
    assert_int_equal(count(out, "\n\ndata: "), 2);
    assert_non_null(strstr(out, "data: {\"error\":{\"message\":\"gone\""));
    assert_string_equal(out + 20 + n - 14, "data: [DONE]\n\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_do_not_depend_on_how_they_are_taken),
        cmocka_unit_test(the_body_is_json_with_texts_and_logprobs),
        cmocka_unit_test(one_event_a_token_that_releases_text_and_none_empty),
        cmocka_unit_test(an_error_ends_the_stream_after_the_event_that_was_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
