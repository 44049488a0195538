/* The memory ledger: what the server will hold, computed before anything is loaded, and the one door that obeys it.
 *
 * A plan is a list of lines made by engine/plan.c from the model's header and the options alone. ledger_open reserves the memory of
 * every line once (one mapping, pages touched, so that held = planned); ledger_alloc hands out pieces of a line's arena and never
 * more than the line. After ledger_ready nothing may be allocated: an attempt is counted and still served if it fits, because a
 * running server must not die of its own bookkeeping, and tests assert that the count is 0.
 *
 * Owner: the main thread until ready; reading is safe from any thread afterwards. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/tokenizer.h" /* struct memory_source */

enum ledger_line_id {
    LINE_WEIGHTS,
    LINE_NORMS,
    LINE_ROPE,
    LINE_TOKENIZER,
    LINE_KV_POOL,
    LINE_KV_TABLES,
    LINE_ACTIVATIONS,
    LINE_BACKEND,
    LINE_LOGITS,
    LINE_SEQUENCES,
    LINE_EVENTS,
    LINE_REQUESTS,
    LINE_HTTP,
    LINE_THREADS,
    LINE_COUNT,
};

enum lifetime { LIFETIME_LOAD, LIFETIME_SERVE };

struct ledger_line {
    const char *id;     /* "kv_pool" */
    const char *owner;  /* the module that fills it: "engine/block_pool" */
    const char *device; /* "host" */
    enum lifetime lifetime;
    bool is_arena; /* false: memory that a library or the kernel takes (HTTP pools, stacks), priced but not handed out by us */
    char formula[192]; /* with the numbers in it: "2560 blocks × 16 tokens × 23040 bytes" */
    size_t bytes;      /* asked */
    size_t granted;    /* after rounding to pages */
};

struct plan {
    struct ledger_line lines[LINE_COUNT];
    size_t total;  /* Σ granted of lines that live while serving */
    size_t peak;   /* the largest sum over lifetimes */
    size_t budget; /* 0: none was given */
    /* What the budget bought. */
    int32_t n_blocks;
    int64_t kv_tokens; /* n_blocks · block_tokens */
    size_t kv_bytes_per_token;
};

struct ledger;

/* STATUS_NO_MEMORY (param memory_budget): the host or its control group cannot back the plan now. The plan itself never asks, so
 * that a plan for another machine can be made on this one. */
enum status ledger_open(struct ledger **out, const struct plan *plan, struct err *err);
void ledger_close(struct ledger *l);
/* `bytes` from a line, 64-byte aligned, zeroed, never NULL: asking for more than was planned is a broken invariant (BUG). */
void *ledger_alloc(struct ledger *l, enum ledger_line_id line, size_t bytes);
/* The same as a memory_source for modules that don't know the ledger; NULL when the line is exhausted. The result lives as long as l. */
struct memory_source ledger_source(struct ledger *l, enum ledger_line_id line);
void ledger_ready(struct ledger *l);

struct ledger_reading {
    size_t used[LINE_COUNT]; /* handed out so far */
    uint64_t allocs, allocs_after_ready;
    size_t measured;     /* resident bytes of the process less the constant base taken at ledger_open */
    int64_t unaccounted; /* measured − plan->total */
};
void ledger_read(const struct ledger *l, struct ledger_reading *reading);
const struct plan *ledger_plan(const struct ledger *l);
