/* What the server counts, and the Prometheus text that says so.
 *
 * METRICS_HISTOGRAMS is the one table of histograms; counters and gauges are written from the values that their owners keep.
 * Owned by the I/O thread: no atomics. Nothing is reset by reading, and nothing negative or not finite is ever observed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(field, name, vllm name, help). Seconds, buckets from 1 ms. */
#define METRICS_HISTOGRAMS(X)                                                                                                  \
    X(ttft, "time_to_first_token_seconds", "time_to_first_token_seconds", "Arrival of a request to its first token.")          \
    X(tpot, "time_per_output_token_seconds", "time_per_output_token_seconds",                                                  \
      "Mean time between the tokens of one choice, the first excluded.")                                                       \
    X(itl, "inter_token_latency_seconds", "inter_token_latency_seconds", "Time between two tokens of one choice.")             \
    X(queue, "request_queue_seconds", "request_queue_time_seconds", "Time a prompt waited before it was first scheduled.")     \
    X(e2e, "request_duration_seconds", "e2e_request_latency_seconds", "Arrival of a request to its last token.")

#define N_BUCKETS 22
extern const double metrics_bounds[N_BUCKETS];

struct histogram {
    uint64_t counts[N_BUCKETS + 1]; /* the last: above every bound */
    uint64_t n;
    double sum;
};

enum request_end { REQUEST_STOP, REQUEST_LENGTH, REQUEST_ABORT, REQUEST_ERROR, REQUEST_END_COUNT };
extern const char *const request_end_names[REQUEST_END_COUNT];

#define MAX_HTTP_CODES 16

struct metrics {
#define X(field, ...) struct histogram field;
    METRICS_HISTOGRAMS(X)
#undef X
    uint64_t prompt_tokens, generated_tokens; /* of requests, as their usage says */
    uint64_t ended[REQUEST_END_COUNT];        /* choices */
    uint64_t http[MAX_HTTP_CODES];            /* by index in api_error_http_codes; the last for codes not in it */
    uint64_t client_gone;                     /* clients that left before their answer was whole */
};

void metrics_observe(struct histogram *h, int64_t us);
void metrics_count_http(struct metrics *m, int code);

struct server;
/* The whole text into out; how many bytes, 0 when max is too small. */
size_t metrics_write(struct server *server, char *out, size_t max);
