/* One table of everything an operation can end with. The server maps it to HTTP in server/api_error.c. */
#pragma once

#define STATUS_TABLE(X)                                                                                                        \
    X(OK, "ok")                                                                                                                \
    X(INVALID, "invalid input") /* a request or an option says something that is not allowed */                                \
    X(NOT_FOUND, "not found")                                                                                                  \
    X(TOO_LARGE, "too large") /* past a fixed limit: body, prompt, count */                                                    \
    X(BUSY, "busy")           /* scarce now, worth a retry: a full queue */                                                    \
    X(DRAINING, "shutting down")                                                                                               \
    X(NO_MEMORY, "out of memory") /* does not fit the budget */                                                                \
    X(CORRUPT, "corrupt file")    /* a file contradicts itself or its format */                                                \
    X(UNSUPPORTED, "unsupported") /* well-formed, but not something Tally does */                                              \
    X(IO, "input/output error")                                                                                                \
    X(CANCELLED, "cancelled")                                                                                                  \
    X(INTERNAL, "internal error")

enum status {
#define X(name, text) STATUS_##name,
    STATUS_TABLE(X)
#undef X
};

/* The table's text of a status; never NULL. */
const char *status_text(enum status status);
