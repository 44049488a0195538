#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"
#include "engine/base/f16.h"

#define LANES 16
#define CHUNK 256            /* ids that share one partial sum */
#define ONE_BITS 0x3f800000u /* of 1.0f, the largest weight */
#define BUCKET_BITS 20       /* buckets are an eighth of an octave wide */
#define N_BUCKETS (int)((ONE_BITS >> BUCKET_BITS) + 1)

static size_t n_chunks(int vocab) { return ((size_t)vocab + CHUNK - 1) / CHUNK; }

size_t sampler_bytes(int vocab, int max_rows) {
    return round_up((size_t)vocab * sizeof(float), 64) + round_up((size_t)vocab * sizeof(struct candidate), 64) +
           round_up(n_chunks(vocab) * sizeof(double), 64) + round_up((size_t)N_BUCKETS * sizeof(struct bucket), 64) +
           round_up((size_t)max_rows * sizeof(struct row_stat), 64);
}

void sampler_init(struct sampler *s, int vocab, struct memory_source memory) {
    *s = (struct sampler){.vocab = vocab};
    s->weights = memory.alloc(memory.context, (size_t)vocab * sizeof *s->weights);
    s->candidates = memory.alloc(memory.context, (size_t)vocab * sizeof *s->candidates);
    s->chunk_sums = memory.alloc(memory.context, n_chunks(vocab) * sizeof *s->chunk_sums);
    s->buckets = memory.alloc(memory.context, (size_t)N_BUCKETS * sizeof *s->buckets);
    if (!s->weights || !s->candidates || !s->chunk_sums || !s->buckets) BUG("sampler: its line is too small");
}

/* ---- draws ---- */

static uint64_t mix(uint64_t x) { /* the finalizer of splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double sampler_uniform(uint64_t seed, int choice, int index) {
    uint64_t h = mix(mix(mix(seed) ^ (uint64_t)choice) ^ ((uint64_t)index << 32));
    return (double)(h >> 11) * 0x1p-53;
}

/* ---- weights ---- */

/* e^−|x|, within 3e-7 relative and at most 1; 0 where |x| is above 87, and for NaN. Multiplications, additions and integer comparisons
 * without a branch or a call, so that every compiler makes vectors of it, of any width and with the same bits. */
static inline float exp_negative(float x) {
    const float to_integer = 12582912.0f; /* 1.5·2^23: adding it rounds to nearest even */
    const int32_t limit = 0x42ae0000;     /* bits of 87.0f; positive floats are ordered like their bits */
    int32_t magnitude = (int32_t)(f32_bits(x) & 0x7fffffff), within = magnitude < limit ? magnitude : limit;
    float y = -f32_from_bits((uint32_t)within), shifted = y * 1.44269504f + to_integer, whole = shifted - to_integer;
    float f = (y - whole * 0.693359375f) + whole * 2.12194440e-4f; /* ln 2 in two parts, the first product exact */
    float p = 1.0f + f * (1.0f + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.0083333338f + f * 0.0013888889f)))));
    float power = f32_from_bits((f32_bits(shifted) - f32_bits(to_integer) + 127) << 23);
    int32_t bits = (int32_t)f32_bits(p * power), one = (int32_t)ONE_BITS;
    bits = bits < one ? bits : one;
    return f32_from_bits((uint32_t)(bits & -(magnitude <= limit))); /* a mask: a conditional would become a branch */
}

/* weights[i] = exp((logits[i] − max)/temperature), at most 1. NaN logits weigh nothing. */
static void fill_weights(float *restrict weights, const float *restrict logits, int n, float max, float temperature) {
    float inverse = 1.0f / temperature;
    for (int i = 0; i < n; i++) weights[i] = exp_negative((logits[i] - max) * inverse);
}

/* ---- a draw from the whole vocabulary ---- */

/* w, or 0 when it is less than `least`: weights are not negative, so their bits are in order. */
static inline float at_least(float w, float least) {
    int32_t bits = (int32_t)f32_bits(w);
    return f32_from_bits((uint32_t)(bits & -(bits >= (int32_t)f32_bits(least))));
}

static double sum_chunk(const float *w, int n, float least) {
    double lanes[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)at_least(w[i + j], least);
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)at_least(w[i], least);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

/* A draw in proportion to the weights that are at least `least`; −1 when all are 0. */
static int32_t pick_of_all(struct sampler *s, float least, double uniform) {
    int chunks = (int)n_chunks(s->vocab);
    double total = 0;
    for (int c = 0; c < chunks; c++) {
        int n = s->vocab - c * CHUNK < CHUNK ? s->vocab - c * CHUNK : CHUNK;
        total += s->chunk_sums[c] = sum_chunk(s->weights + c * CHUNK, n, least);
    }
    double target = uniform * total, sum = 0;
    int32_t last = -1; /* rounding may leave the target just past the end of its chunk */
    for (int c = 0; c < chunks; c++) {
        if (s->chunk_sums[c] == 0 || (sum + s->chunk_sums[c] <= target && c + 1 < chunks)) {
            sum += s->chunk_sums[c];
            continue;
        }
        for (int32_t i = c * CHUNK; i < s->vocab && i < (c + 1) * CHUNK; i++) {
            if (s->weights[i] == 0 || s->weights[i] < least) continue;
            last = i;
            if ((sum += (double)s->weights[i]) > target) return i;
        }
        if (last >= 0) return last;
    }
    return last;
}

/* ---- the best of them ---- */

static inline bool is_better(struct candidate a, struct candidate b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

static inline double amount(struct candidate c, bool by_mass) { return by_mass ? (double)c.weight : 1.0; }

static inline void swap(struct candidate *a, struct candidate *b) {
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves what is better than a pivot (the median of first, middle and last) before it; returns where the pivot lands. */
static int partition(struct candidate *c, int n) {
    struct candidate *middle = c + n / 2, *end = c + n - 1;
    if (is_better(*middle, *c)) swap(middle, c);
    if (is_better(*end, *c)) swap(end, c);
    if (is_better(*middle, *end)) swap(middle, end); /* now *end is the median */
    int at = 0;
    for (int i = 0; i < n - 1; i++)
        if (is_better(c[i], *end)) swap(&c[i], &c[at++]);
    swap(&c[at], end);
    return at;
}

/* Moves the fewest best whose amounts (1 each, or their weights) reach `wanted` to the front, in no order, and returns how many. */
static int select_best(struct candidate *c, int n, double wanted, bool by_mass) {
    int low = 0, high = n; /* before low: in; from high on: out */
    while (low < high) {
        int mid = low + partition(c + low, high - low);
        double better = 0;
        for (int i = low; i < mid; i++) better += amount(c[i], by_mass);
        if (better >= wanted) {
            high = mid;
            continue;
        }
        wanted -= better + amount(c[mid], by_mass);
        low = mid + 1;
        if (wanted <= 0) break;
    }
    return low;
}

static inline int bucket_of(float weight) { return (int)((ONE_BITS - f32_bits(weight)) >> BUCKET_BITS); }

/* Counts and sums weights by size, so that one more pass collects what is kept and only the bucket at the border needs selecting. */
static double fill_buckets(struct sampler *s) {
    memset(s->buckets, 0, (size_t)N_BUCKETS * sizeof *s->buckets);
    for (int32_t i = 0; i < s->vocab; i++) {
        struct bucket *b = &s->buckets[bucket_of(s->weights[i])];
        b->mass[i & 1] += (double)s->weights[i];
        b->n[i & 1]++;
    }
    double total = 0;
    for (int b = 0; b < N_BUCKETS; b++) total += s->buckets[b].mass[0] + s->buckets[b].mass[1];
    return total;
}

/* Candidates become the fewest best of the vocabulary whose amounts reach `wanted`, in no order; returns how many. Weights of 0 are
 * never taken. */
static int keep_best(struct sampler *s, double wanted, bool by_mass) {
    int border = 0;
    for (; border < N_BUCKETS - 1; border++) {
        const struct bucket *b = &s->buckets[border];
        double whole = by_mass ? b->mass[0] + b->mass[1] : (double)(b->n[0] + b->n[1]);
        if (whole >= wanted) break;
        wanted -= whole;
    }
    float above = f32_from_bits(ONE_BITS - ((uint32_t)border << BUCKET_BITS)); /* larger ones are in a better bucket */
    float least = f32_from_bits(ONE_BITS - ((uint32_t)border << BUCKET_BITS) - ((1u << BUCKET_BITS) - 1));
    if (border == N_BUCKETS - 1) least = f32_from_bits(1);
    int n = 0, from = s->vocab; /* the border's go to the far end first */
    for (int32_t i = 0; i < s->vocab; i++) {
        float w = s->weights[i];
        if (w < least) continue;
        if (w > above) s->candidates[n++] = (struct candidate){i, w};
        else s->candidates[--from] = (struct candidate){i, w};
    }
    int chosen = select_best(s->candidates + from, s->vocab - from, wanted, by_mass);
    memmove(s->candidates + n, s->candidates + from, (size_t)chosen * sizeof *s->candidates);
    return n + chosen;
}

static double mass(const struct candidate *c, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

static int drop_below(struct candidate *c, int n, float least) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (c[i].weight >= least) c[kept++] = c[i];
    return kept;
}

int sampler_filter(struct sampler *s, const struct sampling *p) {
    double total = fill_buckets(s);
    int n;
    if (p->top_k > 0 && p->top_k < s->vocab) {
        n = keep_best(s, p->top_k, false);
        if (p->top_p < 1.0f) n = select_best(s->candidates, n, (double)p->top_p * mass(s->candidates, n), true);
    } else {
        n = keep_best(s, (double)p->top_p * total, true);
    }
    return drop_below(s->candidates, n, p->min_p);
}

static int32_t pick(const struct candidate *c, int n, double uniform) {
    double target = uniform * mass(c, n), sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += (double)c[i].weight) > target) return c[i].id;
    return c[n - 1].id;
}

int32_t sampler_draw(struct sampler *s, const float *logits, const struct row_stat *stat, const struct sampling *p, int choice,
                     int index) {
    if (p->temperature == 0.0f || !isfinite(stat->max)) return stat->argmax;
    double uniform = sampler_uniform(p->seed, choice, index);
    fill_weights(s->weights, logits, s->vocab, stat->max, p->temperature);
    bool has_cut = (p->top_k > 0 && p->top_k < s->vocab) || p->top_p < 1.0f;
    if (!has_cut) {
        int32_t id = pick_of_all(s, p->min_p, uniform);
        return id < 0 ? stat->argmax : id;
    }
    int n = sampler_filter(s, p);
    return n < 1 ? stat->argmax : pick(s->candidates, n, uniform);
}

/* ---- best of a row ---- */

void sampler_top(const float *logits, int vocab, float log_sum_exp, int n, struct top_logprob *top) {
    int kept = 0;
    for (int32_t i = 0; i < vocab; i++) {
        float logit = isnan(logits[i]) ? -INFINITY : logits[i];
        if (kept == n && !(logit > top[kept - 1].logprob)) continue;
        int at = kept < n ? kept++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < logit; at--) top[at] = top[at - 1];
        top[at] = (struct top_logprob){i, logit};
    }
    for (int i = 0; i < kept; i++) top[i].logprob -= log_sum_exp;
}
