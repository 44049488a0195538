/* What a failed operation tells its user: a status, the field at fault, and "operation: object: reason". */
#pragma once

#include "engine/base/status.h"

struct err {
    enum status status;
    char param[96]; /* the request field, option or file key at fault; "" if none */
    char text[512]; /* whole sentence for a person; cut, never overflowing */
};

/* Fills `err` (may be NULL) and returns `status`, so that refusing is one line: return err_set(err, STATUS_X, "...", ...). */
enum status err_set(struct err *err, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same, naming the field at fault. */
enum status err_set_param(struct err *err, enum status status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A broken invariant: prints place and state to stderr, then aborts. */
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
