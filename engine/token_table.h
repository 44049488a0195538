/* The texts of a vocabulary and a hash from text to id.
 *
 * A text here is a token's *piece*: the bytes it stands for in a document (spaces as spaces), not the way the model file spells
 * them. The table owns a copy of all pieces in one block; ids are indices. Not every piece is in the hash: control tokens and
 * bytes are put in only where their owner wants them found. Immutable once built; any thread may read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/arena.h"
#include "engine/vocab.h"

struct token_slot {
    uint32_t tag; /* upper half of the hash */
    int32_t id;   /* −1: empty */
};

struct token_table {
    char *bytes;              /* all pieces, one after another, then TOKEN_TABLE_SLACK zero bytes */
    uint32_t *offsets;        /* [n_tokens + 1] */
    struct token_slot *slots; /* [mask + 1], open addressing, linear probing */
    size_t mask;
    int n_tokens;
    uint32_t max_piece; /* bytes of the longest piece in the hash */
};

#define TOKEN_TABLE_SLACK 16

/* The smallest power of two that keeps `n` entries under 2/3 full. */
static inline size_t hash_capacity(size_t n) {
    size_t capacity = 16;
    while (capacity / 3 * 2 < n) capacity *= 2;
    return capacity;
}

static inline uint64_t hash_mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t load_tail(const char *s, size_t n) {
    uint64_t word = 0;
    memcpy(&word, s, n);
    return word;
}

/* 64 bits of s[0..n): multiply-and-fold over 8 bytes at a time. */
static inline uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;
    for (; n > 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = hash_mix(h ^ word, 0xd6e8feb86659fd93u);
    }
    return hash_mix(h ^ load_tail(s, n), 0xa0761d6478bd642fu);
}

/* Bytes of the tables for a vocabulary of n_tokens whose pieces hold at most piece_bytes. */
size_t token_table_bytes(size_t n_tokens, size_t piece_bytes);
/* Takes token_table_bytes from the arena; pieces are then appended in order of id. False when it does not fit. */
bool token_table_init(struct token_table *table, struct arena *arena, size_t n_tokens, size_t piece_bytes);
/* The next id's piece: n bytes, written by the caller at the place returned, before token_table_end_piece(table, n). */
char *token_table_begin_piece(struct token_table *table);
void token_table_end_piece(struct token_table *table, size_t n);
/* Makes `id` findable by its piece. Returns −1, or the id that has that piece already (nothing is changed then). */
int32_t token_table_insert(struct token_table *table, int32_t id);
/* The id inserted for exactly text[0..n), or −1. */
int32_t token_table_find(const struct token_table *table, const char *text, size_t n);

static inline struct text_view token_table_piece(const struct token_table *table, int32_t id) {
    uint32_t start = table->offsets[id];
    return (struct text_view){table->bytes + start, table->offsets[id + 1] - start};
}
