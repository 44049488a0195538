/* Requests and sequences: who is served, and how far each has come.
 *
 * A request is what was submitted: a prompt, its sampling and 1 to MAX_CHOICES choices. Each choice becomes a sequence when it is
 * admitted: it then has a slot with a token array and a block table, and `computed` chases `n_tokens`.
 *
 *     request:  queued ──first choice admitted──▶ partly running ──all choices done──▶ free
 *
 *     choice:   UNSTARTED ──admit──▶ RUNNING ──end token, length, cancel──▶ DONE
 *                                    │    ▲
 *                            preempt ▼    │ admit again: tokens kept, everything computed anew
 *                                  PREEMPTED
 *
 * A preempted sequence keeps its slot and its tokens and gives back its blocks.
 * Owner: the engine thread, but for the fields of a request marked otherwise. All memory is planned: sequence_store_bytes. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

enum choice_state { CHOICE_UNSTARTED, CHOICE_RUNNING, CHOICE_PREEMPTED, CHOICE_DONE };

struct request {
    struct engine_request params; /* params.prompt points at `prompt` */
    int32_t *prompt;              /* [max_context] */
    uint64_t id;                  /* 0: free; written under the inbox's lock */
    _Atomic uint32_t cancel_mask; /* a bit for each choice; set by anyone, obeyed at a step's start */
    enum choice_state choices[MAX_CHOICES];
    int n_unstarted, n_done;
    bool is_known;              /* the scheduler has it; until then cancels wait */
    int n_bypassed;             /* how often smaller requests went first */
    int64_t first_scheduled_us; /* −1: not yet */
    int32_t next;               /* queue link: index of the next request, −1 ends */
};

struct sequence {
    int32_t request; /* index; −1: the slot is free */
    int choice;
    enum choice_state state; /* RUNNING or PREEMPTED */
    int32_t *tokens;         /* [max_context] prompt, then generated */
    int n_prompt, n_tokens, computed;
    int32_t *blocks; /* [max_context / block_tokens, rounded up] */
    int n_blocks;
    int n_scheduled;        /* rows in the step at hand */
    int n_prompt_reported;  /* prompt tokens whose EVENT_PROMPT was sent; a recomputed prompt is not reported twice */
    uint64_t admitted;      /* order of first admission */
    int64_t first_token_us; /* −1: none yet */
};

struct sequence_store {
    struct sequence *sequences; /* [max_seqs] */
    struct request *requests;   /* [n_requests] */
    int max_seqs, n_requests, max_context, max_blocks /* of a sequence */;
};

/* Requests that can be held: max_seqs that run and max_queue that wait. */
int request_slots(const struct engine_options *resolved);
/* Bytes of LINE_SEQUENCES for the store, and of LINE_KV_TABLES for the block tables. */
size_t sequence_store_bytes(const struct engine_options *resolved);
size_t block_table_bytes(const struct engine_options *resolved);
void sequence_store_init(struct sequence_store *s, const struct engine_options *resolved, struct ledger *ledger);

static inline int sequence_remaining(const struct sequence *q) { return q->n_tokens - q->computed; }
static inline int sequence_n_generated(const struct sequence *q) { return q->n_tokens - q->n_prompt; }
