/* IEEE half and bfloat16 to and from float, in integer arithmetic: the same bits with any compiler and CPU, and those of the
 * F16C instructions (round to nearest even). */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* subnormal or zero: exact */
    return f32_from_bits(sign | f32_bits(magnitude));
}

static inline uint16_t f32_to_f16(float f) {
    uint32_t bits = f32_bits(f), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff)); /* NaN, made quiet */
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                              /* rounds to infinity */
    if (magnitude < 0x38800000) { /* subnormal: let float addition round at 2^-24 */
        float rounded = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(rounded) - 0x3f000000));
    }
    uint32_t odd = (magnitude >> 13) & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

static inline float bf16_to_f32(uint16_t h) { return f32_from_bits((uint32_t)h << 16); }
