/* Samples kept whole, and exact figures of them: a percentile is never a bucket's edge. 8 bytes a sample; the largest run this client
 * takes (a million requests of a hundred tokens) is 800 MB, an ordinary one a few. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct samples {
    double *values; /* owned */
    size_t n, capacity;
    bool is_sorted;
};

/* false: out of memory, the sample is dropped. */
bool samples_add(struct samples *s, double value);
bool samples_append(struct samples *s, const struct samples *from);
void samples_clear(struct samples *s); /* keeps the memory */
void samples_free(struct samples *s);

/* All give 0 for no samples. */
double samples_mean(const struct samples *s);
double samples_std(const struct samples *s); /* of the population, as numpy's */
double samples_max(const struct samples *s);
/* The p-th percentile, p in [0, 100], linear between ranks as numpy's default. Sorts the samples. */
double samples_percentile(struct samples *s, double p);
