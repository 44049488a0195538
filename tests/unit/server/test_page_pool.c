#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "server/page_pool.h"

#define PAGES 64

static void runs_never_overlap_and_all_comes_back(void **unused) {
    unsigned seed = (unsigned)clock_us();
    if (getenv("TALLY_SEED")) seed = (unsigned)strtoul(getenv("TALLY_SEED"), NULL, 10);
    printf("seed %u\n", seed);
    struct page_pool pool;
    char *memory = malloc(page_pool_bytes(PAGES * PAGE_BYTES));
    struct {
        unsigned char *run;
        size_t bytes;
        unsigned char mark;
    } held[16] = {{0}};
    page_pool_init(&pool, memory, PAGES * PAGE_BYTES);
    for (int round = 0; round < 20000; round++) {
        int i = rand_r(&seed) % 16;
        if (held[i].run) {
            for (size_t k = 0; k < held[i].bytes; k += 97) assert_int_equal(held[i].run[k], held[i].mark);
            page_pool_free(&pool, held[i].run, held[i].bytes);
            held[i].run = NULL;
        } else {
            held[i].bytes = 1 + (size_t)rand_r(&seed) % (12 * PAGE_BYTES);
            held[i].mark = (unsigned char)rand_r(&seed);
            held[i].run = page_pool_alloc(&pool, held[i].bytes);
            if (held[i].run) memset(held[i].run, held[i].mark, held[i].bytes);
        }
    }
    for (int i = 0; i < 16; i++) page_pool_free(&pool, held[i].run, held[i].bytes);
    assert_int_equal(page_pool_used(&pool), 0);
    void *all = page_pool_alloc(&pool, PAGES * PAGE_BYTES);
    assert_non_null(all);
    assert_null(page_pool_alloc(&pool, 1));
    page_pool_free(&pool, all, PAGES * PAGE_BYTES);
    assert_null(page_pool_alloc(&pool, PAGES * PAGE_BYTES + 1));
    assert_null(page_pool_alloc(&pool, SIZE_MAX));
    page_pool_deinit(&pool);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_never_overlap_and_all_comes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
