/* Which handler serves which method and path, and what body it takes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct server;
struct exchange;

struct route {
    const char *method, *path;
    /* Fills x->answer, or leaves answer.http 0 and sees to http_resume later. */
    void (*handle)(struct server *server, struct exchange *x);
    bool takes_body, is_watched /* a client that leaves ends the work */;
};

/* NULL: *allow is NULL when there is no such path, else the methods that it has. HEAD finds GET's route; OPTIONS never finds
 * one. */
const struct route *route_find(const char *method, const char *path, const char **allow);
