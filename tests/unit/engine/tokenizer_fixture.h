/* What the tokenizer's tests share: tiny vocabularies made by hand, tokenizers of vocabulary files, encoding to compare. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/detokenizer.h"
#include "engine/formats_gguf.h"
#include "engine/tokenizer_internal.h"
#include "tests/unit/engine/model_fixture.h"

/* What is built in the block begins at its start, so that free finds it. */
static inline void *heap_alloc(void *context, size_t bytes) {
    (void)context;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static const struct memory_source heap_source = {heap_alloc, NULL};

/* A vocabulary by hand: init, then tokens and merges in order, fields of `vocab` as the test likes. */
enum { TINY_TOKENS = 512, TINY_MERGES = 64 };

struct tiny {
    struct vocab vocab;
    struct text_view tokens[TINY_TOKENS], merges[TINY_MERGES];
    float scores[TINY_TOKENS];
    int32_t types[TINY_TOKENS];
};

static inline void tiny_init(struct tiny *v, enum vocab_model model) {
    memset(v, 0, sizeof *v);
    v->vocab = (struct vocab){.model = model,
                              .tokens = v->tokens,
                              .types = v->types,
                              .merges = v->merges,
                              .bos = -1,
                              .eos = -1,
                              .eot = -1,
                              .unk = -1};
    if (model == VOCAB_SPM) v->vocab.scores = v->scores;
}

static inline int32_t tiny_scored(struct tiny *v, const char *text, enum token_type type, float score) {
    int32_t id = v->vocab.n_tokens++;
    assert_in_range(id, 0, TINY_TOKENS - 1);
    v->tokens[id] = (struct text_view){text, strlen(text)};
    v->types[id] = (int32_t)type;
    v->scores[id] = score;
    return id;
}

static inline int32_t tiny_token(struct tiny *v, const char *text, enum token_type type) {
    return tiny_scored(v, text, type, 0);
}

static inline void tiny_merge(struct tiny *v, const char *merge) {
    v->merges[v->vocab.n_merges++] = (struct text_view){merge, strlen(merge)};
}

/* A tokenizer and a scratch. */
struct subject {
    struct tokenizer *tokenizer;
    struct tokenizer_scratch *scratch;
};

static inline struct subject subject_of(const struct vocab *vocab, size_t max_bytes) {
    struct err err = {0};
    struct subject s = {tokenizer_create(vocab, heap_source, &err), NULL};
    if (!s.tokenizer) fail_msg("%s", err.text);
    s.scratch = tokenizer_scratch_create(heap_source, max_bytes, &err);
    if (!s.scratch) fail_msg("%s", err.text);
    return s;
}

static inline void subject_close(struct subject *s) {
    tokenizer_scratch_destroy(s->scratch);
    tokenizer_destroy(s->tokenizer);
    free(s->scratch);
    free(s->tokenizer);
}

static inline struct subject subject_open(const char *path, size_t max_bytes) {
    struct gguf *g;
    struct vocab vocab;
    struct err err = {0};
    if (gguf_open(&g, path, &err) || gguf_vocab(g, &vocab, &err)) fail_msg("%s: %s", path, err.text);
    struct subject s = subject_of(&vocab, max_bytes);
    vocab_free(&vocab);
    gguf_close(g);
    return s;
}

/* The path of a vocabulary that scripts/fetch-vocabs makes, or NULL after saying why a test is skipped. */
static inline const char *vocab_path(const char *name) {
    static char path[1024];
    char file[128];
    snprintf(file, sizeof file, "vocabs/%s.gguf", name);
    cache_path(path, sizeof path, file);
    if (access(path, R_OK) == 0) return path;
    fprintf(stderr, "skipped: no vocabulary at %s (scripts/fetch-vocabs makes it)\n", path);
    return NULL;
}

/* The ids of text[0..n) as a NUL-terminated list, "3 1 4". */
static inline const char *ids_of(const struct subject *s, const char *text, size_t n, unsigned flags) {
    static char out[4096];
    int32_t ids[256];
    size_t n_ids, used = 0;
    struct err err = {0};
    if (tokenizer_encode(s->tokenizer, s->scratch, text, n, flags, ids, 256, &n_ids, &err)) fail_msg("%s", err.text);
    out[0] = 0;
    for (size_t i = 0; i < n_ids; i++) used += (size_t)snprintf(out + used, sizeof out - used, i ? " %d" : "%d", ids[i]);
    return out;
}

#define assert_ids(s, text, flags, expected) assert_string_equal(ids_of(s, text, strlen(text), flags), expected)
