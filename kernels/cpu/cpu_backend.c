/* The CPU backend: its table of operations, its threads and its workspace.
 *
 *   workspace:  struct cpu_backend | thread pool | attention partials and scratch
 *
 * All memory is the caller's; nothing is allocated here. */
#include "kernels/cpu/cpu_backend.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/checked.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/lane_ops.h"
#include "kernels/cpu/linear.h"

static const char *const backend_names[CPU_ISA_COUNT] = {"cpu plain", "cpu avx2", "cpu avx512"};

size_t cpu_backend_workspace_bytes(const struct cpu_backend_options *options) {
    return round_up(sizeof(struct cpu_backend), 64) + round_up(threadpool_bytes(options->n_threads), 64) +
           round_up(cpu_attention_workspace_bytes(options), 64);
}

struct parallel_task {
    void (*task)(void *arg, int i);
    void *arg;
};

static void run_parallel(void *arg, int index, int thread) {
    const struct parallel_task *p = arg;
    (void)thread;
    p->task(p->arg, index);
}

static void parallel(struct backend *b, void (*task)(void *arg, int i), void *arg, int n) {
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    struct parallel_task p = {task, arg};
    threadpool_run(cpu->pool, run_parallel, &p, n);
}

static void close_backend(struct backend *b) {
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    threadpool_close(cpu->pool);
}

struct backend *cpu_backend_open(const struct cpu_backend_options *options, void *workspace, struct err *err) {
    char *at = workspace;
    struct cpu_backend *cpu = workspace;
    memset(cpu, 0, sizeof *cpu);
    at += round_up(sizeof *cpu, 64);
    cpu->options = *options;
    cpu->isa = options->isa;
    cpu->n_threads = options->n_threads;
    cpu->pool = threadpool_open(options->n_threads, at, err);
    if (!cpu->pool) return NULL;
    at += round_up(threadpool_bytes(options->n_threads), 64);
    cpu->attention_workspace = at;
    cpu->attention_workspace_bytes = cpu_attention_workspace_bytes(options);
    cpu_install_lane_ops(cpu);
    cpu->ops.name = backend_names[options->isa];
    cpu->ops.linear = cpu_linear;
    cpu->ops.parallel = parallel;
    cpu->ops.close = close_backend;
    return &cpu->ops;
}
