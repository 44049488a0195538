/* The loop: one thread drives every request through libcurl's multi handle.
 *
 *   due (arrivals) ──▶ start: body made, handle added ──▶ curl_multi ──▶ finish: outcome, summary ──▶ the slot is free again
 *
 * A timerfd beside libcurl's sockets wakes the loop at the very microsecond a request is due; libcurl's own timeouts are milliseconds.
 * In the closed loop a request is due when a slot falls free. In the open loop it is due on schedule; if the concurrency limit holds it
 * back, its latency still counts from the schedule, and only the wait after a slot fell free is the client's own lateness.
 * The body is made after a request fell due: that is part of the lateness, and a few hundred microseconds at most. */
#include "client/bench.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/arrivals.h"
#include "client/bench_options.h"
#include "client/dataset.h"
#include "client/report.h"
#include "client/request.h"
#include "client/summary.h"
#include "client/target.h"
#include "engine/base/clock.h"

static const char usage[] = "usage: tally bench --url URL [options]\n\n"
                            "Sends streaming completions to any server with the OpenAI API and reports time to first token "
                            "(TTFT), time per output token (TPOT),\n"
                            "inter-token latency, end-to-end latency, throughput, and failures by class.\n"
                            "Exit code: 0; 1 when any request failed; 2 for bad usage or a server that cannot be asked.\n\n";

enum { EXIT_DONE, EXIT_SOME_FAILED, EXIT_USAGE };

struct bench {
    struct bench_options o;
    struct target target;
    struct dataset dataset;
    struct summary summary;
    struct progress progress;
    CURLM *multi;
    int timer;             /* timerfd */
    struct request *slots; /* [o.concurrency]; easy is NULL until first used */
    int *free_slots;       /* [n_free] */
    int64_t *free_since;   /* [o.concurrency]: when each slot fell free */
    int n_free, n_active;
    int64_t n_chunks; /* with text, of this phase */
};

/* One phase: the warm-up, or what is measured. */
struct phase {
    int64_t total, started, done;
    uint64_t first_index; /* of its prompts */
    int64_t start_us, next_due_us;
    struct arrivals arrivals;
    int64_t second_start_us, second_chunks; /* for the best second */
};

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int number) { is_interrupted = 1; }

/* ---- requests ---- */

/* The body of the index-th request, malloc'ed. */
static char *make_body(const struct bench *b, uint64_t index) {
    json_t *prompt = dataset_prompt(&b->dataset, index);
    json_t *body = json_pack("{s:s, s:o, s:I, s:f, s:b, s:{s:b}}", "model", b->target.model, "prompt", prompt, "max_tokens",
                             (json_int_t)b->o.output_tokens, "temperature", b->o.temperature, "stream", 1, "stream_options",
                             "include_usage", 1);
    if (body && b->o.ignore_eos) json_object_set_new(body, "ignore_eos", json_true());
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(body);
    return text;
}

/* Sends the phase's next request in a free slot. */
static enum status start_request(struct bench *b, struct phase *phase, struct err *err) {
    int slot = b->free_slots[b->n_free - 1];
    struct request *r = &b->slots[slot];
    char *body = make_body(b, phase->first_index + (uint64_t)phase->started);
    if (!body || (!r->easy && !request_init(r, &b->n_chunks))) {
        free(body);
        return err_set(err, STATUS_NO_MEMORY, "out of memory for a request");
    }
    request_prepare(r, b->target.completions, body, b->target.headers, b->o.timeout);
    r->asked_tokens = b->o.output_tokens;
    r->is_exact = b->o.ignore_eos;
    bool is_open = b->o.rate > 0;
    r->due_us = b->free_since[slot] > phase->next_due_us ? b->free_since[slot] : phase->next_due_us;
    r->sent_us = clock_us();
    r->scheduled_us = is_open ? phase->next_due_us : r->sent_us;
    CURLMcode result = curl_multi_add_handle(b->multi, r->easy);
    if (result) return err_set(err, STATUS_INTERNAL, "curl_multi_add_handle: %s", curl_multi_strerror(result));
    b->n_free--;
    b->n_active++;
    phase->started++;
    phase->next_due_us = phase->start_us + arrivals_next_us(&phase->arrivals);
    if (b->n_active > b->summary.max_concurrent) b->summary.max_concurrent = b->n_active;
    return STATUS_OK;
}

static bool can_start(const struct bench *b, const struct phase *phase, int64_t now) {
    return b->n_free && phase->started < phase->total && phase->next_due_us <= now;
}

static enum status start_due(struct bench *b, struct phase *phase, struct err *err) {
    int64_t now = clock_us();
    while (can_start(b, phase, now)) {
        enum status status = start_request(b, phase, err);
        if (status) return status;
    }
    return STATUS_OK;
}

static void free_slot(struct bench *b, struct request *r) {
    curl_multi_remove_handle(b->multi, r->easy);
    int slot = (int)(r - b->slots);
    b->free_since[slot] = clock_us();
    b->free_slots[b->n_free++] = slot;
    b->n_active--;
}

static void finish_done(struct bench *b, struct phase *phase) {
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(b->multi, &left))) {
        char *context = NULL;
        if (message->msg != CURLMSG_DONE) continue;
        CURLcode result = message->data.result; /* the message dies with remove_handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &context);
        struct request *r = (struct request *)(void *)context;
        request_finish(r, result);
        target_scrub(r->error);
        summary_add(&b->summary, r);
        b->summary.ended_us = r->end_us;
        free_slot(b, r);
        phase->done++;
    }
}

/* ---- the loop ---- */

/* The timer fires when the next request is due; never, when none can start. */
static void set_timer(const struct bench *b, const struct phase *phase) {
    struct itimerspec at = {0};
    if (b->n_free && phase->started < phase->total) {
        int64_t due = phase->next_due_us > 0 ? phase->next_due_us : 1;
        at.it_value.tv_sec = due / 1000000;
        at.it_value.tv_nsec = due % 1000000 * 1000;
    }
    timerfd_settime(b->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void wait_for_work(const struct bench *b, const struct phase *phase) {
    struct curl_waitfd timer = {.fd = b->timer, .events = CURL_WAIT_POLLIN};
    uint64_t ignored;
    set_timer(b, phase);
    curl_multi_poll(b->multi, &timer, 1, 200, NULL);
    if (read(b->timer, &ignored, sizeof ignored) < 0 && errno != EAGAIN) BUG("timerfd: %s", strerror(errno));
}

/* The best second: a window that begins again when a second has passed. A run of less than a second is one window. */
static void track_peak(struct bench *b, struct phase *phase, int64_t now) {
    int64_t elapsed = now - phase->second_start_us, chunks = b->n_chunks - phase->second_chunks;
    bool is_short_run = phase->done == phase->total && phase->second_start_us == phase->start_us;
    if (elapsed < 1000000 && !is_short_run) return;
    double rate = (double)chunks * 1e6 / (double)(elapsed > 0 ? elapsed : 1);
    if ((int64_t)rate > b->summary.max_chunks_per_s) b->summary.max_chunks_per_s = (int64_t)rate;
    phase->second_start_us = now;
    phase->second_chunks = b->n_chunks;
}

static void begin_phase(struct bench *b, struct phase *phase) {
    int64_t now = clock_us();
    arrivals_open(&phase->arrivals, b->o.rate, (uint64_t)b->o.seed);
    phase->start_us = phase->second_start_us = b->summary.started_us = b->summary.ended_us = now;
    phase->next_due_us = now + arrivals_next_us(&phase->arrivals);
    for (int i = 0; i < b->o.concurrency; i++) b->free_since[i] = now;
    b->n_chunks = 0;
}

/* Ends what is in flight, uncounted. */
static void abandon(struct bench *b) {
    for (int i = 0; i < b->o.concurrency; i++)
        if (b->slots[i].easy) curl_multi_remove_handle(b->multi, b->slots[i].easy);
    b->summary.is_interrupted = true;
}

static enum status run_phase(struct bench *b, struct phase *phase, struct err *err) {
    begin_phase(b, phase);
    while (phase->done < phase->total && !is_interrupted) {
        int running;
        enum status status = start_due(b, phase, err);
        CURLMcode result = status ? CURLM_OK : curl_multi_perform(b->multi, &running);
        if (result) status = err_set(err, STATUS_INTERNAL, "curl_multi_perform: %s", curl_multi_strerror(result));
        if (status) return status;
        finish_done(b, phase);
        int64_t now = clock_us();
        track_peak(b, phase, now);
        progress_show(&b->progress, now, phase->done, phase->total, summary_failed(&b->summary), b->n_active, b->n_chunks,
                      phase->first_index ? "warm-up requests" : "requests");
        if (phase->done < phase->total && !can_start(b, phase, now)) wait_for_work(b, phase);
    }
    if (is_interrupted) abandon(b);
    return STATUS_OK;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* The warm-up is a closed loop whatever is measured after it, with prompts of its own. */
static enum status run(struct bench *b, struct err *err) {
    struct phase warmup = {.total = b->o.warmup, .first_index = (uint64_t)b->o.requests}, measured = {.total = b->o.requests};
    double rate = b->o.rate;
    b->o.rate = 0;
    enum status status = b->o.warmup ? run_phase(b, &warmup, err) : STATUS_OK;
    b->o.rate = rate;
    bool is_over = b->summary.is_interrupted;
    summary_free(&b->summary);
    memset(&b->summary, 0, sizeof b->summary);
    b->summary.is_interrupted = is_over;
    if (status || is_over) return status;
    double cpu_before = cpu_s();
    status = run_phase(b, &measured, err);
    b->summary.cpu_s = cpu_s() - cpu_before;
    return status;
}

/* ---- start and end ---- */

static enum status prepare_dataset(struct bench *b, struct err *err) {
    b->dataset = (struct dataset){
        .kind = b->o.token_ids ? DATASET_TOKENS : DATASET_WORDS, .seed = (uint64_t)b->o.seed, .n_tokens = b->o.input_tokens};
    return *b->o.prompts ? dataset_read_file(&b->dataset, b->o.prompts, err) : STATUS_OK;
}

static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static enum status prepare(struct bench *b, struct err *err) {
    size_t n = (size_t)b->o.concurrency;
    b->slots = calloc(n, sizeof *b->slots);
    b->free_slots = calloc(n, sizeof *b->free_slots);
    b->free_since = calloc(n, sizeof *b->free_since);
    b->multi = curl_multi_init();
    b->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (!b->slots || !b->free_slots || !b->free_since || !b->multi) return err_set(err, STATUS_NO_MEMORY, "out of memory");
    if (b->timer < 0) return err_set(err, STATUS_INTERNAL, "timerfd_create: %s", strerror(errno));
    for (int i = 0; i < b->o.concurrency; i++) b->free_slots[b->n_free++] = (int)b->o.concurrency - 1 - i;
    curl_multi_setopt(b->multi, CURLMOPT_MAXCONNECTS, (long)b->o.concurrency);
    raise_descriptor_limit();
    bool is_tty = isatty(STDERR_FILENO);
    b->progress = (struct progress){.out = b->o.quiet ? NULL : stderr, .is_tty = is_tty, .last_us = is_tty ? 0 : clock_us()};
    return STATUS_OK;
}

static void bench_close(struct bench *b) {
    for (int64_t i = 0; b->slots && i < b->o.concurrency; i++)
        if (b->slots[i].easy) request_deinit(&b->slots[i]);
    curl_multi_cleanup(b->multi);
    if (b->timer > 0) close(b->timer);
    free(b->slots);
    free(b->free_slots);
    free(b->free_since);
    dataset_free(&b->dataset);
    summary_free(&b->summary);
    target_close(&b->target);
}

/* Everything up to the report. */
static enum status measure(struct bench *b, struct err *err) {
    enum status status = prepare_dataset(b, err);
    if (!status) status = target_open(&b->target, &b->o, err);
    if (!status) status = prepare(b, err);
    b->dataset.vocab = b->target.vocab;
    if (!status) status = run(b, err);
    progress_end(&b->progress);
    return status;
}

static enum status report(struct bench *b, struct err *err) {
    if (strcmp(b->o.json, "-")) report_table(&b->summary, &b->o, b->target.model, stdout);
    return *b->o.json ? report_write_json(&b->summary, &b->o, b->target.model, b->o.json, err) : STATUS_OK;
}

int bench_main(int argc, char **argv) {
    struct bench b = {0};
    struct err err = {0};
    if (options_want_help(argc, argv)) {
        fputs(usage, stdout);
        bench_options_print_help(stdout);
        fputs("  --help\n      Print this and exit.\n\nOptions may also stand in the environment: TALLY_BENCH_URL, "
              "TALLY_BENCH_API_KEY, ...\n",
              stdout);
        return EXIT_DONE;
    }
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND}; /* a second interrupt ends at once */
    signal(SIGPIPE, SIG_IGN);
    enum status status = bench_options_load(&b.o, argc, argv, environ, &err);
    if (!status) {
        sigaction(SIGINT, &action, NULL);
        curl_global_init(CURL_GLOBAL_DEFAULT);
        status = measure(&b, &err);
        if (!status) status = report(&b, &err);
    }
    int exit_code = status ? EXIT_USAGE : summary_failed(&b.summary) || b.summary.is_interrupted ? EXIT_SOME_FAILED : EXIT_DONE;
    target_scrub(err.text);
    if (status) fprintf(stderr, "tally: bench: %s\n", err.text);
    bench_close(&b);
    return exit_code;
}
