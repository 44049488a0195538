/* The engine's parts. Private to engine/engine*.c.
 *
 * Two threads: the engine's, which owns store, scheduler, pool, batch, sampler and model; and whoever calls submit, cancel and poll. They meet
 * in `inbox` (requests handed over by index, under its lock), in each request's cancel_mask, in the events' ring and in `shared`. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/engine_events.h"
#include "engine/model.h"
#include "engine/plan.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t has_mail;
    int32_t first_free;  /* list of free request slots through `next` */
    int32_t first, last; /* submitted, not yet seen by the engine thread, through `next` */
    uint64_t n_submitted;
    bool is_draining, is_stopping;
    atomic_bool has_cancels; /* some request's cancel_mask was set */
};

struct engine {
    struct engine_options options; /* resolved */
    struct plan plan;
    struct ledger *ledger;
    struct backend *backend;
    struct tokenizer *tokenizer;
    struct model *model;
    struct kv_view kv;
    struct sequence_store store;
    struct block_pool pool;
    struct scheduler scheduler;
    struct batch batch;
    struct sampler sampler;
    struct row_stat *row_stats; /* [plan_logit_rows] */
    struct engine_events events;
    struct inbox inbox;
    pthread_t thread;
    bool is_started;
    char model_name[128];
    struct engine_stats stats; /* the engine thread's own */
    pthread_mutex_t stats_lock;
    struct engine_stats shared;     /* guarded by stats_lock: a copy of `stats` at the last step's end */
    _Atomic int64_t step_start_us;  /* of the step running now; 0: idle */
    _Atomic int64_t stuck_since_us; /* a step scheduled nothing while work waited; 0: no */
};

/* engine_step.c: one step, from the scheduler to the events. False: the scheduler had nothing. */
bool engine_step(struct engine *e);
/* Ends every choice named in cancel masks. */
void engine_obey_cancels(struct engine *e);

/* engine_inbox.c */
void engine_inbox_init(struct engine *e);
void engine_inbox_deinit(struct engine *e);
/* Moves submitted requests to the scheduler's queue; waits for some when idle is true. False: stop. */
bool engine_inbox_receive(struct engine *e, bool idle);
/* A request whose choices are all done: its slot is free again. */
void engine_inbox_free(struct engine *e, int32_t request);
