/* The HTTP server over one engine: what main needs of it, and nothing of how it works.
 *
 *   engine_open (priced with server_request_bytes and server_http_bytes) → server_open → engine_start → server_run
 *   … a signal handler calls server_stop … → server_run returns → server_close → engine_close
 *
 * One thread, the one in server_run, owns every connection; a few prep threads parse and tokenize. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"
#include "engine/engine.h"

struct server_options {
    const char *host;              /* "127.0.0.1", "::1", "0.0.0.0", a name */
    int port;                      /* 0: any free one, see server_port */
    int max_connections;           /* connections held at once; others wait in the kernel's backlog */
    int max_requests;              /* completions held at once, running and waiting; 0: max_connections. Past it: 429 */
    size_t max_body_bytes;         /* a larger body is answered 413 */
    size_t request_memory_bytes;   /* bodies, prompts and answers of all requests together; past it: 429 */
    int prep_threads;              /* threads that parse JSON and tokenize */
    const char *served_model_name; /* what `model` must be and answers say; NULL: engine_model_name */
    int drain_timeout_s;           /* after a stop, how long running requests may go on */
    int header_timeout_s;          /* a connection must bring its whole headers in this time */
    int body_timeout_s;            /* and its whole body in this time */
    int idle_timeout_s;            /* a kept-alive connection, or a reader that takes nothing, is closed after this */
    bool vllm_metric_names;        /* /metrics also under the vllm: names that gateways scrape */
};

/* The defaults of every field: 127.0.0.1:8000, 1024 connections, 1 MiB bodies, 16 MiB of request memory, 1 prep thread, 30 s
 * drain. */
struct server_options server_options_default(void);

struct server;

/* What the server takes from the ledger's LINE_REQUESTS, and what libmicrohttpd and thread stacks take outside it (LINE_HTTP):
 * for engine_options.request_bytes and .http_bytes. Pure. */
size_t server_request_bytes(const struct server_options *options);
size_t server_http_bytes(const struct server_options *options);

/* Takes its memory from the engine's ledger, binds and listens: a client that connects from now on is answered once server_run
 * runs. `options` and its strings must outlive the server. STATUS_INVALID names the option at fault; STATUS_IO: cannot listen.
 * Call before ledger_ready (engine_start), from the thread that will call server_run. */
enum status server_open(struct server **out, const struct server_options *options, struct engine *engine, struct err *err);
/* Serves until server_stop, then drains: refuses new work, lets running requests end for drain_timeout_s, cancels the rest. The
 * process's exit code: 0, or 1 when the event loop itself failed. */
int server_run(struct server *server);
/* Ends server_run. Async-signal-safe, callable from any thread, more than once; a second call cuts the drain short. */
void server_stop(struct server *server);
void server_close(struct server *server);

/* The port bound, also when 0 was asked. */
int server_port(const struct server *server);
