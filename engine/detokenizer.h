/* Ids to text, one at a time, never emitting half a character: bytes of an unfinished one are held back until it is whole.
 * Invalid bytes become U+FFFD, as in a whole-text decode with replacement; so pieces joined are that decode, however they were cut. */
#pragma once

#include "engine/tokenizer.h"

struct detokenizer {
    char held[4]; /* the beginning of an unfinished character */
    int n_held;
    bool at_start; /* SentencePiece: the text's first space is not text */
    bool show_control;
};

#define DETOKENIZER_GROWTH 16 /* bytes that one push may emit beyond three times the piece's own */

/* skip_leading_space: true when the ids begin a text (a prompt echoed), false when they continue one (a completion). */
void detokenizer_init(struct detokenizer *d, bool skip_leading_space, bool show_control);
/* Appends a token; writes whole characters to out and returns how many bytes. `max` must be at least
 * 3·piece bytes + DETOKENIZER_GROWTH. */
size_t detokenizer_push(struct detokenizer *d, const struct tokenizer *t, int32_t id, char *out, size_t max);
/* The end of the text: what was held back, as U+FFFD. At most 4·3 bytes. */
size_t detokenizer_finish(struct detokenizer *d, char *out, size_t max);
