/* Lanes as one 512-bit register. Contracts: lanes.h and lanes_plain.h. */
#pragma once

#include "kernels/cpu/simd.h"

typedef __m512 lanes;

LANE_FN lanes lanes_set(float x) { return _mm512_set1_ps(x); }
LANE_FN lanes lanes_load(const float *x) { return _mm512_loadu_ps(x); }
LANE_FN lanes lanes_load_f16(const uint16_t *h) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)h)); }
LANE_FN lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
LANE_FN lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
LANE_FN lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
LANE_FN lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
LANE_FN lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
LANE_FN lanes lanes_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
LANE_FN lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
LANE_FN lanes lanes_abs(lanes a) { return _mm512_abs_ps(a); }
LANE_FN lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
LANE_FN lanes lanes_half_power(lanes t) {
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(126 << 23)));
}

LANE_FN void lanes_store(float *x, lanes a) { _mm512_storeu_ps(x, a); }
LANE_FN void lanes_store_f16(uint16_t *h, lanes a) {
    _mm256_storeu_si256((__m256i *)h, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

LANE_FN __m256 lanes_high_half(lanes a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }

LANE_FN float lanes_sum(lanes a) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), lanes_high_half(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LANE_FN float lanes_largest(lanes a) {
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), lanes_high_half(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

LANE_FN float lanes_first(lanes a) { return _mm_cvtss_f32(_mm256_castps256_ps128(_mm512_castps512_ps256(a))); }

LANE_FN unsigned lanes_equal(lanes a, lanes b) { return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

LANE_FN unsigned lanes_less(lanes a, lanes b) { return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

LANE_FN int32_t sum_of_ints(__m512i sixteen) {
    __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sixteen), _mm512_extracti64x4_epi64(sixteen, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

LANE_FN int32_t lanes_store_int8(int8_t *q, lanes a) {
    __m512i ints = _mm512_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)q, _mm512_cvtsepi32_epi8(ints));
    return sum_of_ints(ints);
}

LANE_FN __m256i words_of(__m512i ints) { /* 0, 2, 1, 3 within each four */
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(_mm512_cvtsepi32_epi16(ints), 0xd8), 0xd8);
}

LANE_FN int32_t lanes_store_int16(int16_t *q, lanes a, lanes b) {
    __m512i i0 = _mm512_cvtps_epi32(a), i1 = _mm512_cvtps_epi32(b);
    _mm256_storeu_si256((__m256i *)q, words_of(i0));
    _mm256_storeu_si256((__m256i *)(q + 16), words_of(i1));
    return sum_of_ints(_mm512_add_epi32(i0, i1));
}

typedef lanes vec;
#define VEC_LANES 16
#define MICRO_VECS 4
LANE_FN vec vec_set(float x) { return lanes_set(x); }
LANE_FN vec vec_load(const float *x) { return lanes_load(x); }
LANE_FN vec vec_load_f16(const uint16_t *h) { return lanes_load_f16(h); }
LANE_FN vec vec_mul(vec a, vec b) { return lanes_mul(a, b); }
LANE_FN vec vec_fma(vec a, vec b, vec c) { return lanes_fma(a, b, c); }
LANE_FN void vec_store(float *x, vec a) { lanes_store(x, a); }
