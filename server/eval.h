/* The measurements of `tally eval`: shared by server/cmd_eval.c (options, report) and server/cmd_eval_golden.c. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "engine/evaluator.h"

int cmd_eval(int argc, char **argv);

struct perplexity {
    int n_scored;     /* tokens with a prediction: all but the first of each window */
    double mean_nll;  /* natural; perplexity = exp(mean_nll) */
    double std_error; /* of mean_nll */
};

/* −log p of ids[1..n) in one pass without a window, added up. nll (may be NULL) gets n − 1 values; logprobs (may be NULL) gets
 * every row's log-probabilities as float32, for exact comparisons outside. A progress line goes to stderr. */
enum status eval_perplexity(struct evaluator *e, const int32_t *ids, int n, float *nll, FILE *logprobs, struct perplexity *out,
                            struct err *err);

/* What a golden file says against what this model does. A golden file: tests/golden/make.py. */
struct golden_result {
    bool has_perplexity, has_top, has_greedy;
    struct perplexity perplexity;
    double golden_perplexity, ratio, mean_abs_nll_difference;
    int n_top_rows;
    double mean_kl_at_least, max_kl_at_least,
        top1_agreement; /* over the rows of `top`; merging the tail bounds KL from below */
    int n_greedy, n_greedy_same;
    double max_lead_at_parting;    /* the exact lead where outputs part: how close the race was */
    double max_logprob_difference; /* of greedy tokens before any parting */
};

/* How much of a golden file is used; 0: all of it. */
struct golden_limits {
    int n_ids;     /* of `perplexity` */
    int n_prompts; /* of `greedy` */
};

/* STATUS_CORRUPT names the golden file's field at fault. logprobs: as of eval_perplexity, for the ids of `perplexity`. */
enum status eval_golden(struct evaluator *e, const json_t *golden, struct golden_limits limits, FILE *logprobs,
                        struct golden_result *out, struct err *err);
