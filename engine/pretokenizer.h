/* Pre-tokenizers: how a text is cut into words before byte-pair merging, by the patterns of known vocabularies.
 *
 * A model file only names one; a pattern of its own would be an attacker's regular expression. Patterns run in PCRE2 with Unicode
 * properties, compiled once; \s and \S are spelled out as Unicode's White_Space, from which PCRE2's \s differs by U+180E. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

struct pretokenizer;

/* What a name stands for. */
struct pretokenizer_kind {
    bool ignore_merges; /* a word that is a token is that token, whatever merging gives */
    bool nfc;           /* texts are normalized to NFC first */
};

/* By its name in tokenizer.ggml.pre ("" is gpt-2). Errors: STATUS_UNSUPPORTED, naming the key and what is allowed. */
enum status pretokenizer_open(struct pretokenizer **out, const char *name, struct pretokenizer_kind *kind, struct err *err);
void pretokenizer_close(struct pretokenizer *p);

/* A thread's working memory for matching; NULL when the library has none. */
struct pretokenizer_match;
struct pretokenizer_match *pretokenizer_match_open(void);
void pretokenizer_match_close(struct pretokenizer_match *m);

/* Called with each word in order; together they are the text. */
typedef void (*pretokenizer_word)(void *context, const char *word, size_t n);
/* Cuts text[0..n), which is valid UTF-8. use_jit false: the interpreter, for tests. */
void pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_match *m, const char *text, size_t n, bool use_jit,
                        pretokenizer_word word, void *context);
