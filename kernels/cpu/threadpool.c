/* The CPU backend's worker threads.
 *
 * A forward pass is some hundred short parallel loops a token, so starting and awaiting one must cost about a microsecond, and
 * losing a CPU to another process must cost no more than that CPU. Three choices follow:
 *
 * 1. Indices are claimed one by one from a single atomic word, `n_left`. Whoever is slow claims less. A worker that was asleep or
 *    preempted for the whole loop is not waited for: only claimed indices are. One that comes late may so claim an index of the next
 *    loop, and that is as good: the loop's fields are read only after a claim succeeded, and until that index is counted finished the
 *    caller can't start another.
 * 2. Everybody waits in two stages: a bounded spin, which covers the gap between two loops of a step, then a futex. A waiter that
 *    sleeps gives its CPU to whom it waits for, if that one was preempted: with spinning alone, one busy process of equal priority
 *    costs far more than its share.
 * 3. Finished indices are counted once per thread and loop, not once per index.
 *
 *      caller   fields of the loop → n_left (release) → generation → wake sleepers → claim… → unfinished = 0 (acquire)
 *      worker   generation changed → claim from n_left (acquire) → fields → task → unfinished −= done (release), last one wakes caller
 *
 * Sleeping can't miss a wake: the sleeper announces itself, then looks at the word again, then sleeps only while it is unchanged;
 * the waker changes the word, then looks for announcements; all four are sequentially consistent.
 *
 * Rejected: a barrier that all threads must reach (waits for threads that have nothing to do), a static split (waits for the
 * slowest), OpenMP (one of the two above, by version and environment). */
#include "kernels/cpu/threadpool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORKER_STACK_BYTES ((size_t)512 * 1024)
#define SPIN_NS 40000        /* a worker between two loops: longer than the serial work between them */
#define SPIN_FINISH_NS 20000 /* the caller after its last index: about the length of a chunk */
#define SPINS_PER_LOOK 32    /* pauses between two looks at the clock */

struct worker {
    struct threadpool *pool;
    pthread_t thread;
    int index;
};

struct threadpool {
    /* Written by the caller before it publishes a loop, read by whoever has claimed an index of it. */
    void (*task)(void *arg, int index, int thread);
    void *arg;
    int n;
    int n_threads, n_started;
    atomic_bool stop;

    alignas(64) _Atomic uint32_t n_left;     /* indices not claimed yet */
    alignas(64) _Atomic uint32_t generation; /* futex of the workers */
    _Atomic uint32_t n_asleep;               /* workers in or about to enter futex_wait */
    alignas(64) _Atomic uint32_t unfinished; /* futex of the caller */
    _Atomic uint32_t caller_asleep;
    alignas(64) struct worker workers[]; /* n_threads − 1 */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    /* EAGAIN (changed already), EINTR and spurious returns all mean: look again, which every caller does. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins until *word differs from `value` (or, with until_zero, is 0) for at most `limit_ns`; false when the time is up. */
static bool spin(_Atomic uint32_t *word, uint32_t value, bool until_zero, int64_t limit_ns) {
    int64_t deadline = 0;
    for (;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
            if (until_zero ? seen == 0 : seen != value) return true;
            pause_cpu();
        }
        int64_t now = now_ns();
        if (!deadline) deadline = now + limit_ns;
        if (now >= deadline) return false;
    }
}

/* Claims and runs indices until none are left, then counts them finished. */
static void work(struct threadpool *pool, int thread) {
    uint32_t done = 0;
    uint32_t left = atomic_load_explicit(&pool->n_left, memory_order_relaxed);
    while (left) {
        if (!atomic_compare_exchange_weak_explicit(&pool->n_left, &left, left - 1, memory_order_acquire, memory_order_relaxed))
            continue;
        pool->task(pool->arg, pool->n - (int)left, thread);
        done++;
        left = atomic_load_explicit(&pool->n_left, memory_order_relaxed);
    }
    if (!done || atomic_fetch_sub(&pool->unfinished, done) != done) return;
    if (thread && atomic_load(&pool->caller_asleep)) futex_wake(&pool->unfinished, 1);
}

/* Returns the new generation, once it differs from `seen`. */
static uint32_t await_loop(struct threadpool *pool, uint32_t seen) {
    if (!spin(&pool->generation, seen, false, SPIN_NS)) {
        atomic_fetch_add(&pool->n_asleep, 1);
        while (atomic_load(&pool->generation) == seen) futex_wait(&pool->generation, seen);
        atomic_fetch_sub(&pool->n_asleep, 1);
    }
    return atomic_load_explicit(&pool->generation, memory_order_acquire);
}

static void await_finish(struct threadpool *pool) {
    if (spin(&pool->unfinished, 0, true, SPIN_FINISH_NS)) return;
    atomic_store(&pool->caller_asleep, 1);
    for (uint32_t left; (left = atomic_load(&pool->unfinished));) futex_wait(&pool->unfinished, left);
    atomic_store(&pool->caller_asleep, 0);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct threadpool *pool = worker->pool;
    uint32_t generation = 0;
    for (;;) {
        generation = await_loop(pool, generation);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        work(pool, worker->index);
    }
}

static void publish(struct threadpool *pool, uint32_t n) {
    atomic_store_explicit(&pool->unfinished, n, memory_order_relaxed);
    atomic_store_explicit(&pool->n_left, n, memory_order_release);
    atomic_fetch_add(&pool->generation, 1);
    int useful = n < (uint32_t)pool->n_threads ? (int)n - 1 : pool->n_threads - 1; /* the caller takes an index too */
    if (atomic_load(&pool->n_asleep)) futex_wake(&pool->generation, useful);
}

void threadpool_run(struct threadpool *pool, void (*task)(void *arg, int index, int thread), void *arg, int n) {
    if (n <= 1 || pool->n_threads == 1) {
        for (int i = 0; i < n; i++) task(arg, i, 0);
        return;
    }
    pool->task = task;
    pool->arg = arg;
    pool->n = n;
    publish(pool, (uint32_t)n);
    work(pool, 0);
    await_finish(pool);
}

size_t threadpool_bytes(int n_threads) {
    size_t bytes = sizeof(struct threadpool) + (size_t)n_threads * sizeof(struct worker);
    return (bytes + 63) / 64 * 64;
}

static int start_worker(struct threadpool *pool, const pthread_attr_t *attributes, int i) {
    struct worker *worker = &pool->workers[i];
    worker->pool = pool;
    worker->index = i + 1;
    return pthread_create(&worker->thread, attributes, worker_main, worker);
}

/* Starts the workers with all signals blocked, so that the program's own threads get them. Returns an errno value. */
static int start_workers(struct threadpool *pool) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    sigset_t all, before;
    sigfillset(&all);
    error = pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
    if (!error) error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!error) {
        while (!error && pool->n_started < pool->n_threads - 1) {
            error = start_worker(pool, &attributes, pool->n_started);
            if (!error) pool->n_started++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
    return error;
}

struct threadpool *threadpool_open(int n_threads, void *memory, struct err *err) {
    struct threadpool *pool = memory;
    memset(pool, 0, threadpool_bytes(n_threads));
    pool->n_threads = n_threads;
    int error = start_workers(pool);
    if (!error) return pool;
    err_set_param(err, STATUS_NO_MEMORY, "threads", "start threads: worker %d of %d: %s", pool->n_started + 1, n_threads - 1,
                  strerror(error));
    threadpool_close(pool);
    return NULL;
}

void threadpool_close(struct threadpool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->generation, 1);
    futex_wake(&pool->generation, pool->n_threads);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pool->n_started = 0;
}

int threadpool_n_threads(const struct threadpool *pool) { return pool->n_threads; }
