/* Each function reduces its argument to a short interval and sums a Taylor series there (Horner, one rounding an operation); the
 * number of terms makes the remainder smaller than 2^-56 of the result. Constants that are multiplied by an integer k are cut
 * into parts of few bits, so that k times the leading parts is exact (Cody and Waite, Software Manual for the Elementary
 * Functions, 1980). */
#include "engine/base/fmath.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ROUND_TO_INTEGER 0x1.8p52 /* added and taken away: leaves |x| < 2^51 rounded to an integer, ties to even */

static double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t to_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double round_even(double x) {
    volatile double shifted = x + ROUND_TO_INTEGER; /* volatile: no compiler may simplify the pair away */
    return shifted - ROUND_TO_INTEGER;
}

/* 2^n for normal results. */
static double power_of_two(int n) { return from_bits((uint64_t)(n + 1023) << 52); }

static double horner(const double *coefficients, int n, double x) {
    double sum = coefficients[n - 1];
    for (int i = n - 2; i >= 0; i--) sum = sum * x + coefficients[i];
    return sum;
}

/* ln 2 in two parts: the first has 32 bits, so its product with an exponent is exact. */
static const double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;

double det_exp(double x) {
    static const double series[] = {/* 1/(i+2)! */
                                    1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                    1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    if (x != x) return x;
    if (x > 709.79) return INFINITY;
    if (x < -745.2) return 0;
    double k = round_even(x * 0x1.71547652b82fep0);
    double high = x - k * ln2_high, low = k * ln2_low;
    double r = high - low; /* |r| ≤ ln2/2 */
    double lost = (high - r) - low;
    double e = 1 + (r + (r * r * horner(series, 12, r) + lost));
    int half = (int)k / 2; /* in two steps, so that results near either end of the range come out right */
    return e * power_of_two(half) * power_of_two((int)k - half);
}

double det_log(double x) {
    static const double series[] = {/* 2/(2i+3) */
                                    2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                                    2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    if (x != x || x == INFINITY) return x;
    if (x == 0) return -INFINITY;
    if (x < 0) return NAN;
    int k = 0;
    if (x < 0x1p-1022) x *= 0x1p54, k = -54;
    uint64_t bits = to_bits(x);
    k += (int)(bits >> 52) - 1023;
    double m = from_bits((bits & 0xfffffffffffff) | 0x3ff0000000000000);
    if (m > 0x1.6a09e667f3bcdp0) m *= 0.5, k++; /* m in [√½, √2] */
    /* ln m = 2 artanh(s) = f − s·(f − tail), where f = m − 1 is exact, s = f/(2 + f) and tail = 2s²/3 + ... */
    double f = m - 1, s = f / (2 + f), z = s * s;
    double tail = z * horner(series, 10, z);
    return k * ln2_high - ((s * (f - tail) - k * ln2_low) - f);
}

/* π/2 in three parts of 33 bits and what is left. */
static const double half_pi[] = {0x1.921fb544p0, 0x1.0b4611a6p-34, 0x1.3198a2ep-69, 0x1.b839a252049c1p-104};

/* x − k·π/2 as high + low. */
static void reduce(double x, double k, double *high, double *low) {
    double a = x - k * half_pi[0]; /* exact: both are multiples of 2^-32 times few bits, and close */
    double b = k * half_pi[1];
    double r = a - b;
    double lost = (a - r) - b;
    double c = k * half_pi[2];
    double r2 = r - c;
    lost += (r - r2) - c;
    lost -= k * half_pi[3];
    *high = r2 + lost;
    *low = (r2 - *high) + lost;
}

void det_sincos(double x, double *s, double *c) {
    static const double sine[] = {-1.0 / 6,
                                  1.0 / 120,
                                  -1.0 / 5040,
                                  1.0 / 362880,
                                  -1.0 / 39916800,
                                  1.0 / 6227020800.0,
                                  -1.0 / 1307674368000.0,
                                  1.0 / 355687428096000.0,
                                  -1.0 / 121645100408832000.0};
    static const double cosine[] = {1.0 / 24,
                                    -1.0 / 720,
                                    1.0 / 40320,
                                    -1.0 / 3628800,
                                    1.0 / 479001600,
                                    -1.0 / 87178291200.0,
                                    1.0 / 20922789888000.0,
                                    -1.0 / 6402373705728000.0};
    if (!(x < 0x1p30 && x > -0x1p30)) {
        *s = *c = NAN;
        return;
    }
    double k = round_even(x * 0x1.45f306dc9c883p-1), r, low;
    reduce(x, k, &r, &low); /* |r| ≤ π/4 */
    double z = r * r;
    double sin_r = r + (low * (1 - 0.5 * z) + r * z * horner(sine, 9, z));
    double half = 0.5 * z, leading = 1 - half;
    double cos_r = leading + (((1 - leading) - half) + (z * z * horner(cosine, 8, z) - r * low));
    bool swap = (int64_t)k & 1, negate_sin = (int64_t)k & 2, negate_cos = ((int64_t)k + 1) & 2;
    double sin_x = swap ? cos_r : sin_r, cos_x = swap ? sin_r : cos_r;
    *s = negate_sin ? -sin_x : sin_x;
    *c = negate_cos ? -cos_x : cos_x;
}
