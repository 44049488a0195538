#include "client/stats.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct samples *s, size_t n) {
    if (n <= s->capacity) return true;
    size_t wanted = s->capacity ? s->capacity : 64;
    while (wanted < n) wanted *= 2;
    if (wanted > SIZE_MAX / sizeof *s->values) return false;
    double *grown = realloc(s->values, wanted * sizeof *grown);
    if (!grown) return false;
    s->values = grown;
    s->capacity = wanted;
    return true;
}

bool samples_add(struct samples *s, double value) {
    if (!reserve(s, s->n + 1)) return false;
    s->values[s->n++] = value;
    s->is_sorted = false;
    return true;
}

bool samples_append(struct samples *s, const struct samples *from) {
    if (from->n == 0) return true;
    if (!reserve(s, s->n + from->n)) return false;
    memcpy(s->values + s->n, from->values, from->n * sizeof *from->values);
    s->n += from->n;
    s->is_sorted = false;
    return true;
}

void samples_clear(struct samples *s) {
    s->n = 0;
    s->is_sorted = false;
}

void samples_free(struct samples *s) {
    free(s->values);
    memset(s, 0, sizeof *s);
}

double samples_mean(const struct samples *s) {
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->values[i];
    return s->n ? sum / (double)s->n : 0;
}

double samples_std(const struct samples *s) {
    double mean = samples_mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += (s->values[i] - mean) * (s->values[i] - mean);
    return s->n ? sqrt(sum / (double)s->n) : 0;
}

double samples_max(const struct samples *s) {
    double max = s->n ? s->values[0] : 0;
    for (size_t i = 1; i < s->n; i++) max = fmax(max, s->values[i]);
    return max;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_percentile(struct samples *s, double p) {
    if (s->n == 0) return 0;
    if (!s->is_sorted) qsort(s->values, s->n, sizeof *s->values, ascending);
    s->is_sorted = true;
    double rank = fmin(fmax(p, 0), 100) / 100 * (double)(s->n - 1);
    size_t low = (size_t)rank, high = low + 1 < s->n ? low + 1 : low;
    return s->values[low] + (s->values[high] - s->values[low]) * (rank - (double)low);
}
