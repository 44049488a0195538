/* From a row of logits to a token.
 *
 * Order: logits / temperature, then the top_k best, then the fewest best whose probabilities, renormalised over those left, reach
 * top_p, then those with at least min_p times the best one's probability; then a draw among what is left. Temperature 0 takes the
 * best, the lowest id among equals. Log-probabilities are the model's own: of the logits as they are.
 *
 * A draw depends on (seed, choice, index of the token) alone: not on batch, preemption or what other requests drew. No step sorts the
 * vocabulary: candidates are cut by thresholds first.
 *
 * Owner: the engine thread. */
#pragma once

#include "engine/engine.h"
#include "kernels/backend.h"

struct candidate {
    int32_t id;
    float weight; /* exp((logit − max)/temperature): at most 1 */
};

struct sampler {
    int vocab;
    float *weights;               /* [vocab] */
    struct candidate *candidates; /* [vocab] */
};

/* Bytes for a vocabulary, and room for the statistics of max_rows rows: part of LINE_LOGITS. */
size_t sampler_bytes(int vocab, int max_rows);
void sampler_init(struct sampler *s, int vocab, struct memory_source memory);

int32_t sampler_draw(struct sampler *s, const float *logits, const struct row_stat *stat, const struct sampling *sampling, int choice,
                     int index);

/* The n best ids of a row with their log-probabilities, best first, the lowest id first among equals. n ≤ MAX_TOP_LOGPROBS. */
void sampler_top(const float *logits, int vocab, float log_sum_exp, int n, struct top_logprob *top);

/* Uniform in [0, 1) from (seed, choice, index). */
double sampler_uniform(uint64_t seed, int choice, int index);
