/* What sampling needs of a row of logits.
 *
 * row_stats: maximum, its lowest id, and log Σ e^x, in three passes over a row that stays in cache. The sum is Σ e^(x − max), 512 ids
 * at a time in 16 lanes (lane = id mod 16) and lanes_sum; these are added up in double, because a float sum of a whole vocabulary
 * loses its many small terms (1e-5 of 49,152). Its logarithm is taken in double (det_log) and rounded once. NaN counts as −infinity.
 * A row without any number has maximum and log_sum_exp −infinity and argmax 0; one with an infinite logit has log_sum_exp +infinity.
 *
 * sample_weights and what reads them: chunks of SAMPLE_CHUNK ids, each summed in lanes from its own beginning, and skipped where its
 * maximum says that nothing in it counts. */
#pragma once

#include "engine/base/fmath.h"
#include "kernels/backend.h"
#include "kernels/cpu/math_lanes.h"

#define SUM_BLOCK 512 /* a multiple of N_LANES */

static float row_largest(const float *x, int n) {
    lanes largest = lanes_set(-INFINITY);
    for (int i = 0; i < n; i += N_LANES) /* in this order of operands a NaN loses */
        largest = lanes_max(lanes_load_some(x + i, n - i, -INFINITY), largest);
    return lanes_largest(largest);
}

/* The lowest index where x is `value`; 0 if nowhere. */
static int row_find(const float *x, int n, float value) {
    const lanes wanted = lanes_set(value);
    for (int i = 0; i < n; i += N_LANES) {
        unsigned found = lanes_equal(lanes_load_some(x + i, n - i, NAN), wanted);
        if (found) return i + __builtin_ctz(found);
    }
    return 0;
}

static double row_exp_sum(const float *x, int n, float largest) {
    const lanes shift = lanes_set(largest), lowest = lanes_set(-INFINITY);
    double total = 0;
    for (int first = 0; first < n; first += SUM_BLOCK) {
        int end = n - first < SUM_BLOCK ? n : first + SUM_BLOCK;
        lanes sum = lanes_zero();
        for (int i = first; i < end; i += N_LANES) {
            lanes v = lanes_max(lanes_load_some(x + i, end - i, -INFINITY), lowest);
            sum = lanes_add(sum, lanes_exp(lanes_sub(v, shift)));
        }
        total += (double)lanes_sum(sum);
    }
    return total;
}

static void row_stats_one(struct row_stat *stat, const float *x, int n) {
    float largest = row_largest(x, n);
    *stat = (struct row_stat){.max = largest, .argmax = 0, .log_sum_exp = largest};
    if (largest > -INFINITY) stat->argmax = row_find(x, n, largest);
    if (largest > -INFINITY && largest < INFINITY)
        stat->log_sum_exp = (float)((double)largest + det_log(row_exp_sum(x, n, largest)));
}

/* A chunk's sum is taken in lanes: its terms are few and at most 1. */
static void sample_weights_of_row(const struct sample_weights *out, const float *logits, int n, float max,
                                  float inverse_temperature, float least) {
    const lanes shift = lanes_set(max), factor = lanes_set(inverse_temperature), lowest = lanes_set(-INFINITY),
                one = lanes_set(1), smallest = lanes_set(least);
    for (int first = 0, chunk = 0; first < n; first += SAMPLE_CHUNK, chunk++) {
        int end = n - first < SAMPLE_CHUNK ? n : first + SAMPLE_CHUNK;
        lanes sum = lanes_zero(), largest = lanes_zero();
        for (int i = first; i < end; i += N_LANES) {
            lanes x = lanes_mul(lanes_sub(lanes_load_some(logits + i, end - i, -INFINITY), shift), factor);
            lanes w = lanes_min(lanes_exp(lanes_max(x, lowest)), one); /* in this order of operands a NaN loses */
            w = lanes_if_less(w, smallest, lanes_zero(), w);
            lanes_store_some(out->weights + i, end - i, w);
            sum = lanes_add(sum, w);
            largest = lanes_max(w, largest);
        }
        out->chunk_sums[chunk] = lanes_sum(sum);
        out->chunk_maxima[chunk] = lanes_largest(largest);
    }
}

/* The sum of the n weights that are larger than `limit`. */
static double mass_above(const float *w, int n, float limit) {
    const lanes most = lanes_set(limit);
    lanes sum = lanes_zero();
    for (int i = 0; i < n; i += N_LANES) {
        lanes some = lanes_load_some(w + i, n - i, 0);
        sum = lanes_add(sum, lanes_if_less(most, some, some, lanes_zero()));
    }
    return (double)lanes_sum(sum);
}

/* Before id as large a weight is better, after it only a larger one. */
static double sample_mass_above_in_row(const struct sample_weights *row, int n, int32_t id) {
    const float weight = row->weights[id], smaller = f32_from_bits(f32_bits(weight) - 1); /* the next float */
    double mass = 0;
    for (int first = 0, chunk = 0; first < n; first += SAMPLE_CHUNK, chunk++) {
        const float *w = row->weights + first;
        int n_chunk = n - first < SAMPLE_CHUNK ? n - first : SAMPLE_CHUNK, at = id - first;
        if (row->chunk_maxima[chunk] < weight) continue;
        if (at < 0) mass += mass_above(w, n_chunk, weight);
        else if (at >= n_chunk) mass += mass_above(w, n_chunk, smaller);
        else mass += mass_above(w, at, smaller) + mass_above(w + at + 1, n_chunk - at - 1, weight);
    }
    return mass;
}

/* Most chunks have no weight as large as those that are kept, and most vectors of the others none in the band. */
static int sample_band_of_row(struct candidate *found, const struct sample_weights *row, int n, float least, float below) {
    const lanes from = lanes_set(least), to = lanes_set(below);
    int n_found = 0;
    for (int first = 0, chunk = 0; first < n; first += SAMPLE_CHUNK, chunk++) {
        if (row->chunk_maxima[chunk] < least) continue;
        int end = n - first < SAMPLE_CHUNK ? n : first + SAMPLE_CHUNK;
        for (int i = first; i < end; i += N_LANES) {
            lanes w = lanes_load_some(row->weights + i, end - i, 0);
            for (unsigned in = lanes_less(w, to) & ~lanes_less(w, from); in; in &= in - 1) {
                int id = i + __builtin_ctz(in);
                found[n_found++] = (struct candidate){id, row->weights[id]};
            }
        }
    }
    return n_found;
}

static void exp_of_vector(float *y, const float *x, int n) {
    for (int i = 0; i < n; i += N_LANES) lanes_store_some(y + i, n - i, lanes_exp(lanes_load_some(x + i, n - i, 0)));
}
