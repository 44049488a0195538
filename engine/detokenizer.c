#include "engine/detokenizer.h"

#include <string.h>

#include "engine/base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detokenizer_init(struct detokenizer *d, bool skip_leading_space, bool show_control) {
    *d = (struct detokenizer){.at_start = skip_leading_space, .show_control = show_control};
}

struct writer {
    char *out;
    size_t used, max;
};

static void put(struct writer *w, const char *bytes, size_t n) {
    if (n > w->max - w->used) BUG("detokenizer: the caller's buffer of %zu bytes is too small", w->max);
    memcpy(w->out + w->used, bytes, n);
    w->used += n;
}

/* Whole characters of bytes[0..n) as they are, each maximal invalid part as one U+FFFD; returns the bytes taken: all but what may
 * still become a character. */
static size_t put_characters(struct writer *w, const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n) {
        int length = utf8_decode(bytes + i, n - i, NULL);
        if (length) {
            put(w, bytes + i, (size_t)length);
            i += (size_t)length;
            continue;
        }
        size_t prefix = utf8_prefix(bytes + i, n - i);
        if (prefix && i + prefix == n) return i;
        put(w, REPLACEMENT, 3);
        i += prefix ? prefix : 1;
    }
    return i;
}

/* The held bytes, completed by the first of the new ones: at most 4, so they are joined in a small buffer. Returns how many new
 * bytes were taken. */
static size_t put_held(struct detokenizer *d, struct writer *w, const char *bytes, size_t n) {
    char joined[8];
    size_t held = (size_t)d->n_held, more = n < 3 ? n : 3;
    memcpy(joined, d->held, held);
    memcpy(joined + held, bytes, more);
    int length = utf8_decode(joined, held + more, NULL);
    if (length) {
        put(w, joined, (size_t)length);
        d->n_held = 0;
        return (size_t)length - held;
    }
    size_t prefix = utf8_prefix(joined, held + more);
    if (prefix == held + more) { /* still unfinished: all of the new bytes belong to it */
        memcpy(d->held, joined, prefix);
        d->n_held = (int)prefix;
        return more;
    }
    put(w, REPLACEMENT, 3); /* prefix ≥ held: what was held is the beginning of a character */
    d->n_held = 0;
    return prefix - held;
}

size_t detokenizer_push(struct detokenizer *d, const struct tokenizer *t, int32_t id, char *out, size_t max) {
    if (tokenizer_is_control(t, id) && !d->show_control) return 0;
    struct text_view piece = tokenizer_piece(t, id);
    const char *bytes = piece.data;
    size_t n = (size_t)piece.n;
    if (d->at_start && n > 0 && !tokenizer_is_control(t, id)) {
        d->at_start = false;
        if (tokenizer_drops_first_space(t) && bytes[0] == ' ') bytes++, n--;
    }
    struct writer w = {out, 0, max};
    if (d->n_held > 0 && n > 0) {
        size_t taken = put_held(d, &w, bytes, n);
        bytes += taken;
        n -= taken;
    }
    size_t taken = put_characters(&w, bytes, n);
    if (n > taken) { /* so nothing is held from before: an unfinished character takes all new bytes */
        memcpy(d->held, bytes + taken, n - taken);
        d->n_held = (int)(n - taken);
    }
    return w.used;
}

size_t detokenizer_finish(struct detokenizer *d, char *out, size_t max) {
    struct writer w = {out, 0, max};
    if (d->n_held) put(&w, REPLACEMENT, 3);
    d->n_held = 0;
    return w.used;
}
