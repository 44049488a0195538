/* The CPU backend's worker threads: one parallel loop at a time, started and awaited by one thread.
 * How claiming, waiting and sleeping work: threadpool.c. */
#pragma once

#include <stddef.h>

#include "engine/base/err.h"

struct threadpool;

/* Bytes that threadpool_open needs, a multiple of 64. */
size_t threadpool_bytes(int n_threads);
/* Starts n_threads − 1 workers (all signals blocked in them); the caller of threadpool_run is worker 0. `memory` is 64-byte
 * aligned, threadpool_bytes(n_threads) long, and stays the caller's. Returns NULL and fills err when a thread can't start. */
struct threadpool *threadpool_open(int n_threads, void *memory, struct err *err);
/* Ends and joins the workers. NULL is allowed. */
void threadpool_close(struct threadpool *pool);

int threadpool_n_threads(const struct threadpool *pool);

/* Runs task(arg, index, thread) once for each index in [0, n), thread in [0, n_threads), and returns when all have finished: what
 * they wrote is then visible to the caller. Calls come from one thread at a time and never from inside a task. Which thread gets
 * an index is left to chance, so results must not depend on it. Allocates nothing. */
void threadpool_run(struct threadpool *pool, void (*task)(void *arg, int index, int thread), void *arg, int n);
