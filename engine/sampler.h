/* From a row of logits to a token.
 *
 * Order: logits / temperature, then the top_k best, then the fewest best whose probabilities, renormalised over those left, reach
 * top_p, then those with at least min_p times the best one's probability; then a draw among what is left. Temperature 0 takes the
 * best, the lowest id among equals. Log-probabilities are the model's own: of the logits as they are.
 *
 * A draw depends on (seed, choice, index of the token) alone: not on batch, preemption or what other requests drew. Nothing sorts the
 * vocabulary: one pass counts weights by size, one collects what is kept, and only the bucket at the border is selected from.
 *
 * Owner: the engine thread. */
#pragma once

#include "engine/engine.h"
#include "kernels/backend.h"

struct candidate {
    int32_t id;
    float weight; /* exp((logit − max)/temperature): at most 1 */
};

struct bucket {
    double mass[2]; /* of even and of odd ids: neighbours fall into one bucket, and additions to one sum wait for each other */
    int32_t n[2];
};

struct sampler {
    int vocab;
    float *weights;               /* [vocab] */
    struct candidate *candidates; /* [vocab] */
    double *chunk_sums;           /* of weights, for a draw from all */
    struct bucket *buckets;       /* weights by size */
};

/* Bytes for a vocabulary, and room for the statistics of max_rows rows: part of LINE_LOGITS. */
size_t sampler_bytes(int vocab, int max_rows);
void sampler_init(struct sampler *s, int vocab, struct memory_source memory);

int32_t sampler_draw(struct sampler *s, const float *logits, const struct row_stat *stat, const struct sampling *sampling,
                     int choice, int index);

/* What top_k, top_p and min_p leave of s->weights, in s->candidates, in no order: how many. A part of sampler_draw. */
int sampler_filter(struct sampler *s, const struct sampling *sampling);

/* The n best ids of a row with their log-probabilities, best first, the lowest id first among equals. n ≤ MAX_TOP_LOGPROBS. */
void sampler_top(const float *logits, int vocab, float log_sum_exp, int n, struct top_logprob *top);

/* Uniform in [0, 1) from (seed, choice, index). */
double sampler_uniform(uint64_t seed, int choice, int index);
