#include "engine/engine_events.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/checked.h"

#define MIN_CAPACITY 1024

static int capacity_of(const struct engine_options *o) {
    int wanted = 2 * (o->max_seqs + o->max_batch_tokens);
    return wanted > MIN_CAPACITY ? wanted : MIN_CAPACITY;
}

size_t engine_event_bytes(const struct engine_options *o) {
    return round_up((size_t)capacity_of(o) * sizeof(struct engine_event), 64);
}

enum status engine_events_init(struct engine_events *e, const struct engine_options *o, struct ledger *ledger,
                               struct err *err) {
    memset(e, 0, sizeof *e);
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->fd < 0) return err_set(err, STATUS_IO, "engine: eventfd: %s", strerror(errno));
    e->capacity = capacity_of(o);
    e->ring = ledger_alloc(ledger, LINE_EVENTS, (size_t)e->capacity * sizeof *e->ring);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->has_room, NULL);
    return STATUS_OK;
}

void engine_events_deinit(struct engine_events *e) {
    if (!e->ring) return;
    close(e->fd);
    pthread_cond_destroy(&e->has_room);
    pthread_mutex_destroy(&e->lock);
}

static void signal_fd(struct engine_events *e) {
    uint64_t one = 1;
    if (write(e->fd, &one, sizeof one) < 0) return; /* EAGAIN: it is readable already */
}

void engine_events_push(struct engine_events *e, const struct engine_event *event) {
    pthread_mutex_lock(&e->lock);
    while (e->n == e->capacity && !e->is_closed) {
        signal_fd(e);
        pthread_cond_wait(&e->has_room, &e->lock);
    }
    if (e->n < e->capacity) e->ring[(e->first + e->n++) % e->capacity] = *event;
    pthread_mutex_unlock(&e->lock);
    e->has_news = true;
}

void engine_events_signal(struct engine_events *e) {
    if (!e->has_news) return;
    e->has_news = false;
    signal_fd(e);
}

int engine_events_poll(struct engine_events *e, struct engine_event *out, int max) {
    pthread_mutex_lock(&e->lock);
    int n = e->n < max ? e->n : max;
    for (int i = 0; i < n; i++) out[i] = e->ring[(e->first + i) % e->capacity];
    e->first = (e->first + n) % e->capacity;
    e->n -= n;
    uint64_t count;
    if (e->n == 0 && read(e->fd, &count, sizeof count) < 0) count = 0; /* EAGAIN: nobody had signalled */
    pthread_cond_signal(&e->has_room);
    pthread_mutex_unlock(&e->lock);
    return n;
}

void engine_events_close(struct engine_events *e) {
    pthread_mutex_lock(&e->lock);
    e->is_closed = true;
    pthread_cond_broadcast(&e->has_room);
    pthread_mutex_unlock(&e->lock);
}
