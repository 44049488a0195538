/* The tokenizer.ggml.* keys as a struct vocab: this file knows their names, defaults and ranges, the tokenizer what they mean.
 *
 * Token and merge texts point into the mapping. Special ids that name no token are dropped with a warning, as other readers of
 * these files do, so a file with such an id still loads; anything else that contradicts itself is an error. */
#include "engine/formats_gguf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"

#define KEY(name) "tokenizer.ggml." name

/* Pre-tokenizers whose models begin every text with BOS unless the file says otherwise. */
static const char *const pres_with_bos[] = {"llama-bpe", "llama3",   "llama-v3", "falcon3", "falcon-h1",
                                            "pixtral",   "midm-2.0", "lfm2",     "tekken",  "chameleon"};

static bool text_is(struct text_view text, const char *wanted) {
    return text.n == strlen(wanted) && !memcmp(text.data, wanted, text.n);
}

static enum status required(struct err *err, const char *key) {
    return err_set_param(err, STATUS_CORRUPT, key, "%s: is missing; a vocabulary needs it", key);
}

static enum status read_model(const struct gguf *g, struct vocab *v, struct err *err) {
    struct text_view model;
    int found = gguf_text(g, KEY("model"), &model, err);
    if (found < 0) return STATUS_CORRUPT;
    if (!found) return required(err, KEY("model"));
    if (text_is(model, "gpt2")) v->model = VOCAB_BPE;
    else if (text_is(model, "llama")) v->model = VOCAB_SPM;
    else
        return err_set_param(err, STATUS_UNSUPPORTED, KEY("model"),
                             "%s: tokenizer \"%s\"; supported are \"gpt2\" and \"llama\"", KEY("model"), gguf_show(model).text);
    return STATUS_OK;
}

static enum status read_pre(const struct gguf *g, struct vocab *v, struct err *err) {
    struct text_view pre = {"", 0};
    if (gguf_text(g, KEY("pre"), &pre, err) < 0) return STATUS_CORRUPT;
    if (pre.n >= sizeof v->pre || memchr(pre.data, 0, pre.n))
        return err_set_param(err, STATUS_UNSUPPORTED, KEY("pre"),
                             "%s: \"%s\" is no name of a pre-tokenizer: at most %zu bytes, no NUL", KEY("pre"),
                             gguf_show(pre).text, sizeof v->pre - 1);
    memcpy(v->pre, pre.data, pre.n);
    v->pre[pre.n] = 0;
    return STATUS_OK;
}

/* A string array of 1 to INT32_MAX elements; the caller frees it. Missing is an error. */
static enum status read_texts(const struct gguf *g, const char *key, struct text_view **out, int *n_out, struct err *err) {
    uint64_t n;
    int found = gguf_array_count(g, key, &n, err);
    if (found < 0) return STATUS_CORRUPT;
    if (!found) return required(err, key);
    if (n > INT32_MAX)
        return err_set_param(err, STATUS_CORRUPT, key, "%s: has %" PRIu64 " elements; at most %d", key, n, INT32_MAX);
    struct text_view first;
    if (gguf_text_array(g, key, &first, n ? 1 : 0, err) < 0) return STATUS_CORRUPT; /* before memory: at least 8 bytes each */
    *out = malloc((n + 1) * sizeof **out);
    if (!*out) return err_set_param(err, STATUS_NO_MEMORY, key, "%s: no memory for %" PRIu64 " texts", key, n);
    if (gguf_text_array(g, key, *out, n, err) < 0) return STATUS_CORRUPT;
    *n_out = (int)n;
    return STATUS_OK;
}

static enum status read_tokens(const struct gguf *g, struct vocab *v, struct err *err) {
    enum status status = read_texts(g, KEY("tokens"), &v->tokens, &v->n_tokens, err);
    if (!status && !v->n_tokens) return err_set_param(err, STATUS_CORRUPT, KEY("tokens"), "%s: has no tokens", KEY("tokens"));
    return status;
}

/* An optional per-token array: has the file it, with enough elements? The memory for it then goes to *out. */
static enum status prepare_array(const struct gguf *g, const char *key, void **out, int n_tokens, struct err *err) {
    uint64_t n;
    int found = gguf_array_count(g, key, &n, err);
    if (found < 0) return STATUS_CORRUPT;
    if (!found) return STATUS_OK;
    if (n < (uint64_t)n_tokens)
        return err_set_param(err, STATUS_CORRUPT, key, "%s: has %" PRIu64 " elements; must have one for each of %d tokens", key,
                             n, n_tokens);
    *out = malloc((size_t)n_tokens * 4);
    return *out ? STATUS_OK : err_set_param(err, STATUS_NO_MEMORY, key, "%s: no memory for %d tokens", key, n_tokens);
}

static enum status read_scores(const struct gguf *g, struct vocab *v, struct err *err) {
    enum status status = prepare_array(g, KEY("scores"), (void **)&v->scores, v->n_tokens, err);
    if (status || !v->scores) return status;
    return gguf_f32_array(g, KEY("scores"), v->scores, (uint64_t)v->n_tokens, err) < 0 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status read_types(const struct gguf *g, struct vocab *v, struct err *err) {
    enum status status = prepare_array(g, KEY("token_type"), (void **)&v->types, v->n_tokens, err);
    if (status || !v->types) return status;
    if (gguf_i32_array(g, KEY("token_type"), v->types, (uint64_t)v->n_tokens, err) < 0) return STATUS_CORRUPT;
    for (int i = 0; i < v->n_tokens; i++)
        if (v->types[i] < TOKEN_UNDEFINED || v->types[i] > TOKEN_BYTE)
            return err_set_param(err, STATUS_CORRUPT, KEY("token_type"), "%s: token %d has type %d; allowed are %d to %d",
                                 KEY("token_type"), i, v->types[i], TOKEN_UNDEFINED, TOKEN_BYTE);
    return STATUS_OK;
}

/* A special token's id: `fallback` where the file is silent or names no token, −1 where there is no such token either. */
static enum status read_id(const struct gguf *g, const char *key, int fallback, int n_tokens, int *out, struct err *err) {
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    uint32_t id = UINT32_MAX;
    *out = fallback < n_tokens ? fallback : -1;
    if (!kv) return STATUS_OK;
    if (gguf_u32(g, key, &id, err) < 0 && (kv->is_array || !gguf_is_integer(kv->type))) return STATUS_CORRUPT;
    if (id < (uint32_t)n_tokens) *out = (int)id;
    else log_event(LOG_WARN, "special_token_ignored", "key=%s n_tokens=%d", key, n_tokens);
    return STATUS_OK;
}

static enum status read_ids(const struct gguf *g, struct vocab *v, struct err *err) {
    bool spm = v->model == VOCAB_SPM;
    enum status status = read_id(g, KEY("bos_token_id"), spm ? 1 : -1, v->n_tokens, &v->bos, err);
    if (!status) status = read_id(g, KEY("eos_token_id"), spm ? 2 : -1, v->n_tokens, &v->eos, err);
    if (!status) status = read_id(g, KEY("unknown_token_id"), spm ? 0 : -1, v->n_tokens, &v->unk, err);
    if (!status) status = read_id(g, KEY("eot_token_id"), -1, v->n_tokens, &v->eot, err);
    return status;
}

static bool bos_by_default(const struct vocab *v) {
    if (v->model == VOCAB_SPM) return true;
    for (size_t i = 0; i < sizeof pres_with_bos / sizeof *pres_with_bos; i++)
        if (!strcmp(v->pre, pres_with_bos[i])) return true;
    return false;
}

static enum status read_flags(const struct gguf *g, struct vocab *v, struct err *err) {
    v->add_bos = bos_by_default(v);
    v->add_space_prefix = v->model == VOCAB_SPM;
    if (gguf_bool(g, KEY("add_bos_token"), &v->add_bos, err) < 0) return STATUS_CORRUPT;
    if (gguf_bool(g, KEY("add_space_prefix"), &v->add_space_prefix, err) < 0) return STATUS_CORRUPT;
    v->chat_template = (struct text_view){"", 0};
    return gguf_text(g, "tokenizer.chat_template", &v->chat_template, err) < 0 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status read_vocab(const struct gguf *g, struct vocab *v, struct err *err) {
    enum status status = read_model(g, v, err);
    if (!status) status = read_pre(g, v, err);
    if (!status) status = read_tokens(g, v, err);
    if (!status) status = read_scores(g, v, err);
    if (!status) status = read_types(g, v, err);
    if (!status && v->model == VOCAB_BPE) status = read_texts(g, KEY("merges"), &v->merges, &v->n_merges, err);
    if (!status) status = read_ids(g, v, err);
    if (!status) status = read_flags(g, v, err);
    return status;
}

enum status gguf_vocab(const struct gguf *g, struct vocab *vocab, struct err *err) {
    memset(vocab, 0, sizeof *vocab);
    enum status status = read_vocab(g, vocab, err);
    if (status) vocab_free(vocab);
    return status;
}

void vocab_free(struct vocab *vocab) {
    free(vocab->tokens);
    free(vocab->scores);
    free(vocab->types);
    free(vocab->merges);
    memset(vocab, 0, sizeof *vocab);
}
