/* Small GET endpoints: answered at once, in the I/O thread, from what is in memory. None of them shows a prompt. */
#pragma once

struct server;
struct exchange;

void api_ops_health(struct server *server, struct exchange *x); /* 503 while the engine is stuck */
void api_ops_ready(struct server *server, struct exchange *x);  /* 503 while draining or stuck */
void api_ops_version(struct server *server, struct exchange *x);
void api_ops_models(struct server *server, struct exchange *x);
void api_ops_memory(struct server *server, struct exchange *x); /* the ledger: planned, used, measured */
void api_ops_metrics(struct server *server, struct exchange *x);
