/* What the files of the CPU backend share: the backend as they see it. */
#pragma once

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threadpool.h"

struct cpu_lane_ops; /* the vector operations of one instruction set: lane_ops.h */

struct cpu_backend {
    struct backend ops; /* first: a struct backend * from the table is a struct cpu_backend * */
    struct threadpool *pool;
    int n_threads;
    enum cpu_isa isa;
    const struct cpu_lane_ops *lane_ops;
    struct cpu_backend_options options;
    void *attention_workspace; /* cpu_attention_workspace_bytes(&options), 64-byte aligned */
    size_t attention_workspace_bytes;
};
