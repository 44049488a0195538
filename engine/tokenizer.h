/* Text to token ids and back, for the two families that GGUF files carry. Immutable after creation: any thread may use it, each
 * with its own scratch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/vocab.h"

struct tokenizer;
struct tokenizer_scratch;

/* Where a tokenizer and its scratches take their memory from: the ledger's door. */
struct memory_source {
    void *(*alloc)(void *context, size_t bytes); /* NULL when it does not fit */
    void *context;
};

/* Bytes that tokenizer_create will take at most, from the vocabulary alone: a ledger line. */
size_t tokenizer_bytes(const struct vocab *vocab);
/* Builds the tables (copies of all text). Errors: an unknown pre-tokenizer or duplicate token text names the key at fault. */
struct tokenizer *tokenizer_create(const struct vocab *vocab, struct memory_source memory, struct err *err);
void tokenizer_destroy(struct tokenizer *t); /* gives back what libraries hold (PCRE2); arena memory is the ledger's */

/* Working memory of one thread for texts of up to max_bytes. */
size_t tokenizer_scratch_bytes(size_t max_bytes);
struct tokenizer_scratch *tokenizer_scratch_create(struct memory_source memory, size_t max_bytes, struct err *err);
void tokenizer_scratch_destroy(struct tokenizer_scratch *s);

enum encode_flags {
    ENCODE_BOS = 1 /* add BOS if the vocabulary wants one and the text does not begin with it */,
    ENCODE_SPECIAL = 2 /* text of special tokens becomes those tokens */
};

/* Encodes text[0..n), valid UTF-8, into ids [max_ids]. *n_ids: how many there are, also when that is more than max_ids (then
 * STATUS_TOO_LARGE and ids hold the first max_ids). Linear in n on any input. STATUS_TOO_LARGE also when n > the scratch's bytes. */
enum status tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, unsigned flags,
                             int32_t *ids, size_t max_ids, size_t *n_ids, struct err *err);

int tokenizer_n_tokens(const struct tokenizer *t);
/* A token's own bytes, as they appear in text (spaces as spaces, bytes as bytes); not NUL-terminated, may be half a character.
 * Control tokens give their text, for which is_control is true; callers decide whether to show it. */
struct text_view tokenizer_piece(const struct tokenizer *t, int32_t id);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* Does generation end at this token? eos, eot and the usual end texts (<|im_end|>, <|eot_id|>, </s>, ...). */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
/* The id whose text is exactly text[0..n), or −1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);
int32_t tokenizer_bos(const struct tokenizer *t); /* −1: none */
/* Is a text's first space an artefact of encoding (SentencePiece's space prefix), not shown when a text is decoded from its start? */
bool tokenizer_drops_first_space(const struct tokenizer *t);
