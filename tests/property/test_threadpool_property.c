/* Thread pools of random width under random loops: uneven work, pauses, loops of none and one between large ones, two pools at once.
 * Every index runs once, and what tasks wrote is there when the loop returns. TALLY_SEED repeats a run, TALLY_ROUNDS makes it longer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/threadpool.h"

#define MAX_INDICES 20000
#define MAX_THREADS 24 /* more than most machines have CPUs */

struct random {
    uint64_t state;
};

static int between(struct random *r, int low, int high) {
    uint64_t x = r->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return low + (int)((x ^ (x >> 31)) % (uint64_t)(high - low + 1));
}

static long from_environment(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : fallback;
}

static unsigned spend(unsigned turns) {
    unsigned x = turns;
    for (unsigned i = 0; i < turns; i++) x = x * 1664525u + 1013904223u;
    return x;
}

/* Plain memory: only threadpool_run orders it. */
struct loop {
    uint64_t stamp, *marks;  /* [MAX_INDICES]: mark == stamp·2³² + times run */
    int n, n_threads, heavy; /* every heavy-th index takes long; 0: none */
    unsigned waste[MAX_THREADS];
};

static void mark(void *arg, int index, int thread) {
    struct loop *l = arg;
    if (index < 0 || index >= l->n || thread < 0 || thread >= l->n_threads) abort();
    if (l->heavy && index % l->heavy == 0) l->waste[thread] += spend(3000);
    if (l->marks[index] >> 32 != l->stamp) l->marks[index] = l->stamp << 32;
    l->marks[index]++;
}

static const char *check_loop(const struct loop *l) {
    for (int i = 0; i < l->n; i++)
        if (l->marks[i] != (l->stamp << 32 | 1)) return "an index did not run exactly once";
    for (int i = l->n; i < MAX_INDICES; i++)
        if (l->marks[i] >> 32 == l->stamp) return "an index past the end ran";
    return NULL;
}

static int random_size(struct random *r) {
    switch (between(r, 0, 4)) {
    case 0: return between(r, 0, 1);
    case 1: return between(r, 0, 2 * MAX_THREADS);
    case 2: return between(r, 0, MAX_INDICES);
    default: return between(r, 2, 9);
    }
}

/* One pool's life; what went wrong, or NULL. */
static const char *live(struct random *r) {
    static const char no_memory[] = "no memory";
    struct err err = {0};
    const char *failure = NULL;
    struct loop l = {.n_threads = between(r, 1, MAX_THREADS), .marks = calloc(MAX_INDICES, sizeof *l.marks)};
    void *memory = aligned_alloc(64, threadpool_bytes(l.n_threads));
    if (!memory || !l.marks) return no_memory;
    memset(memory, 0xa5, threadpool_bytes(l.n_threads));
    struct threadpool *pool = threadpool_open(l.n_threads, memory, &err);
    for (int loops = pool ? between(r, 0, 60) : 0; loops > 0 && !failure; loops--) {
        l.stamp++;
        l.n = random_size(r);
        l.heavy = between(r, 0, 1) ? between(r, 1, 50) : 0;
        threadpool_run(pool, mark, &l, l.n);
        failure = check_loop(&l);
        if (between(r, 0, 3) == 0) l.waste[0] += spend((unsigned)between(r, 0, 60000)); /* workers fall asleep */
    }
    threadpool_close(pool);
    free(memory);
    free(l.marks);
    return pool ? failure : "no threads";
}

struct life {
    struct random random;
    const char *failure;
};

static void *live_beside(void *arg) {
    struct life *life = arg;
    life->failure = live(&life->random);
    return NULL;
}

static void every_index_runs_once(void **state) {
    long seed = from_environment("TALLY_SEED", 51), rounds = from_environment("TALLY_ROUNDS", 40);
    print_message("seed=%ld rounds=%ld\n", seed, rounds);
    for (long end = seed + rounds; seed < end; seed++) {
        struct life lives[2] = {{.random = {(uint64_t)seed << 1}}, {.random = {(uint64_t)seed << 1 | 1}}};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, live_beside, &lives[1]), 0);
        live_beside(&lives[0]);
        pthread_join(thread, NULL);
        for (int i = 0; i < 2; i++)
            if (lives[i].failure) fail_msg("seed %ld: %s", seed, lives[i].failure);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_index_runs_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
