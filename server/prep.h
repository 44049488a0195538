/* The prep pool: threads that turn a body into token ids, so that neither the I/O nor the engine thread ever parses or
 * tokenizes. */
#pragma once

#include <stddef.h>

#include "engine/base/err.h"

struct server;
struct server_options;
struct request;
struct prep;

size_t prep_memory_bytes(const struct server_options *options);  /* what prep_open takes from the ledger's LINE_REQUESTS */
size_t prep_library_bytes(const struct server_options *options); /* stacks */
enum status prep_open(struct prep **out, struct server *server, struct err *err);
/* Joins the threads; what is queued is dropped. */
void prep_close(struct prep *prep);
/* Queues a request; its body and completion are the pool's until prep_take_done returns it. I/O thread. */
void prep_submit(struct prep *prep, struct request *request);
/* A request that is through, its prep_status and err filled; NULL: none now. I/O thread. */
struct request *prep_take_done(struct prep *prep);
/* Readable (eventfd) when prep_take_done may have something; prep_clear resets it. */
int prep_event_fd(const struct prep *prep);
void prep_clear(struct prep *prep);
