/* The server under test: its addresses, and what it says of its models. */
#pragma once

#include <curl/curl.h>
#include <stdint.h>

#include "client/bench_options.h"
#include "engine/base/err.h"

struct target {
    char completions[2100]; /* where requests go */
    char model[256];
    int64_t vocab;              /* 0: not known */
    struct curl_slist *headers; /* owned */
};

/* Finds the model and its vocabulary: from the options, else from GET /v1/models, which is only asked when one is missing. Errors:
 * STATUS_INVALID when neither says; STATUS_IO when the server cannot be asked. Call target_close in either case. */
enum status target_open(struct target *t, const struct bench_options *o, struct err *err);
void target_close(struct target *t);

/* Replaces what could disturb a terminal or a JSON file in a server's words: control characters, and text that is no UTF-8. */
void target_scrub(char *text);
