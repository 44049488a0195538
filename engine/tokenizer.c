/* The tokenizer as its users see it: special tokens cut a text into stretches, each of which goes to the family's encoder.
 *
 * Special tokens are found leftmost first, the longest where several begin: at a byte that begins some, the text of each distinct
 * length is looked up, so that a vocabulary with a thousand of them costs no more than one with ten. */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/normalizer.h"
#include "engine/tokenizer_internal.h"

#define SCRATCH_PAD 64

/* ---- building ---- */

static enum token_type type_of(const struct vocab *v, int32_t id) {
    return v->types ? (enum token_type)v->types[id] : TOKEN_NORMAL;
}

static bool is_special_type(enum token_type type) {
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED || type == TOKEN_UNKNOWN;
}

static void count_special(const struct vocab *v, size_t *n, size_t *bytes) {
    *n = *bytes = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        if (is_special_type(type_of(v, id))) {
            (*n)++;
            *bytes += (size_t)v->tokens[id].n;
        }
}

static size_t text_bytes(const struct vocab *v) {
    size_t total = 0;
    for (int32_t id = 0; id < v->n_tokens; id++) total += (size_t)v->tokens[id].n;
    return total;
}

size_t tokenizer_bytes(const struct vocab *v) {
    size_t n_special, special_bytes, n = (size_t)v->n_tokens;
    count_special(v, &n_special, &special_bytes);
    size_t special =
        token_table_bytes(n_special, special_bytes) + n_special * (sizeof(int32_t) + sizeof(bool) + sizeof(uint32_t)) + 3 * 64;
    return round_up(sizeof(struct tokenizer) + 64 + token_table_bytes(n, text_bytes(v)) + n + 64 + special +
                        (v->model == VOCAB_BPE ? bpe_bytes(v) : spm_bytes(v)),
                    64);
}

/* A token's bytes as they appear in text. A user-defined token is looked for in the text, where spaces are spaces. */
static size_t write_piece(const struct vocab *v, int32_t id, char *to) {
    struct text_view text = v->tokens[id];
    enum token_type type = type_of(v, id);
    if (v->model == VOCAB_SPM && type == TOKEN_USER_DEFINED) return spm_unmark(to, text.data, (size_t)text.n);
    if (!is_special_type(type))
        return v->model == VOCAB_BPE ? bpe_piece(to, text.data, (size_t)text.n) : spm_piece(to, text.data, (size_t)text.n);
    memcpy(to, text.data, (size_t)text.n);
    return (size_t)text.n;
}

static enum status check_distinct(const struct vocab *v, int32_t a, int32_t b, struct err *err) {
    if (a < 0 || a == b || v->tokens[a].n != v->tokens[b].n) return STATUS_OK;
    if (memcmp(v->tokens[a].data, v->tokens[b].data, (size_t)v->tokens[a].n) != 0) return STATUS_OK;
    return err_set_param(err, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                         "tokenizer: tokenizer.ggml.tokens %d and %d are the same", a < b ? a : b, a < b ? b : a);
}

/* Pieces of all tokens, those that encoding may produce made findable. */
static enum status build_table(struct tokenizer *t, const struct vocab *v, struct err *err) {
    if (!token_table_init(&t->table, &t->arena, (size_t)v->n_tokens, text_bytes(v)))
        return err_set_param(err, STATUS_TOO_LARGE, "tokenizer.ggml.tokens",
                             "tokenizer: the texts of tokenizer.ggml.tokens are too large");
    for (int32_t id = 0; id < v->n_tokens; id++) {
        enum token_type type = type_of(v, id);
        size_t n = write_piece(v, id, token_table_begin_piece(&t->table));
        token_table_end_piece(&t->table, n);
        if (n == 0 || (type != TOKEN_NORMAL && type != TOKEN_UNDEFINED && type != TOKEN_USER_DEFINED)) continue;
        enum status s = check_distinct(v, token_table_insert(&t->table, id), id, err);
        if (s) return s;
    }
    return STATUS_OK;
}

static void note_length(struct special_tokens *s, uint32_t n) {
    int at = 0;
    while (at < s->n_lengths && s->lengths[at] > n) at++;
    if (at < s->n_lengths && s->lengths[at] == n) return;
    memmove(s->lengths + at + 1, s->lengths + at, (size_t)(s->n_lengths - at) * sizeof *s->lengths);
    s->lengths[at] = n;
    s->n_lengths++;
}

/* Makes special token `id` findable; an ordinary token or another special one of the same text would make the text ambiguous. */
static enum status add_special(struct tokenizer *t, const struct vocab *v, int32_t id, struct err *err) {
    struct special_tokens *s = &t->special;
    int32_t entry = s->texts.n_tokens;
    char *piece = token_table_begin_piece(&s->texts);
    size_t n = write_piece(v, id, piece);
    token_table_end_piece(&s->texts, n);
    s->ids[entry] = id;
    s->is_always[entry] = type_of(v, id) == TOKEN_USER_DEFINED;
    if (n == 0) return STATUS_OK;
    enum status status = check_distinct(v, token_table_find(&t->table, piece, n), id, err);
    if (status) return status;
    int32_t other = token_table_insert(&s->texts, entry);
    if (other >= 0) return check_distinct(v, s->ids[other], id, err);
    s->first_bytes[(unsigned char)piece[0]] = true;
    note_length(s, (uint32_t)n);
    return STATUS_OK;
}

static enum status build_special(struct tokenizer *t, const struct vocab *v, struct err *err) {
    struct special_tokens *s = &t->special;
    size_t n, bytes;
    count_special(v, &n, &bytes);
    s->ids = arena_alloc(&t->arena, n * sizeof *s->ids);
    s->is_always = arena_alloc(&t->arena, n * sizeof *s->is_always);
    s->lengths = arena_alloc(&t->arena, n * sizeof *s->lengths);
    if (!token_table_init(&s->texts, &t->arena, n, bytes) || !s->ids || !s->is_always || !s->lengths)
        BUG("tokenizer: its own bound is too small");
    for (int32_t id = 0; id < v->n_tokens; id++) {
        if (!is_special_type(type_of(v, id))) continue;
        enum status status = add_special(t, v, id, err);
        if (status) return status;
    }
    return STATUS_OK;
}

/* Texts that end generation also when the file names only one end token. */
static bool is_end_text(struct text_view text) {
    static const char *const ends[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        ("<\xef\xbd\x9c"
         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (text.n == strlen(ends[i]) && memcmp(text.data, ends[i], text.n) == 0) return true;
    return false;
}

static void build_flags(struct tokenizer *t, const struct vocab *v) {
    for (int32_t id = 0; id < v->n_tokens; id++) {
        enum token_type type = type_of(v, id);
        bool is_control = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
        bool is_end = id == v->eos || id == v->eot || (is_special_type(type) && is_end_text(v->tokens[id]));
        t->flags[id] = (uint8_t)((is_control ? FLAG_CONTROL : 0) | (is_end ? FLAG_END : 0));
    }
}

static enum status build(struct tokenizer *t, const struct vocab *v, struct err *err) {
    t->model = v->model;
    t->bos = v->bos;
    t->unk = v->unk;
    t->add_bos = v->add_bos && v->bos >= 0;
    t->add_space_prefix = v->model == VOCAB_SPM && v->add_space_prefix;
    t->flags = arena_alloc(&t->arena, (size_t)v->n_tokens);
    if (!t->flags) BUG("tokenizer: its own bound is too small");
    build_flags(t, v);
    enum status s = build_table(t, v, err);
    if (s) return s;
    if (v->model == VOCAB_BPE) {
        struct pretokenizer_kind kind;
        if ((s = pretokenizer_open(&t->pretokenizer, v->pre, &kind, err))) return s;
        t->ignore_merges = kind.ignore_merges;
        t->nfc = kind.nfc;
    }
    if ((s = build_special(t, v, err))) return s;
    if (!(v->model == VOCAB_BPE ? bpe_build(t, v) : spm_build(t, v))) BUG("tokenizer: its own bound is too small");
    return STATUS_OK;
}

struct tokenizer *tokenizer_create(const struct vocab *vocab, struct memory_source memory, struct err *err) {
    size_t bytes = tokenizer_bytes(vocab);
    char *block = memory.alloc(memory.context, bytes);
    if (!block) {
        err_set(err, STATUS_NO_MEMORY, "tokenizer: no %zu bytes for its tables", bytes);
        return NULL;
    }
    struct arena arena;
    arena_init(&arena, block, bytes);
    struct tokenizer *t = arena_alloc(&arena, sizeof *t);
    memset(t, 0, sizeof *t);
    t->arena = arena;
    if (build(t, vocab, err) == STATUS_OK) return t;
    tokenizer_destroy(t);
    return NULL;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    pretokenizer_close(t->pretokenizer);
    t->pretokenizer = NULL;
}

/* ---- scratch ---- */

static size_t normalized_capacity(size_t max_bytes) { return max_bytes + max_bytes / 2 + SCRATCH_PAD; }

size_t tokenizer_scratch_bytes(size_t max_bytes) {
    size_t capacity = normalized_capacity(max_bytes);
    return round_up(sizeof(struct tokenizer_scratch) + capacity + merge_space_bytes(capacity) + 3 * SCRATCH_PAD, 64);
}

struct tokenizer_scratch *tokenizer_scratch_create(struct memory_source memory, size_t max_bytes, struct err *err) {
    size_t bytes = tokenizer_scratch_bytes(max_bytes);
    void *block = memory.alloc(memory.context, bytes);
    struct pretokenizer_match *match = block ? pretokenizer_match_open() : NULL;
    if (!match) {
        err_set(err, STATUS_NO_MEMORY, "tokenizer: no %zu bytes for a scratch", bytes);
        return NULL;
    }
    struct arena arena;
    arena_init(&arena, block, bytes);
    struct tokenizer_scratch *s = arena_alloc(&arena, sizeof *s);
    *s = (struct tokenizer_scratch){
        .max_bytes = max_bytes, .normalized_capacity = normalized_capacity(max_bytes), .match = match};
    s->normalized = arena_alloc(&arena, s->normalized_capacity);
    if (!s->normalized || !merge_space_init(&s->space, &arena, s->normalized_capacity))
        BUG("tokenizer: its own bound is too small");
    return s;
}

void tokenizer_scratch_destroy(struct tokenizer_scratch *s) {
    if (!s) return;
    pretokenizer_match_close(s->match);
    s->match = NULL;
}

/* ---- encoding ---- */

/* The longest special token at text[0..n): its entry, or −1. */
static int32_t special_at(const struct special_tokens *s, const char *text, size_t n, bool parse_all, size_t *length) {
    if (!s->first_bytes[(unsigned char)text[0]]) return -1;
    for (int i = 0; i < s->n_lengths; i++) {
        if (s->lengths[i] > n) continue;
        int32_t entry = token_table_find(&s->texts, text, s->lengths[i]);
        if (entry < 0 || (!parse_all && !s->is_always[entry])) continue;
        *length = s->lengths[i];
        return entry;
    }
    return -1;
}

static enum status encode_plain(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n,
                                struct id_sink *sink, struct err *err) {
    if (n == 0) return STATUS_OK;
    if (t->model == VOCAB_SPM) {
        spm_encode(t, s, text, n, sink);
        return STATUS_OK;
    }
    if (t->nfc) {
        n = normalizer_nfc(text, n, s->normalized, s->normalized_capacity);
        if (n == (size_t)-1)
            return err_set_param(err, STATUS_TOO_LARGE, "prompt", "prompt: grows by more than half when normalized to NFC");
        text = s->normalized;
    }
    bpe_encode(t, s, text, n, sink);
    return STATUS_OK;
}

static enum status encode_all(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n,
                              bool parse_all, struct id_sink *sink, struct err *err) {
    size_t from = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0, length; i < n && status == STATUS_OK;) {
        int32_t entry = special_at(&t->special, text + i, n - i, parse_all, &length);
        if (entry < 0) {
            i++;
            continue;
        }
        status = encode_plain(t, s, text + from, i - from, sink, err);
        id_sink_put(sink, t->special.ids[entry]);
        from = i += length;
    }
    return status ? status : encode_plain(t, s, text + from, n - from, sink, err);
}

/* Puts BOS in front, unless the text began with it. The sink has room for one id at least. */
static void prepend_bos(const struct tokenizer *t, struct id_sink *sink) {
    if (sink->n > 0 && sink->ids[0] == t->bos) return;
    size_t kept = sink->n < sink->max ? sink->n : sink->max - 1;
    memmove(sink->ids + 1, sink->ids, kept * sizeof *sink->ids);
    sink->ids[0] = t->bos;
    sink->n++;
}

enum status tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, unsigned flags,
                             int32_t *ids, size_t max_ids, size_t *n_ids, struct err *err) {
    int32_t first; /* where nothing is asked for but the count, which depends on it */
    struct id_sink sink = max_ids > 0 ? (struct id_sink){ids, 0, max_ids} : (struct id_sink){&first, 0, 1};
    *n_ids = 0;
    if (n > s->max_bytes)
        return err_set_param(err, STATUS_TOO_LARGE, "prompt", "prompt: is %zu bytes, at most %zu are allowed", n, s->max_bytes);
    enum status status = encode_all(t, s, text, n, flags & ENCODE_SPECIAL, &sink, err);
    if (status) return status;
    if ((flags & ENCODE_BOS) && t->add_bos) prepend_bos(t, &sink);
    *n_ids = sink.n;
    if (sink.n > max_ids)
        return err_set_param(err, STATUS_TOO_LARGE, "prompt", "prompt: is %zu tokens, at most %zu are allowed", sink.n,
                             max_ids);
    return STATUS_OK;
}

/* ---- looking up ---- */

int tokenizer_n_tokens(const struct tokenizer *t) { return t->table.n_tokens; }

struct text_view tokenizer_piece(const struct tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->table.n_tokens) return (struct text_view){"", 0};
    return token_table_piece(&t->table, id);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->table.n_tokens && (t->flags[id] & FLAG_CONTROL);
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->table.n_tokens && (t->flags[id] & FLAG_END);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n) {
    int32_t entry = token_table_find(&t->special.texts, text, n);
    return entry >= 0 ? t->special.ids[entry] : token_table_find(&t->table, text, n);
}

int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }

bool tokenizer_drops_first_space(const struct tokenizer *t) { return t->add_space_prefix; }
