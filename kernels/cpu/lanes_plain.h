/* Lanes as an array: any CPU, and what the others are compared with. Contracts: lanes.h. */
#pragma once

typedef struct {
    float v[16];
} lanes;

#define LANES_MAP(expression)                                                                                                  \
    lanes r;                                                                                                                   \
    for (int i = 0; i < 16; i++) r.v[i] = (expression);                                                                        \
    return r

LANE_FN lanes lanes_set(float x) { LANES_MAP(x); }
LANE_FN lanes lanes_load(const float *x) { LANES_MAP(x[i]); }
LANE_FN lanes lanes_load_f16(const uint16_t *h) { LANES_MAP(f16_to_f32(h[i])); }
LANE_FN lanes lanes_add(lanes a, lanes b) { LANES_MAP(a.v[i] + b.v[i]); }
LANE_FN lanes lanes_sub(lanes a, lanes b) { LANES_MAP(a.v[i] - b.v[i]); }
LANE_FN lanes lanes_mul(lanes a, lanes b) { LANES_MAP(a.v[i] * b.v[i]); }
LANE_FN lanes lanes_div(lanes a, lanes b) { LANES_MAP(a.v[i] / b.v[i]); }
LANE_FN lanes lanes_fma(lanes a, lanes b, lanes c) { LANES_MAP(fmaf(a.v[i], b.v[i], c.v[i])); }
LANE_FN lanes lanes_max(lanes a, lanes b) { LANES_MAP(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
LANE_FN lanes lanes_min(lanes a, lanes b) { LANES_MAP(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
LANE_FN lanes lanes_abs(lanes a) { LANES_MAP(f32_from_bits(f32_bits(a.v[i]) & 0x7fffffff)); }
/* a < b ? x : y, lane by lane. */
LANE_FN lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y) { LANES_MAP(a.v[i] < b.v[i] ? x.v[i] : y.v[i]); }
/* 2^(n − 1) for t = 1.5·2^23 + n, n in [−125, 128]. */
LANE_FN lanes lanes_half_power(lanes t) { LANES_MAP(f32_from_bits((f32_bits(t.v[i]) << 23) + (126u << 23))); }

LANE_FN void lanes_store(float *x, lanes a) {
    for (int i = 0; i < 16; i++) x[i] = a.v[i];
}

LANE_FN void lanes_store_f16(uint16_t *h, lanes a) {
    for (int i = 0; i < 16; i++) h[i] = f32_to_f16(a.v[i]);
}

LANE_FN float lanes_sum(lanes a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] = a.v[i] + a.v[i + half];
    return a.v[0];
}

LANE_FN float lanes_largest(lanes a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

LANE_FN float lanes_first(lanes a) { return a.v[0]; }

/* Bit i: a[i] == b[i]. */
LANE_FN unsigned lanes_equal(lanes a, lanes b) {
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(a.v[i] == b.v[i]) << i;
    return mask;
}

/* Bit i: a[i] < b[i]. */
LANE_FN unsigned lanes_less(lanes a, lanes b) {
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(a.v[i] < b.v[i]) << i;
    return mask;
}

/* Rounds a, all in [−127, 127], to nearest even into q[0..16); returns their sum. */
LANE_FN int32_t lanes_store_int8(int8_t *q, lanes a) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        float shifted = a.v[i] + 0x1.8p23f;
        int32_t n = (int32_t)(f32_bits(shifted) - 0x4b400000u);
        q[i] = (int8_t)n;
        sum += n;
    }
    return sum;
}

/* The same for 32 values in [−32767, 32767], each four stored in the order 0, 2, 1, 3. */
LANE_FN int32_t lanes_store_int16(int16_t *q, lanes a, lanes b) {
    static const int from[4] = {0, 2, 1, 3};
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        int at = i / 4 * 4 + from[i % 4];
        float shifted = (at < 16 ? a.v[at] : b.v[at - 16]) + 0x1.8p23f;
        int32_t n = (int32_t)(f32_bits(shifted) - 0x4b400000u);
        q[i] = (int16_t)n;
        sum += n;
    }
    return sum;
}

/* What one register holds: parts of `lanes` for kernels that must count registers. */
typedef lanes vec;
#define VEC_LANES 16
#define MICRO_VECS 1
LANE_FN vec vec_set(float x) { return lanes_set(x); }
LANE_FN vec vec_load(const float *x) { return lanes_load(x); }
LANE_FN vec vec_load_f16(const uint16_t *h) { return lanes_load_f16(h); }
LANE_FN vec vec_mul(vec a, vec b) { return lanes_mul(a, b); }
LANE_FN vec vec_fma(vec a, vec b, vec c) { return lanes_fma(a, b, c); }
LANE_FN void vec_store(float *x, vec a) { lanes_store(x, a); }
