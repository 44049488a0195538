/* A completion's answer as bytes, made piece by piece as the client takes them.
 *
 * The answer is a row of items, each short and each a function of where the renderer stands. An item that the caller's buffer
 * cuts is made again next time and given from where it was cut: nothing but the place is kept between calls. */
#pragma once

#include "engine/base/err.h"
#include "server/completion.h"
#include "server/json_out.h"

enum span_phase { SPAN_OPEN, SPAN_TEXT, SPAN_TOKENS, SPAN_LOGPROBS, SPAN_TOPS, SPAN_OFFSETS, SPAN_CLOSE };

/* One choice object over its prompt (when echoed) and records [from, to). */
struct span {
    enum span_phase phase;
    int choice, from, to;
    bool with_prompt, is_last; /* is_last: the text ends here, with a finish_reason */
    int unit;                  /* within the phase: prompt tokens, then records, then the end */
    struct text_cursor text;
    struct char_counter chars;
};

enum render_phase { RENDER_HEAD, RENDER_SPAN, RENDER_TAIL, RENDER_USAGE, RENDER_ERROR, RENDER_DONE, RENDER_END };

struct renderer {
    enum render_phase phase;
    int next;      /* the choice to look at first */
    size_t offset; /* bytes of the current item already given */
    struct span span;
};

/* Working memory of the thread that renders. */
#define RENDER_ITEM_BYTES ((MAX_TOP_LOGPROBS + 1) * (6 * (size_t)MAX_PIECE_BYTES + 64) + 8192)
struct render_scratch {
    struct text_scratch text;
    char key[6 * MAX_PIECE_BYTES + 16];
    char item[RENDER_ITEM_BYTES];
};

struct render_job {
    struct completion *c;
    const struct tokenizer *tokenizer;
    const struct err *error; /* NULL, or what ended the stream */
};

enum item_verdict { ITEM_MORE /* written, *r moved on */, ITEM_WAIT, ITEM_END };
typedef enum item_verdict (*render_item)(const struct render_job *job, struct renderer *r, struct render_scratch *scratch,
                                         struct json_out *o);

/* Fills out[0..max) with items from where *r stands. Returns how many bytes; 0: nothing now; −1: the answer is complete. */
long render_fill(const struct render_job *job, struct renderer *r, render_item item, struct render_scratch *scratch, char *out,
                 size_t max);

/* The items of a whole answer in one JSON body; every choice has ended. */
enum item_verdict render_body_item(const struct render_job *job, struct renderer *r, struct render_scratch *scratch,
                                   struct json_out *o);

/* For render_body_item and sse.c: parts of an answer. */
void render_head(const struct completion *c, struct json_out *o);                   /* {"id": ... "choices":[ */
void render_usage(const struct completion *c, bool only_given, struct json_out *o); /* {"prompt_tokens": ...} */
void render_span_begin(const struct completion *c, struct span *s, int choice, int to, bool is_last);
/* Writes one item of the span; false when there was none left. */
bool render_span_item(const struct render_job *job, struct span *s, struct render_scratch *scratch, struct json_out *o);
