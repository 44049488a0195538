/* The ledger's arenas and its reading of the process. See ledger.h for the contract.
 *
 *   one mapping:  | line 0, rounded to pages | line 1 | line 2 | ...            large lines start and end on 2 MiB borders, so
 *                                                                              that huge pages hold exactly what was planned
 *
 * Invariants
 *   1. used ≤ granted for every line; asking for more is a bug of the plan, found at start, never under load.
 *   2. Every page of every arena is touched in ledger_open: what was planned is held from then on, and another process that wants
 *      memory fails, not we.
 *   3. After ledger_ready, allocs_after_ready counts; it stays 0.
 *
 * Measured is the process's anonymous resident memory, less what it was just before the arenas were mapped: file pages (the
 * binary, the model's mapping while it is packed) belong to the page cache. Rejected: VmRSS, which counts those. */
#include "engine/ledger.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/checked.h"
#include "engine/base/cpus.h"
#include "engine/base/host_memory.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_TOUCHERS 16

struct line_arena {
    char *base;
    size_t size;
    _Atomic size_t used;
};

struct ledger {
    struct plan plan;
    void *mapping;
    size_t mapping_bytes;
    size_t base_bytes; /* anonymous memory before the arenas */
    _Atomic uint64_t allocs, allocs_after_ready;
    atomic_bool is_ready;
    struct line_arena arenas[LINE_COUNT];
    struct line_handle {
        struct ledger *ledger;
        enum ledger_line_id line;
    } handles[LINE_COUNT];
};

/* Anonymous resident bytes of the process; 0 when /proc cannot be read. */
static size_t anonymous_bytes(void) {
    char text[96];
    size_t total = 0, kib;
    FILE *f = fopen("/proc/self/status", "re");
    if (!f) return 0;
    while (fgets(text, sizeof text, f))
        if (sscanf(text, "RssAnon: %zu kB", &kib) == 1 || sscanf(text, "RssShmem: %zu kB", &kib) == 1) total += kib * 1024;
    fclose(f);
    return total;
}

struct touch {
    char *start;
    size_t bytes;
};

static void *touch_pages(void *arg) {
    const struct touch *t = arg;
#ifdef MADV_POPULATE_WRITE
    if (madvise(t->start, t->bytes, MADV_POPULATE_WRITE) == 0) return NULL;
#endif
    for (size_t i = 0; i < t->bytes; i += 4096) ((volatile char *)t->start)[i] = 0;
    return NULL;
}

/* Invariant 2, on every usable CPU: zeroing a gigabyte takes one CPU a quarter of a second. */
static void touch_all(char *start, size_t bytes) {
    pthread_t threads[MAX_TOUCHERS];
    struct touch parts[MAX_TOUCHERS];
    int cpus = cpus_usable(), n = cpus < MAX_TOUCHERS ? cpus : MAX_TOUCHERS;
    size_t part = round_up(bytes / (size_t)n, HUGE_PAGE), from = 0;
    int started = 0;
    for (; from + part < bytes && started < n - 1; from += part) {
        parts[started] = (struct touch){start + from, part};
        if (pthread_create(&threads[started], NULL, touch_pages, &parts[started]) != 0) break;
        started++;
    }
    touch_pages(&(struct touch){start + from, bytes - from});
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

static size_t arena_bytes(const struct plan *plan) {
    size_t total = 0;
    for (int i = 0; i < LINE_COUNT; i++)
        if (plan->lines[i].is_arena) total += plan->lines[i].granted;
    return total;
}

/* Large lines first, so that they lie on huge-page borders without gaps between them. */
static void carve(struct ledger *l) {
    char *at = l->mapping;
    for (int large = 1; large >= 0; large--)
        for (int i = 0; i < LINE_COUNT; i++) {
            const struct ledger_line *line = &l->plan.lines[i];
            if (!line->is_arena || (line->granted % HUGE_PAGE == 0) != large) continue;
            l->arenas[i].base = at;
            l->arenas[i].size = line->granted;
            at += line->granted;
        }
}

/* Every page is touched below, and what the kernel can't back then ends the process without a word. */
static enum status check_available(size_t bytes, struct err *err) {
    size_t available = host_memory_available();
    if (bytes <= available) return STATUS_OK;
    return err_set_param(
        err, STATUS_NO_MEMORY, "memory_budget",
        "memory budget: %zu MiB are planned, but the machine, or this process's control group, has only %zu MiB left",
        bytes >> 20, available >> 20);
}

enum status ledger_open(struct ledger **out, const struct plan *plan, struct err *err) {
    size_t bytes = arena_bytes(plan);
    enum status s = check_available(bytes, err);
    if (s) return s;
    struct ledger *l = calloc(1, sizeof *l);
    if (!l) return err_set(err, STATUS_NO_MEMORY, "ledger: no memory for its own table");
    l->plan = *plan;
    l->base_bytes = anonymous_bytes();
    l->mapping_bytes = bytes + HUGE_PAGE;
    void *raw = mmap(NULL, l->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        free(l);
        return err_set_param(err, STATUS_NO_MEMORY, "memory_budget", "memory budget: the system has no %zu bytes to give",
                             bytes);
    }
    size_t skip = (HUGE_PAGE - (size_t)((uintptr_t)raw % HUGE_PAGE)) % HUGE_PAGE;
    if (skip) munmap(raw, skip);
    if (HUGE_PAGE - skip) munmap((char *)raw + skip + bytes, HUGE_PAGE - skip);
    l->mapping = (char *)raw + skip;
    l->mapping_bytes = bytes;
    madvise(l->mapping, bytes, MADV_HUGEPAGE); /* a hint: without huge pages all works the same */
    touch_all(l->mapping, bytes);
    carve(l);
    for (int i = 0; i < LINE_COUNT; i++) l->handles[i] = (struct line_handle){l, (enum ledger_line_id)i};
    *out = l;
    return STATUS_OK;
}

void ledger_close(struct ledger *l) {
    if (!l) return;
    munmap(l->mapping, l->mapping_bytes);
    free(l);
}

/* NULL when the line has no such piece left. The mapping is fresh and nothing is ever given back, so memory is zero. */
static void *take(struct ledger *l, enum ledger_line_id line, size_t bytes) {
    struct line_arena *arena = &l->arenas[line];
    size_t want = round_up(bytes, 64), before = atomic_load(&arena->used);
    do {
        if (bytes > arena->size || want > arena->size - before) return NULL;
    } while (!atomic_compare_exchange_weak(&arena->used, &before, before + want));
    atomic_fetch_add(&l->allocs, 1);
    if (atomic_load(&l->is_ready)) atomic_fetch_add(&l->allocs_after_ready, 1);
    return arena->base + before;
}

void *ledger_alloc(struct ledger *l, enum ledger_line_id line, size_t bytes) {
    void *memory = take(l, line, bytes);
    if (!memory)
        BUG("ledger: line %s has %zu of %zu bytes left, %zu asked", l->plan.lines[line].id,
            l->arenas[line].size - atomic_load(&l->arenas[line].used), l->arenas[line].size, bytes);
    return memory;
}

static void *source_alloc(void *context, size_t bytes) {
    const struct line_handle *handle = context;
    return take(handle->ledger, handle->line, bytes);
}

struct memory_source ledger_source(struct ledger *l, enum ledger_line_id line) {
    return (struct memory_source){source_alloc, &l->handles[line]};
}

void ledger_ready(struct ledger *l) { atomic_store(&l->is_ready, true); }

void ledger_read(const struct ledger *l, struct ledger_reading *reading) {
    for (int i = 0; i < LINE_COUNT; i++)
        reading->used[i] = l->plan.lines[i].is_arena ? atomic_load(&l->arenas[i].used) : l->plan.lines[i].bytes;
    reading->allocs = atomic_load(&l->allocs);
    reading->allocs_after_ready = atomic_load(&l->allocs_after_ready);
    size_t now = anonymous_bytes();
    reading->measured = now > l->base_bytes ? now - l->base_bytes : 0;
    reading->unaccounted = (int64_t)reading->measured - (int64_t)l->plan.total;
}

const struct plan *ledger_plan(const struct ledger *l) { return &l->plan; }
