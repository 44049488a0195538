/* The plan: every byte the server will hold, from a model file's header and the options alone.
 *
 * A pure function: no tensor data is read, no device is touched, nothing is allocated that lives on. It resolves what the options
 * leave open (0) in this order: threads, context, the budget, and last the KV pool, which gets what is left of the budget. */
#pragma once

#include "engine/engine.h"
#include "engine/formats_gguf.h"
#include "engine/model.h"
#include "kernels/cpu/cpu_backend.h"

/* A model file's header, read: what a plan needs and what loading goes on with. */
struct model_source {
    struct gguf *file;
    struct model_desc desc;
    struct vocab vocab;
};

enum status model_source_open(struct model_source *source, const char *path, struct err *err);
void model_source_close(struct model_source *source);

/* Fills resolved (every field final) and plan. STATUS_INVALID: an option out of range or contradicting the model (param names it).
 * STATUS_NO_MEMORY: the budget does not hold it; the text says what would. */
enum status plan_build(const struct model_source *source, const struct engine_options *options, struct engine_options *resolved,
                       struct plan *plan, struct err *err);

/* The backend that the plan prices, from resolved options; whoever opens one chooses the instruction set. */
struct cpu_backend_options plan_backend_options(const struct engine_options *resolved, const struct model_desc *desc);

/* Rows of logits that one chunk holds, from resolved options: enough for one row of every sequence. */
int plan_logit_rows(const struct engine_options *resolved);
