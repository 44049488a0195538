#include "server/text_cursor.h"

#include <string.h>

void text_cursor_init(struct text_cursor *c, bool with_prompt) {
    memset(c, 0, sizeof *c);
    detokenizer_init(&c->detokenizer, with_prompt, with_prompt);
}

size_t text_cursor_prompt(struct text_cursor *c, const struct tokenizer *t, int32_t id, struct text_scratch *scratch) {
    c->detokenizer.show_control = true;
    return detokenizer_push(&c->detokenizer, t, id, scratch->text, TEXT_SCRATCH_PIECE);
}

size_t text_cursor_push(struct text_cursor *c, const struct tokenizer *t, const struct stop_set *stops, int32_t id,
                        struct text_scratch *scratch, int *hit) {
    size_t n;
    c->detokenizer.show_control = false;
    *hit = -1;
    if (stops->n == 0) return detokenizer_push(&c->detokenizer, t, id, scratch->text, TEXT_SCRATCH_PIECE);
    size_t n_piece = detokenizer_push(&c->detokenizer, t, id, scratch->piece, TEXT_SCRATCH_PIECE);
    *hit = stop_push(stops, &c->stop, scratch->piece, n_piece, scratch->text, &n);
    return n;
}

size_t text_cursor_finish(struct text_cursor *c, const struct stop_set *stops, struct text_scratch *scratch) {
    size_t n = 0, n_piece = detokenizer_finish(&c->detokenizer, scratch->piece, TEXT_SCRATCH_PIECE);
    int hit = stop_push(stops, &c->stop, scratch->piece, n_piece, scratch->text, &n);
    return hit >= 0 ? n : n + stop_flush(stops, &c->stop, scratch->text + n);
}

void char_counter_init(struct char_counter *c, bool with_prompt) {
    memset(c, 0, sizeof *c);
    detokenizer_init(&c->detokenizer, with_prompt, with_prompt);
}

void char_counter_push(struct char_counter *c, const struct tokenizer *t, int32_t id, bool is_prompt,
                       struct text_scratch *scratch) {
    c->detokenizer.show_control = is_prompt;
    size_t n = detokenizer_push(&c->detokenizer, t, id, scratch->piece, TEXT_SCRATCH_PIECE);
    for (size_t i = 0; i < n; i++) c->n_chars += ((unsigned char)scratch->piece[i] & 0xc0) != 0x80;
}
