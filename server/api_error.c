#include "server/api_error.h"

#include <string.h>

static const struct api_error table[] = {
    [STATUS_OK] = {200, "none", "none"},
    [STATUS_INVALID] = {400, "invalid_request_error", "invalid_value"},
    [STATUS_NOT_FOUND] = {404, "invalid_request_error", "not_found"},
    [STATUS_TOO_LARGE] = {413, "invalid_request_error", "too_large"},
    [STATUS_BUSY] = {429, "rate_limit_error", "server_busy"},
    [STATUS_DRAINING] = {503, "service_unavailable_error", "shutting_down"},
    [STATUS_NO_MEMORY] = {503, "service_unavailable_error", "out_of_memory"},
    [STATUS_CORRUPT] = {500, "server_error", "internal_error"},
    [STATUS_UNSUPPORTED] = {400, "invalid_request_error", "unsupported"},
    [STATUS_IO] = {500, "server_error", "internal_error"},
    [STATUS_CANCELLED] = {503, "service_unavailable_error", "cancelled"},
    [STATUS_INTERNAL] = {500, "server_error", "internal_error"},
};

const int api_error_http_codes[] = {200, 204, 400, 404, 405, 408, 413, 429, 500, 503, 0};

const struct api_error *api_error_of(enum status status) {
    return &table[(unsigned)status < sizeof table / sizeof *table ? status : STATUS_INTERNAL];
}

static void write_object(struct json_out *o, const struct err *err, const char *text, const char *code) {
    const struct api_error *kind = api_error_of(err->status);
    json_out_open(o, '{');
    json_out_key(o, "error");
    json_out_open(o, '{');
    json_out_key(o, "message");
    json_out_cstr(o, text);
    json_out_key(o, "type");
    json_out_cstr(o, kind->type);
    json_out_key(o, "param");
    json_out_cstr(o, *err->param ? err->param : NULL);
    json_out_key(o, "code");
    json_out_cstr(o, code ? code : kind->code);
    json_out_text(o, "}}");
}

void api_error_write(struct json_out *o, const struct err *err, const char *code) {
    size_t start = o->n;
    write_object(o, err, err->text, code);
    if (!o->overflow) return;
    struct err bare = {.status = err->status};
    o->n = start;
    o->overflow = false;
    write_object(o, &bare, status_text(err->status), code);
}
