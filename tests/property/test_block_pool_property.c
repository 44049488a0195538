/* Random takes, shares and releases against a plain model: counts, and a queue of free blocks. TALLY_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/block_pool.h"

#define MAX_BLOCKS 64

struct reference {
    int refs[MAX_BLOCKS];
    int32_t queue[MAX_BLOCKS]; /* free blocks, first to be taken first */
    int n_free;
};

static uint64_t state;
static int below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static void reference_release(struct reference *m, const int32_t *blocks, int n) {
    for (int i = n - 1; i >= 0; i--)
        if (--m->refs[blocks[i]] == 0) m->queue[m->n_free++] = blocks[i];
}

static int32_t reference_alloc(struct reference *m) {
    if (m->n_free == 0) return -1;
    int32_t block = m->queue[0];
    memmove(m->queue, m->queue + 1, (size_t)--m->n_free * sizeof *m->queue);
    m->refs[block] = 1;
    return block;
}

/* Held tables, as sequences have them: alloc appends, share copies another's beginning, release gives all back. */
static void run(int n_blocks, int n_ops) {
    struct block_pool p;
    struct reference m = {.n_free = n_blocks};
    int32_t tables[8][MAX_BLOCKS];
    int n_held[8] = {0};
    block_pool_init(&p, malloc(block_pool_bytes(n_blocks)), n_blocks);
    for (int i = 0; i < n_blocks; i++) m.queue[i] = i;
    for (int op = 0; op < n_ops; op++) {
        int t = below(8), other = below(8), kind = below(10);
        if (kind < 6) {
            int32_t want = n_held[t] < MAX_BLOCKS ? reference_alloc(&m) : -1,
                    got = n_held[t] < MAX_BLOCKS ? block_pool_alloc(&p) : -1;
            assert_int_equal(got, want);
            if (got >= 0) tables[t][n_held[t]++] = got;
        } else if (kind < 8 && n_held[t] == 0 && n_held[other] > 0) {
            n_held[t] = 1 + below(n_held[other]);
            for (int i = 0; i < n_held[t]; i++) {
                tables[t][i] = tables[other][i];
                block_pool_share(&p, tables[t][i]);
                m.refs[tables[t][i]]++;
            }
        } else if (kind >= 8) {
            block_pool_release(&p, tables[t], n_held[t]);
            reference_release(&m, tables[t], n_held[t]);
            n_held[t] = 0;
        }
        assert_true(block_pool_check(&p));
        assert_int_equal(p.n_free, m.n_free);
        for (int i = 0; i < n_blocks; i++) assert_int_equal(p.blocks[i].refs, m.refs[i]);
    }
    free(p.blocks);
}

static void the_pool_does_what_a_plain_model_does(void **unused) {
    const char *given = getenv("TALLY_SEED");
    uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 1;
    printf("seed=%llu\n", (unsigned long long)seed);
    state = seed;
    for (int round = 0; round < 200; round++) run(1 + below(MAX_BLOCKS), 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_pool_does_what_a_plain_model_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
