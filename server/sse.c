/* See sse.h.
 *
 *   HEAD `data: {...,"choices":[`  SPAN  TAIL `]}\n\n`   for each event, then USAGE (if asked), DONE `data: [DONE]\n\n`, END
 *
 * An event takes the records up to the next one that made text available: tokens that only held text back (half a character,
 * the beginning of a stop string) go with the one that released it, so no chunk is empty but the last. The last record goes
 * with the finish_reason when both are known. */
#include "server/sse.h"

#include "server/api_error.h"

/* The range of the choice's next event. */
static bool next_event(const struct completion_choice *choice, int *to, bool *is_last) {
    int i = choice->n_given;
    bool has_ended = choice->end != END_NONE;
    if (choice->is_end_given) return false;
    while (i < choice->n_records && !choice->records[i].is_releasing) i++;
    if (i == choice->n_records && !has_ended) return false;
    *to = i < choice->n_records ? i + 1 : i;
    for (i = *to; i < choice->n_records && !choice->records[i].is_releasing; i++) {
    }
    *is_last = has_ended && i == choice->n_records;
    if (*is_last) *to = i;
    return true;
}

bool sse_is_pending(const struct completion *c) {
    int to;
    bool is_last, has_ended = true;
    for (int i = 0; i < c->n_choices; i++) {
        if (next_event(&c->choices[i], &to, &is_last)) return true;
        has_ended = has_ended && c->choices[i].is_end_given;
    }
    return has_ended;
}

static bool is_all_given(const struct completion *c) {
    for (int i = 0; i < c->n_choices; i++)
        if (!c->choices[i].is_end_given) return false;
    return true;
}

static enum item_verdict begin_event(const struct render_job *job, struct renderer *r, struct json_out *o) {
    const struct completion *c = job->c;
    if (job->error && r->offset == 0) { /* an event once begun is ended first */
        r->phase = RENDER_ERROR;
        return ITEM_MORE;
    }
    for (int i = 0; i < c->n_choices; i++) {
        int choice = (r->next + i) % c->n_choices, to;
        bool is_last;
        if (!next_event(&c->choices[choice], &to, &is_last)) continue;
        json_out_text(o, "data: ");
        render_head(c, o);
        render_span_begin(c, &r->span, choice, to, is_last);
        r->next = (choice + 1) % c->n_choices;
        r->phase = RENDER_SPAN;
        return ITEM_MORE;
    }
    if (!is_all_given(c)) return ITEM_WAIT;
    r->phase = c->include_usage ? RENDER_USAGE : RENDER_DONE;
    return ITEM_MORE;
}

static void end_event(const struct completion *c, struct renderer *r, struct json_out *o) {
    json_out_text(o, "]");
    if (c->continuous_usage || c->include_usage) json_out_key(o, "usage");
    if (c->continuous_usage) render_usage(c, true, o);
    else if (c->include_usage) json_out_null(o);
    json_out_text(o, "}\n\n");
    r->phase = RENDER_HEAD;
}

enum item_verdict sse_item(const struct render_job *job, struct renderer *r, struct render_scratch *scratch,
                           struct json_out *o) {
    switch (r->phase) {
    case RENDER_HEAD: return begin_event(job, r, o);
    case RENDER_SPAN:
        if (!render_span_item(job, &r->span, scratch, o)) r->phase = RENDER_TAIL;
        return ITEM_MORE;
    case RENDER_TAIL: end_event(job->c, r, o); return ITEM_MORE;
    case RENDER_USAGE:
        json_out_text(o, "data: ");
        render_head(job->c, o);
        json_out_text(o, "],\"usage\":");
        render_usage(job->c, false, o);
        json_out_text(o, "}\n\n");
        r->phase = RENDER_DONE;
        return ITEM_MORE;
    case RENDER_ERROR:
        json_out_text(o, "data: ");
        api_error_write(o, job->error, NULL);
        json_out_text(o, "\n\n");
        r->phase = RENDER_DONE;
        return ITEM_MORE;
    case RENDER_DONE:
        json_out_text(o, "data: [DONE]\n\n");
        r->phase = RENDER_END;
        return ITEM_MORE;
    case RENDER_END: break;
    }
    return ITEM_END;
}
