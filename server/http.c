/* See http.h. The only file that knows libmicrohttpd.
 *
 * The library runs in external epoll mode: it has no thread, the one in http_run calls it. Its own threads were rejected
 * because in them a client that leaves while its exchange is suspended is not noticed, and because resuming from another thread
 * needs locks.
 *
 *   a connection:   [ exchange 1 ] [ exchange 2 ] ...      one struct exchange a connection, used again for each
 *   an exchange:    headers → on_headers → body pieces → on_body → on_whole → route's handler ┬ answer at once
 *                                                                                             └ suspend … http_resume → answer
 *   its answer:     a buffer, or a reader that suspends when it has nothing and is resumed when it has
 *
 * Invariants
 *   1. Suspend and resume happen in this thread only, and only what is suspended is resumed.
 *   2. A suspended exchange has its socket in the watch: a peer that closes, or half-closes, ends the exchange at once.
 *   3. The library calls the handler again after a resume with the arguments of before: `handled` tells the calls apart.
 *   4. Every connection has a deadline while it owes us bytes, idle or not, so that a byte a second holds nothing for long.
 *   5. Nothing is suspended when the daemon is stopped: the library would abort. */
#include "server/http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/checked.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/api_error.h"
#include "server/route.h"
#include "server/server_state.h"

#define CONNECTION_POOL_BYTES ((size_t)32 << 10) /* of the library, for headers and one piece of a body or answer */
#define CONNECTION_EXTRA_BYTES ((size_t)8 << 10) /* its struct, a response and the response's block */
#define FIRST_BODY_BYTES ((size_t)16 << 10)
#define DRAIN_FACTOR 4 /* a body refused is read on to this many times the limit, so that the client gets to read why */
#define RETRY_AFTER_S "1"

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    int epoll_fd, watch_fd, port, n_active;
    int n_exchanges;
    struct exchange *free;
    struct exchange exchanges[];
};

size_t http_memory_bytes(const struct server_options *options) {
    return sizeof(struct http) + (size_t)options->max_connections * sizeof(struct exchange) + 64;
}

size_t http_library_bytes(const struct server_options *options) {
    return (size_t)options->max_connections * (CONNECTION_POOL_BYTES + CONNECTION_EXTRA_BYTES) + ((size_t)256 << 10);
}

/* ---- One exchange. ---- */

static void unwatch(struct http *http, struct exchange *x) {
    if (x->watched && epoll_ctl(http->watch_fd, EPOLL_CTL_DEL, x->fd, NULL) != 0)
        log_event(LOG_WARN, "watch", "fd=%d errno=%d", x->fd, errno);
    x->watched = false;
}

static void watch(struct http *http, struct exchange *x) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = x};
    x->watched = epoll_ctl(http->watch_fd, EPOLL_CTL_ADD, x->fd, &event) == 0;
}

static void suspend(struct exchange *x) {
    x->suspended = true;
    MHD_suspend_connection(x->connection);
}

void http_resume(struct exchange *x) {
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* Ends the connection, whatever it is doing; the library learns of it at once. */
static void end_connection(struct exchange *x) {
    x->broken = true;
    shutdown(x->fd, SHUT_RDWR);
    http_resume(x);
}

void http_answer_error_as(struct exchange *x, int http, const struct err *err, const char *code) {
    struct json_out o;
    json_out_init(&o, x->inline_answer, sizeof x->inline_answer);
    api_error_write(&o, err, code);
    json_out_raw(&o, "\n", 1);
    x->answer.http = http;
    x->answer.content_type = "application/json";
    x->answer.data = o.data;
    x->answer.n = o.n;
    x->answer.retry_after = err->status == STATUS_BUSY || err->status == STATUS_DRAINING;
    x->answer.close = x->answer.close || err->status == STATUS_DRAINING;
}

void http_answer_error(struct exchange *x, const struct err *err) {
    http_answer_error_as(x, api_error_of(err->status)->http, err, NULL);
}

/* ---- Headers. ---- */

struct header_counts {
    int content_length, transfer_encoding, host, authorization;
    bool is_strange_encoding;
    const char *request_id;
};

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    struct header_counts *counts = cls;
    (void)kind;
    if (strcasecmp(key, "Content-Length") == 0) counts->content_length++;
    if (strcasecmp(key, "Host") == 0) counts->host++;
    if (strcasecmp(key, "Authorization") == 0) counts->authorization++;
    if (strcasecmp(key, "X-Request-Id") == 0) counts->request_id = value;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        counts->transfer_encoding++;
        if (!value || strcasecmp(value, "chunked") != 0) counts->is_strange_encoding = true;
    }
    return MHD_YES;
}

/* Requests that two parsers could cut differently (request smuggling) are refused, and their connection closed. */
static bool is_ambiguous(const struct header_counts *counts) {
    return counts->content_length > 1 || counts->transfer_encoding > 1 ||
           (counts->content_length && counts->transfer_encoding) || counts->is_strange_encoding || counts->host > 1 ||
           counts->authorization > 1;
}

static bool is_request_id(const char *text) {
    size_t n = text ? strlen(text) : 0;
    if (n == 0 || n > REQUEST_ID_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:", text[i])) return false;
    return true;
}

static void set_request_id(struct exchange *x, const char *given) {
    uint64_t random = 0;
    if (is_request_id(given)) {
        memcpy(x->id, given, strlen(given) + 1);
        return;
    }
    if (getrandom(&random, sizeof random, 0) < 0) random = (uint64_t)x->arrival_us;
    snprintf(x->id, sizeof x->id, "req-%016llx", (unsigned long long)random);
}

/* What the headers alone decide. Answers now only where the body must not be read. */
static void check_headers(struct exchange *x, const char *method, const char *path, const char *content_length,
                          const struct header_counts *counts) {
    const struct server_options *options = &x->server->options;
    const char *allow;
    struct err err;
    if (is_ambiguous(counts)) {
        err_set(&err, STATUS_INVALID,
                "headers: Content-Length, Transfer-Encoding, Host or Authorization is doubled or contradictory");
        x->answer.close = true;
        http_answer_error(x, &err);
        return;
    }
    x->route = route_find(method, path, &allow);
    x->answer.allow = x->route ? NULL : allow;
    if (content_length && strtoull(content_length, NULL, 10) > options->max_body_bytes) {
        err_set(&err, STATUS_TOO_LARGE, "body: %.20s bytes, and at most %zu are taken", content_length,
                options->max_body_bytes);
        x->answer.close = true;
        http_answer_error(x, &err);
    }
}

static void on_headers(struct exchange *x, struct MHD_Connection *connection, const char *method, const char *path) {
    struct header_counts counts = {0};
    const struct server_options *options = &x->server->options;
    x->active = true;
    x->server->http->n_active++;
    x->handled = x->broken = false;
    x->route = NULL;
    x->request = NULL;
    x->ops_buffer = -1;
    x->n_body = x->body_capacity = x->received = 0;
    x->body = NULL;
    x->answer = (struct answer){0};
    x->refusal = (struct err){.status = STATUS_OK};
    x->arrival_us = clock_us();
    x->deadline_us = x->arrival_us + (int64_t)options->body_timeout_s * 1000000;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_header, &counts);
    set_request_id(x, counts.request_id);
    check_headers(x, method, path, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length"), &counts);
    if (x->route && x->route->is_watched) watch(x->server->http, x);
}

/* ---- The body. ---- */

static void refuse(struct exchange *x, enum status status, const char *text) {
    if (x->refusal.status == STATUS_OK) err_set(&x->refusal, status, "%s", text);
    x->answer.close = true;
}

static bool grow_body(struct exchange *x, size_t wanted) {
    struct page_pool *memory = &x->server->memory;
    size_t capacity = x->body_capacity ? x->body_capacity * 2 : FIRST_BODY_BYTES;
    while (capacity < wanted) capacity *= 2;
    char *larger = page_pool_alloc(memory, capacity);
    if (!larger) return false;
    if (x->n_body) memcpy(larger, x->body, x->n_body);
    page_pool_free(memory, x->body, x->body_capacity);
    x->body = larger;
    x->body_capacity = capacity;
    return true;
}

/* False: the connection is to be dropped. */
static bool on_body(struct exchange *x, const char *data, size_t n) {
    size_t max = x->server->options.max_body_bytes;
    x->received += n;
    if (x->received > max) refuse(x, STATUS_TOO_LARGE, "body: larger than this server takes");
    if (x->received / DRAIN_FACTOR > max) return false;
    if (x->refusal.status != STATUS_OK || !x->route || !x->route->takes_body) return true;
    if (x->n_body + n > x->body_capacity && !grow_body(x, x->n_body + n)) {
        refuse(x, STATUS_BUSY, "server busy: no room for another request now; try again shortly");
        return true;
    }
    memcpy(x->body + x->n_body, data, n);
    x->n_body += n;
    return true;
}

/* ---- The whole request is there. ---- */

static void answer_no_route(struct exchange *x, const char *method, const char *path) {
    struct err err;
    if (!x->answer.allow) {
        err_set(&err, STATUS_NOT_FOUND, "%s %.64s: no such endpoint", method, path);
        http_answer_error(x, &err);
    } else if (strcmp(method, "OPTIONS") == 0) {
        x->answer.http = 204;
    } else {
        err_set(&err, STATUS_INVALID, "%s %.64s: method not allowed; allowed: %s", method, path, x->answer.allow);
        http_answer_error_as(x, 405, &err, "method_not_allowed");
    }
}

static void on_whole(struct exchange *x, const char *method, const char *path) {
    struct err err;
    x->deadline_us = 0;
    if (x->refusal.status != STATUS_OK) http_answer_error(x, &x->refusal);
    else if (!x->route) answer_no_route(x, method, path);
    else if (x->server->is_draining && x->route->takes_body) {
        err_set(&err, STATUS_DRAINING, "server shutting down: no new requests are taken");
        http_answer_error(x, &err);
    } else x->route->handle(x->server, x);
}

/* ---- The answer. ---- */

static ssize_t on_read(void *cls, uint64_t position, char *out, size_t max) {
    struct exchange *x = cls;
    (void)position;
    if (x->broken) return MHD_CONTENT_READER_END_WITH_ERROR;
    long n = x->answer.read(x->server, x, out, max);
    if (n > 0) return n;
    if (n == READ_END) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == READ_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
    suspend(x); /* without it the library would ask again and again */
    return 0;
}

static bool add_header(struct MHD_Response *response, const char *name, const char *text) {
    return !text || MHD_add_response_header(response, name, text) == MHD_YES;
}

static struct MHD_Response *make_response(struct exchange *x) {
    const struct answer *answer = &x->answer;
    struct MHD_Response *response;
    if (answer->read) response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, on_read, x, NULL);
    else response = MHD_create_response_from_buffer_with_free_callback(answer->n, (void *)(uintptr_t)answer->data, NULL);
    if (!response) return NULL;
    bool ok = add_header(response, "X-Request-Id", x->id) && add_header(response, "Content-Type", answer->content_type) &&
              add_header(response, "Allow", answer->allow) &&
              add_header(response, "Retry-After", answer->retry_after ? RETRY_AFTER_S : NULL) &&
              add_header(response, "Connection", answer->close || x->server->is_draining ? "close" : NULL) &&
              add_header(response, "Cache-Control", answer->is_stream ? "no-cache" : NULL) &&
              add_header(response, "X-Accel-Buffering", answer->is_stream ? "no" : NULL);
    if (ok) return response;
    MHD_destroy_response(response);
    return NULL;
}

static enum MHD_Result queue_answer(struct exchange *x) {
    struct MHD_Response *response = make_response(x);
    if (!response) return MHD_NO;
    enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)x->answer.http, response);
    MHD_destroy_response(response);
    return queued;
}

/* ---- The library's callbacks. ---- */

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **state) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct exchange *x = info ? info->socket_context : NULL;
    (void)cls, (void)version;
    if (!x) return MHD_NO;
    if (!*state) {
        *state = x;
        on_headers(x, connection, method, path);
        return x->answer.http ? queue_answer(x) : MHD_YES;
    }
    if (*n_data) {
        if (!on_body(x, data, *n_data)) return MHD_NO;
        *n_data = 0;
        return MHD_YES;
    }
    if (x->broken) return MHD_NO;
    if (!x->handled) {
        x->handled = true;
        on_whole(x, method, path);
    }
    if (x->answer.http) return queue_answer(x);
    suspend(x);
    return MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code) {
    struct http *http = cls;
    struct exchange *x = *state;
    (void)connection;
    if (!x || !x->active) return;
    struct server *server = x->server;
    unwatch(http, x);
    if (x->answer.http) metrics_count_http(&server->metrics, x->answer.http);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) server->metrics.client_gone++;
    stream_detach(server, x);
    page_pool_free(&server->memory, x->body, x->body_capacity);
    x->body = NULL;
    if (x->ops_buffer >= 0) server->ops_buffer_taken[x->ops_buffer] = false;
    x->ops_buffer = -1;
    x->active = false;
    http->n_active--;
    x->deadline_us = clock_us() + ((int64_t)server->options.idle_timeout_s + server->options.header_timeout_s) * 1000000;
    if (server->is_draining) end_connection(x);
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    struct http *http = cls;
    struct exchange *x = *context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (!x) return;
        x->in_use = false;
        x->next_free = http->free;
        http->free = x;
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    x = http->free;
    if (!x || !info) return; /* on_request then drops it */
    http->free = x->next_free;
    x->in_use = true;
    x->active = x->broken = x->suspended = x->watched = false;
    x->connection = connection;
    x->fd = info->connect_fd;
    x->deadline_us = clock_us() + (int64_t)http->server->options.header_timeout_s * 1000000;
    *context = x;
}

static void on_library_log(void *cls, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
static void on_library_log(void *cls, const char *format, va_list args) {
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof text, format, args);
    log_event(LOG_DEBUG, "http_library", "text=\"%s\"", text);
}

static void on_library_panic(void *cls, const char *file, unsigned line, const char *reason) {
    (void)cls;
    BUG("libmicrohttpd: %s:%u: %s", file, line, reason ? reason : "");
}

/* ---- Opening. ---- */

static int listen_on(const struct addrinfo *address) {
    int on = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1024) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static enum status open_socket(int *fd, const struct server_options *options, struct err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    char port[16];
    snprintf(port, sizeof port, "%d", options->port);
    int failed = getaddrinfo(options->host, port, &hints, &found);
    if (failed) return err_set_param(err, STATUS_INVALID, "host", "host: %.100s: %s", options->host, gai_strerror(failed));
    *fd = -1;
    for (const struct addrinfo *a = found; a && *fd < 0; a = a->ai_next) *fd = listen_on(a);
    int why = errno;
    freeaddrinfo(found);
    if (*fd >= 0) return STATUS_OK;
    return err_set_param(err, STATUS_IO, "port", "listen: %.100s port %d: %s", options->host, options->port, strerror(why));
}

static int port_of(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage storage;
    } address;
    socklen_t n = sizeof address;
    if (getsockname(fd, &address.any, &n) != 0) return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

static enum status start_daemon(struct http *http, const struct server_options *options, int fd, struct err *err) {
    MHD_set_panic_func(on_library_panic, NULL);
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, http,
        MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)options->max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_POOL_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)options->idle_timeout_s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!http->daemon) return err_set(err, STATUS_IO, "http: the library cannot start: %s", strerror(errno));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info) return err_set(err, STATUS_IO, "http: the library has no epoll");
    http->epoll_fd = info->epoll_fd;
    return STATUS_OK;
}

enum status http_open(struct http **out, struct server *server, const struct server_options *options, void *memory,
                      struct err *err) {
    struct http *http = memory;
    int fd;
    memset(http, 0, http_memory_bytes(options));
    http->server = server;
    http->watch_fd = -1;
    http->n_exchanges = options->max_connections;
    for (int i = options->max_connections - 1; i >= 0; i--) {
        http->exchanges[i].server = server;
        http->exchanges[i].next_free = http->free;
        http->free = &http->exchanges[i];
    }
    *out = http;
    http->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    if (http->watch_fd < 0) return err_set(err, STATUS_IO, "http: cannot create an epoll: %s", strerror(errno));
    enum status status = open_socket(&fd, options, err);
    if (status != STATUS_OK) return status;
    http->port = port_of(fd);
    status = start_daemon(http, options, fd, err);
    if (!http->daemon) close(fd);
    return status;
}

void http_close(struct http *http) {
    if (!http) return;
    if (http->daemon) {
        http_abort(http);
        MHD_run(http->daemon);
        MHD_stop_daemon(http->daemon);
    }
    if (http->watch_fd >= 0) close(http->watch_fd);
}

/* ---- Running. ---- */

int http_port(const struct http *http) { return http->port; }

int http_epoll_fd(const struct http *http) { return http->epoll_fd; }

int http_watch_fd(const struct http *http) { return http->watch_fd; }

int http_active(const struct http *http) { return http->n_active; }

int http_timeout_ms(const struct http *http) {
    MHD_UNSIGNED_LONG_LONG timeout;
    if (MHD_get_timeout(http->daemon, &timeout) != MHD_YES) return -1;
    return timeout > 1000 ? 1000 : (int)timeout;
}

int http_connections(const struct http *http) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info ? (int)info->num_connections : 0;
}

void http_run(struct http *http) { MHD_run(http->daemon); }

void http_watch(struct http *http) {
    struct epoll_event events[64];
    int n;
    do {
        n = epoll_wait(http->watch_fd, events, 64, 0);
        for (int i = 0; i < n; i++) {
            struct exchange *x = events[i].data.ptr;
            if (!x->active || x->broken) continue;
            if (x->request)
                stream_detach(x->server, x); /* its blocks are free within a step, before the library has closed the socket */
            end_connection(x);
        }
    } while (n == 64);
}

void http_expire(struct http *http, int64_t now_us) {
    for (int i = 0; i < http->n_exchanges; i++) {
        struct exchange *x = &http->exchanges[i];
        if (x->in_use && !x->broken && x->deadline_us && now_us > x->deadline_us) end_connection(x);
    }
}

void http_quiesce(struct http *http) {
    int fd = MHD_quiesce_daemon(http->daemon);
    if (fd >= 0) close(fd);
    for (int i = 0; i < http->n_exchanges; i++)
        if (http->exchanges[i].in_use && !http->exchanges[i].active) end_connection(&http->exchanges[i]);
}

void http_abort(struct http *http) {
    for (int i = 0; i < http->n_exchanges; i++)
        if (http->exchanges[i].in_use && !http->exchanges[i].broken) end_connection(&http->exchanges[i]);
}
