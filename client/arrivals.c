#include "client/arrivals.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

struct random_source random_open(uint64_t seed, uint64_t stream) {
    return (struct random_source){mix(seed + 0x9e3779b97f4a7c15u) ^ mix(mix(stream + 0x632be59bd9b4e019u))};
}

uint64_t random_next(struct random_source *r) { return mix(r->state += 0x9e3779b97f4a7c15u); }

uint64_t random_below(struct random_source *r, uint64_t n) {
    uint64_t threshold = (0 - n) % n, value; /* values below it would make small results more frequent */
    while ((value = random_next(r)) < threshold) continue;
    return value % n;
}

double random_unit(struct random_source *r) { return (double)(random_next(r) >> 11) * 0x1p-53; }

void arrivals_open(struct arrivals *a, double rate, uint64_t seed) {
    *a = (struct arrivals){.random = random_open(seed, UINT64_MAX), .rate = rate};
}

int64_t arrivals_next_us(struct arrivals *a) {
    if (a->rate <= 0) return 0;
    a->at_us += -log1p(-random_unit(&a->random)) / a->rate * 1e6;
    return (int64_t)a->at_us;
}
