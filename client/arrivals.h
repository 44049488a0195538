/* When requests are sent, and the random numbers behind it.
 *
 * Open loop: a Poisson process, gaps exponential with mean 1 / rate, the same for the same seed. They are not rescaled afterwards to
 * last exactly n / rate (vllm bench serve does that): a run is then a sample of the process that was asked for. Closed loop: no
 * schedule, a request is due as soon as another has ended. */
#pragma once

#include <stdint.h>

/* splitmix64: any seed is a good one, and (seed, stream) pairs are independent. */
struct random_source {
    uint64_t state;
};
struct random_source random_open(uint64_t seed, uint64_t stream);
uint64_t random_next(struct random_source *r);
/* In [0, n), n > 0, unbiased. */
uint64_t random_below(struct random_source *r, uint64_t n);
/* In [0, 1). */
double random_unit(struct random_source *r);

struct arrivals {
    struct random_source random;
    double rate;  /* a second; 0: closed loop */
    double at_us; /* when the last one came, from the start of the run */
};

void arrivals_open(struct arrivals *a, double rate, uint64_t seed);
/* Microseconds from the start of the run at which the next request is due; the closed loop gives 0 always. */
int64_t arrivals_next_us(struct arrivals *a);
