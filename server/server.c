/* The server's parts put together, and the loop that turns them.
 *
 *                 ┌ library's epoll: bytes came or can go       → http_run
 *   epoll_wait ───┼ watch: a client left                        → http_watch
 *   (one thread)  ┼ prep's eventfd: bodies are token ids        → streams_take_prepared → engine_submit
 *                 ┼ engine's eventfd, once a step: tokens       → streams_take_events → http_resume
 *                 └ stop's eventfd: SIGTERM                     → drain
 *
 * http_run comes last in a turn: what was resumed goes out in the same turn. Nothing in the thread blocks or is long: parsing
 * is the prep pool's, computing the engine's; so /health answers however much there is to do. */
#include "server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/checked.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/server_state.h"

#define TICK_MS 250       /* deadlines are checked this often */
#define FLUSH_TIMEOUT_S 5 /* after the drain's end: for cancelled requests to say so */

struct server_options server_options_default(void) {
    return (struct server_options){
        .host = "127.0.0.1",
        .port = 8000,
        .max_connections = 1024,
        .max_body_bytes = (size_t)1 << 20,
        .request_memory_bytes = (size_t)16 << 20,
        .prep_threads = 1,
        .drain_timeout_s = 30,
        .header_timeout_s = 10,
        .body_timeout_s = 60,
        .idle_timeout_s = 60,
        .vllm_metric_names = true,
    };
}

size_t server_request_bytes(const struct server_options *options) {
    return round_up(sizeof(struct server), 64) + round_up(http_memory_bytes(options), 64) +
           round_up(streams_memory_bytes(options), 64) + round_up(page_pool_bytes(options->request_memory_bytes), 64) +
           OPS_BUFFERS * OPS_BUFFER_BYTES + prep_memory_bytes(options) + 4096;
}

size_t server_http_bytes(const struct server_options *options) {
    return http_library_bytes(options) + prep_library_bytes(options);
}

static enum status check_int(const char *name, int value, int least, int most, struct err *err) {
    if (value >= least && value <= most) return STATUS_OK;
    return err_set_param(err, STATUS_INVALID, name, "%s: must be from %d to %d, not %d", name, least, most, value);
}

static enum status check_options(const struct server_options *o, struct err *err) {
    const struct {
        const char *name;
        int value, least, most;
    } ints[] = {
        {"port", o->port, 0, 65535},
        {"max_connections", o->max_connections, 1, 65536},
        {"max_requests", o->max_requests, 0, 65536},
        {"prep_threads", o->prep_threads, 1, 64},
        {"drain_timeout", o->drain_timeout_s, 0, 86400},
        {"header_timeout", o->header_timeout_s, 1, 86400},
        {"body_timeout", o->body_timeout_s, 1, 86400},
        {"idle_timeout", o->idle_timeout_s, 1, 86400},
    };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        enum status status = check_int(ints[i].name, ints[i].value, ints[i].least, ints[i].most, err);
        if (status != STATUS_OK) return status;
    }
    if (!o->host || !*o->host) return err_set_param(err, STATUS_INVALID, "host", "host: an address is needed");
    if (o->max_body_bytes < 1024 || o->max_body_bytes > (size_t)1 << 30)
        return err_set_param(err, STATUS_INVALID, "max_body", "max_body: must be from 1 KiB to 1 GiB");
    if (o->request_memory_bytes < 64 * 1024 || o->request_memory_bytes > (size_t)1 << 40)
        return err_set_param(err, STATUS_INVALID, "request_memory", "request_memory: must be from 64 KiB to 1 TiB");
    if (o->served_model_name && strlen(o->served_model_name) > 255)
        return err_set_param(err, STATUS_INVALID, "served_model_name", "served_model_name: must have at most 255 bytes");
    return STATUS_OK;
}

static enum status check_vocabulary(const struct tokenizer *t, struct err *err) {
    for (int32_t id = 0; id < tokenizer_n_tokens(t); id++)
        if (tokenizer_piece(t, id).n > MAX_PIECE_BYTES)
            return err_set(err, STATUS_UNSUPPORTED, "vocabulary: token %d has %zu bytes of text, and at most %d are served",
                           (int)id, (size_t)tokenizer_piece(t, id).n, MAX_PIECE_BYTES);
    return STATUS_OK;
}

static enum status add_to_epoll(struct server *server, int fd, struct err *err) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return STATUS_OK;
    return err_set(err, STATUS_IO, "server: cannot watch a descriptor: %s", strerror(errno));
}

static enum status open_loop(struct server *server, struct err *err) {
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->epoll_fd < 0 || server->stop_fd < 0)
        return err_set(err, STATUS_IO, "server: no descriptors left: %s", strerror(errno));
    const int fds[] = {http_epoll_fd(server->http), http_watch_fd(server->http), prep_event_fd(server->prep),
                       engine_event_fd(server->engine), server->stop_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        enum status status = add_to_epoll(server, fds[i], err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status open_parts(struct server *server, struct err *err) {
    struct ledger *ledger = engine_ledger(server->engine);
    const struct server_options *options = &server->options;
    enum status status = check_vocabulary(engine_tokenizer(server->engine), err);
    if (status != STATUS_OK) return status;
    page_pool_init(&server->memory, ledger_alloc(ledger, LINE_REQUESTS, page_pool_bytes(options->request_memory_bytes)),
                   options->request_memory_bytes);
    for (int i = 0; i < OPS_BUFFERS; i++) server->ops_buffers[i] = ledger_alloc(ledger, LINE_REQUESTS, OPS_BUFFER_BYTES);
    streams_open(server);
    status = prep_open(&server->prep, server, err);
    if (status != STATUS_OK) return status;
    void *memory = ledger_alloc(ledger, LINE_REQUESTS, http_memory_bytes(options));
    status = http_open(&server->http, server, options, memory, err);
    return status == STATUS_OK ? open_loop(server, err) : status;
}

enum status server_open(struct server **out, const struct server_options *options, struct engine *engine, struct err *err) {
    *out = NULL;
    enum status status = check_options(options, err);
    if (status != STATUS_OK) return status;
    struct server *server = ledger_alloc(engine_ledger(engine), LINE_REQUESTS, sizeof *server);
    server->options = *options;
    server->engine = engine;
    server->model_name =
        options->served_model_name && *options->served_model_name ? options->served_model_name : engine_model_name(engine);
    server->max_context = engine_resolved(engine)->max_context;
    server->started_unix_s = clock_unix_s();
    server->epoll_fd = server->stop_fd = -1;
    status = open_parts(server, err);
    if (status != STATUS_OK) server_close(server);
    else *out = server;
    return status;
}

void server_close(struct server *server) {
    if (!server) return;
    http_close(server->http);
    prep_close(server->prep);
    if (server->epoll_fd >= 0) close(server->epoll_fd);
    if (server->stop_fd >= 0) close(server->stop_fd);
    if (server->memory.base) page_pool_deinit(&server->memory);
}

int server_port(const struct server *server) { return http_port(server->http); }

void server_stop(struct server *server) {
    uint64_t one = 1;
    int why = errno;
    atomic_fetch_add(&server->n_stops, 1);
    if (write(server->stop_fd, &one, sizeof one) < 0) errno = why; /* full means that it is already readable */
    errno = why;
}

/* One turn; false when the loop itself fails. */
static bool turn(struct server *server) {
    struct epoll_event events[8];
    int timeout = http_timeout_ms(server->http);
    uint64_t count;
    if (timeout < 0 || timeout > TICK_MS) timeout = TICK_MS;
    int n = epoll_wait(server->epoll_fd, events, 8, timeout);
    if (n < 0 && errno != EINTR) return false;
    for (int i = 0; i < n; i++) {
        int fd = events[i].data.fd;
        if (fd == http_watch_fd(server->http)) http_watch(server->http);
        else if (fd == prep_event_fd(server->prep)) streams_take_prepared(server);
        else if (fd == engine_event_fd(server->engine)) streams_take_events(server);
        else if (fd == server->stop_fd && read(fd, &count, sizeof count) < 0) continue;
    }
    http_run(server->http);
    return true;
}

static bool is_idle(const struct server *server) {
    return http_active(server->http) == 0 && streams_active(server->streams) == 0;
}

static void begin_drain(struct server *server) {
    log_event(LOG_INFO, "draining", "active=%d timeout_s=%d", http_active(server->http), server->options.drain_timeout_s);
    server->is_draining = true;
    engine_drain(server->engine);
    http_quiesce(server->http);
}

/* Until nothing runs, `until`, or another stop. */
static bool drain(struct server *server, int64_t until_us, int stops) {
    int64_t checked_us = 0;
    while (!is_idle(server) && clock_us() < until_us && atomic_load(&server->n_stops) == stops) {
        if (!turn(server)) return false;
        if (clock_us() - checked_us < TICK_MS * 1000) continue;
        checked_us = clock_us();
        http_expire(server->http, checked_us);
    }
    return true;
}

static bool serve(struct server *server) {
    int64_t checked_us = clock_us();
    while (atomic_load(&server->n_stops) == 0) {
        if (!turn(server)) return false;
        if (clock_us() - checked_us < TICK_MS * 1000) continue;
        checked_us = clock_us();
        http_expire(server->http, checked_us);
    }
    return true;
}

int server_run(struct server *server) {
    bool ok = serve(server);
    begin_drain(server);
    ok = ok && drain(server, clock_us() + (int64_t)server->options.drain_timeout_s * 1000000, 1);
    if (ok && !is_idle(server)) {
        int stops = atomic_load(&server->n_stops);
        log_event(LOG_WARN, "drain_timeout", "active=%d", http_active(server->http));
        streams_cancel_all(server);
        ok = drain(server, clock_us() + (int64_t)FLUSH_TIMEOUT_S * 1000000, stops);
    }
    log_event(LOG_INFO, "stopped", "ok=%d", ok);
    return ok ? 0 : 1;
}
