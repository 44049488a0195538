/* See prep.h. Two intrusive lists under one mutex; a worker holds it only to move a request between them. Each worker has its
 * own JSON memory, tokenizer scratch and id buffer, taken from the ledger at start and used for one request at a time. */
#include "server/prep.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/checked.h"
#include "server/api_completions.h"
#include "server/json_in.h"
#include "server/server_state.h"

#define MAX_WORKERS 64
#define STACK_BYTES ((size_t)1 << 20) /* jansson's parser recurses up to 2,048 deep */

struct list {
    struct request *first, **last;
};

struct worker {
    pthread_t thread;
    struct prep *prep;
    struct prep_bench bench;
    void *json;
    size_t json_bytes;
};

struct prep {
    struct server *server;
    struct api_limits limits;
    int event_fd, n_workers, n_started;
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    struct list queued, done; /* guarded by mutex */
    bool is_closing;
    struct worker workers[MAX_WORKERS];
};

/* A text of n bytes costs jansson up to 5 n (its buffer doubles), an array of ids of usual length about 10 n. */
static size_t json_bytes(const struct server_options *options) { return 8 * options->max_body_bytes + ((size_t)256 << 10); }

static size_t id_count(const struct server_options *options) { return options->max_body_bytes / 4 + 1024; }

static size_t worker_bytes(const struct server_options *options) {
    return round_up(json_bytes(options), 64) + round_up(id_count(options) * sizeof(int32_t), 64) +
           round_up(sizeof(struct text_scratch), 64) + round_up(tokenizer_scratch_bytes(options->max_body_bytes), 64) + 4096;
}

size_t prep_memory_bytes(const struct server_options *options) {
    return round_up(sizeof(struct prep), 64) + (size_t)options->prep_threads * worker_bytes(options);
}

size_t prep_library_bytes(const struct server_options *options) { return (size_t)options->prep_threads * STACK_BYTES; }

static void push(struct list *list, struct request *request) {
    request->next = NULL;
    *list->last = request;
    list->last = &request->next;
}

static struct request *pop(struct list *list) {
    struct request *request = list->first;
    if (!request) return NULL;
    list->first = request->next;
    if (!list->first) list->last = &list->first;
    return request;
}

static void prepare(struct worker *worker, struct request *request) {
    struct server *server = worker->prep->server;
    request->prep_status = api_completions_parse(&request->completion, request->body, request->n_body, &worker->bench,
                                                 &worker->prep->limits, &request->err);
    page_pool_free(&server->memory, request->body, request->body_bytes);
    request->body = NULL;
}

static void *run_worker(void *arg) {
    struct worker *worker = arg;
    struct prep *prep = worker->prep;
    json_in_bind(worker->json, worker->json_bytes);
    pthread_mutex_lock(&prep->mutex);
    while (!prep->is_closing) {
        struct request *request = pop(&prep->queued);
        if (!request) {
            pthread_cond_wait(&prep->has_work, &prep->mutex);
            continue;
        }
        pthread_mutex_unlock(&prep->mutex);
        prepare(worker, request);
        pthread_mutex_lock(&prep->mutex);
        push(&prep->done, request);
        uint64_t one = 1;
        if (write(prep->event_fd, &one, sizeof one) < 0) continue; /* full means that it is already readable */
    }
    pthread_mutex_unlock(&prep->mutex);
    json_in_bind(NULL, 0);
    return NULL;
}

static enum status start_worker(struct prep *prep, struct worker *worker, struct err *err) {
    const struct server_options *options = &prep->server->options;
    struct ledger *ledger = engine_ledger(prep->server->engine);
    worker->prep = prep;
    worker->json_bytes = json_bytes(options);
    worker->json = ledger_alloc(ledger, LINE_REQUESTS, worker->json_bytes);
    worker->bench.tokenizer = engine_tokenizer(prep->server->engine);
    worker->bench.max_ids = id_count(options);
    worker->bench.ids = ledger_alloc(ledger, LINE_REQUESTS, worker->bench.max_ids * sizeof(int32_t));
    worker->bench.text = ledger_alloc(ledger, LINE_REQUESTS, sizeof(struct text_scratch));
    worker->bench.scratch = tokenizer_scratch_create(ledger_source(ledger, LINE_REQUESTS), options->max_body_bytes, err);
    if (!worker->bench.scratch) return STATUS_NO_MEMORY;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int failed = pthread_create(&worker->thread, &attributes, run_worker, worker);
    pthread_attr_destroy(&attributes);
    if (failed) return err_set(err, STATUS_NO_MEMORY, "prep: cannot start a thread");
    prep->n_started++;
    return STATUS_OK;
}

enum status prep_open(struct prep **out, struct server *server, struct err *err) {
    struct prep *prep = ledger_alloc(engine_ledger(server->engine), LINE_REQUESTS, sizeof *prep);
    *out = prep;
    prep->server = server;
    prep->limits = (struct api_limits){.model_name = server->model_name,
                                       .vocab = engine_vocab(server->engine),
                                       .max_context = server->max_context,
                                       .memory = &server->memory};
    prep->queued.last = &prep->queued.first;
    prep->done.last = &prep->done.first;
    pthread_mutex_init(&prep->mutex, NULL);
    pthread_cond_init(&prep->has_work, NULL);
    prep->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (prep->event_fd < 0) return err_set(err, STATUS_IO, "prep: cannot create an eventfd");
    json_in_init();
    for (int i = 0; i < server->options.prep_threads; i++) {
        prep->n_workers++;
        enum status status = start_worker(prep, &prep->workers[i], err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

void prep_close(struct prep *prep) {
    if (!prep) return;
    pthread_mutex_lock(&prep->mutex);
    prep->is_closing = true;
    pthread_cond_broadcast(&prep->has_work);
    pthread_mutex_unlock(&prep->mutex);
    for (int i = 0; i < prep->n_started; i++) pthread_join(prep->workers[i].thread, NULL);
    for (int i = 0; i < prep->n_workers; i++)
        if (prep->workers[i].bench.scratch) tokenizer_scratch_destroy(prep->workers[i].bench.scratch);
    if (prep->event_fd >= 0) close(prep->event_fd);
    pthread_mutex_destroy(&prep->mutex);
    pthread_cond_destroy(&prep->has_work);
}

void prep_submit(struct prep *prep, struct request *request) {
    pthread_mutex_lock(&prep->mutex);
    push(&prep->queued, request);
    pthread_cond_signal(&prep->has_work);
    pthread_mutex_unlock(&prep->mutex);
}

struct request *prep_take_done(struct prep *prep) {
    pthread_mutex_lock(&prep->mutex);
    struct request *request = pop(&prep->done);
    pthread_mutex_unlock(&prep->mutex);
    return request;
}

int prep_event_fd(const struct prep *prep) { return prep->event_fd; }

void prep_clear(struct prep *prep) {
    uint64_t count;
    if (read(prep->event_fd, &count, sizeof count) < 0) return; /* nothing was there */
}
