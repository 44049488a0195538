/* From finished requests to figures: definitions, classes, JSON keys, hostile words of a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/report.h"
#include "client/target.h"

#define CLOSE(a, b) assert_true(fabs((a) - (b)) < 1e-6)

/* A request answered in full: first chunk after 100 ms, done after 1100 ms, 11 tokens, scheduled 50 ms before it was sent. */
static struct request answered(void) {
    return (struct request){.scheduled_us = 1000000,
                            .due_us = 1010000,
                            .sent_us = 1050000,
                            .first_us = 1100000,
                            .last_us = 2090000,
                            .end_us = 2100000,
                            .n_chunks = 11,
                            .prompt_tokens = 32,
                            .output_tokens = 11,
                            .asked_tokens = 11};
}

static void latencies_follow_their_definitions(void **state) {
    struct summary s = {0};
    struct request r = answered();
    samples_add(&r.gaps, 90);
    samples_add(&r.gaps, 110);
    summary_add(&s, &r);
    CLOSE(samples_mean(&s.ttft), 100);
    CLOSE(samples_mean(&s.e2e), 1100);
    CLOSE(samples_mean(&s.tpot), 100); /* (1100 − 100) / (11 − 1) */
    CLOSE(samples_mean(&s.itl), 100);
    CLOSE(samples_mean(&s.lateness), 40);
    assert_int_equal(s.itl.n, 2);
    assert_int_equal(s.prompt_tokens, 32);
    assert_int_equal(s.output_tokens, 11);
    samples_free(&r.gaps);
    summary_free(&s);
}

static void one_token_has_no_time_per_output_token(void **state) {
    struct summary s = {0};
    struct request r = answered();
    r.output_tokens = r.n_chunks = 1;
    summary_add(&s, &r);
    assert_int_equal(s.ttft.n, 1);
    assert_int_equal(s.tpot.n, 0);
    summary_free(&s);
}

static void an_answer_without_text_has_no_first_token(void **state) {
    struct summary s = {0};
    struct request r = answered();
    r.first_us = r.n_chunks = 0;
    summary_add(&s, &r);
    assert_int_equal(s.outcomes[OUTCOME_OK], 1);
    assert_int_equal(s.e2e.n, 1);
    assert_int_equal(s.ttft.n, 0);
    assert_int_equal(s.tpot.n, 0);
    summary_free(&s);
}

static void without_usage_chunks_are_counted_and_it_is_said(void **state) {
    struct summary s = {0};
    struct request r = answered();
    struct bench_options o = {.url = "u", .prompts = "", .json = ""};
    r.output_tokens = r.prompt_tokens = -1;
    summary_add(&s, &r);
    assert_int_equal(s.output_tokens, 11);
    assert_int_equal(s.prompt_tokens, 0);
    assert_int_equal(s.n_uncounted, 1);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    report_table(&s, &o, "m", out);
    fclose(out);
    assert_non_null(strstr(text, "without usage"));
    free(text);
    summary_free(&s);
}

static void failures_count_by_class_and_not_in_latencies(void **state) {
    struct summary s = {0};
    for (int i = 1; i < OUTCOME_COUNT; i++)
        for (int k = 0; k < i; k++) {
            struct request r = answered();
            r.outcome = (enum outcome)i;
            snprintf(r.error, sizeof r.error, "%s number %d", outcome_key((enum outcome)i), k);
            summary_add(&s, &r);
        }
    assert_int_equal(s.ttft.n, 0);
    assert_int_equal(s.output_tokens, 0);
    assert_int_equal(summary_failed(&s), OUTCOME_COUNT * (OUTCOME_COUNT - 1) / 2);
    for (int i = 1; i < OUTCOME_COUNT; i++) {
        assert_int_equal(s.outcomes[i], i);
        assert_non_null(strstr(s.first_error[i], "number 0"));
    }
    summary_free(&s);
}

static void the_json_has_the_keys_that_others_read(void **state) {
    static const char *const keys[] = {
        "date",
        "endpoint_type",
        "backend",
        "model_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "mean_ttft_ms",
        "median_ttft_ms",
        "std_ttft_ms",
        "p50_ttft_ms",
        "p90_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "p99_tpot_ms",
        "mean_itl_ms",
        "p99_itl_ms",
        "mean_e2el_ms",
        "p90_e2el_ms",
        "p99_e2el_ms",
        "failures",
        "first_errors",
        "p99_client_lateness_ms",
        "definitions",
        "seed",
    };
    struct summary s = {.started_us = 1000000, .ended_us = 3000000};
    struct request r = answered();
    struct bench_options o = {
        .url = "http://h", .prompts = "", .json = "", .requests = 1, .concurrency = 1, .output_tokens = 11};
    summary_add(&s, &r);
    json_t *json = report_json(&s, &o, "m");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_object_get(json, keys[i])) fail_msg("no \"%s\"", keys[i]);
    assert_string_equal(json_string_value(json_object_get(json, "request_rate")), "inf");
    CLOSE(json_real_value(json_object_get(json, "duration")), 2);
    CLOSE(json_real_value(json_object_get(json, "output_throughput")), 5.5);
    CLOSE(json_real_value(json_object_get(json, "total_token_throughput")), 21.5);
    CLOSE(json_real_value(json_object_get(json, "p90_e2el_ms")), 1100);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "failures"), "429")), 0);
    json_decref(json);
    summary_free(&s);
}

static void an_empty_run_divides_by_nothing(void **state) {
    struct summary s = {0};
    struct bench_options o = {.url = "u", .prompts = "", .json = "", .rate = 3};
    json_t *json = report_json(&s, &o, "m");
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
    json_decref(json);
}

static void a_late_client_is_told(void **state) {
    struct summary s = {0};
    for (int i = 0; i < 100; i++) {
        struct request r = answered();
        summary_add(&s, &r);
    }
    assert_true(summary_is_late(&s)); /* 40 ms late beside a TTFT of 100 ms */
    summary_free(&s);
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 100; i++) {
        struct request r = answered();
        r.due_us = r.sent_us - 900;
        summary_add(&s, &r);
    }
    assert_false(summary_is_late(&s));
    summary_free(&s);
}

static void progress_is_shown_when_it_is_time(void **state) {
    char *text = NULL;
    size_t n = 0;
    struct progress p = {.out = open_memstream(&text, &n), .last_us = 1000000};
    progress_show(&p, 2000000, 1, 10, 0, 4, 50, "requests");
    fflush(p.out);
    assert_int_equal(n, 0);
    progress_show(&p, 6000000, 3, 10, 1, 4, 500, "requests");
    progress_show(&p, 6100000, 4, 10, 1, 4, 510, "requests");
    progress_end(&p);
    fclose(p.out);
    assert_string_equal(text, "3/10 requests done, 1 failed, 4 in flight, 100.0 chunks/s\n");
    free(text);
    p = (struct progress){.out = NULL};
    progress_show(&p, 9000000, 1, 1, 0, 0, 0, "requests");
    progress_end(&p);
}

static void words_of_a_server_cannot_drive_a_terminal(void **state) {
    char escape[] = "bad \033[2J\r\n\x7f.", latin[] = "caf\xe9", utf8[] = "caf\xc3\xa9";
    target_scrub(escape);
    assert_string_equal(escape, "bad  [2J   .");
    target_scrub(latin);
    assert_string_equal(latin, "caf?");
    target_scrub(utf8);
    assert_string_equal(utf8, "caf\xc3\xa9");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latencies_follow_their_definitions),
        cmocka_unit_test(one_token_has_no_time_per_output_token),
        cmocka_unit_test(an_answer_without_text_has_no_first_token),
        cmocka_unit_test(without_usage_chunks_are_counted_and_it_is_said),
        cmocka_unit_test(failures_count_by_class_and_not_in_latencies),
        cmocka_unit_test(the_json_has_the_keys_that_others_read),
        cmocka_unit_test(an_empty_run_divides_by_nothing),
        cmocka_unit_test(a_late_client_is_told),
        cmocka_unit_test(progress_is_shown_when_it_is_time),
        cmocka_unit_test(words_of_a_server_cannot_drive_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
