#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/block_pool.h"

static struct block_pool open_pool(int32_t n) {
    struct block_pool p;
    block_pool_init(&p, malloc(block_pool_bytes(n)), n);
    return p;
}

static void a_new_pool_is_all_free(void **state) {
    struct block_pool p = open_pool(5);
    assert_int_equal(p.n_free, 5);
    assert_true(block_pool_can_alloc(&p, 5));
    assert_false(block_pool_can_alloc(&p, 6));
    assert_true(block_pool_check(&p));
    free(p.blocks);
}

static void an_empty_pool_gives_none(void **state) {
    struct block_pool p = open_pool(2);
    assert_int_equal(block_pool_alloc(&p), 0);
    assert_int_equal(block_pool_alloc(&p), 1);
    assert_int_equal(block_pool_alloc(&p), -1);
    assert_true(block_pool_can_alloc(&p, 0));
    assert_true(block_pool_check(&p));
    free(p.blocks);
}

static void reuse_is_least_recently_used_and_deepest_first(void **state) {
    struct block_pool p = open_pool(6);
    int32_t a[3], b[3];
    for (int i = 0; i < 3; i++) a[i] = block_pool_alloc(&p), b[i] = block_pool_alloc(&p);
    block_pool_release(&p, b, 3);
    block_pool_release(&p, a, 3);
    int32_t order[] = {b[2], b[1], b[0], a[2], a[1], a[0]};
    for (int i = 0; i < 6; i++) assert_int_equal(block_pool_alloc(&p), order[i]);
    free(p.blocks);
}

static void a_shared_block_is_free_only_after_its_last_holder(void **state) {
    struct block_pool p = open_pool(1);
    int32_t block = block_pool_alloc(&p);
    block_pool_share(&p, block);
    block_pool_release(&p, &block, 1);
    assert_int_equal(p.n_free, 0);
    assert_true(block_pool_check(&p));
    block_pool_release(&p, &block, 1);
    assert_int_equal(p.n_free, 1);
    assert_true(block_pool_check(&p));
    free(p.blocks);
}

static bool aborts(void (*act)(struct block_pool *p, int32_t block), struct block_pool *p, int32_t block) {
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        act(p, block);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void release_one(struct block_pool *p, int32_t block) { block_pool_release(p, &block, 1); }

static void giving_back_or_sharing_a_free_block_is_a_bug(void **state) {
    struct block_pool p = open_pool(2);
    int32_t held = block_pool_alloc(&p);
    assert_false(aborts(release_one, &p, held));
    assert_true(aborts(release_one, &p, 1 - held));
    assert_true(aborts(block_pool_share, &p, 1 - held));
    free(p.blocks);
}

static void the_check_sees_broken_counts_and_links(void **state) {
    struct block_pool p = open_pool(4);
    int32_t held = block_pool_alloc(&p);
    p.blocks[held].refs = 0;
    assert_false(block_pool_check(&p));
    p.blocks[held].refs = 1;
    assert_true(block_pool_check(&p));
    p.n_free--;
    assert_false(block_pool_check(&p));
    p.n_free++;
    p.blocks[p.last_free].prev = p.first_free;
    assert_false(block_pool_check(&p));
    free(p.blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_pool_is_all_free),
        cmocka_unit_test(an_empty_pool_gives_none),
        cmocka_unit_test(reuse_is_least_recently_used_and_deepest_first),
        cmocka_unit_test(a_shared_block_is_free_only_after_its_last_holder),
        cmocka_unit_test(giving_back_or_sharing_a_free_block_is_a_bug),
        cmocka_unit_test(the_check_sees_broken_counts_and_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
