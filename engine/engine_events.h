/* What the engine tells its consumer: a bounded ring and an eventfd.
 *
 * One producer, the engine thread; one consumer. When the ring is full the producer waits: events are never dropped, and a consumer that
 * polls whenever the eventfd is readable keeps it from filling up. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "engine/engine.h"

struct engine_events {
    pthread_mutex_t lock;
    pthread_cond_t has_room;
    struct engine_event *ring; /* [capacity] */
    int capacity, first, n;    /* guarded by lock, like is_closed */
    bool is_closed;
    bool has_news; /* the engine thread's: pushed since the last signal */
    int fd;
};

/* Bytes of LINE_EVENTS. */
size_t engine_event_bytes(const struct engine_options *resolved);
enum status engine_events_init(struct engine_events *e, const struct engine_options *resolved, struct ledger *ledger,
                               struct err *err);
void engine_events_deinit(struct engine_events *e);
/* Waits while the ring is full, unless closed: then the event is dropped. */
void engine_events_push(struct engine_events *e, const struct engine_event *event);
/* Makes the fd readable if anything was pushed since: once a step. */
void engine_events_signal(struct engine_events *e);
int engine_events_poll(struct engine_events *e, struct engine_event *out, int max);
/* Nobody polls any more: push does not wait from now on. */
void engine_events_close(struct engine_events *e);
