/* The thread pool: every index once, whoever sleeps or is slow, and nothing lost between loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "kernels/cpu/threadpool.h"

#define MAX_N 1000

struct open_pool {
    struct threadpool *pool;
    void *memory;
};

static struct open_pool open_pool(int n_threads) {
    struct err err = {0};
    struct open_pool p = {.memory = aligned_alloc(64, threadpool_bytes(n_threads))};
    assert_non_null(p.memory);
    memset(p.memory, 0xa5, threadpool_bytes(n_threads));
    p.pool = threadpool_open(n_threads, p.memory, &err);
    assert_non_null(p.pool);
    assert_int_equal(n_threads, threadpool_n_threads(p.pool));
    return p;
}

static void close_pool(struct open_pool *p) {
    threadpool_close(p->pool);
    free(p->memory);
}

/* Plain memory on purpose: the caller must see it after threadpool_run, and ThreadSanitizer that it may. */
struct marks {
    int times[MAX_N];
    int value, n_threads;
};

static void mark(void *arg, int index, int thread) {
    struct marks *m = arg;
    if (thread < 0 || thread >= m->n_threads) abort();
    m->times[index] += m->value;
}

static void run_and_check(struct open_pool *p, struct marks *m, int n, int value) {
    memset(m->times, 0, sizeof m->times);
    m->value = value;
    threadpool_run(p->pool, mark, m, n);
    for (int i = 0; i < MAX_N; i++) assert_int_equal(i < n ? value : 0, m->times[i]);
}

static void each_index_runs_once(void **test) {
    static const int sizes[] = {0, 1, 2, 3, 7, 64, MAX_N};
    static const int threads[] = {1, 2, 3, 16};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct open_pool p = open_pool(threads[t]);
        struct marks m = {.n_threads = threads[t]};
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) run_and_check(&p, &m, sizes[s], (int)s + 1);
        close_pool(&p);
    }
}

/* A worker that comes late to a loop must not take an index of the next one with the wrong fields, or twice. Two tasks and two
 * arguments in turns would show it. */
static void loops_in_quick_succession_stay_apart(void **test) {
    static const int threads[] = {2, 4};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct open_pool p = open_pool(threads[t]);
        struct marks *turns[2] = {calloc(1, sizeof **turns), calloc(1, sizeof **turns)};
        turns[0]->n_threads = turns[1]->n_threads = threads[t];
        turns[0]->value = turns[1]->value = 1;
        int loops = 20000, n_runs[2] = {0};
        for (int i = 0; i < loops; i++) {
            int n = 2 + i % 5;
            threadpool_run(p.pool, mark, turns[i % 2], n);
            n_runs[i % 2] += n;
        }
        for (int turn = 0; turn < 2; turn++) {
            int total = 0;
            for (int i = 0; i < MAX_N; i++) total += turns[turn]->times[i];
            assert_int_equal(n_runs[turn], total);
            free(turns[turn]);
        }
        close_pool(&p);
    }
}

/* Gaps from nothing to longer than the spin: workers are caught spinning, falling asleep and asleep. */
static void loops_after_pauses_of_any_length_wake_the_workers(void **test) {
    struct open_pool p = open_pool(3);
    struct marks m = {.n_threads = 3};
    uint32_t random = 7;
    print_message("seed 7\n");
    for (int i = 0; i < 600; i++) {
        random = random * 1664525 + 1013904223;
        int64_t until = clock_us() + (random >> 16) % 120;
        while (clock_us() < until) continue;
        run_and_check(&p, &m, 2 + i % 9, i + 1);
    }
    close_pool(&p);
}

struct hostage {
    atomic_int finished;
    int n;
};

/* The first index ends only when all others have. */
static void wait_for_the_others(void *arg, int index, int thread) {
    struct hostage *h = arg;
    if (index == 0)
        while (atomic_load(&h->finished) < h->n - 1) sched_yield();
    atomic_fetch_add(&h->finished, 1);
}

static void one_slow_index_holds_up_no_other(void **test) {
    struct open_pool p = open_pool(2);
    for (int i = 0; i < 200; i++) {
        struct hostage h = {.n = 50};
        threadpool_run(p.pool, wait_for_the_others, &h, h.n);
        assert_int_equal(50, atomic_load(&h.finished));
    }
    close_pool(&p);
}

/* Indices that wait for each other prove that as many threads really run. */
static void all_meet(void *arg, int index, int thread) {
    struct hostage *h = arg;
    atomic_fetch_add(&h->finished, 1);
    while (atomic_load(&h->finished) < h->n) sched_yield();
}

static void as_many_indices_run_at_once_as_there_are_threads(void **test) {
    struct open_pool p = open_pool(6);
    for (int i = 0; i < 50; i++) {
        struct hostage h = {.n = 6};
        threadpool_run(p.pool, all_meet, &h, h.n);
    }
    close_pool(&p);
}

struct masks {
    atomic_int finished, unblocked_workers;
};

static void look_at_mask(void *arg, int index, int thread) {
    struct masks *m = arg;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    if (thread && !(sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT))) atomic_fetch_add(&m->unblocked_workers, 1);
    atomic_fetch_add(&m->finished, 1);
    while (atomic_load(&m->finished) < 4) sched_yield();
}

static void signals_go_to_the_program_not_to_workers(void **test) {
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    struct open_pool p = open_pool(4);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
    struct masks m = {0};
    threadpool_run(p.pool, look_at_mask, &m, 4);
    assert_int_equal(0, atomic_load(&m.unblocked_workers));
    close_pool(&p);
}

static void a_pool_can_be_closed_at_any_time(void **test) {
    for (int i = 0; i < 200; i++) {
        struct open_pool p = open_pool(1 + i % 4);
        struct marks m = {.n_threads = 4};
        if (i % 3 == 0) run_and_check(&p, &m, 5, 1);
        close_pool(&p);
    }
    threadpool_close(NULL);
}

#if !defined(TALLY_SANITIZE) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static long address_space_bytes(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* In a process of its own, whose address space has room for a few stacks. Returns 0 when all went as it should. */
static int open_without_room(void) {
    struct err err = {0};
    void *memory = aligned_alloc(64, threadpool_bytes(64));
    long room = address_space_bytes();
    struct rlimit limit = {.rlim_cur = (rlim_t)room + (2 << 20), .rlim_max = RLIM_INFINITY};
    if (!memory || !room || setrlimit(RLIMIT_AS, &limit)) return 2;
    if (threadpool_open(64, memory, &err)) return 3;
    return err.status == STATUS_NO_MEMORY && strcmp(err.param, "threads") == 0 && strstr(err.text, "of 63") ? 0 : 4;
}

static void too_many_threads_are_an_error_and_leave_none_behind(void **test) {
    pid_t child = fork();
    if (child == 0) _exit(open_without_room());
    int status = 0;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
}
#else
static void too_many_threads_are_an_error_and_leave_none_behind(void **test) {
    print_message("SKIPPED: a small address space, which sanitizers do not run in\n");
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_index_runs_once),
        cmocka_unit_test(loops_in_quick_succession_stay_apart),
        cmocka_unit_test(loops_after_pauses_of_any_length_wake_the_workers),
        cmocka_unit_test(one_slow_index_holds_up_no_other),
        cmocka_unit_test(as_many_indices_run_at_once_as_there_are_threads),
        cmocka_unit_test(signals_go_to_the_program_not_to_workers),
        cmocka_unit_test(a_pool_can_be_closed_at_any_time),
        cmocka_unit_test(too_many_threads_are_an_error_and_leave_none_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
