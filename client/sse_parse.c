/* A line is collected until \n, \r or \r\n; a blank line gives the event. The two buffers are bounded by SSE_MAX_EVENT each. */
#include "client/sse_parse.h"

#include <stdlib.h>
#include <string.h>

void sse_init(struct sse_parser *p, sse_event_fn on_event, void *context) {
    *p = (struct sse_parser){.on_event = on_event, .context = context};
}

void sse_reset(struct sse_parser *p) {
    p->n_line = p->n_data = 0;
    p->has_data = p->after_cr = p->is_started = p->is_broken = false;
}

void sse_deinit(struct sse_parser *p) {
    free(p->line);
    free(p->data);
    memset(p, 0, sizeof *p);
}

/* Appends and keeps a NUL behind; false when it would pass the bound. */
static bool append(char **buffer, size_t *n, size_t *capacity, const char *bytes, size_t count) {
    if (count > SSE_MAX_EVENT - *n) return false;
    if (*n + count + 1 > *capacity) {
        size_t wanted = *capacity ? *capacity : 512;
        while (wanted < *n + count + 1) wanted *= 2;
        char *grown = realloc(*buffer, wanted);
        if (!grown) return false;
        *buffer = grown;
        *capacity = wanted;
    }
    if (count) memcpy(*buffer + *n, bytes, count);
    *n += count;
    (*buffer)[*n] = 0;
    return true;
}

static bool give_event(struct sse_parser *p) {
    bool goes_on = p->n_data == 0 || p->on_event(p->context, p->data, p->n_data); /* no data, no event */
    p->n_data = 0;
    p->has_data = false;
    return goes_on;
}

/* A whole line, without its end. Only data matters; "data" alone is an empty line of data. */
static bool take_line(struct sse_parser *p) {
    const char *line = p->line;
    size_t n = p->n_line;
    p->n_line = 0;
    if (!p->is_started && n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) line += 3, n -= 3; /* byte order mark */
    p->is_started = true;
    if (n == 0) return give_event(p);
    if (n < 4 || memcmp(line, "data", 4) || (n > 4 && line[4] != ':')) return true;
    size_t skip = n == 4 ? 4 : n > 5 && line[5] == ' ' ? 6 : 5;
    if (p->has_data && !append(&p->data, &p->n_data, &p->data_capacity, "\n", 1)) return false;
    p->has_data = true;
    return append(&p->data, &p->n_data, &p->data_capacity, line + skip, n - skip);
}

static size_t until_line_end(const char *bytes, size_t n) {
    const char *lf = memchr(bytes, '\n', n);
    size_t end = lf ? (size_t)(lf - bytes) : n;
    const char *cr = memchr(bytes, '\r', end);
    return cr ? (size_t)(cr - bytes) : end;
}

bool sse_feed(struct sse_parser *p, const char *bytes, size_t n) {
    while (n && !p->is_broken) {
        if (p->after_cr && *bytes == '\n') { /* the second half of \r\n */
            p->after_cr = false;
            bytes++, n--;
            continue;
        }
        p->after_cr = false;
        size_t count = until_line_end(bytes, n);
        p->is_broken = !append(&p->line, &p->n_line, &p->line_capacity, bytes, count);
        if (p->is_broken || count == n) break;
        p->after_cr = bytes[count] == '\r';
        bytes += count + 1;
        n -= count + 1;
        p->is_broken = !take_line(p);
    }
    return !p->is_broken;
}
