#include "server/route.h"

#include <string.h>

#include "server/api_ops.h"
#include "server/stream.h"

static const struct route routes[] = {
    {"POST", "/v1/completions", stream_begin, true, true}, {"GET", "/v1/models", api_ops_models, false, false},
    {"GET", "/v1/memory", api_ops_memory, false, false},   {"GET", "/health", api_ops_health, false, false},
    {"GET", "/ready", api_ops_ready, false, false},        {"GET", "/version", api_ops_version, false, false},
    {"GET", "/metrics", api_ops_metrics, false, false},
};

const struct route *route_find(const char *method, const char *path, const char **allow) {
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *allow = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        if (strcmp(routes[i].method, wanted) == 0) return &routes[i];
        *allow = strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    }
    return NULL;
}
