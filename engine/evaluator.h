/* A model opened for scoring in process: one sequence, no scheduler, every row's logits within reach.
 *
 * It is the same plan, ledger, backend and forward as serving, so what it measures is what the server answers. One thread uses it. */
#pragma once

#include "engine/engine.h"
#include "engine/tokenizer.h"

struct evaluator;

/* Of the options model_path, n_threads, max_context (0: the model's), activations_f32 and memory_budget count. */
enum status evaluator_open(struct evaluator **out, const struct engine_options *options, struct err *err);
void evaluator_close(struct evaluator *e);

/* Called for a row: `logits` [vocab] predict the token after `position`; valid during the call. */
typedef void (*evaluator_row)(void *context, int position, const float *logits, float log_sum_exp);

/* Forgets the sequence. */
void evaluator_reset(struct evaluator *e);
/* Appends ids and calls row for each of them (all_rows) or for the last one. STATUS_TOO_LARGE past the context; STATUS_INVALID for
 * an id out of range. */
enum status evaluator_append(struct evaluator *e, const int32_t *ids, int n, bool all_rows, evaluator_row row, void *context,
                             struct err *err);

int evaluator_vocab(const struct evaluator *e);
int evaluator_max_context(const struct evaluator *e);
const struct tokenizer *evaluator_tokenizer(const struct evaluator *e);
const char *evaluator_backend_name(const struct evaluator *e);
const struct plan *evaluator_plan(const struct evaluator *e);
