/* How an outcome is found, in this order: an HTTP status other than 200; an error object in the stream; something that is no event of
 * a completion; libcurl's timeout; a connection that broke or ended before data: [DONE]; at last too few tokens. */
#include "client/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"

const char *outcome_key(enum outcome outcome) {
    static const char *const keys[] = {
#define X(name, key, text) key,
        OUTCOME_TABLE(X)
#undef X
    };
    return keys[outcome];
}

/* ---- events ---- */

static void say(struct request *r, const char *text) {
    if (!r->error[0]) snprintf(r->error, sizeof r->error, "%s", text ? text : "");
}

/* A chunk with text: the times that everything is computed from. */
static void take_text(struct request *r) {
    int64_t now = clock_us();
    if (r->n_chunks++ == 0) r->first_us = now;
    else samples_add(&r->gaps, (double)(now - r->last_us) / 1000);
    r->last_us = now;
    ++*r->chunk_counter;
}

static int64_t count_of(const json_t *usage, const char *key) {
    json_t *value = json_object_get(usage, key);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

/* Completions carry `text`, chat completions `delta.content`. */
static const char *choice_text(const json_t *choice) {
    const char *text = json_string_value(json_object_get(choice, "text"));
    return text ? text : json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
}

static bool take_chunk(struct request *r, const json_t *chunk) {
    json_t *error = json_object_get(chunk, "error"), *choices = json_object_get(chunk, "choices"), *choice;
    json_t *usage = json_object_get(chunk, "usage");
    size_t i;
    if (error) {
        const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
        say(r, message ? message : "error in the stream");
        r->has_stream_error = true;
        return false;
    }
    if (!json_is_array(choices)) return false;
    json_array_foreach(choices, i, choice) {
        const char *text = choice_text(choice);
        if (text && *text) take_text(r);
        if (json_is_string(json_object_get(choice, "finish_reason"))) r->has_finish_reason = true;
    }
    if (json_is_object(usage)) {
        r->prompt_tokens = count_of(usage, "prompt_tokens");
        r->output_tokens = count_of(usage, "completion_tokens");
    }
    return true;
}

static bool on_event(void *context, const char *data, size_t n) {
    struct request *r = context;
    r->n_events++;
    if (strcmp(data, "[DONE]") == 0) {
        r->is_done = true;
        return true;
    }
    json_error_t error;
    json_t *chunk = json_loadb(data, n, 0, &error);
    bool good = chunk && json_is_object(chunk) && take_chunk(r, chunk);
    if (!good) say(r, chunk ? "an event that is no completion chunk" : error.text);
    json_decref(chunk);
    return good;
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *context) {
    struct request *r = context;
    size_t n = size * count;
    long status = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
        size_t room = sizeof r->error_body - 1 - r->n_error_body, kept = n < room ? n : room;
        memcpy(r->error_body + r->n_error_body, bytes, kept);
        r->n_error_body += kept;
        r->error_body[r->n_error_body] = 0;
        return n;
    }
    if (sse_feed(&r->sse, bytes, n)) return n;
    r->is_bad = !r->has_stream_error;
    if (r->is_bad) say(r, "an event that is too long");
    return 0; /* ends the transfer */
}

/* ---- life ---- */

bool request_init(struct request *r, int64_t *chunk_counter) {
    *r = (struct request){.easy = curl_easy_init(), .chunk_counter = chunk_counter};
    sse_init(&r->sse, on_event, r);
    return r->easy != NULL;
}

void request_deinit(struct request *r) {
    curl_easy_cleanup(r->easy);
    sse_deinit(&r->sse);
    samples_free(&r->gaps);
    free(r->body);
    memset(r, 0, sizeof *r);
}

void request_prepare(struct request *r, const char *url, char *body, struct curl_slist *headers, double timeout_s) {
    sse_reset(&r->sse);
    samples_clear(&r->gaps);
    free(r->body);
    r->body = body;
    r->n_error_body = 0;
    r->error[0] = r->error_body[0] = 0;
    r->first_us = r->last_us = r->end_us = r->n_events = r->n_chunks = 0;
    r->prompt_tokens = r->output_tokens = -1;
    r->has_finish_reason = r->is_done = r->is_bad = r->has_stream_error = false;
    curl_easy_reset(r->easy);
    curl_easy_setopt(r->easy, CURLOPT_URL, url);
    curl_easy_setopt(r->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, (long)(timeout_s * 1000));
    curl_easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_PRIVATE, r);
}

int64_t request_output_tokens(const struct request *r) { return r->output_tokens >= 0 ? r->output_tokens : r->n_chunks; }

/* The server's own words about a refusal: error.message, else the body's beginning. */
static void say_refusal(struct request *r, long status) {
    json_t *body = json_loadb(r->error_body, r->n_error_body, 0, NULL);
    json_t *error = json_object_get(body, "error");
    const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    char text[sizeof r->error];
    snprintf(text, sizeof text, "HTTP %ld: %.200s", status, message ? message : r->error_body);
    say(r, text);
    json_decref(body);
}

static enum outcome outcome_of(struct request *r, CURLcode result, long status) {
    if (result == CURLE_OPERATION_TIMEDOUT) return OUTCOME_TIMEOUT;
    if (result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST || result == CURLE_SSL_CONNECT_ERROR)
        return OUTCOME_CONNECT;
    if (status == 429) return OUTCOME_HTTP_429;
    if (status >= 400 && status < 500) return OUTCOME_HTTP_4XX;
    if (status && status != 200) return OUTCOME_HTTP_5XX;
    if (r->has_stream_error) return OUTCOME_STREAM_ERROR;
    if (r->is_bad || (!result && r->n_events == 0)) return OUTCOME_BAD_STREAM;
    if (result || !r->is_done) return OUTCOME_DISCONNECT;
    if (request_output_tokens(r) == 0 || !r->has_finish_reason) return OUTCOME_SHORT;
    return r->is_exact && request_output_tokens(r) < r->asked_tokens ? OUTCOME_SHORT : OUTCOME_OK;
}

void request_finish(struct request *r, CURLcode result) {
    long status = 0;
    char text[96];
    r->end_us = clock_us();
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    r->outcome = outcome_of(r, result, status);
    if (r->outcome == OUTCOME_HTTP_429 || r->outcome == OUTCOME_HTTP_4XX || r->outcome == OUTCOME_HTTP_5XX)
        say_refusal(r, status);
    snprintf(text, sizeof text, "%lld of %lld tokens, finish_reason %s", (long long)request_output_tokens(r),
             (long long)r->asked_tokens, r->has_finish_reason ? "given" : "missing");
    if (r->outcome == OUTCOME_SHORT) say(r, text);
    if (r->outcome == OUTCOME_BAD_STREAM) say(r, "no events in the answer");
    if (r->outcome == OUTCOME_DISCONNECT && !result) say(r, "the answer ended without data: [DONE]");
    if (r->outcome != OUTCOME_OK) say(r, curl_easy_strerror(result));
}
