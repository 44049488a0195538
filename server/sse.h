/* A completion's answer as server-sent events: one event a token that made text available, [DONE] at the end. */
#pragma once

#include "server/render.h"

/* The items of a stream; ITEM_WAIT until tokens arrive. An error ends it with one error event. */
enum item_verdict sse_item(const struct render_job *job, struct renderer *r, struct render_scratch *scratch,
                           struct json_out *o);
/* Has the stream something to give now? */
bool sse_is_pending(const struct completion *c);
