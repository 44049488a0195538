#include "engine/token_table.h"

#include "engine/base/checked.h"

#define ARENA_PAD 64 /* what one arena allocation may lose to alignment */

size_t token_table_bytes(size_t n_tokens, size_t piece_bytes) {
    return piece_bytes + TOKEN_TABLE_SLACK + (n_tokens + 1) * sizeof(uint32_t) +
           hash_capacity(n_tokens) * sizeof(struct token_slot) + 3 * ARENA_PAD;
}

bool token_table_init(struct token_table *table, struct arena *arena, size_t n_tokens, size_t piece_bytes) {
    size_t capacity = hash_capacity(n_tokens);
    *table = (struct token_table){.mask = capacity - 1};
    if (piece_bytes > UINT32_MAX) return false;
    table->bytes = arena_alloc(arena, piece_bytes + TOKEN_TABLE_SLACK);
    table->offsets = arena_alloc(arena, (n_tokens + 1) * sizeof *table->offsets);
    table->slots = arena_alloc(arena, capacity * sizeof *table->slots);
    if (!table->bytes || !table->offsets || !table->slots) return false;
    memset(table->bytes, 0, piece_bytes + TOKEN_TABLE_SLACK);
    table->offsets[0] = 0;
    for (size_t i = 0; i < capacity; i++) table->slots[i] = (struct token_slot){.id = -1};
    return true;
}

char *token_table_begin_piece(struct token_table *table) { return table->bytes + table->offsets[table->n_tokens]; }

void token_table_end_piece(struct token_table *table, size_t n) {
    table->offsets[table->n_tokens + 1] = table->offsets[table->n_tokens] + (uint32_t)n;
    table->n_tokens++;
}

/* The slot that holds text, or the empty one where it would go. */
static struct token_slot *slot_of(const struct token_table *table, const char *text, size_t n, uint64_t hash) {
    for (size_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        struct token_slot *slot = &table->slots[i];
        if (slot->id < 0) return slot;
        if (slot->tag != (uint32_t)(hash >> 32)) continue;
        struct text_view piece = token_table_piece(table, slot->id);
        if (piece.n == n && memcmp(piece.data, text, n) == 0) return slot;
    }
}

int32_t token_table_insert(struct token_table *table, int32_t id) {
    struct text_view piece = token_table_piece(table, id);
    uint64_t hash = hash_bytes(piece.data, piece.n);
    struct token_slot *slot = slot_of(table, piece.data, piece.n, hash);
    if (slot->id >= 0) return slot->id;
    *slot = (struct token_slot){.tag = (uint32_t)(hash >> 32), .id = id};
    if (piece.n > table->max_piece) table->max_piece = (uint32_t)piece.n;
    return -1;
}

int32_t token_table_find(const struct token_table *table, const char *text, size_t n) {
    if (n > table->max_piece) return -1;
    return slot_of(table, text, n, hash_bytes(text, n))->id;
}
