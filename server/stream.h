/* A completion request's life, from a whole body to the last byte of its answer, in one of a fixed number of slots.
 *
 *   FREE → PREPARING → RUNNING → FREE
 *
 * A slot is free again when its client has gone or is served, the prep pool has given it back and the engine has sent every
 * FINISH: the engine never names a slot that is in use anew.
 *
 * I/O thread, but for what prep.h says. */
#pragma once

#include "engine/engine.h"
#include "server/completion.h"
#include "server/http.h"
#include "server/render.h"

enum request_state { REQUEST_FREE, REQUEST_PREPARING, REQUEST_RUNNING };

struct request {
    enum request_state state;
    uint32_t index, generation;  /* both in the engine's tag */
    struct request *next;        /* in prep's lists, or the free list */
    struct exchange *exchange;   /* NULL: the client has gone, or was served */
    char id[REQUEST_ID_MAX + 1]; /* X-Request-Id, for the log */
    int64_t arrival_us, first_token_us, end_us;
    int64_t queued_us;
    /* The prep pool's while PREPARING. */
    char *body;
    size_t n_body, body_bytes;
    enum status prep_status;
    struct err err; /* also what ended a running request */
    struct completion completion;
    /* While RUNNING. */
    int n_unfinished; /* FINISH events still to come */
    int n_open;       /* choices that have not ended */
    bool has_failed, is_cancelled, is_answered;
    struct renderer renderer;
};

struct streams;

size_t streams_memory_bytes(const struct server_options *options);
void streams_open(struct server *server);
int streams_active(const struct streams *streams); /* slots in use */

/* The handler of POST /v1/completions: takes the exchange's body. */
void stream_begin(struct server *server, struct exchange *x);
/* The exchange is over, or its client has gone: what still runs for it is cancelled. */
void stream_detach(struct server *server, struct exchange *x);
/* Takes what the prep pool has done, and what the engine has sent. */
void streams_take_prepared(struct server *server);
void streams_take_events(struct server *server);
/* Cancels every request, which answers its client with an error. */
void streams_cancel_all(struct server *server);
