#include "engine/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *status_text(enum status status) {
    static const char *const texts[] = {
#define X(name, text) text,
        STATUS_TABLE(X)
#undef X
    };
    return (unsigned)status < sizeof texts / sizeof *texts ? texts[status] : "unknown status";
}

__attribute__((format(printf, 4, 0))) static enum status fill(struct err *err, enum status status, const char *param,
                                                              const char *format, va_list args) {
    if (err) {
        err->status = status;
        snprintf(err->param, sizeof err->param, "%s", param);
        vsnprintf(err->text, sizeof err->text, format, args);
    }
    return status;
}

enum status err_set(struct err *err, enum status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, "", format, args);
    va_end(args);
    return status;
}

enum status err_set_param(struct err *err, enum status status, const char *param, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, param, format, args);
    va_end(args);
    return status;
}

void bug_at(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "BUG at %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}
