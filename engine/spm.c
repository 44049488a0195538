/* SentencePiece-BPE: characters merged by the score of what they become, best first, leftmost among equals; a character that is no
 * token falls back to its bytes, and bytes that are no tokens either to the unknown token. Spaces are spelled ▁ in the file and are
 * spaces in pieces here; a ▁ in a text is a space too.
 *
 * The family has no pre-tokenizer: a whole text is one word. But a merge across a place in it makes a token that has the two bytes
 * around that place side by side. Where no piece of the vocabulary has these two, nothing is ever merged across, so the text may be
 * cut there, and each part merged alone, without changing an id. In most vocabularies that is so at every space after something
 * else. The pairs of bytes are noted when the tables are built; cutting makes merging short, and as in byte-level BPE, a part that is
 * itself a token which merging gives is then found in one look. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */
#define PAIR_BYTES (65536 / 8)    /* a bit for each pair of bytes */

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* "<0x0A>" → 10; −1 for any other text. */
static int byte_of_text(const char *text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

size_t spm_unmark(char *out, const char *text, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        bool is_mark = n - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0;
        out[used++] = is_mark ? ' ' : text[i];
        i += is_mark ? 3 : 1;
    }
    return used;
}

size_t spm_piece(char *out, const char *text, size_t n) {
    int byte = byte_of_text(text, n);
    if (byte < 0) return spm_unmark(out, text, n);
    out[0] = (char)byte;
    return 1;
}

size_t spm_bytes(const struct vocab *vocab) { return (size_t)vocab->n_tokens * sizeof(uint32_t) + 64 + PAIR_BYTES + 64; }

/* A float as an unsigned that orders the other way round: the best score has the least rank. */
static uint32_t rank_of_score(float score) {
    uint32_t bits;
    if (isnan(score)) return MERGE_NONE - 1;
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    uint32_t rank = ~ascending;
    return rank == MERGE_NONE ? rank - 1 : rank;
}

/* The two bytes around the place before `at`, as one number. */
static size_t pair_around(const char *at) { return (size_t)(unsigned char)at[-1] << 8 | (unsigned char)at[0]; }

static struct merge lookup(const void *tables, int32_t left, int32_t right, const char *text, size_t n) {
    const struct tokenizer *t = tables;
    (void)left;
    (void)right;
    int32_t id = token_table_find(&t->table, text, n);
    return id < 0 ? (struct merge){MERGE_NONE, -1} : (struct merge){t->ranks[id], id};
}

static size_t symbol(const void *tables, const char *text, size_t n, int32_t *id) {
    const struct tokenizer *t = tables;
    int length = utf8_decode(text, n, NULL);
    size_t used = length ? (size_t)length : 1;
    *id = token_table_find(&t->table, text, used);
    return used;
}

static void note_piece(struct tokenizer *t, int32_t id) {
    struct text_view piece = token_table_piece(&t->table, id);
    if (piece.n == 0 || token_table_find(&t->table, piece.data, (size_t)piece.n) != id) return; /* never made by merging */
    for (uint64_t i = 1; i < piece.n; i++) {
        size_t pair = pair_around(piece.data + i);
        t->inner_pairs[pair / 8] |= (uint8_t)(1u << pair % 8);
    }
    if (piece.n <= MERGE_SHORT && merge_makes(piece.data, (size_t)piece.n, t, lookup, symbol, id)) t->flags[id] |= FLAG_WHOLE;
}

bool spm_build(struct tokenizer *t, const struct vocab *vocab) {
    t->ranks = arena_alloc(&t->arena, (size_t)vocab->n_tokens * sizeof *t->ranks);
    t->inner_pairs = arena_alloc(&t->arena, PAIR_BYTES);
    if (!t->ranks || !t->inner_pairs) return false;
    memset(t->inner_pairs, 0, PAIR_BYTES);
    for (int b = 0; b < 256; b++) t->byte_ids[b] = -1;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        t->ranks[id] = rank_of_score(vocab->scores ? vocab->scores[id] : -(float)id);
        int byte = byte_of_text(vocab->tokens[id].data, (size_t)vocab->tokens[id].n);
        if (byte >= 0) t->byte_ids[byte] = id;
    }
    t->cuts_words = true;
    for (int32_t id = 0; id < vocab->n_tokens; id++) note_piece(t, id);
    return true;
}

struct emit_context {
    const struct tokenizer *t;
    struct id_sink *sink;
    bool after_unknown; /* several bytes that are no tokens are one unknown token */
};

static void emit(void *context, int32_t id, const char *text, size_t n) {
    struct emit_context *c = context;
    if (id >= 0) {
        id_sink_put(c->sink, id);
        c->after_unknown = false;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t byte = c->t->byte_ids[(unsigned char)text[i]];
        if (byte < 0) byte = token_table_find(&c->t->table, text + i, 1);
        if (byte >= 0) id_sink_put(c->sink, byte);
        else if (c->t->unk >= 0 && !c->after_unknown) id_sink_put(c->sink, c->t->unk);
        c->after_unknown = byte < 0;
    }
}

static void encode_word(const struct tokenizer *t, const struct merge_space *space, const char *word, size_t n,
                        struct emit_context *c) {
    int32_t id = token_table_find(&t->table, word, n);
    if (id >= 0 && (t->flags[id] & FLAG_WHOLE)) emit(c, id, word, n);
    else merge_word(space, word, n, t, (struct merge_ops){lookup, symbol, emit}, c);
}

/* Where the word at text[0..n) ends: before the first character that nothing is merged to from before it. */
static size_t word_bytes(const struct tokenizer *t, const char *text, size_t n) {
    for (size_t i = 1; i < n; i++) {
        size_t pair = pair_around(text + i);
        bool is_inner = t->inner_pairs[pair / 8] >> pair % 8 & 1;
        if (!is_inner && ((unsigned char)text[i] & 0xc0) != 0x80) return i;
    }
    return n;
}

void spm_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, struct id_sink *sink) {
    if (n == 0) return;
    size_t used = 0;
    if (t->add_space_prefix) s->normalized[used++] = ' ';
    used += spm_unmark(s->normalized + used, text, n);
    struct emit_context c = {t, sink, false};
    for (size_t i = 0, word; i < used; i += word) {
        word = t->cuts_words ? word_bytes(t, s->normalized + i, used - i) : used - i;
        encode_word(t, &s->space, s->normalized + i, word, &c);
    }
}
