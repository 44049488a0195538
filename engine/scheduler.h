/* The scheduler: which tokens of which sequences make the next step. Pure logic over blocks and counts; it knows no model.
 *
 * There are no prefill and decode phases: a sequence has `computed` chasing `n_tokens`, and a step is a list of (sequence, n tokens)
 * within the step's token budget, the sequence slots and the KV pool.
 *
 * A step, in this order:
 *   1. every running sequence that lacks one token gets it (its decode), oldest first. If the pool has no block for it, the sequence
 *      admitted last is preempted, by recompute;
 *   2. running prefills take what is left of the token budget, oldest first;
 *   3. unless somebody was preempted in this step, sequences are admitted while slots, budget and blocks last: preempted ones first, then
 *      the queue in order of arrival.
 *
 * Rules
 *   1. All blocks of a sequence's known tokens are taken when it is admitted, so only decoding can run out of blocks.
 *   2. A sequence is admitted only if the watermark stays free besides, except into an empty engine. The watermark is a block for each
 *      running sequence and a reserve that doubles with each preemption and decays without: after a preemption nobody is admitted into
 *      the space that decoding is about to need, so resume → preempt → resume cannot cycle.
 *   3. A waiting request that lacks blocks lets later ones pass that have them, at most SCHEDULER_MAX_BYPASS of them, whatever its place
 *      in the queue; then everybody behind it waits with it.
 *   4. A request that could never run was refused on arrival (its prompt and max_tokens fit the context, and a context fits the
 *      pool), so into an empty engine the head can always be admitted: a step that schedules nothing while work waits is a bug,
 *      which the engine reports and its watchdog shows.
 *   5. Choices of one request share the full blocks of its prompt: they are admitted once a sibling has computed it. The rest of the
 *      prompt's last block is computed by each: the same bits.
 *
 * Owner: the engine thread. */
#pragma once

#include "engine/batch.h"
#include "engine/block_pool.h"
#include "engine/sequence.h"

#define SCHEDULER_MAX_BYPASS 64 /* rule 3 */

enum admission_limit { ADMISSION_OPEN, LIMIT_BLOCKS, LIMIT_SEQUENCES, LIMIT_TOKENS };

struct scheduler {
    struct sequence_store *store;
    struct block_pool *pool;
    int max_batch_tokens, block_tokens;
    int32_t *running;   /* [max_seqs] sequence slots by age of admission */
    int32_t *preempted; /* [max_seqs] oldest first */
    int n_running, n_preempted;
    int32_t queue_first, queue_last; /* requests with unstarted choices, by arrival; −1: none */
    int n_queued;                    /* choices not started, of requests in the queue */
    int32_t *scheduled;              /* [max_seqs] sequences of the step at hand, in the order of the batch */
    int n_scheduled;
    uint64_t n_admitted;
    int reserve, quiet_steps;   /* of the watermark: blocks, and steps since it last changed */
    enum admission_limit limit; /* what stopped admission in the last step */
    uint64_t preemptions, recomputed_tokens;
};

/* Bytes of LINE_SEQUENCES for the scheduler's lists and the batch. */
size_t scheduler_bytes(const struct engine_options *resolved);
void scheduler_init(struct scheduler *s, struct batch *batch, struct sequence_store *store, struct block_pool *pool,
                    const struct engine_options *resolved, struct ledger *ledger);

/* Puts a request at the end of the queue. */
void scheduler_enqueue(struct scheduler *s, int32_t request);
/* Fills the batch with the next step. False: nothing is scheduled, which with work waiting breaks rule 4. */
bool scheduler_step(struct scheduler *s, struct batch *batch);
/* The step was computed: every scheduled sequence's `computed` moves on. */
void scheduler_commit(struct scheduler *s);
/* Ends a running or preempted sequence: blocks and slot are free again. */
void scheduler_finish(struct scheduler *s, int32_t sequence);
/* Ends a choice that was never started. The request leaves the queue with its last one. */
void scheduler_drop_unstarted(struct scheduler *s, int32_t request, int choice);
bool scheduler_has_work(const struct scheduler *s);
