/* Connections: bytes in and out over libmicrohttpd, one exchange (a request and its answer) at a time on each.
 *
 * What a handler sees is `struct exchange`; it fills `answer`, at once or later. All in the one thread that calls http_run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "server/json_out.h"

struct server;
struct server_options;
struct request;
struct route;
struct exchange;

#define REQUEST_ID_MAX 64
#define INLINE_ANSWER_BYTES 2048

/* Writes up to max bytes of the body. READ_WAIT: nothing now, call again after http_resume. */
enum { READ_WAIT = 0, READ_END = -1, READ_BROKEN = -2 };
typedef long (*answer_reader)(struct server *server, struct exchange *x, char *out, size_t max);

struct answer {
    int http;                 /* status code; 0: not known yet */
    const char *content_type; /* NULL: no body */
    const char *allow;        /* Allow: header of 405 and OPTIONS, or NULL */
    bool retry_after, close, is_stream;
    const char *data; /* data[0..n), which lives as long as the exchange ... */
    size_t n;
    answer_reader read; /* ... or a reader, in chunks */
};

struct exchange {
    /* For handlers. */
    const struct route *route;
    char id[REQUEST_ID_MAX + 1];
    int64_t arrival_us;
    char *body; /* [n_body], of the request memory; a handler may take it over by setting it to NULL */
    size_t n_body, body_capacity;
    struct answer answer;
    struct request *request; /* completions: the request that will answer; NULL otherwise */
    int ops_buffer;          /* index of the buffer that the answer is in, −1: none */
    char inline_answer[INLINE_ANSWER_BYTES];

    /* http.c's own. */
    struct server *server;
    void *connection;
    struct exchange *next_free;
    int fd;
    size_t received;     /* body bytes, also those dropped */
    int64_t deadline_us; /* 0: none */
    bool in_use, active /* between headers and completion */, handled, suspended, watched, broken;
    struct err refusal; /* STATUS_OK: none; known before the whole body was there */
};

struct http;

size_t http_memory_bytes(const struct server_options *options);  /* what http_open takes from `memory` */
size_t http_library_bytes(const struct server_options *options); /* what the library takes besides */
/* Binds, listens, starts nothing. `memory` is http_memory_bytes. */
enum status http_open(struct http **out, struct server *server, const struct server_options *options, void *memory,
                      struct err *err);
void http_close(struct http *http);
int http_port(const struct http *http);

int http_epoll_fd(const struct http *http);   /* readable: call http_run */
int http_watch_fd(const struct http *http);   /* readable: call http_watch */
int http_timeout_ms(const struct http *http); /* −1: none */
void http_run(struct http *http);
/* Finds the clients that went away while their exchange was suspended, and ends those. */
void http_watch(struct http *http);
/* Ends connections whose deadline has passed. */
void http_expire(struct http *http, int64_t now_us);
/* Stops accepting, and closes idle connections. */
void http_quiesce(struct http *http);
/* Ends every connection now. */
void http_abort(struct http *http);
int http_active(const struct http *http); /* exchanges */
int http_connections(const struct http *http);

/* Goes on with a suspended exchange: its answer is known, or has more to give. Does nothing when it is not suspended. */
void http_resume(struct exchange *x);

/* Answers with the error object, in the exchange's inline buffer. */
void http_answer_error(struct exchange *x, const struct err *err);
void http_answer_error_as(struct exchange *x, int http, const struct err *err, const char *code);
