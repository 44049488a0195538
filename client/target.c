#include "client/target.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

#define MAX_MODELS_BODY (1 << 20)

struct body {
    char *text; /* MAX_MODELS_BODY + 1 bytes */
    size_t n;
};

void target_scrub(char *text) {
    bool is_utf8 = utf8_is_valid(text, strlen(text));
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) *text = ' ';
        else if (c >= 0x80 && !is_utf8) *text = '?';
    }
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *context) {
    struct body *body = context;
    size_t n = size * count;
    if (n > MAX_MODELS_BODY - body->n) return 0;
    memcpy(body->text + body->n, bytes, n);
    body->n += n;
    return n;
}

/* The address without a trailing slash and /v1. */
static size_t base_length(const char *url) {
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    if (n >= 3 && memcmp(url + n - 3, "/v1", 3) == 0) n -= 3;
    while (n && url[n - 1] == '/') n--;
    return n;
}

/* "Name=value" is "Name: value". */
static struct curl_slist *add_header(struct curl_slist *headers, const char *text) {
    char line[4096];
    size_t name = strcspn(text, ":=");
    const char *value = text + name + 1;
    while (*value == ' ') value++;
    snprintf(line, sizeof line, "%.*s: %s", (int)name, text, value);
    return curl_slist_append(headers, line);
}

static void make_headers(struct target *t, const struct bench_options *o) {
    char authorization[1024];
    t->headers = curl_slist_append(t->headers, "Content-Type: application/json");
    t->headers = curl_slist_append(t->headers, "Accept: text/event-stream");
    t->headers = curl_slist_append(t->headers, "Expect:"); /* no wait for 100 Continue with long prompts */
    snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", o->api_key);
    if (*o->api_key) t->headers = curl_slist_append(t->headers, authorization);
    for (int i = 0; i < o->header.n; i++) t->headers = add_header(t->headers, o->header.items[i]);
}

/* GET url into body; the transfer's text of what went wrong, or NULL. */
static const char *get(const char *url, const struct target *t, struct body *body, long *status) {
    CURL *easy = curl_easy_init();
    if (!easy) return "out of memory";
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 30000L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, body);
    CURLcode result = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
    curl_easy_cleanup(easy);
    return result ? curl_easy_strerror(result) : NULL;
}

static enum status read_models(struct target *t, const struct bench_options *o, const struct body *body, struct err *err) {
    json_t *root = json_loadb(body->text, body->n, 0, NULL);
    json_t *data = json_object_get(root, "data"), *model = json_array_get(data, 0), *entry;
    size_t i;
    json_array_foreach(data, i, entry) {
        const char *id = json_string_value(json_object_get(entry, "id"));
        if (*o->model && id && strcmp(id, o->model) == 0) model = entry;
    }
    const char *id = json_string_value(json_object_get(model, "id"));
    json_t *vocab = json_object_get(model, "vocab_size");
    if (!vocab) vocab = json_object_get(json_object_get(model, "meta"), "n_vocab"); /* llama.cpp */
    if (id && !*t->model) snprintf(t->model, sizeof t->model, "%s", id);
    if (!t->vocab && json_integer_value(vocab) > 0 && json_integer_value(vocab) <= 1 << 24)
        t->vocab = json_integer_value(vocab);
    json_decref(root);
    target_scrub(t->model);
    return id ? STATUS_OK : err_set(err, STATUS_IO, "/v1/models names no model: give --model");
}

static enum status ask_models(struct target *t, const struct bench_options *o, struct err *err) {
    char url[2100];
    struct body body = {malloc(MAX_MODELS_BODY + 1), 0};
    long http_status = 0;
    if (!body.text) return err_set(err, STATUS_NO_MEMORY, "out of memory");
    snprintf(url, sizeof url, "%.*s/v1/models", (int)base_length(o->url), o->url);
    const char *failure = get(url, t, &body, &http_status);
    enum status status = failure              ? err_set(err, STATUS_IO, "%.200s: %s", url, failure)
                         : http_status != 200 ? err_set(err, STATUS_IO, "%.200s: HTTP %ld", url, http_status)
                                              : read_models(t, o, &body, err);
    free(body.text);
    return status;
}

enum status target_open(struct target *t, const struct bench_options *o, struct err *err) {
    enum status status = STATUS_OK;
    memset(t, 0, sizeof *t);
    if (strlen(o->url) > 2000) return err_set_param(err, STATUS_INVALID, "url", "--url: longer than 2000 bytes");
    snprintf(t->completions, sizeof t->completions, "%.*s/v1/completions", (int)base_length(o->url), o->url);
    snprintf(t->model, sizeof t->model, "%s", o->model);
    t->vocab = o->vocab;
    make_headers(t, o);
    if (!*t->model || (o->token_ids && !t->vocab)) status = ask_models(t, o, err);
    if (!status && o->token_ids && !t->vocab)
        status = err_set_param(
            err, STATUS_INVALID, "vocab",
            "/v1/models does not say the vocabulary's size: give --vocab, or --words or --no-token-ids for prompts of text");
    return status;
}

void target_close(struct target *t) {
    curl_slist_free_all(t->headers);
    memset(t, 0, sizeof *t);
}
