/* What went wrong, as HTTP says it and as OpenAI's clients read it: {"error": {"message", "type", "param", "code"}}. */
#pragma once

#include "engine/base/err.h"
#include "server/json_out.h"

struct api_error {
    int http;
    const char *type, *code;
};

/* From one table over enum status. */
const struct api_error *api_error_of(enum status status);
/* The phrase of each HTTP status this server answers with is the library's; these are the codes, for counters. 0 ends the list.
 * */
extern const int api_error_http_codes[];

/* Appends the error object. Bounded: err's texts are, and what does not fit is answered by the status's own text. `type` and
 * `code` come from the table unless `code` is given. */
void api_error_write(struct json_out *o, const struct err *err, const char *code);
