/* Lanes as two 256-bit registers: AVX2, FMA, F16C. Contracts: lanes.h and lanes_plain.h. */
#pragma once

#include "kernels/cpu/simd.h"

typedef struct {
    __m256 low, high;
} lanes;

#define LANES_BOTH(operation)                                                                                                  \
    return (lanes) { operation(a.low, b.low), operation(a.high, b.high) }

LANE_FN lanes lanes_set(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANE_FN lanes lanes_load(const float *x) { return (lanes){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
LANE_FN lanes lanes_load_f16(const uint16_t *h) {
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + 8)))};
}
LANE_FN lanes lanes_add(lanes a, lanes b) { LANES_BOTH(_mm256_add_ps); }
LANE_FN lanes lanes_sub(lanes a, lanes b) { LANES_BOTH(_mm256_sub_ps); }
LANE_FN lanes lanes_mul(lanes a, lanes b) { LANES_BOTH(_mm256_mul_ps); }
LANE_FN lanes lanes_div(lanes a, lanes b) { LANES_BOTH(_mm256_div_ps); }
LANE_FN lanes lanes_max(lanes a, lanes b) { LANES_BOTH(_mm256_max_ps); }
LANE_FN lanes lanes_min(lanes a, lanes b) { LANES_BOTH(_mm256_min_ps); }
LANE_FN lanes lanes_fma(lanes a, lanes b, lanes c) {
    return (lanes){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
LANE_FN lanes lanes_abs(lanes a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes){_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
LANE_FN lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y) {
    return (lanes){_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                   _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
LANE_FN __m256 half_power_256(__m256 t) {
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(126 << 23)));
}
LANE_FN lanes lanes_half_power(lanes t) { return (lanes){half_power_256(t.low), half_power_256(t.high)}; }

LANE_FN void lanes_store(float *x, lanes a) {
    _mm256_storeu_ps(x, a.low);
    _mm256_storeu_ps(x + 8, a.high);
}

LANE_FN void lanes_store_f16(uint16_t *h, lanes a) {
    _mm_storeu_si128((__m128i *)h, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(h + 8), _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

LANE_FN float lanes_sum(lanes a) {
    __m256 eight = _mm256_add_ps(a.low, a.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LANE_FN float lanes_largest(lanes a) {
    __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

LANE_FN float lanes_first(lanes a) { return _mm256_cvtss_f32(a.low); }

LANE_FN unsigned lanes_equal(lanes a, lanes b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ)) << 8;
}

LANE_FN unsigned lanes_less(lanes a, lanes b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)) << 8;
}

LANE_FN int32_t sum_of_ints(__m256i eight) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

LANE_FN int32_t lanes_store_int8(int8_t *q, lanes a) {
    __m256i i0 = _mm256_cvtps_epi32(a.low), i1 = _mm256_cvtps_epi32(a.high);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(i0, i1), 0xd8);
    _mm_storeu_si128((__m128i *)q, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    return sum_of_ints(_mm256_add_epi32(i0, i1));
}

LANE_FN __m256i words_of(__m256i low, __m256i high) { /* 16 words in order, then 0, 2, 1, 3 within each four */
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
}

LANE_FN int32_t lanes_store_int16(int16_t *q, lanes a, lanes b) {
    __m256i i0 = _mm256_cvtps_epi32(a.low), i1 = _mm256_cvtps_epi32(a.high);
    __m256i i2 = _mm256_cvtps_epi32(b.low), i3 = _mm256_cvtps_epi32(b.high);
    _mm256_storeu_si256((__m256i *)q, words_of(i0, i1));
    _mm256_storeu_si256((__m256i *)(q + 16), words_of(i2, i3));
    return sum_of_ints(_mm256_add_epi32(_mm256_add_epi32(i0, i1), _mm256_add_epi32(i2, i3)));
}

typedef __m256 vec;
#define VEC_LANES 8
#define MICRO_VECS 4 /* 3 rows of 4 sums, 3 broadcasts and a load: all of the 16 registers */
LANE_FN vec vec_set(float x) { return _mm256_set1_ps(x); }
LANE_FN vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
LANE_FN vec vec_load_f16(const uint16_t *h) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h)); }
LANE_FN vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
LANE_FN vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
LANE_FN void vec_store(float *x, vec a) { _mm256_storeu_ps(x, a); }
