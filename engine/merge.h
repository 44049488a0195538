/* Byte-pair merging of one word: the adjacent pair of lowest rank becomes one symbol, leftmost first among equals, until no pair
 * is left. Both tokenizer families do this; they differ in what a symbol is to begin with and in how a pair is looked up, which
 * the including file gives as two functions that are inlined here.
 *
 * Up to MERGE_SHORT symbols a plain scan over an array on the stack is fastest. A longer word, and a hostile prompt is one word
 * of a megabyte, takes a tournament tree: n·log n at 9.2 bytes of memory a byte of text.
 *
 *   text    t  h  e  ␣  c  a  t  ...        a symbol is known by where it begins
 *   live    1  0  0  1  1  1  0  ...        bit: does a symbol begin here
 *   ids    [the]    [␣][c][at]              of the symbol that begins here
 *   ranks   7        2  -  9                of the pair (this symbol, next one); MERGE_NONE if not mergeable
 *   tree    keys (rank << 32 | position): leaf b is the least of ranks[16·b .. 16·b+15], a node the lesser of its two children,
 *           tree[1] the next merge. A key orders by rank, then leftmost.
 *
 * Neighbours are found by walking the bits, so a step is as long as a token at worst. Rejected: a heap of pairs with stale
 * entries (up to 3 entries a byte, 48 bytes of memory a byte of text). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/arena.h"

#define MERGE_NONE UINT32_MAX
#define MERGE_SHORT 40
#define MERGE_LEAF 16 /* positions a leaf of the tree covers */

struct merge {
    uint32_t rank; /* MERGE_NONE: not a pair that merges */
    int32_t id;    /* what it becomes */
};

/* Looks up the pair (left, right) whose joined text is text[0..n). */
typedef struct merge (*merge_lookup)(const void *tables, int32_t left, int32_t right, const char *text, size_t n);
/* The symbol that text[0..n) begins with: returns its bytes and sets its id, −1 if it is no token. */
typedef size_t (*merge_symbol)(const void *tables, const char *text, size_t n, int32_t *id);
/* Takes the finished symbols in order: the id, −1 if it is no token, and its text. */
typedef void (*merge_emit)(void *context, int32_t id, const char *text, size_t n);

struct merge_ops {
    merge_lookup lookup;
    merge_symbol symbol;
    merge_emit emit;
};

struct merge_space {
    int32_t *ids;
    uint32_t *ranks; /* [capacity + MERGE_LEAF] */
    uint64_t *tree;
    uint64_t *live;  /* [capacity / 64 + 2] */
    size_t capacity; /* bytes of the longest word */
};

#define MERGE_INLINE static inline __attribute__((always_inline))

static inline size_t merge_space_bytes(size_t capacity) {
    size_t leaves = capacity / MERGE_LEAF + 1;
    return (capacity + 1) * sizeof(int32_t) + leaves * MERGE_LEAF * sizeof(uint32_t) + 2 * leaves * sizeof(uint64_t) +
           (capacity / 64 + 2) * sizeof(uint64_t) + 4 * 64;
}

static inline bool merge_space_init(struct merge_space *space, struct arena *arena, size_t capacity) {
    size_t leaves = capacity / MERGE_LEAF + 1;
    space->capacity = capacity;
    space->ids = arena_alloc(arena, (capacity + 1) * sizeof *space->ids);
    space->ranks = arena_alloc(arena, leaves * MERGE_LEAF * sizeof *space->ranks);
    space->tree = arena_alloc(arena, 2 * leaves * sizeof *space->tree);
    space->live = arena_alloc(arena, (capacity / 64 + 2) * sizeof *space->live);
    return space->ids && space->ranks && space->tree && space->live;
}

/* --- words of at most MERGE_SHORT symbols --- */

struct merge_short {
    uint32_t start[MERGE_SHORT + 1]; /* one past the last symbol: the word's end */
    int32_t id[MERGE_SHORT];
    struct merge pair[MERGE_SHORT]; /* of symbols i and i+1 */
};

MERGE_INLINE void merge_short_pair(struct merge_short *w, int i, int n, const char *text, const void *tables,
                                   merge_lookup lookup) {
    if (i + 1 >= n) w->pair[i].rank = MERGE_NONE;
    else w->pair[i] = lookup(tables, w->id[i], w->id[i + 1], text + w->start[i], w->start[i + 2] - w->start[i]);
}

static inline int merge_short_best(const struct merge_short *w, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (w->pair[i].rank < w->pair[best].rank) best = i;
    return best;
}

static inline void merge_short_join(struct merge_short *w, int i, int n) {
    size_t rest = (size_t)(n - i - 2);
    w->id[i] = w->pair[i].id;
    memmove(&w->id[i + 1], &w->id[i + 2], rest * sizeof w->id[0]);
    memmove(&w->pair[i + 1], &w->pair[i + 2], rest * sizeof w->pair[0]);
    memmove(&w->start[i + 1], &w->start[i + 2], (rest + 1) * sizeof w->start[0]);
}

MERGE_INLINE void merge_short_run(struct merge_short *w, int n, const char *text, const void *tables, struct merge_ops ops,
                                  void *context) {
    for (int i = 0; i < n; i++) merge_short_pair(w, i, n, text, tables, ops.lookup);
    while (n > 1) {
        int i = merge_short_best(w, n);
        if (w->pair[i].rank == MERGE_NONE) break;
        merge_short_join(w, i, n--);
        merge_short_pair(w, i, n, text, tables, ops.lookup);
        if (i > 0) merge_short_pair(w, i - 1, n, text, tables, ops.lookup);
    }
    for (int i = 0; i < n; i++) ops.emit(context, w->id[i], text + w->start[i], w->start[i + 1] - w->start[i]);
}

/* --- longer words --- */

static inline void merge_set_live(const struct merge_space *s, size_t i) { s->live[i / 64] |= (uint64_t)1 << i % 64; }
static inline void merge_clear_live(const struct merge_space *s, size_t i) { s->live[i / 64] &= ~((uint64_t)1 << i % 64); }

/* The first symbol that begins after i, or the word's end (which has its bit set). */
static inline size_t merge_next(const struct merge_space *s, size_t i) {
    size_t word = ++i / 64;
    uint64_t bits = s->live[word] >> i % 64;
    if (bits) return i + (size_t)__builtin_ctzll(bits);
    while (!s->live[++word]) {
    }
    return word * 64 + (size_t)__builtin_ctzll(s->live[word]);
}

/* The last symbol that begins before i; i is not the first. */
static inline size_t merge_previous(const struct merge_space *s, size_t i) {
    size_t word = --i / 64;
    uint64_t bits = s->live[word] << (63 - i % 64);
    if (bits) return i - (size_t)__builtin_clzll(bits);
    while (!s->live[--word]) {
    }
    return word * 64 + 63 - (size_t)__builtin_clzll(s->live[word]);
}

static inline uint64_t merge_leaf_key(const struct merge_space *s, size_t leaf) {
    uint64_t least = UINT64_MAX;
    for (size_t i = leaf * MERGE_LEAF; i < (leaf + 1) * MERGE_LEAF; i++) {
        uint64_t key = (uint64_t)s->ranks[i] << 32 | (uint32_t)i;
        if (key < least) least = key;
    }
    return least;
}

static inline void merge_tree_build(const struct merge_space *s, size_t leaves) {
    for (size_t i = 0; i < leaves; i++) s->tree[leaves + i] = merge_leaf_key(s, i);
    if (leaves == 1) return; /* tree[1] is the only leaf */
    for (size_t i = leaves - 1; i > 0; i--)
        s->tree[i] = s->tree[2 * i] < s->tree[2 * i + 1] ? s->tree[2 * i] : s->tree[2 * i + 1];
}

static inline void merge_tree_update(const struct merge_space *s, size_t leaves, size_t position) {
    size_t i = leaves + position / MERGE_LEAF;
    uint64_t key = merge_leaf_key(s, position / MERGE_LEAF);
    while (s->tree[i] != key) {
        s->tree[i] = key;
        if (i == 1) return;
        uint64_t sibling = s->tree[i ^ 1];
        if (sibling < key) key = sibling;
        i /= 2;
    }
}

MERGE_INLINE struct merge merge_pair_at(const struct merge_space *s, size_t left, size_t right, const char *text, size_t n,
                                        const void *tables, merge_lookup lookup) {
    if (right >= n) return (struct merge){MERGE_NONE, -1};
    return lookup(tables, s->ids[left], s->ids[right], text + left, merge_next(s, right) - left);
}

MERGE_INLINE void merge_long_split(const struct merge_space *s, const char *text, size_t n, const void *tables,
                                   merge_symbol symbol) {
    memset(s->live, 0, (n / 64 + 2) * sizeof *s->live);
    memset(s->ranks, 0xff, (n / MERGE_LEAF + 1) * MERGE_LEAF * sizeof *s->ranks);
    for (size_t i = 0; i < n;) {
        merge_set_live(s, i);
        i += symbol(tables, text + i, n - i, &s->ids[i]);
    }
    merge_set_live(s, n);
}

MERGE_INLINE void merge_long_run(const struct merge_space *s, const char *text, size_t n, const void *tables,
                                 struct merge_ops ops, void *context) {
    size_t leaves = n / MERGE_LEAF + 1;
    merge_long_split(s, text, n, tables, ops.symbol);
    for (size_t i = 0; i < n; i = merge_next(s, i))
        s->ranks[i] = merge_pair_at(s, i, merge_next(s, i), text, n, tables, ops.lookup).rank;
    merge_tree_build(s, leaves);
    while (s->tree[1] >> 32 != MERGE_NONE) {
        size_t left = (uint32_t)s->tree[1], right = merge_next(s, left);
        s->ids[left] = merge_pair_at(s, left, right, text, n, tables, ops.lookup).id;
        merge_clear_live(s, right);
        s->ranks[right] = MERGE_NONE;
        s->ranks[left] = merge_pair_at(s, left, merge_next(s, left), text, n, tables, ops.lookup).rank;
        merge_tree_update(s, leaves, right);
        merge_tree_update(s, leaves, left);
        if (left == 0) continue;
        size_t before = merge_previous(s, left);
        s->ranks[before] = merge_pair_at(s, before, left, text, n, tables, ops.lookup).rank;
        merge_tree_update(s, leaves, before);
    }
    for (size_t i = 0, end; i < n; i = end) {
        end = merge_next(s, i);
        ops.emit(context, s->ids[i], text + i, end - i);
    }
}

/* Merges text[0..n), n at most the space's capacity, and emits the symbols left. */
MERGE_INLINE void merge_word(const struct merge_space *space, const char *text, size_t n, const void *tables,
                             struct merge_ops ops, void *context) {
    struct merge_short w;
    int symbols = 0;
    for (size_t i = 0; i < n; symbols++) {
        if (symbols == MERGE_SHORT) {
            merge_long_run(space, text, n, tables, ops, context);
            return;
        }
        w.start[symbols] = (uint32_t)i;
        i += ops.symbol(tables, text + i, n - i, &w.id[symbols]);
    }
    w.start[symbols] = (uint32_t)n;
    merge_short_run(&w, symbols, text, tables, ops, context);
}

struct merge_outcome {
    int32_t id;
    int n;
};

static inline void merge_note_outcome(void *context, int32_t id, const char *text, size_t n) {
    struct merge_outcome *outcome = context;
    (void)text;
    (void)n;
    outcome->id = id;
    outcome->n++;
}

/* Does merging text[0..n), n at most MERGE_SHORT, leave one symbol, and is it `id`? */
MERGE_INLINE bool merge_makes(const char *text, size_t n, const void *tables, merge_lookup lookup, merge_symbol symbol,
                              int32_t id) {
    struct merge_outcome outcome = {-1, 0};
    merge_word(NULL, text, n, tables, (struct merge_ops){lookup, symbol, merge_note_outcome}, &outcome);
    return outcome.n == 1 && outcome.id == id;
}
