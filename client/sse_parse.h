/* Server-sent events out of bytes that come in any pieces (WHATWG HTML, 9.2.6 "Interpreting an event stream").
 *
 * What a server sends is not trusted: one event's data is at most SSE_MAX_EVENT bytes, longer ends the stream with an error. Comments,
 * unknown fields and the fields id and retry are skipped. An event that the stream's end cuts off is not given, as the standard says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define SSE_MAX_EVENT ((size_t)4 << 20)

/* One event: its data lines joined by \n, NUL-terminated beyond n. false ends the parsing. */
typedef bool (*sse_event_fn)(void *context, const char *data, size_t n);

struct sse_parser {
    sse_event_fn on_event;
    void *context;
    char *line, *data; /* owned, grown on demand */
    size_t n_line, line_capacity, n_data, data_capacity;
    bool has_data, after_cr, is_started, is_broken;
};

void sse_init(struct sse_parser *p, sse_event_fn on_event, void *context);
/* Ready for another stream; memory is kept. */
void sse_reset(struct sse_parser *p);
void sse_deinit(struct sse_parser *p);
/* Takes n bytes and gives the events that they complete. false, now and ever after: an event too long, out of memory, or the callback
 * said so. */
bool sse_feed(struct sse_parser *p, const char *bytes, size_t n);
