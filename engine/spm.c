/* SentencePiece-BPE: characters merged by the score of what they become, best first, leftmost among equals; a character that is no
 * token falls back to its bytes. Spaces are spelled ▁ in the file and are spaces in pieces here; a ▁ in a text is a space too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" → 10; −1 for any other text. */
static int byte_of_text(const char *text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static size_t unmark(char *out, const char *text, size_t n) {
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
    if (byte < 0) return unmark(out, text, n);
    out[0] = (char)byte;
    return 1;
}

size_t spm_bytes(const struct vocab *vocab) {
    return (size_t)vocab->n_tokens * sizeof(uint32_t) + 64;
}

/* A float as an unsigned that orders the other way round: the best score has the least rank. */
static uint32_t rank_of_score(float score) {
    uint32_t bits;
    if (isnan(score)) return MERGE_NONE - 1;
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    uint32_t rank = ~ascending;
    return rank == MERGE_NONE ? rank - 1 : rank;
}

bool spm_build(struct tokenizer *t, const struct vocab *vocab) {
    t->ranks = arena_alloc(&t->arena, (size_t)vocab->n_tokens * sizeof *t->ranks);
    if (!t->ranks) return false;
    for (int b = 0; b < 256; b++) t->byte_ids[b] = -1;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        t->ranks[id] = rank_of_score(vocab->scores ? vocab->scores[id] : -(float)id);
        int byte = byte_of_text(vocab->tokens[id].data, (size_t)vocab->tokens[id].n);
        if (byte >= 0) t->byte_ids[byte] = id;
    }
    return true;
}

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

struct emit_context {
    const struct tokenizer *t;
    struct id_sink *sink;
};

static void emit(void *context, int32_t id, const char *text, size_t n) {
    const struct emit_context *c = context;
    if (id >= 0) {
        id_sink_put(c->sink, id);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t byte = c->t->byte_ids[(unsigned char)text[i]];
        if (byte < 0) byte = token_table_find(&c->t->table, text + i, 1);
        if (byte >= 0) id_sink_put(c->sink, byte);
    }
}

void spm_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, struct id_sink *sink) {
    if (n == 0) return;
    size_t used = 0;
    if (t->add_space_prefix) s->normalized[used++] = ' ';
    used += unmark(s->normalized + used, text, n);
    struct emit_context c = {t, sink};
    merge_word(&s->space, s->normalized, used, t, (struct merge_ops){lookup, symbol, emit}, &c);
}
