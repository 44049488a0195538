/* One streamed completion, from sent to done: what is asked, when each piece came, and how it ended.
 *
 * A request is an easy handle that is used again for the next one, so that connections stay open. Everything happens in the thread
 * that drives libcurl's multi handle; times are taken when libcurl hands the bytes over. */
#pragma once

#include <curl/curl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/sse_parse.h"
#include "client/stats.h"

/* X(name, key, what it means) */
#define OUTCOME_TABLE(X)                                                                                                       \
    X(OK, "ok", "answered in full")                                                                                            \
    X(TIMEOUT, "timeout", "not done within --timeout")                                                                         \
    X(CONNECT, "connect", "no connection")                                                                                     \
    X(HTTP_429, "429", "refused: too many requests")                                                                           \
    X(HTTP_4XX, "4xx", "refused: another client error")                                                                        \
    X(HTTP_5XX, "5xx", "refused: server error, or any other status than 200")                                                  \
    X(STREAM_ERROR, "stream_error", "an error object inside the stream")                                                       \
    X(DISCONNECT, "disconnect", "the connection ended before the stream did")                                                  \
    X(SHORT, "short", "fewer tokens than a full answer has, or none")                                                          \
    X(BAD_STREAM, "bad_stream", "not the events of a completion")

enum outcome {
#define X(name, key, text) OUTCOME_##name,
    OUTCOME_TABLE(X)
#undef X
        OUTCOME_COUNT
};
const char *outcome_key(enum outcome outcome);

struct request {
    CURL *easy; /* owned */
    struct sse_parser sse;
    char *body;            /* what is sent, owned */
    char error_body[2048]; /* of an answer that is not 200 */
    size_t n_error_body;
    char error[256]; /* for a person, when the outcome is not OK */
    /* What was asked. */
    int64_t scheduled_us, sent_us,
        due_us; /* due: when it could have been sent at the earliest, for the client's own lateness */
    int64_t asked_tokens;
    bool is_exact; /* ignore_eos was sent: fewer tokens are a short answer */
    /* What came. */
    int64_t first_us, last_us, end_us;    /* first and last chunk with text; 0: none */
    int64_t n_events, n_chunks;           /* of the stream; those with text */
    int64_t prompt_tokens, output_tokens; /* of usage; −1: none came */
    bool has_finish_reason, is_done, is_bad, has_stream_error;
    struct samples gaps; /* between chunks with text, ms */
    enum outcome outcome;
    int64_t *chunk_counter; /* the run's: chunks with text, for the progress and the peak rate */
};

bool request_init(struct request *r, int64_t *chunk_counter);
void request_deinit(struct request *r);
/* Prepares the next request to send: takes `body` (malloc'ed) and sets every option of the handle; headers stay the caller's. */
void request_prepare(struct request *r, const char *url, char *body, struct curl_slist *headers, double timeout_s);
/* After libcurl said how the transfer ended: sets outcome, end_us, error. */
void request_finish(struct request *r, CURLcode result);
/* usage's figure, else the chunks counted. */
int64_t request_output_tokens(const struct request *r);
