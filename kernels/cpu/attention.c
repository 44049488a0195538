/* Attention cut into tasks for the threads; the arithmetic of a task is in attention_lanes.h.
 *
 * An item is up to ATTENTION_ROWS query rows (a row: one query head of one token) of one sequence that read one kv head. It walks
 * its segments of 256 positions in order. Items stand in one line (sequence, kv head, tile of rows); the line is cut into parts of
 * equal cost, several a thread, and threads take parts as they come:
 *
 *   items      |  a: 0 1 2 3  |  b: 0 1 2 3  |  c: 0 1 2 3  |      (digits: segments)
 *   parts      |---0---|---1----|---2---|---3---|----4-------|
 *
 * A part that holds an item whole merges its segments as it goes. Where a cut falls inside an item (a and b above), each segment
 * leaves its result in a slot of the workspace, and the slots are merged in the end, ascending, by the same formula: where the
 * cuts fall can't be seen in the bits. A cut inside an item that finds no slots left moves to the item's end, which costs balance
 * only. So a single sequence of three kv heads keeps any number of threads busy, and a prefill never needs a slot.
 *
 * Workspace: [threads] scratch, then slots for every query head of one token at max_positions, and 4 rows more a thread. */
#include <stddef.h>
#include <stdint.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"
#include "kernels/cpu/lane_ops.h"

#define PARTS_PER_THREAD 10
#define MAX_PARTS 640
/* Multiply-adds a part should have at least: some 3 µs. */
#define MIN_PART_MACS 100000

struct cursor {
    int seq, kv_head, first_row; /* first_row counts token·group + head of the group */
};

/* A place in the line of items where a part begins. segment > 0: inside the item, whose slots begin at `slots`. */
struct cut {
    struct cursor at;
    int segment;
    size_t slots;
};

struct job {
    const struct cpu_backend *cpu;
    float *out;
    const float *q;
    int q_stride, layer, group /* query heads of a kv head */;
    const struct attention_shape *shape;
    const struct kv_view *kv;
    const struct attn_seq *seqs;
    int n_seqs, n_parts;
    struct cut cuts[MAX_PARTS + 1]; /* part i is [cuts[i], cuts[i + 1]) */
};

/* The workspace. */

static size_t vector_stride(int head_dim) { /* floats: a vector, its maximum and its sum */
    return round_up((size_t)head_dim, 16) + 16;
}

static size_t scratch_floats(size_t stride) { return (size_t)ATTENTION_ROWS * (SCORE_STRIDE + 2 * stride); }

static size_t n_slots(const struct cpu_backend_options *o) {
    size_t segments = ((size_t)o->max_positions + ATTENTION_SEGMENT - 1) / ATTENTION_SEGMENT;
    return o->n_threads == 1 ? 0 : segments * ((size_t)o->max_heads + 4 * (size_t)o->n_threads);
}

size_t cpu_attention_workspace_bytes(const struct cpu_backend_options *o) {
    size_t stride = vector_stride(o->max_head_dim);
    return ((size_t)o->n_threads * scratch_floats(stride) + n_slots(o) * stride) * sizeof(float);
}

static size_t stride_of(const struct job *job) { return vector_stride(job->cpu->options.max_head_dim); }

static struct attention_scratch scratch_of_thread(const struct job *job, int thread) {
    size_t stride = stride_of(job);
    float *base = (float *)job->cpu->attention_workspace + (size_t)thread * scratch_floats(stride);
    float *vectors = base + ATTENTION_ROWS * SCORE_STRIDE;
    return (struct attention_scratch){
        .scores = base, .partial = vectors, .total = vectors + ATTENTION_ROWS * stride, .stride = stride};
}

static float *slot(const struct job *job, size_t index) {
    size_t stride = stride_of(job);
    return (float *)job->cpu->attention_workspace + (size_t)job->cpu->n_threads * scratch_floats(stride) + index * stride;
}

/* The line of items. */

static int item_rows(const struct job *job, struct cursor c) {
    int left = job->seqs[c.seq].n_rows * job->group - c.first_row;
    return left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
}

static int item_keys(const struct job *job, struct cursor c) {
    int last = c.first_row + item_rows(job, c) - 1;
    return job->seqs[c.seq].first_position + last / job->group + 1;
}

static int item_segments(const struct job *job, struct cursor c) {
    return (item_keys(job, c) + ATTENTION_SEGMENT - 1) / ATTENTION_SEGMENT;
}

static bool is_end(const struct job *job, struct cursor c) { return c.seq >= job->n_seqs; }

static bool is_same(struct cursor a, struct cursor b) {
    return a.seq == b.seq && a.kv_head == b.kv_head && a.first_row == b.first_row;
}

static struct cursor skip_empty(const struct job *job, struct cursor c) {
    while (c.seq < job->n_seqs && job->seqs[c.seq].n_rows == 0) c.seq++;
    return c;
}

static struct cursor item_after(const struct job *job, struct cursor c) {
    c.first_row += ATTENTION_ROWS;
    if (c.first_row < job->seqs[c.seq].n_rows * job->group) return c;
    c.first_row = 0;
    if (++c.kv_head < job->shape->n_kv_heads) return c;
    c.kv_head = 0;
    c.seq++;
    return skip_empty(job, c);
}

/* Cutting it into parts. */

static int64_t total_cost(const struct job *job) { /* query rows times keys */
    int64_t cost = 0;
    for (struct cursor c = skip_empty(job, (struct cursor){0}); !is_end(job, c); c = item_after(job, c))
        cost += (int64_t)item_rows(job, c) * item_keys(job, c);
    return cost;
}

static int parts_wanted(const struct job *job, int64_t cost) {
    int64_t parts = cost * 2 * job->shape->head_dim / MIN_PART_MACS, most = (int64_t)job->cpu->n_threads * PARTS_PER_THREAD;
    if (most > MAX_PARTS) most = MAX_PARTS;
    if (job->cpu->n_threads == 1 || parts < 2) return 1;
    return (int)(parts < most ? parts : most);
}

struct cutter {
    struct job *job;
    int64_t total, done; /* cost of all, and of what lies before the place at hand */
    int wanted, next;    /* parts wanted; the number of the next cut, done or passed over */
    size_t slots_used;
};

/* Cuts before segment `segment` of item c if the place is due; `slots` is the item's, SIZE_MAX before it has any. */
static void cut_if_due(struct cutter *k, struct cursor c, int segment, int64_t cost, size_t *slots) {
    struct job *job = k->job;
    if (k->next >= k->wanted || (k->done + cost / 2) * k->wanted < k->total * k->next) return;
    if (segment > 0 && *slots == SIZE_MAX) {
        size_t needed = (size_t)item_segments(job, c) * (size_t)item_rows(job, c);
        if (needed > n_slots(&job->cpu->options) - k->slots_used) return;
        *slots = k->slots_used;
        k->slots_used += needed;
    }
    if (k->done > 0) job->cuts[job->n_parts++] = (struct cut){c, segment, segment > 0 ? *slots : 0};
    while (k->next < k->wanted && (k->done + cost / 2) * k->wanted >= k->total * k->next) k->next++;
}

/* Fills cuts and n_parts. */
static void cut_into_parts(struct job *job) {
    struct cutter k = {.job = job, .total = total_cost(job), .next = 1};
    k.wanted = parts_wanted(job, k.total);
    struct cursor c = skip_empty(job, (struct cursor){0});
    job->cuts[0] = (struct cut){.at = c};
    job->n_parts = 1;
    for (; k.wanted > 1 && !is_end(job, c); c = item_after(job, c)) {
        size_t slots = SIZE_MAX;
        int rows = item_rows(job, c), keys = item_keys(job, c);
        for (int first = 0; first < keys; first += ATTENTION_SEGMENT) {
            int64_t cost = (int64_t)rows * (keys - first < ATTENTION_SEGMENT ? keys - first : ATTENTION_SEGMENT);
            cut_if_due(&k, c, first / ATTENTION_SEGMENT, cost, &slots);
            k.done += cost;
        }
    }
    job->cuts[job->n_parts] = (struct cut){.at = {.seq = job->n_seqs}};
}

/* Doing them. */

static void fill_task(const struct job *job, struct cursor c, struct attention_task *task) {
    const struct attn_seq *seq = &job->seqs[c.seq];
    const struct attention_shape *shape = job->shape;
    task->n_rows = item_rows(job, c);
    task->head_dim = shape->head_dim;
    task->scale = shape->scale;
    task->kv = job->kv;
    task->blocks = seq->blocks;
    task->key_offset = kv_head_offset(&job->kv->layout, job->layer, 0, c.kv_head);
    task->value_offset = kv_head_offset(&job->kv->layout, job->layer, 1, c.kv_head);
    for (int r = 0; r < task->n_rows; r++) {
        int token = (c.first_row + r) / job->group, head = c.kv_head * job->group + (c.first_row + r) % job->group;
        size_t row = (size_t)(seq->first_row + token), column = (size_t)head * (size_t)shape->head_dim;
        task->q[r] = job->q + row * (size_t)job->q_stride + column;
        task->out[r] = job->out + row * (size_t)shape->n_heads * (size_t)shape->head_dim + column;
        task->position[r] = seq->first_position + token;
    }
}

/* All segments of an item, merged on the way. */
static void walk_item(const struct job *job, struct attention_scratch *w, const struct attention_task *task, int n_segments) {
    const struct cpu_lane_ops *ops = job->cpu->lane_ops;
    float *partial = w->partial;
    w->partial = w->total;
    ops->attention_segment(w, task, 0);
    w->partial = partial;
    for (int r = 0; r < task->n_rows; r++) {
        w->total_max[r] = w->partial_max[r];
        w->total_sum[r] = w->partial_sum[r];
    }
    for (int segment = 1; segment < n_segments; segment++)
        for (int r = ops->attention_segment(w, task, segment); r < task->n_rows; r++)
            ops->attention_merge(w->total + (size_t)r * w->stride, &w->total_max[r], &w->total_sum[r],
                                 w->partial + (size_t)r * w->stride, w->partial_max[r], w->partial_sum[r], task->head_dim);
    for (int r = 0; r < task->n_rows; r++)
        ops->attention_finish(task->out[r], w->total + (size_t)r * w->stride, w->total_sum[r], task->head_dim);
}

/* Segments [first, end) of an item, each into the item's slots [segment][row]: the vector, then maximum and sum. */
static void leave_segments(const struct job *job, struct attention_scratch *w, const struct attention_task *task, size_t slots,
                           int first, int end) {
    size_t tail = w->stride - 16;
    float *partial = w->partial;
    for (int segment = first; segment < end; segment++) {
        w->partial = slot(job, slots + (size_t)segment * (size_t)task->n_rows);
        for (int r = job->cpu->lane_ops->attention_segment(w, task, segment); r < task->n_rows; r++) {
            w->partial[(size_t)r * w->stride + tail] = w->partial_max[r];
            w->partial[(size_t)r * w->stride + tail + 1] = w->partial_sum[r];
        }
    }
    w->partial = partial;
}

static void part_task(void *arg, int index, int thread) {
    const struct job *job = arg;
    struct cut from = job->cuts[index], to = job->cuts[index + 1];
    struct attention_scratch w = scratch_of_thread(job, thread);
    struct attention_task task;
    for (;;) {
        bool is_last = is_same(from.at, to.at);
        if (is_last && to.segment == 0) return;
        fill_task(job, from.at, &task);
        int n_segments = item_segments(job, from.at);
        if (from.segment > 0 || is_last)
            leave_segments(job, &w, &task, from.segment > 0 ? from.slots : to.slots, from.segment,
                           is_last ? to.segment : n_segments);
        else walk_item(job, &w, &task, n_segments);
        if (is_last) return;
        from = (struct cut){.at = item_after(job, from.at)};
    }
}

/* Merges the slots of row r and writes its output. The first slot becomes the running total. */
static void merge_row(const struct job *job, const struct attention_task *task, size_t slots, int r) {
    const struct cpu_lane_ops *ops = job->cpu->lane_ops;
    size_t tail = stride_of(job) - 16;
    float *total = slot(job, slots + (size_t)r);
    for (int segment = 1; segment * ATTENTION_SEGMENT <= task->position[r]; segment++) {
        const float *later = slot(job, slots + (size_t)(segment * task->n_rows + r));
        ops->attention_merge(total, &total[tail], &total[tail + 1], later, later[tail], later[tail + 1], task->head_dim);
    }
    ops->attention_finish(task->out[r], total, total[tail + 1], task->head_dim);
}

/* Merges the item that cut `index` is the first to divide, if it is one. */
static void merge_task(void *arg, int index, int thread) {
    const struct job *job = arg;
    const struct cut *cut = &job->cuts[index + 1];
    bool is_first = !is_same(cut->at, job->cuts[index].at) || job->cuts[index].segment == 0;
    if (cut->segment == 0 || !is_first) return;
    struct attention_task task;
    fill_task(job, cut->at, &task);
    for (int r = 0; r < task.n_rows; r++) merge_row(job, &task, cut->slots, r);
}

void cpu_attention(struct backend *b, float *out, const float *q, int q_stride, const struct attention_shape *shape,
                   const struct kv_view *kv, int layer, const struct attn_seq *seqs, int n_seqs) {
    const struct cpu_backend *cpu = (const struct cpu_backend *)(const void *)b;
    struct job job;
    if (shape->head_dim > cpu->options.max_head_dim || shape->head_dim % 16 != 0) BUG("head_dim %d", shape->head_dim);
    job.cpu = cpu, job.out = out, job.q = q, job.q_stride = q_stride, job.layer = layer, job.shape = shape, job.kv = kv;
    job.seqs = seqs, job.n_seqs = n_seqs, job.group = shape->n_heads / shape->n_kv_heads;
    cut_into_parts(&job);
    if (job.n_parts == 1) {
        part_task(&job, 0, 0);
        return;
    }
    threadpool_run(cpu->pool, part_task, &job, job.n_parts);
    for (int i = 0; i + 1 < job.n_parts; i++) merge_task(&job, i, 0);
}
