/* From a row of logits to a token.
 *
 * Order: logits / temperature, then the top_k best, then the fewest best whose probabilities, renormalised over those left, reach
 * top_p, then those with at least min_p times the best one's probability; then a draw among what is left. Temperature 0 takes the
 * best, the lowest id among equals. Log-probabilities are the model's own: of the logits as they are.
 *
 * A draw depends on (seed, choice, index of the token) alone: not on batch, preemption or what other requests drew.
 *
 * Nothing sorts the vocabulary. The backend turns the row into weights, with each chunk's sum and maximum. A draw from all of them
 * finds its chunk by the sums. With top_p alone that is done until a token comes that is among the best: the mass of what is better
 * is one pass, which skips every chunk that has nothing as large. Any other cut takes weights in bands, from the largest down and
 * ever wider, until the bands hold what is to be kept; only the last band is selected from. (Rejected: counting all weights by size
 * first, which is a pass of scattered additions over the whole vocabulary.)
 *
 * Owner: the engine thread. */
#pragma once

#include "engine/engine.h"
#include "kernels/backend.h"

struct sampler {
    int vocab;
    struct backend *backend;
    struct sample_weights row;    /* of the row drawn from last */
    struct candidate *candidates; /* [vocab] */
};

/* Bytes for a vocabulary, and room for the statistics of max_rows rows: part of LINE_LOGITS. */
size_t sampler_bytes(int vocab, int max_rows);
/* The backend stays the caller's. */
void sampler_init(struct sampler *s, int vocab, struct backend *backend, struct memory_source memory);

int32_t sampler_draw(struct sampler *s, const float *logits, const struct row_stat *stat, const struct sampling *sampling,
                     int choice, int index);

/* What top_k, top_p and min_p leave of s->row, in s->candidates, in no order: how many. A part of sampler_draw. */
int sampler_filter(struct sampler *s, const struct sampling *sampling);

/* The n best ids of a row with their log-probabilities, best first, the lowest id first among equals. n ≤ MAX_TOP_LOGPROBS. */
void sampler_top(const float *logits, int vocab, float log_sum_exp, int n, struct top_logprob *top);

/* Uniform in [0, 1) from (seed, choice, index). */
double sampler_uniform(uint64_t seed, int choice, int index);
