/* The tokenizer's tables and a thread's scratch. Private to engine/tokenizer.c, bpe.c, spm.c and their tests. */
#pragma once

#include "engine/base/arena.h"
#include "engine/merge.h"
#include "engine/pretokenizer.h"
#include "engine/token_table.h"
#include "engine/tokenizer.h"

enum token_flags {
    FLAG_CONTROL = 1, /* control or unknown: not text */
    FLAG_END = 2,     /* generation ends here */
    FLAG_WHOLE = 4,   /* merging this token's piece gives this token: found in one look */
};

/* A merge of two adjacent ids; open addressing by the pair. */
struct merge_slot {
    int32_t left, right; /* left −1: empty */
    struct merge result;
};

/* Special tokens, found literally before anything else. */
struct special_tokens {
    struct token_table texts; /* entry i: text of ids[i] */
    int32_t *ids;
    bool *is_always;   /* user-defined: found also in plain text */
    uint32_t *lengths; /* distinct, longest first */
    int n_lengths;
    bool first_bytes[256];
};

struct tokenizer {
    struct arena arena;
    enum vocab_model model;
    struct token_table table;
    uint8_t *flags; /* [n_tokens] */
    int bos, unk;   /* −1: none */
    bool add_bos, add_space_prefix, ignore_merges, nfc;
    int32_t byte_ids[256]; /* a byte on its own, −1: none */
    /* BPE */
    struct pretokenizer *pretokenizer;
    struct merge_slot *merges; /* [merge_mask + 1] */
    size_t merge_mask;
    /* SPM */
    uint32_t *ranks;      /* [n_tokens] by score, best 0 */
    uint8_t *inner_pairs; /* bit a·256 + b: some piece has byte b right after byte a */
    bool cuts_words;      /* true; tests see what not cutting gives */
    struct special_tokens special;
};

struct tokenizer_scratch {
    size_t max_bytes, normalized_capacity;
    struct pretokenizer_match *match;
    struct merge_space space;
    char *normalized;
};

/* Where ids go. */
struct id_sink {
    int32_t *ids;
    size_t n, max; /* n counts on past max */
};

static inline void id_sink_put(struct id_sink *sink, int32_t id) {
    if (sink->n < sink->max) sink->ids[sink->n] = id;
    sink->n++;
}

/* bpe.c: a stretch of text without special tokens; texts are valid UTF-8 of at most normalized_capacity bytes. */
bool bpe_build(struct tokenizer *t, const struct vocab *vocab);
size_t bpe_bytes(const struct vocab *vocab);
/* A token's text as the file spells it into its bytes; returns their number, at most n. */
size_t bpe_piece(char *out, const char *text, size_t n);
void bpe_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, struct id_sink *sink);

/* spm.c */
bool spm_build(struct tokenizer *t, const struct vocab *vocab);
size_t spm_bytes(const struct vocab *vocab);
size_t spm_piece(char *out, const char *text, size_t n);
size_t spm_unmark(char *out, const char *text, size_t n); /* ▁ → space; never more bytes than n */
void spm_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, struct id_sink *sink);
