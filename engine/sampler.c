#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"
#include "engine/base/f16.h"

#define LANES 16

size_t sampler_bytes(int vocab, int max_rows) {
    return round_up((size_t)vocab * sizeof(float), 64) + round_up((size_t)vocab * sizeof(struct candidate), 64) +
           round_up((size_t)max_rows * sizeof(struct row_stat), 64);
}

void sampler_init(struct sampler *s, int vocab, struct memory_source memory) {
    *s = (struct sampler){.vocab = vocab};
    s->weights = memory.alloc(memory.context, (size_t)vocab * sizeof *s->weights);
    s->candidates = memory.alloc(memory.context, (size_t)vocab * sizeof *s->candidates);
    if (!s->weights || !s->candidates) BUG("sampler: its line is too small");
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

/* e^x for x ≤ 0, within 3e-7 relative; 0 below −87. Plain multiplications and additions, so every machine and every width of the
 * compiler's vectors gives the same bits. */
static inline float exp_negative(float x) {
    float t = x * 1.44269504f, whole = rintf(t < -126.0f ? -126.0f : t), f = (t - whole) * 0.69314718f;
    float p = 1.0f + f * (1.0f + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.0083333338f + f * 0.0013888889f)))));
    float scaled = p * f32_from_bits((uint32_t)((int32_t)whole + 127) << 23);
    return x < -87.0f ? 0.0f : scaled;
}

/* weights[i] = exp((logits[i] − max)/temperature); returns their sum in 16 lanes. NaN logits weigh nothing. */
static double fill_weights(float *weights, const float *logits, int n, float max, float temperature) {
    float inverse = 1.0f / temperature;
    double lanes[LANES] = {0};
    for (int i = 0; i < n; i++) {
        float x = (logits[i] - max) * inverse;
        weights[i] = x <= 0.0f ? exp_negative(x) : 0.0f;
    }
    for (int i = 0; i < n; i++) lanes[i % LANES] += (double)weights[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* ---- candidates ---- */

static int by_weight(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Ids whose weight is at least `least`, ascending by id. */
static int gather(struct sampler *s, float least) {
    int n = 0;
    for (int32_t i = 0; i < s->vocab; i++)
        if (s->weights[i] >= least) s->candidates[n++] = (struct candidate){i, s->weights[i]};
    return n;
}

static double mass(const struct candidate *c, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

/* The best k, best first: thresholds of falling height until k are above one, then a sort of those. */
static int keep_top_k(struct sampler *s, int k) {
    int n = 0;
    for (float least = 0.01f; least > 1e-37f; least *= 0.01f)
        if ((n = gather(s, least)) >= k) break;
    if (n < k) n = gather(s, 0.0f);
    qsort(s->candidates, (size_t)n, sizeof *s->candidates, by_weight);
    return n < k ? n : k;
}

/* The fewest best whose mass reaches top_p of total, best first. Candidates are the whole vocabulary. */
static int keep_top_p_of_all(struct sampler *s, float top_p, double total) {
    int n = 0;
    double wanted = (double)top_p * total;
    for (float least = 0.01f; least > 1e-37f; least *= 0.1f) {
        n = gather(s, least);
        if (mass(s->candidates, n) >= wanted) break;
    }
    qsort(s->candidates, (size_t)n, sizeof *s->candidates, by_weight);
    double sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += (double)s->candidates[i].weight) >= wanted) return i + 1;
    return n;
}

static int keep_top_p_of(const struct candidate *c, int n, float top_p) {
    double wanted = (double)top_p * mass(c, n), sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += (double)c[i].weight) >= wanted) return i + 1;
    return n;
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
    double total = fill_weights(s->weights, logits, s->vocab, stat->max, p->temperature);
    bool has_top_k = p->top_k > 0 && p->top_k < s->vocab;
    int n;
    if (has_top_k) {
        n = keep_top_k(s, p->top_k);
        if (p->top_p < 1.0f) n = keep_top_p_of(s->candidates, n, p->top_p);
    } else if (p->top_p < 1.0f) {
        n = keep_top_p_of_all(s, p->top_p, total);
    } else {
        n = gather(s, p->min_p > 0.0f ? p->min_p : 1e-37f);
    }
    if (p->min_p > 0.0f && (has_top_k || p->top_p < 1.0f)) /* best first: the rest is a tail */
        while (n > 1 && s->candidates[n - 1].weight < p->min_p) n--;
    return n < 1 ? stat->argmax : pick(s->candidates, n, sampler_uniform(p->seed, choice, index));
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
