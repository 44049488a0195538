#include <string.h>

#include "engine/base/utf8.h"
#include "engine/detokenizer.h"

void detokenizer_init(struct detokenizer *d, bool skip_leading_space, bool show_control) {
    *d = (struct detokenizer){.at_start = skip_leading_space, .show_control = show_control};
}

static size_t emit(struct detokenizer *d, const char *in, size_t n, bool end, char *out) {
    char all[4096];
    size_t m = (size_t)d->n_held, w = 0;
    memcpy(all, d->held, m);
    memcpy(all + m, in, n);
    n += m;
    size_t tail = end ? 0 : utf8_incomplete_tail(all, n);
    for (size_t i = 0; i < n - tail;) {
        int length = utf8_decode(all + i, n - tail - i, NULL);
        bool is_cut = !length && utf8_incomplete_tail(all + i, n - tail - i) == n - tail - i; /* one replacement for all of it */
        if (length) memcpy(out + w, all + i, (size_t)length);
        else memcpy(out + w, "\xef\xbf\xbd", 3);
        w += length ? (size_t)length : 3;
        i += length ? (size_t)length : is_cut ? n - tail - i : 1;
    }
    memcpy(d->held, all + n - tail, tail);
    d->n_held = (int)tail;
    return w;
}

size_t detokenizer_push(struct detokenizer *d, const struct tokenizer *t, int32_t id, char *out, size_t max) {
    if (tokenizer_is_control(t, id) && !d->show_control) return 0;
    struct text_view piece = tokenizer_piece(t, id);
    return emit(d, piece.data, piece.n, false, out);
}

size_t detokenizer_finish(struct detokenizer *d, char *out, size_t max) {
    return emit(d, "", 0, true, out);
}
