/* backend.linear on the CPU: cutting linear layers into spans for the threads.
 *
 * All jobs of a call (q, k and v; gate and up) are one loop of one list of panels. Tokens are cut into blocks whose activations stay
 * in the L2 cache, while a panel (5 to 40 KB) stays in L1: a span walks its panels outside and its tokens inside, so weights come from
 * memory once per token block, and in decode exactly once.
 *
 *     item = block · panels + panel;   chunk i = items [i·n/chunks, (i+1)·n/chunks), cut at ends of blocks and jobs into spans
 *
 * Chunks are claimed dynamically: some per thread, so that a thread that lost its CPU holds little, but none with less work than
 * some claims cost. Results don't depend on the cut: every output is one thread's sum in one order. */
#include "kernels/cpu/linear.h"

#include "kernels/cpu/cpu_ops.h"

#define BLOCK_BYTES                                                                                                            \
    (192 * 1024)      /* activations of a token block: L2 is 512 KiB or more on CPUs with AVX2, and weights pass through it */
#define TOKEN_ALIGN 8 /* blocks of whole tiles */
#define MIN_CHUNK_MACS 65536 /* about 1 µs of integer products; a claim and its share of the waiting is a tenth of that */
#define MAX_CHUNKS_PER_THREAD 16

typedef void span_fn(const struct linear_span *span);

struct plan {
    const struct linear_job *jobs;
    const struct act *x;
    span_fn *run;
    bool use_f32;
    int n_jobs, n_tokens, block_tokens, n_panels, n_chunks;
    int64_t n_items;
};

static int job_panels(const struct linear_job *job) { return (int)(((int64_t)job->w->n_rows + PANEL_ROWS - 1) / PANEL_ROWS); }

/* Runs panels [panel, end) of the list of all jobs' panels, in one token block. */
static void run_panels(const struct plan *plan, int block, int panel, int end) {
    struct linear_span span = {.x = plan->x, .use_f32 = plan->use_f32, .first_token = block * plan->block_tokens};
    span.n_tokens = plan->n_tokens - span.first_token;
    if (span.n_tokens > plan->block_tokens) span.n_tokens = plan->block_tokens;
    int base = 0;
    for (int j = 0; j < plan->n_jobs && panel < end; j++) {
        int count = job_panels(&plan->jobs[j]);
        if (panel < base + count) {
            int stop = end < base + count ? end : base + count;
            span.job = &plan->jobs[j];
            span.first_panel = panel - base;
            span.n_panels = stop - panel;
            plan->run(&span);
            panel = stop;
        }
        base += count;
    }
}

static void run_chunk(void *arg, int index, int thread) {
    (void)thread;
    const struct plan *plan = arg;
    int64_t item = plan->n_items * index / plan->n_chunks, end = plan->n_items * (index + 1) / plan->n_chunks;
    while (item < end) {
        int64_t block = item / plan->n_panels, stop = (block + 1) * plan->n_panels;
        if (stop > end) stop = end;
        run_panels(plan, (int)block, (int)(item - block * plan->n_panels), (int)(stop - block * plan->n_panels));
        item = stop;
    }
}

static int choose_block_tokens(const struct linear_job *job, bool integer, int n_tokens) {
    int64_t token_bytes = integer ? job->w->n_cols + job->w->n_cols / GROUP_COLS * 12 : (int64_t)job->w->n_cols * 4;
    int64_t fit = BLOCK_BYTES / (token_bytes + 1) / TOKEN_ALIGN * TOKEN_ALIGN;
    if (fit < 4 * TOKEN_ALIGN) fit = 4 * TOKEN_ALIGN;
    return fit < n_tokens ? (int)fit : n_tokens;
}

static int choose_chunks(int64_t n_items, int64_t macs, int n_threads) {
    int64_t per_thread = macs / n_threads / MIN_CHUNK_MACS;
    if (per_thread > MAX_CHUNKS_PER_THREAD) per_thread = MAX_CHUNKS_PER_THREAD;
    if (per_thread < 1) per_thread = 1;
    int64_t chunks = macs < 2 * MIN_CHUNK_MACS || n_threads == 1 ? 1 : per_thread * n_threads;
    return chunks < n_items ? (int)chunks : (int)n_items;
}

static span_fn *span_function(enum cpu_isa isa) {
#if defined(TALLY_X86)
    if (isa == CPU_ISA_AVX512) return linear_span_avx512;
    if (isa == CPU_ISA_AVX2) return linear_span_avx2;
#endif
    return linear_span_plain;
}

void cpu_linear(struct backend *b, const struct linear_job *jobs, int n_jobs, const struct act *x, int n_tokens, bool use_f32) {
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    if (n_jobs == 0 || n_tokens == 0) return;
    struct plan plan = {
        .jobs = jobs, .n_jobs = n_jobs, .x = x, .n_tokens = n_tokens, .use_f32 = use_f32, .run = span_function(cpu->isa)};
    bool integer = wfmt_is_integer(jobs[0].w->fmt) && !use_f32;
    for (int j = 0; j < n_jobs; j++) plan.n_panels += job_panels(&jobs[j]);
    plan.block_tokens = choose_block_tokens(&jobs[0], integer, n_tokens);
    plan.n_items = ((int64_t)n_tokens + plan.block_tokens - 1) / plan.block_tokens * plan.n_panels;
    int64_t macs = (int64_t)plan.n_panels * PANEL_ROWS * jobs[0].w->n_cols * n_tokens;
    plan.n_chunks = choose_chunks(plan.n_items, macs, cpu->n_threads);
    threadpool_run(cpu->pool, run_chunk, &plan, plan.n_chunks);
}
