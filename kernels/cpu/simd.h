/* The x86 vector intrinsics. With TALLY_SIMDE defined (tests only) SIMDe stands in for AVX-512: 512-bit operations become pairs of
 * 256-bit ones with the same results, so code for AVX-512 is checked on CPUs that only have AVX2. */
#pragma once

#ifndef TALLY_SIMDE
#include <immintrin.h>
#else
#ifndef SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_ENABLE_NATIVE_ALIASES
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#pragma GCC diagnostic pop

/* What SIMDe 0.7 lacks. */
static inline simde__m512 tally_mm512_pair(simde__m256 low, simde__m256 high) {
    simde__m512_private both;
    both.m256[0] = low;
    both.m256[1] = high;
    return simde__m512_from_private(both);
}

static inline simde__m512 tally_mm512_cvtph_ps(simde__m256i h) {
    return tally_mm512_pair(simde_mm256_cvtph_ps(simde_mm256_castsi256_si128(h)),
                            simde_mm256_cvtph_ps(simde_mm256_extracti128_si256(h, 1)));
}

static inline simde__m256i tally_mm512_cvtps_ph(simde__m512 f) {
    simde__m512_private both = simde__m512_to_private(f);
    return simde_mm256_set_m128i(simde_mm256_cvtps_ph(both.m256[1], 0), simde_mm256_cvtps_ph(both.m256[0], 0));
}

static inline simde__m512i tally_mm512_cvtps_epi32(simde__m512 f) {
    simde__m512_private both = simde__m512_to_private(f);
    simde__m512i_private ints;
    ints.m256i[0] = simde_mm256_cvtps_epi32(both.m256[0]);
    ints.m256i[1] = simde_mm256_cvtps_epi32(both.m256[1]);
    return simde__m512i_from_private(ints);
}

static inline simde__m512 tally_mm512_cvtepi32_ps(simde__m512i i) {
    simde__m512i_private both = simde__m512i_to_private(i);
    return tally_mm512_pair(simde_mm256_cvtepi32_ps(both.m256i[0]), simde_mm256_cvtepi32_ps(both.m256i[1]));
}

static inline simde__m512i tally_mm512_cvtepu16_epi32(simde__m256i i) {
    simde__m512i_private both;
    both.m256i[0] = simde_mm256_cvtepu16_epi32(simde_mm256_castsi256_si128(i));
    both.m256i[1] = simde_mm256_cvtepu16_epi32(simde_mm256_extracti128_si256(i, 1));
    return simde__m512i_from_private(both);
}

static inline simde__m512i tally_mm512_srai_epi32(simde__m512i i, int count) {
    simde__m512i_private both = simde__m512i_to_private(i);
    both.m256i[0] = simde_mm256_sra_epi32(both.m256i[0], simde_mm_cvtsi32_si128(count));
    both.m256i[1] = simde_mm256_sra_epi32(both.m256i[1], simde_mm_cvtsi32_si128(count));
    return simde__m512i_from_private(both);
}

#undef _mm512_srai_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtps_epi32
#define _mm512_cvtph_ps(h) tally_mm512_cvtph_ps(h)
#define _mm512_cvtps_ph(f, rounding) tally_mm512_cvtps_ph(f)
#define _mm512_cvtps_epi32(f) tally_mm512_cvtps_epi32(f)
#define _mm512_srai_epi32(i, count) tally_mm512_srai_epi32(i, count)
#define _mm512_cvtepi32_ps(i) tally_mm512_cvtepi32_ps(i)
#define _mm512_cvtepu16_epi32(i) tally_mm512_cvtepu16_epi32(i)
#endif
