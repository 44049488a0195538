#include "client/report.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"

/* ---- progress ---- */

void progress_show(struct progress *p, int64_t now_us, int64_t done, int64_t total, int64_t failed, int64_t active,
                   int64_t chunks, const char *what) {
    int64_t interval = p->is_tty ? 200000 : 5000000, elapsed = now_us - p->last_us;
    if (!p->out || elapsed < interval) return;
    double rate = p->last_us ? (double)(chunks - p->last_chunks) * 1e6 / (double)elapsed : 0;
    fprintf(p->out, "%s%lld/%lld %s done, %lld failed, %lld in flight, %.1f chunks/s%s", p->is_tty ? "\r\033[K" : "",
            (long long)done, (long long)total, what, (long long)failed, (long long)active, rate, p->is_tty ? "" : "\n");
    fflush(p->out);
    p->last_us = now_us;
    p->last_chunks = chunks;
}

void progress_end(struct progress *p) {
    if (p->out && p->is_tty) fputs("\r\033[K", p->out);
}

/* ---- table ---- */

struct metric {
    const char *key, *title;
    struct samples *samples;
};
#define N_METRICS 4

static void metrics_of(struct summary *s, struct metric metrics[N_METRICS]) {
    metrics[0] = (struct metric){"ttft", "Time to first token", &s->ttft};
    metrics[1] = (struct metric){"tpot", "Time per output token (excl. 1st)", &s->tpot};
    metrics[2] = (struct metric){"itl", "Inter-token latency", &s->itl};
    metrics[3] = (struct metric){"e2el", "End-to-end latency", &s->e2e};
}

static void row(FILE *out, const char *title, double value, int decimals) {
    fprintf(out, "%-40s %12.*f\n", title, decimals, value);
}

static double per_second(double count, const struct summary *s) {
    double duration = summary_duration_s(s);
    return duration > 0 ? count / duration : 0;
}

static void table_failures(const struct summary *s, FILE *out) {
    row(out, "Failed requests:", (double)summary_failed(s), 0);
    for (int i = 0; i < OUTCOME_COUNT; i++)
        if (i != OUTCOME_OK && s->outcomes[i])
            fprintf(out, "  %-38s %12lld  first: %s\n", outcome_key((enum outcome)i), (long long)s->outcomes[i],
                    s->first_error[i]);
}

static void table_latencies(struct summary *s, FILE *out) {
    struct metric metrics[N_METRICS];
    metrics_of(s, metrics);
    fprintf(out, "\n%-36s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99", "max", "samples");
    for (int i = 0; i < N_METRICS; i++) {
        struct samples *m = metrics[i].samples;
        fprintf(out, "%-36s %9.2f %9.2f %9.2f %9.2f %9.2f %9zu\n", metrics[i].title, samples_mean(m), samples_percentile(m, 50),
                samples_percentile(m, 90), samples_percentile(m, 99), samples_max(m), m->n);
    }
    fprintf(out, "%-36s %9.2f %9.2f %9.2f %9.2f %9.2f %9zu\n", "Client lateness", samples_mean(&s->lateness),
            samples_percentile(&s->lateness, 50), samples_percentile(&s->lateness, 90), samples_percentile(&s->lateness, 99),
            samples_max(&s->lateness), s->lateness.n);
}

static void table_notes(struct summary *s, FILE *out) {
    if (summary_is_late(s))
        fprintf(out,
                "\nNote: this client was late itself (p99 %.2f ms): the latencies are not the server's alone. Lower the load, "
                "or give\n"
                "the client a CPU of its own.\n",
                samples_percentile(&s->lateness, 99));
    if (s->n_uncounted)
        fprintf(out, "\nNote: %lld answers came without usage; their chunks were counted as tokens.\n",
                (long long)s->n_uncounted);
    if (s->is_interrupted) fputs("\nNote: interrupted; requests in flight are not counted.\n", out);
}

void report_table(struct summary *s, const struct bench_options *o, const char *model, FILE *out) {
    fprintf(out, "%s, %s\n", o->url, model);
    if (o->rate > 0) row(out, "Request rate, Poisson (req/s):", o->rate, 2);
    row(out, "Concurrency limit:", (double)o->concurrency, 0);
    row(out, "Peak concurrent requests:", (double)s->max_concurrent, 0);
    row(out, "Successful requests:", (double)s->outcomes[OUTCOME_OK], 0);
    table_failures(s, out);
    row(out, "Duration (s):", summary_duration_s(s), 2);
    row(out, "Total input tokens:", (double)s->prompt_tokens, 0);
    row(out, "Total generated tokens:", (double)s->output_tokens, 0);
    row(out, "Request throughput (req/s):", per_second((double)s->outcomes[OUTCOME_OK], s), 3);
    row(out, "Output token throughput (tok/s):", per_second((double)s->output_tokens, s), 2);
    row(out, "Total token throughput (tok/s):", per_second((double)(s->output_tokens + s->prompt_tokens), s), 2);
    row(out, "Client CPU (s):", s->cpu_s, 2);
    table_latencies(s, out);
    table_notes(s, out);
}

/* ---- JSON ---- */

static void set_real(json_t *object, const char *key, double value) { json_object_set_new(object, key, json_real(value)); }

/* {mean,median,std,p50,p90,p99,max}_NAME_ms */
static void set_metric(json_t *object, const struct metric *m) {
    static const int percentiles[] = {50, 90, 99};
    char key[64];
    const struct {
        const char *name;
        double value;
    } figures[] = {
        {"mean", samples_mean(m->samples)},
        {"median", samples_percentile(m->samples, 50)},
        {"std", samples_std(m->samples)},
        {"max", samples_max(m->samples)},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", figures[i].name, m->key);
        set_real(object, key, figures[i].value);
    }
    for (size_t i = 0; i < sizeof percentiles / sizeof *percentiles; i++) {
        snprintf(key, sizeof key, "p%d_%s_ms", percentiles[i], m->key);
        set_real(object, key, samples_percentile(m->samples, percentiles[i]));
    }
}

static void set_failures(json_t *object, const struct summary *s) {
    json_t *failures = json_object(), *errors = json_object();
    for (int i = 0; i < OUTCOME_COUNT; i++) {
        if (i == OUTCOME_OK) continue;
        json_object_set_new(failures, outcome_key((enum outcome)i), json_integer(s->outcomes[i]));
        if (s->outcomes[i])
            json_object_set_new(errors, outcome_key((enum outcome)i),
                                json_stringn(s->first_error[i], strlen(s->first_error[i])));
    }
    json_object_set_new(object, "failures", failures);
    json_object_set_new(object, "first_errors", errors);
}

static void set_load(json_t *object, const struct bench_options *o, const char *model) {
    char date[32];
    time_t now = (time_t)clock_unix_s();
    struct tm utc;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    json_object_set_new(object, "date", json_string(date));
    json_object_set_new(object, "client", json_string("tally " TALLY_VERSION));
    json_object_set_new(object, "endpoint_type", json_string("openai"));
    json_object_set_new(object, "backend", json_string("openai"));
    json_object_set_new(object, "model_id", json_string(model));
    json_object_set_new(object, "url", json_string(o->url));
    json_object_set_new(object, "num_prompts", json_integer(o->requests));
    json_object_set_new(object, "request_rate", o->rate > 0 ? json_real(o->rate) : json_string("inf"));
    json_object_set_new(object, "burstiness", json_real(1));
    json_object_set_new(object, "max_concurrency", json_integer(o->concurrency));
    json_object_set_new(object, "seed", json_integer(o->seed));
    json_object_set_new(object, "dataset", json_string(*o->prompts ? "file" : o->token_ids ? "random_tokens" : "random_words"));
    json_object_set_new(object, "input_len", *o->prompts ? json_null() : json_integer(o->input_tokens));
    json_object_set_new(object, "output_len", json_integer(o->output_tokens));
    json_object_set_new(object, "ignore_eos", json_boolean(o->ignore_eos));
    json_object_set_new(object, "temperature", json_real(o->temperature));
}

static void set_definitions(json_t *object, const struct bench_options *o) {
    json_object_set_new(object, "definitions",
                        json_pack("{s:s, s:s, s:s, s:s, s:s}", "ttft",
                                  o->rate > 0 ? "scheduled send to first chunk with text" : "send to first chunk with text",
                                  "tpot", "(e2el - ttft) / (output tokens - 1), requests with at least 2 output tokens", "itl",
                                  "gaps between chunks with text", "e2el",
                                  o->rate > 0 ? "scheduled send to end of answer" : "send to end of answer", "percentiles",
                                  "exact, linear between ranks"));
}

json_t *report_json(struct summary *s, const struct bench_options *o, const char *model) {
    struct metric metrics[N_METRICS], lateness = {"client_lateness", "", &s->lateness};
    json_t *object = json_object();
    set_load(object, o, model);
    set_real(object, "duration", summary_duration_s(s));
    json_object_set_new(object, "completed", json_integer(s->outcomes[OUTCOME_OK]));
    json_object_set_new(object, "failed", json_integer(summary_failed(s)));
    set_failures(object, s);
    json_object_set_new(object, "total_input_tokens", json_integer(s->prompt_tokens));
    json_object_set_new(object, "total_output_tokens", json_integer(s->output_tokens));
    json_object_set_new(object, "answers_without_usage", json_integer(s->n_uncounted));
    set_real(object, "request_throughput", per_second((double)s->outcomes[OUTCOME_OK], s));
    set_real(object, "output_throughput", per_second((double)s->output_tokens, s));
    set_real(object, "total_token_throughput", per_second((double)(s->output_tokens + s->prompt_tokens), s));
    json_object_set_new(object, "max_output_tokens_per_s", json_integer(s->max_chunks_per_s));
    json_object_set_new(object, "max_concurrent_requests", json_integer(s->max_concurrent));
    metrics_of(s, metrics);
    for (int i = 0; i < N_METRICS; i++) set_metric(object, &metrics[i]);
    set_metric(object, &lateness);
    set_real(object, "client_cpu_s", s->cpu_s);
    json_object_set_new(object, "client_is_late", json_boolean(summary_is_late(s)));
    json_object_set_new(object, "interrupted", json_boolean(s->is_interrupted));
    set_definitions(object, o);
    return object;
}

enum status report_write_json(struct summary *s, const struct bench_options *o, const char *model, const char *path,
                              struct err *err) {
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *out = is_stdout ? stdout : fopen(path, "we");
    if (!out) return err_set_param(err, STATUS_IO, "json", "--json: %s: %s", path, strerror(errno));
    json_t *json = report_json(s, o, model);
    bool failed = !json || json_dumpf(json, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) || fputc('\n', out) == EOF;
    json_decref(json);
    failed |= (is_stdout ? fflush(out) : fclose(out)) != 0;
    return failed ? err_set_param(err, STATUS_IO, "json", "--json: %s: %s", path, strerror(errno)) : STATUS_OK;
}
