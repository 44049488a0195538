/* One text as it comes out of tokens: whole characters, up to but not including a stop string.
 *
 * A cursor is plain data. Each choice has two over the same tokens: one runs ahead as tokens arrive and finds the stop string
 * at once, the other follows as the answer is written. Replaying is what lets an answer be kept as token ids, whose memory is
 * known beforehand. */
#pragma once

#include "engine/detokenizer.h"
#include "server/stop.h"

#define MAX_PIECE_BYTES 1024 /* longest text of one token that the server handles; server_open checks the vocabulary */
#define TEXT_SCRATCH_PIECE (3 * MAX_PIECE_BYTES + DETOKENIZER_GROWTH)
#define TEXT_SCRATCH_TEXT (TEXT_SCRATCH_PIECE + 2 * MAX_STOP_BYTES + DETOKENIZER_GROWTH)

/* Where a push puts its text: one a thread. */
struct text_scratch {
    char piece[TEXT_SCRATCH_PIECE];
    char text[TEXT_SCRATCH_TEXT];
};

struct text_cursor {
    struct detokenizer detokenizer;
    struct stop_state stop;
};

/* A text that begins with a prompt (echoed as it is, controls shown), or the completion alone. */
void text_cursor_init(struct text_cursor *c, bool with_prompt);
/* Each returns how many bytes of scratch->text are new. Prompt tokens are never matched against stop strings. */
size_t text_cursor_prompt(struct text_cursor *c, const struct tokenizer *t, int32_t id, struct text_scratch *scratch);
/* *hit: the stop string that ended the text here, or −1. */
size_t text_cursor_push(struct text_cursor *c, const struct tokenizer *t, const struct stop_set *stops, int32_t id,
                        struct text_scratch *scratch, int *hit);
/* The end of a text that no stop string ended: what was held back, an unfinished character as U+FFFD. */
size_t text_cursor_finish(struct text_cursor *c, const struct stop_set *stops, struct text_scratch *scratch);

/* Characters (not bytes) that the tokens so far have finished: where the next token's text begins. */
struct char_counter {
    struct detokenizer detokenizer;
    uint32_t n_chars;
};

void char_counter_init(struct char_counter *c, bool with_prompt);
void char_counter_push(struct char_counter *c, const struct tokenizer *t, int32_t id, bool is_prompt,
                       struct text_scratch *scratch);
