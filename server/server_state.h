/* The server's parts, for the files that are it. Owned by the thread in server_run; what others touch says so. */
#pragma once

#include <stdatomic.h>

#include "server/http.h"
#include "server/metrics.h"
#include "server/page_pool.h"
#include "server/prep.h"
#include "server/server.h"
#include "server/stream.h"

#define OPS_BUFFERS 4
#define OPS_BUFFER_BYTES ((size_t)64 << 10)

struct server {
    struct server_options options; /* resolved */
    struct engine *engine;
    const char *model_name;
    int64_t started_unix_s;
    int max_context;
    int epoll_fd, stop_fd;
    _Atomic int n_stops; /* server_stop: any thread, signal handlers */
    bool is_draining, is_stuck_logged;
    struct page_pool memory; /* any thread */
    struct http *http;
    struct prep *prep;
    struct streams *streams;
    struct metrics metrics;
    char *ops_buffers[OPS_BUFFERS];
    bool ops_buffer_taken[OPS_BUFFERS];
};
