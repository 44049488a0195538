/* The engine: a model, its KV pool, and the step loop that serves many sequences at once, on one thread of its own.
 *
 * Requests go in by engine_submit, answers come out as events by engine_poll. Both are non-blocking and may be called from any one
 * thread each; an eventfd says that there are events. The engine knows token ids only; text is the server's.
 *
 * A request's tokens and logprobs do not depend on what else is being served: not on batch, chunking, preemption or threads. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/ledger.h"
#include "engine/tokenizer.h"

#define MAX_TOP_LOGPROBS 20
#define MAX_CHOICES 16 /* n */

enum activation_mode { ACTIVATION_INT8, ACTIVATION_F32 };

#define MAX_THREADS 256
/* A longer step serves prompts hardly faster, and every stream waits for it (docs/performance.md). */
#define DEFAULT_BATCH_TOKENS 256

struct engine_options {
    const char *model_path;
    int n_threads;        /* 1 to MAX_THREADS; 0: every usable CPU, up to that */
    int max_context;      /* tokens of prompt and completion; 0: the model's, at most what the pool can hold */
    int max_seqs;         /* sequences in a step */
    int max_batch_tokens; /* tokens in a step, at least max_seqs; 0: DEFAULT_BATCH_TOKENS, or max_seqs if that is more */
    int max_queue;        /* requests waiting beyond those running */
    int block_tokens;     /* multiple of 16 */
    size_t memory_budget; /* bytes; 0: automatic, printed as resolved */
    bool activations_f32; /* exact activations: slow */
    /* What the server above wants planned: LINE_REQUESTS (an arena), LINE_HTTP (a library's). */
    size_t request_bytes, http_bytes;
};

/* Everything the options resolve to, and what it costs. Opens only the file's header. STATUS_NO_MEMORY when it does not fit, the
 * text naming the nearest settings that would, each priced. */
enum status engine_plan(const struct engine_options *options, struct engine_options *resolved, struct plan *plan,
                        struct err *err);

struct engine;
enum status engine_open(struct engine **out, const struct engine_options *options, struct err *err);
/* Starts the engine thread; ledger_ready was called. */
enum status engine_start(struct engine *e, struct err *err);
/* Stops the thread, cancelling what is left; frees all. */
void engine_close(struct engine *e);

struct sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1] */
    float min_p;       /* [0, 1] */
    int top_k;         /* 0: all */
    uint64_t seed;     /* the n-th token of a choice draws from (seed, choice, n) alone */
};

struct engine_request {
    const int32_t *prompt; /* copied; ids in range, at least one */
    int n_prompt;
    int max_tokens; /* of completion; n_prompt + max_tokens ≤ max_context. 0: the prompt alone */
    int n_choices;  /* 1..MAX_CHOICES; each is a sequence, the prompt's full blocks are shared */
    struct sampling sampling;
    bool ignore_eos;
    int n_logprobs;       /* −1: none; 0: the token's own; up to MAX_TOP_LOGPROBS best beside it */
    bool prompt_logprobs; /* an EVENT_PROMPT for every prompt token, with n_logprobs (choice 0 only) */
    int64_t arrival_us;   /* clock_us() at which the request came in */
    uint64_t tag;         /* given back in events */
};

enum event_kind { EVENT_PROMPT, EVENT_TOKEN, EVENT_FINISH };
enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_COUNT };

struct top_logprob {
    int32_t id;
    float logprob;
};

struct engine_event {
    uint64_t id, tag;
    enum event_kind kind;
    int choice;
    int32_t token; /* PROMPT, TOKEN; a TOKEN that ends generation (eos) is not sent as TOKEN, but named in FINISH, else −1 */
    float logprob; /* PROMPT: NAN for the first token */
    int n_top;
    struct top_logprob top[MAX_TOP_LOGPROBS]; /* best first */
    enum finish_reason reason;                /* FINISH */
    int n_prompt, n_generated;                /* FINISH: generated counts the end token too */
    int64_t at_us;                            /* when the step that made it ended */
    int64_t queued_us, first_token_us; /* FINISH: time waiting before first scheduled; arrival → first token, −1 if none */
};

/* Copies the request and queues it. STATUS_BUSY: queue full. STATUS_INVALID: could never run (param "prompt" or "max_tokens", the
 * text with prompt tokens, asked, limit). STATUS_DRAINING after engine_drain. *id names it for engine_cancel. */
enum status engine_submit(struct engine *e, const struct engine_request *request, uint64_t *id, struct err *err);
/* Ends a request within one step, blocks freed; a choice < 0 means all. One FINISH per choice still comes. Unknown ids are ignored. */
void engine_cancel(struct engine *e, uint64_t id, int choice);
/* Refuses new requests from now on; those queued and running go on. */
void engine_drain(struct engine *e);
/* Takes up to max events, in order for each choice. */
int engine_poll(struct engine *e, struct engine_event *events, int max);
/* Readable (eventfd) when there may be events; engine_poll resets it. */
int engine_event_fd(const struct engine *e);

/* Counters and gauges; a consistent copy of the last step's end. */
struct engine_stats {
    int running;
    int waiting_capacity, waiting_seqs, waiting_tokens; /* for blocks; for a sequence slot; for the step's token budget */
    int blocks_total, blocks_used, blocks_free;
    int blocks_leaked; /* held although nothing ran or waited, when that was last so; other than 0 is a bug, and ends nothing */
    uint64_t prompt_tokens, generated_tokens, steps, preemptions, scheduled_tokens, recomputed_tokens;
    uint64_t finished[FINISH_COUNT];
    int64_t last_step_us, oldest_step_start_us; /* for the watchdog: start of a step still running, 0: idle */
    bool stuck;                                 /* work waits and nothing has been scheduled for WATCHDOG seconds */
};
void engine_stats_read(const struct engine *e, struct engine_stats *stats);

const struct engine_options *engine_resolved(const struct engine *e);
const struct tokenizer *engine_tokenizer(const struct engine *e);
struct ledger *engine_ledger(const struct engine *e);
const char *engine_model_name(const struct engine *e); /* the file's name without directory and .gguf */
const char *engine_backend_name(const struct engine *e);
int engine_vocab(const struct engine *e);
