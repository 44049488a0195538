/* Byte-level BPE: words of the pre-tokenizer, each byte a symbol, merged by the vocabulary's ranks.
 *
 * Merges are looked up by the pair of ids. Most words are one token: such tokens are marked when the tables are built, by merging
 * every piece once, and are then found with one hash look-up instead of a chain of merges. */
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* ---- spelling ---- */

/* GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for 256, 257, ... in order. Returns −1 for a character
 * that stands for no byte. */
static int byte_of_character(uint32_t c) {
    if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff)) return (int)c;
    if (c >= 256 && c < 256 + 33) return (int)c - 256;                    /* 0x00 to 0x20 */
    if (c >= 256 + 33 && c < 256 + 67) return 0x7f + (int)(c - 256 - 33); /* 0x7f to 0xa0 */
    return c == 256 + 67 ? 0xad : -1;
}

size_t bpe_piece(char *out, const char *text, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int length = utf8_decode(text + i, n - i, &c), byte = length ? byte_of_character(c) : -1;
        if (byte < 0) { /* not spelled in the alphabet: taken as it is */
            memcpy(out, text, n);
            return n;
        }
        out[used++] = (char)byte;
        i += (size_t)length;
    }
    return used;
}

/* ---- tables ---- */

static size_t pair_hash(int32_t left, int32_t right) {
    return (size_t)hash_mix(((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u);
}

static struct merge_slot *pair_slot(const struct tokenizer *t, int32_t left, int32_t right) {
    for (size_t i = pair_hash(left, right) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        struct merge_slot *slot = &t->merges[i];
        if (slot->left < 0 || (slot->left == left && slot->right == right)) return slot;
    }
}

static struct merge lookup(const void *tables, int32_t left, int32_t right, const char *text, size_t n) {
    (void)text;
    (void)n;
    if ((left | right) < 0) return (struct merge){MERGE_NONE, -1};
    const struct merge_slot *slot = pair_slot(tables, left, right);
    return slot->left < 0 ? (struct merge){MERGE_NONE, -1} : slot->result;
}

static size_t symbol(const void *tables, const char *text, size_t n, int32_t *id) {
    const struct tokenizer *t = tables;
    (void)n;
    *id = t->byte_ids[(unsigned char)text[0]];
    return 1;
}

size_t bpe_bytes(const struct vocab *vocab) { return hash_capacity((size_t)vocab->n_merges) * sizeof(struct merge_slot) + 64; }

/* "left right", cut at the first space from index 1; false when a part or the whole is no token. */
static bool add_merge(struct tokenizer *t, struct text_view merge, uint32_t rank, char *buffer) {
    const char *space = merge.n > 1 ? memchr(merge.data + 1, ' ', (size_t)merge.n - 1) : NULL;
    if (!space) return false;
    size_t n_left = bpe_piece(buffer, merge.data, (size_t)(space - merge.data));
    size_t n_right = bpe_piece(buffer + n_left, space + 1, (size_t)(merge.data + merge.n - space - 1));
    int32_t left = token_table_find(&t->table, buffer, n_left), right = token_table_find(&t->table, buffer + n_left, n_right);
    int32_t whole = token_table_find(&t->table, buffer, n_left + n_right);
    if (left < 0 || right < 0 || whole < 0) return false;
    struct merge_slot *slot = pair_slot(t, left, right);
    if (slot->left < 0) *slot = (struct merge_slot){left, right, {rank, whole}}; /* the first of two equal merges counts */
    return true;
}

/* Does merging the piece give the token itself? Long pieces are not worth knowing. */
static bool is_whole(const struct tokenizer *t, int32_t id) {
    struct text_view piece = token_table_piece(&t->table, id);
    if (piece.n == 0 || piece.n > MERGE_SHORT || token_table_find(&t->table, piece.data, piece.n) != id) return false;
    return merge_makes(piece.data, piece.n, t, lookup, symbol, id);
}

bool bpe_build(struct tokenizer *t, const struct vocab *vocab) {
    size_t capacity = hash_capacity((size_t)vocab->n_merges);
    t->merge_mask = capacity - 1;
    t->merges = arena_alloc(&t->arena, capacity * sizeof *t->merges);
    if (!t->merges) return false;
    for (size_t i = 0; i < capacity; i++) t->merges[i].left = -1;
    for (int b = 0; b < 256; b++) t->byte_ids[b] = token_table_find(&t->table, (char[]){(char)b}, 1);
    char buffer[1024];
    for (int i = 0; i < vocab->n_merges; i++)
        if (vocab->merges[i].n <= sizeof buffer) add_merge(t, vocab->merges[i], (uint32_t)i, buffer);
    for (int32_t id = 0; id < vocab->n_tokens; id++)
        if (t->ignore_merges || is_whole(t, id)) t->flags[id] |= FLAG_WHOLE;
    return true;
}

/* ---- encoding ---- */

struct word_walk {
    const struct tokenizer *t;
    const struct merge_space *space;
    struct id_sink *sink;
};

/* A symbol that is no token: its bytes, those that are tokens. */
static void emit(void *context, int32_t id, const char *text, size_t n) {
    const struct word_walk *w = context;
    if (id >= 0) {
        id_sink_put(w->sink, id);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (w->t->byte_ids[(unsigned char)text[i]] >= 0) id_sink_put(w->sink, w->t->byte_ids[(unsigned char)text[i]]);
}

static void encode_word(void *context, const char *word, size_t n) {
    struct word_walk *w = context;
    int32_t id = token_table_find(&w->t->table, word, n);
    if (id >= 0 && (w->t->flags[id] & FLAG_WHOLE)) id_sink_put(w->sink, id);
    else merge_word(w->space, word, n, w->t, (struct merge_ops){lookup, symbol, emit}, w);
}

void bpe_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, struct id_sink *sink) {
    struct word_walk w = {t, &s->space, sink};
    pretokenizer_split(t->pretokenizer, s->match, text, n, true, encode_word, &w);
}
