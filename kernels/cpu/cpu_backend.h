/* The CPU backend: plain C, AVX2 and AVX-512-VNNI behind one table, and its worker threads. */
#pragma once

#include "engine/base/err.h"
#include "kernels/backend.h"

enum cpu_isa { CPU_ISA_PLAIN, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_COUNT };

/* "plain", "avx2", "avx512". */
const char *cpu_isa_name(enum cpu_isa isa);
/* Does this CPU (and operating system) run it? */
bool cpu_isa_available(enum cpu_isa isa);
/* The best available, or the one TALLY_ISA names; naming one that is unknown or not available is an error with param TALLY_ISA. */
enum status cpu_isa_choose(enum cpu_isa *isa, struct err *err);

struct cpu_backend_options {
    enum cpu_isa isa;
    int n_threads; /* at least 1; the caller of the operations is one of them */
    /* The largest shapes that will be asked for, which fix the workspace. */
    int max_tokens, max_positions, max_head_dim, max_heads;
};

/* Bytes of workspace the backend needs for these options (attention partials, per-thread scratch): a ledger line. */
size_t cpu_backend_workspace_bytes(const struct cpu_backend_options *options);
/* Starts n_threads − 1 workers. `workspace` (64-byte aligned, that many bytes) stays the caller's and must outlive the backend.
 * Returns NULL and fills err when threads can't start. The backend allocates nothing after this. */
struct backend *cpu_backend_open(const struct cpu_backend_options *options, void *workspace, struct err *err);
