/* See render.h.
 *
 *   body:   HEAD (SPAN [0..n) , ...) TAIL with usage END
 *   a span: {"text":" TEXT* ","index":i,"logprobs":{"tokens":[ * ],"token_logprobs":[ * ],"top_logprobs":[ * ],
 *           "text_offset":[ * ]} CLOSE
 *
 * The four arrays of logprobs are four walks over the same records, so that no item holds more than one token. */
#include "server/render.h"

#include <math.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/utf8.h"

#define LOGPROB_FLOOR (-9999.0) /* what clients read for "impossible": JSON has no infinity */

void render_head(const struct completion *c, struct json_out *o) {
    json_out_open(o, '{');
    json_out_key(o, "id");
    json_out_cstr(o, c->id);
    json_out_key(o, "object");
    json_out_cstr(o, "text_completion");
    json_out_key(o, "created");
    json_out_int(o, c->created);
    json_out_key(o, "model");
    json_out_cstr(o, c->model_name);
    json_out_key(o, "choices");
    json_out_open(o, '[');
}

void render_usage(const struct completion *c, bool only_given, struct json_out *o) {
    int64_t prompt = 0, generated = 0;
    for (int i = 0; i < c->n_prompts; i++) prompt += c->prompts[i].n;
    for (int i = 0; i < c->n_choices; i++) {
        const struct completion_choice *choice = &c->choices[i];
        generated += only_given && !choice->is_end_given ? choice->n_given : choice->n_generated;
    }
    json_out_open(o, '{');
    json_out_key(o, "prompt_tokens");
    json_out_int(o, prompt);
    json_out_key(o, "completion_tokens");
    json_out_int(o, generated);
    json_out_key(o, "total_tokens");
    json_out_int(o, prompt + generated);
    json_out_close(o, '}');
}

void render_span_begin(const struct completion *c, struct span *s, int choice, int to, bool is_last) {
    const struct completion_choice *from = &c->choices[choice];
    *s = (struct span){.phase = SPAN_OPEN,
                       .choice = choice,
                       .from = from->n_given,
                       .to = to,
                       .is_last = is_last,
                       .with_prompt = !from->is_prompt_given,
                       .text = from->given,
                       .chars = from->given_chars};
}

/* ---- One token of a span: a prompt token or a record. ---- */

struct unit {
    bool is_prompt;
    int32_t id;
    const struct token_record *record; /* NULL: a prompt token without logprobs */
    const struct top_record *tops;
};

static int first_prompt_unit(const struct completion *c, const struct span *s) {
    return c->prompts[c->choices[s->choice].prompt].hides_bos ? 1 : 0;
}

static int n_prompt_units(const struct completion *c, const struct span *s) {
    return s->with_prompt ? c->prompts[c->choices[s->choice].prompt].n - first_prompt_unit(c, s) : 0;
}

/* Units of the text walk, or of a logprobs walk, which a stop string's cut may end earlier. */
static int n_units(const struct completion *c, const struct span *s) {
    int to = s->to, listed = c->choices[s->choice].n_listed;
    if (s->phase != SPAN_TEXT && c->choices[s->choice].stop_hit >= 0 && to > listed) to = listed;
    return n_prompt_units(c, s) + (to > s->from ? to - s->from : 0);
}

static struct unit unit_at(const struct completion *c, const struct span *s, int i) {
    const struct completion_choice *choice = &c->choices[s->choice];
    const struct completion_prompt *prompt = &c->prompts[choice->prompt];
    int n_prompt = n_prompt_units(c, s), n_top = completion_n_top(c);
    if (i >= n_prompt) {
        int at = s->from + i - n_prompt;
        return (struct unit){false, choice->records[at].id, &choice->records[at],
                             choice->tops ? choice->tops + (size_t)at * (size_t)n_top : NULL};
    }
    int at = first_prompt_unit(c, s) + i;
    if (!prompt->records || at >= prompt->n_records) return (struct unit){true, prompt->ids[at], NULL, NULL};
    return (struct unit){true, prompt->ids[at], &prompt->records[at],
                         prompt->tops ? prompt->tops + (size_t)at * (size_t)n_top : NULL};
}

static void text_unit(const struct render_job *job, struct span *s, struct render_scratch *scratch, struct json_out *o) {
    struct unit unit = unit_at(job->c, s, s->unit);
    int hit;
    size_t n = unit.is_prompt ? text_cursor_prompt(&s->text, job->tokenizer, unit.id, &scratch->text)
                              : text_cursor_push(&s->text, job->tokenizer, &job->c->stops, unit.id, &scratch->text, &hit);
    json_out_escaped(o, scratch->text.text, n);
}

/* A token's own text; bytes that are not whole characters as "bytes:\xe2\x82". */
static size_t token_text(const struct tokenizer *t, int32_t id, char *out) {
    static const char hex[] = "0123456789abcdef";
    struct text_view piece = tokenizer_piece(t, id);
    size_t n = piece.n > MAX_PIECE_BYTES ? MAX_PIECE_BYTES : piece.n;
    if (utf8_is_valid(piece.data, n)) {
        if (n) memcpy(out, piece.data, n);
        return n;
    }
    memcpy(out, "bytes:", 6);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)piece.data[i];
        memcpy(out + 6 + 4 * i, (char[]){'\\', 'x', hex[byte >> 4], hex[byte & 15]}, 4);
    }
    return 6 + 4 * n;
}

static void token_unit(const struct render_job *job, const struct span *s, struct render_scratch *scratch, struct json_out *o) {
    struct unit unit = unit_at(job->c, s, s->unit);
    json_out_string(o, scratch->key, token_text(job->tokenizer, unit.id, scratch->key));
}

static void write_logprob(struct json_out *o, float logprob) {
    if (isnan(logprob)) json_out_null(o);
    else json_out_number(o, logprob < LOGPROB_FLOOR || isinf(logprob) ? LOGPROB_FLOOR : (double)logprob);
}

static void logprob_unit(const struct render_job *job, const struct span *s, struct json_out *o) {
    struct unit unit = unit_at(job->c, s, s->unit);
    write_logprob(o, unit.record ? unit.record->logprob : NAN);
}

static bool same_text(const struct tokenizer *t, int32_t a, int32_t b) {
    struct text_view x = tokenizer_piece(t, a), y = tokenizer_piece(t, b);
    return a == b || (x.n == y.n && memcmp(x.data, y.data, x.n) == 0);
}

static void write_top(const struct render_job *job, int32_t id, float logprob, struct render_scratch *scratch,
                      struct json_out *o) {
    json_out_string(o, scratch->key, token_text(job->tokenizer, id, scratch->key));
    json_out_raw(o, ":", 1);
    write_logprob(o, logprob);
}

/* The best tokens, and the token itself where it is not among them. Of tokens with one text the best speaks: keys must differ.
 * */
static void tops_unit(const struct render_job *job, const struct span *s, struct render_scratch *scratch, struct json_out *o) {
    struct unit unit = unit_at(job->c, s, s->unit);
    if (!unit.record || isnan(unit.record->logprob)) {
        json_out_null(o);
        return;
    }
    bool has_own = false;
    json_out_open(o, '{');
    for (int i = 0; i < unit.record->n_top; i++) {
        bool is_seen = false;
        for (int j = 0; j < i; j++) is_seen = is_seen || same_text(job->tokenizer, unit.tops[j].id, unit.tops[i].id);
        has_own = has_own || same_text(job->tokenizer, unit.tops[i].id, unit.id);
        if (!is_seen) write_top(job, unit.tops[i].id, unit.tops[i].logprob, scratch, o);
    }
    if (!has_own) write_top(job, unit.id, unit.record->logprob, scratch, o);
    json_out_close(o, '}');
}

static void offset_unit(const struct render_job *job, struct span *s, struct render_scratch *scratch, struct json_out *o) {
    struct unit unit = unit_at(job->c, s, s->unit);
    json_out_uint(o, s->chars.n_chars);
    char_counter_push(&s->chars, job->tokenizer, unit.id, unit.is_prompt, &scratch->text);
}

/* ---- A span's items. ---- */

static void end_text(const struct render_job *job, struct span *s, struct render_scratch *scratch, struct json_out *o) {
    const struct completion *c = job->c;
    if (s->is_last && c->choices[s->choice].stop_hit < 0)
        json_out_escaped(o, scratch->text.text, text_cursor_finish(&s->text, &c->stops, &scratch->text));
    json_out_printf(o, "\",\"index\":%d,\"logprobs\":", s->choice);
    json_out_text(o, c->n_logprobs < 0 ? "null" : "{\"tokens\":[");
    s->phase = c->n_logprobs < 0 ? SPAN_CLOSE : SPAN_TOKENS;
    s->unit = 0;
}

static void next_walk(struct span *s, const char *between, struct json_out *o) {
    json_out_text(o, between);
    s->phase++;
    s->unit = 0;
}

static void close_span(const struct completion *c, struct span *s, struct json_out *o) {
    const struct completion_choice *choice = &c->choices[s->choice];
    json_out_key(o, "finish_reason");
    json_out_cstr(o, !s->is_last ? NULL : choice->end == END_LENGTH ? "length" : "stop");
    json_out_key(o, "stop_reason");
    if (s->is_last && choice->stop_hit >= 0)
        json_out_string(o, c->stops.strings[choice->stop_hit].text, c->stops.strings[choice->stop_hit].n);
    else json_out_null(o);
    json_out_close(o, '}');
}

bool render_span_item(const struct render_job *job, struct span *s, struct render_scratch *scratch, struct json_out *o) {
    static const char *const between[] = {
        [SPAN_TOKENS] = "],\"token_logprobs\":[",
        [SPAN_LOGPROBS] = "],\"top_logprobs\":[",
        [SPAN_TOPS] = "],\"text_offset\":[",
        [SPAN_OFFSETS] = "]}",
    };
    bool has_unit = s->unit < n_units(job->c, s);
    if (s->phase == SPAN_CLOSE && s->unit) return false;
    if (has_unit && s->unit && s->phase >= SPAN_TOKENS && s->phase <= SPAN_OFFSETS) json_out_raw(o, ",", 1);
    switch (s->phase) {
    case SPAN_OPEN:
        json_out_text(o, "{\"text\":\"");
        s->phase = SPAN_TEXT;
        return true;
    case SPAN_TEXT:
        if (!has_unit) {
            end_text(job, s, scratch, o);
            return true;
        }
        text_unit(job, s, scratch, o);
        break;
    case SPAN_TOKENS:
        if (has_unit) token_unit(job, s, scratch, o);
        break;
    case SPAN_LOGPROBS:
        if (has_unit) logprob_unit(job, s, o);
        break;
    case SPAN_TOPS:
        if (has_unit) tops_unit(job, s, scratch, o);
        break;
    case SPAN_OFFSETS:
        if (has_unit) offset_unit(job, s, scratch, o);
        break;
    case SPAN_CLOSE:
        json_out_raw(o, ",", 1);
        close_span(job->c, s, o);
        break;
    }
    if (!has_unit && s->phase != SPAN_CLOSE) next_walk(s, between[s->phase], o);
    else s->unit++;
    return true;
}

/* ---- The whole answer. ---- */

enum item_verdict render_body_item(const struct render_job *job, struct renderer *r, struct render_scratch *scratch,
                                   struct json_out *o) {
    struct completion *c = job->c;
    switch (r->phase) {
    case RENDER_HEAD:
        if (r->next == 0) render_head(c, o);
        else json_out_raw(o, ",", 1);
        render_span_begin(c, &r->span, r->next, c->choices[r->next].n_records, true);
        r->phase = RENDER_SPAN;
        return ITEM_MORE;
    case RENDER_SPAN:
        if (render_span_item(job, &r->span, scratch, o)) return ITEM_MORE;
        r->phase = ++r->next < c->n_choices ? RENDER_HEAD : RENDER_TAIL;
        return ITEM_MORE;
    case RENDER_TAIL:
        json_out_text(o, "],\"usage\":");
        render_usage(c, false, o);
        json_out_text(o, "}\n");
        r->phase = RENDER_END;
        return ITEM_MORE;
    default: return ITEM_END;
    }
}

/* The span was given whole: its choice goes on from there. */
static void commit(struct completion *c, const struct span *s) {
    struct completion_choice *choice = &c->choices[s->choice];
    choice->n_given = s->to;
    choice->is_prompt_given = true;
    choice->is_end_given = s->is_last;
    choice->given = s->text;
    choice->given_chars = s->chars;
}

long render_fill(const struct render_job *job, struct renderer *r, render_item item, struct render_scratch *scratch, char *out,
                 size_t max) {
    size_t filled = 0;
    while (filled < max) {
        struct renderer after = *r;
        struct json_out o;
        json_out_init(&o, scratch->item, sizeof scratch->item);
        enum item_verdict verdict = item(job, &after, scratch, &o);
        if (verdict != ITEM_MORE) return filled ? (long)filled : verdict == ITEM_WAIT ? 0 : -1;
        if (o.overflow) BUG("render: an item of phase %d/%d is over %zu bytes", r->phase, r->span.phase, o.max);
        size_t left = o.n - r->offset, n = left < max - filled ? left : max - filled;
        memcpy(out + filled, o.data + r->offset, n);
        filled += n;
        r->offset += n;
        if (r->offset < o.n) break;
        if (r->phase == RENDER_SPAN && after.phase != RENDER_SPAN) commit(job->c, &after.span);
        *r = after;
        r->offset = 0;
    }
    return (long)filled;
}
