#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"
#include "engine/base/f16.h"

#define MAX_ATTEMPTS 16 /* a draw by rejection gives up after so many */
#define LAST_OCTAVE 126 /* no weight is smaller than 2^−126 but 0 */

static size_t n_chunks(int vocab) { return ((size_t)vocab + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK; }

size_t sampler_bytes(int vocab, int max_rows) {
    return round_up((size_t)vocab * sizeof(float), 64) + 2 * round_up(n_chunks(vocab) * sizeof(float), 64) +
           round_up((size_t)vocab * sizeof(struct candidate), 64) + round_up((size_t)max_rows * sizeof(struct row_stat), 64);
}

void sampler_init(struct sampler *s, int vocab, struct backend *backend, struct memory_source memory) {
    *s = (struct sampler){.vocab = vocab, .backend = backend};
    s->row.weights = memory.alloc(memory.context, (size_t)vocab * sizeof(float));
    s->row.chunk_sums = memory.alloc(memory.context, n_chunks(vocab) * sizeof(float));
    s->row.chunk_maxima = memory.alloc(memory.context, n_chunks(vocab) * sizeof(float));
    s->candidates = memory.alloc(memory.context, (size_t)vocab * sizeof *s->candidates);
    if (!s->row.weights || !s->row.chunk_sums || !s->row.chunk_maxima || !s->candidates) BUG("sampler: its line is too small");
}

/* ---- draws ---- */

static uint64_t mix(uint64_t x) { /* the finalizer of splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform_of_attempt(uint64_t seed, int choice, int index, int attempt) {
    uint64_t h = mix(mix(mix(seed) ^ (uint64_t)choice) ^ ((uint64_t)index << 32 | (uint64_t)attempt));
    return (double)(h >> 11) * 0x1p-53;
}

double sampler_uniform(uint64_t seed, int choice, int index) { return uniform_of_attempt(seed, choice, index, 0); }

/* ---- a draw from the whole vocabulary ---- */

static int chunk_end(const struct sampler *s, int chunk) {
    return s->vocab - chunk * SAMPLE_CHUNK < SAMPLE_CHUNK ? s->vocab : (chunk + 1) * SAMPLE_CHUNK;
}

static double total_mass(const struct sampler *s) {
    double total = 0;
    for (int c = 0; c < (int)n_chunks(s->vocab); c++) total += (double)s->row.chunk_sums[c];
    return total;
}

/* A draw in proportion to the weights; −1 when all are 0. */
static int32_t pick_of_all(const struct sampler *s, double uniform) {
    int chunks = (int)n_chunks(s->vocab);
    double target = uniform * total_mass(s), sum = 0;
    int32_t last = -1; /* rounding may leave the target just past the end of its chunk */
    for (int c = 0; c < chunks; c++) {
        double whole = (double)s->row.chunk_sums[c];
        if (whole == 0 || (sum + whole <= target && c + 1 < chunks)) {
            sum += whole;
            continue;
        }
        for (int32_t i = c * SAMPLE_CHUNK; i < chunk_end(s, c); i++) {
            if (s->row.weights[i] == 0) continue;
            last = i;
            if ((sum += (double)s->row.weights[i]) > target) return i;
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

/* Candidates become the fewest best of the vocabulary whose amounts reach `wanted`, in no order; returns how many. Weights of 0 are
 * never taken. */
static int keep_best(struct sampler *s, double wanted, bool by_mass) {
    int n = 0;
    float below = 2;
    for (int octave = 1;; octave += 1 + octave / 2) {
        bool is_last = octave >= LAST_OCTAVE;
        float least = f32_from_bits((uint32_t)(127 - (is_last ? LAST_OCTAVE : octave)) << 23); /* 2^−octave */
        int found = s->backend->sample_band(s->backend, s->candidates + n, &s->row, s->vocab, least, below);
        double band = 0;
        for (int i = n; i < n + found; i++) band += amount(s->candidates[i], by_mass);
        if (band >= wanted || is_last) return n + select_best(s->candidates + n, found, wanted, by_mass);
        wanted -= band;
        n += found;
        below = least;
    }
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
    int n;
    if (p->top_k > 0 && p->top_k < s->vocab) {
        n = keep_best(s, p->top_k, false);
        if (p->top_p < 1.0f) n = select_best(s->candidates, n, (double)p->top_p * mass(s->candidates, n), true);
    } else {
        n = keep_best(s, (double)p->top_p * total_mass(s), true);
    }
    return drop_below(s->candidates, n, p->min_p);
}

static int32_t pick(const struct candidate *c, int n, double uniform) {
    double target = uniform * mass(c, n), sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += (double)c[i].weight) > target) return c[i].id;
    return c[n - 1].id;
}

/* A draw from the best that hold top_p of the mass, without looking for them: one from all, and another as long as it lies outside.
 * Without min_p each is taken with a probability of at least top_p. −1: give up. */
static int32_t pick_within(struct sampler *s, const struct sampling *p, int choice, int index) {
    double wanted = (double)p->top_p * total_mass(s);
    for (int attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
        int32_t id = pick_of_all(s, uniform_of_attempt(p->seed, choice, index, attempt));
        if (id < 0) break;
        if (s->row.weights[id] < p->min_p) continue;
        if (s->backend->sample_mass_above(s->backend, &s->row, s->vocab, id) < wanted) return id;
    }
    return -1;
}

int32_t sampler_draw(struct sampler *s, const float *logits, const struct row_stat *stat, const struct sampling *p, int choice,
                     int index) {
    if (p->temperature == 0.0f || !isfinite(stat->max)) return stat->argmax;
    double uniform = sampler_uniform(p->seed, choice, index);
    bool has_top_k = p->top_k > 0 && p->top_k < s->vocab;
    bool has_cut = has_top_k || p->top_p < 1.0f; /* which counts what min_p drops */
    s->backend->sample_weights(s->backend, &s->row, logits, s->vocab, stat->max, 1.0f / p->temperature,
                               has_cut ? 0.0f : p->min_p);
    if (!has_cut) {
        int32_t id = pick_of_all(s, uniform);
        return id < 0 ? stat->argmax : id;
    }
    if (!has_top_k && p->top_p >= 0.5f) {
        int32_t id = pick_within(s, p, choice, index);
        if (id >= 0) return id;
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
