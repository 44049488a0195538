/* Linear layers with AVX-512 and VNNI.
 *
 * A panel's 16 rows are one register, one row per 32-bit lane with four columns in its bytes: `vpdpbusd` multiplies the four by four
 * broadcast activations and adds them to the lane, in 32 bits, without saturation:
 *
 *   INT4  its first operand is unsigned, as nibbles are; 8 products a group of 32 columns, from 4 loads
 *   INT8  even and odd columns are widened to 16 bits by two shifts, shared by the tile's tokens, and met by pairs of INT16 activations in
 *         `vpdpwssd`
 *   float 16 rows by 1 to 8 tokens, one fused multiply-add per column and token; exact integer weights become a block of 32 columns
 *         of floats first
 *
 * A tile is 16 rows by 1 to 8 tokens: with 4 tokens the weights' loads and unpacking are shared enough that the products are the
 * limit; 8 serve wide batches. The order of sums is kernels/backend.h's, so the bits are those of plain C. */
#include "kernels/cpu/linear.h"

#include <string.h>

#include "kernels/cpu/linear_store.h"
#include "kernels/cpu/simd.h"

#if defined(TALLY_SANITIZE) /* all inlined, with a check at every access, gcc takes minutes */
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif
#define UNROLL _Pragma("GCC unroll 32")
#define TILE_TOKENS 8
#define PREFETCH 1024 /* bytes ahead of the weights read now */

/* A tile's input: tokens first_token ... */
struct tile {
    const uint8_t *panel;
    const struct act *x;
    int first_token, n_cols;
    float (*out)[PANEL_ROWS]; /* [tokens of the tile] */
};

INLINE __m512 f16_to_f32x16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

INLINE __m512i broadcast4(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The dots of a group's first and last 16 columns, its low nibbles and its high ones, on top of what sums [part][token] hold. */
INLINE void group_int4(__m512i sum[2][TILE_TOKENS], const uint8_t *w, const int8_t *x, size_t x_stride, int tokens) {
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int i = 0; i < 4; i++) {
        __m512i both = _mm512_loadu_si512((const void *)(w + 64 * i));
        __m512i lo = _mm512_and_si512(both, low), hi = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        UNROLL for (int t = 0; t < tokens; t++) {
            const int8_t *xt = x + (size_t)t * x_stride + 4 * i;
            sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], lo, broadcast4(xt));
            sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], hi, broadcast4(xt + 16));
        }
    }
}

INLINE __m512i broadcast_pair(const int16_t *p) {
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm512_set1_epi32(two);
}

INLINE void group_int8(__m512i sum[TILE_TOKENS], const uint8_t *w, const int16_t *x, size_t x_stride, int tokens) {
    UNROLL for (int i = 0; i < 8; i++) {
        __m512i both = _mm512_loadu_si512((const void *)(w + 64 * i));
        __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8), odd = _mm512_srai_epi16(both, 8);
        UNROLL for (int t = 0; t < tokens; t++) {
            const int16_t *xt = x + (size_t)t * x_stride + 4 * i;
            sum[t] = _mm512_dpwssd_epi32(sum[t], even, broadcast_pair(xt));
            sum[t] = _mm512_dpwssd_epi32(sum[t], odd, broadcast_pair(xt + 2));
        }
    }
}

INLINE __m512i first_sum(enum wfmt fmt, const int32_t *x_zero) {
    return fmt == WFMT_INT4_G32 ? _mm512_set1_epi32(*x_zero) : _mm512_setzero_si512();
}

INLINE void int4_tile(const struct tile *tile, enum wfmt fmt, int tokens) {
    const bool min = fmt == WFMT_INT4_G32M;
    const size_t group_bytes = 256 + (min ? 64 : 32), n_groups = (size_t)tile->n_cols / GROUP_COLS,
                 x_stride = (size_t)tile->n_cols;
    const int8_t *x = tile->x->q + (size_t)tile->first_token * x_stride;
    const float *x_scale = tile->x->scale + (size_t)tile->first_token * n_groups * 2;
    const float *x_sum = tile->x->sum + (size_t)tile->first_token * n_groups;
    const int32_t *x_zero = tile->x->zero + (size_t)tile->first_token * n_groups * 2;
    const uint8_t *w = tile->panel;
    __m512 acc[TILE_TOKENS];
    UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();

    for (size_t g = 0; g < n_groups; g++, w += group_bytes, x += GROUP_COLS) {
        __m512i sum[2][TILE_TOKENS];
        if (tokens == 1)
            UNROLL for (size_t i = 0; i < group_bytes; i += 64) _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        UNROLL for (int t = 0; t < tokens; t++) UNROLL for (int part = 0; part < 2; part++) sum[part][t] =
            first_sum(fmt, &x_zero[((size_t)t * n_groups + g) * 2 + (size_t)part]);
        group_int4(sum, w, x, x_stride, tokens);
        __m512 w_scale = f16_to_f32x16(w + 256), w_min = min ? f16_to_f32x16(w + 288) : _mm512_setzero_ps();
        UNROLL for (int t = 0; t < tokens; t++) {
            size_t at = (size_t)t * n_groups + g;
            __m512 s = _mm512_mul_ps(_mm512_set1_ps(x_scale[2 * at]), _mm512_cvtepi32_ps(sum[0][t]));
            s = _mm512_fmadd_ps(_mm512_set1_ps(x_scale[2 * at + 1]), _mm512_cvtepi32_ps(sum[1][t]), s);
            acc[t] = _mm512_fmadd_ps(w_scale, s, acc[t]);
            if (min) acc[t] = _mm512_fmadd_ps(w_min, _mm512_set1_ps(x_sum[at]), acc[t]);
        }
    }
    UNROLL for (int t = 0; t < tokens; t++) _mm512_storeu_ps(tile->out[t], acc[t]);
}

INLINE void int8_tile(const struct tile *tile, enum wfmt fmt, int tokens) {
    const bool min = fmt == WFMT_INT8_G32M;
    const size_t group_bytes = 512 + (min ? 64 : 32), n_groups = (size_t)tile->n_cols / GROUP_COLS,
                 x_stride = (size_t)tile->n_cols;
    const int16_t *x = tile->x->wide + (size_t)tile->first_token * x_stride;
    const float *x_scale = tile->x->wide_scale + (size_t)tile->first_token * n_groups;
    const float *x_sum = tile->x->wide_sum + (size_t)tile->first_token * n_groups;
    const uint8_t *w = tile->panel;
    __m512 acc[TILE_TOKENS];
    UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();

    for (size_t g = 0; g < n_groups; g++, w += group_bytes, x += GROUP_COLS) {
        __m512i sum[TILE_TOKENS];
        if (tokens == 1)
            UNROLL for (size_t i = 0; i < group_bytes; i += 64) _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        UNROLL for (int t = 0; t < tokens; t++) sum[t] = _mm512_setzero_si512();
        group_int8(sum, w, x, x_stride, tokens);
        __m512 w_scale = f16_to_f32x16(w + 512), w_min = min ? f16_to_f32x16(w + 544) : _mm512_setzero_ps();
        UNROLL for (int t = 0; t < tokens; t++) {
            size_t at = (size_t)t * n_groups + g;
            __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x_scale[at]));
            acc[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), acc[t]);
            if (min) acc[t] = _mm512_fmadd_ps(w_min, _mm512_set1_ps(x_sum[at]), acc[t]);
        }
    }
    UNROLL for (int t = 0; t < tokens; t++) _mm512_storeu_ps(tile->out[t], acc[t]);
}

/* The 16 values of a column of a float format. */
INLINE __m512 load_column(const uint8_t *column, enum wfmt fmt) {
    if (fmt == WFMT_F32) return _mm512_loadu_ps((const float *)(const void *)column);
    if (fmt == WFMT_F16) return f16_to_f32x16(column);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)column));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE void float_columns(__m512 acc[TILE_TOKENS], const uint8_t *w, enum wfmt fmt, int n_cols, const float *x, size_t x_stride,
                          int tokens) {
    const size_t column_bytes = PANEL_ROWS * (fmt == WFMT_F32 ? 4 : 2);
    for (int c = 0; c < n_cols; c++, w += column_bytes) {
        __m512 column = load_column(w, fmt);
        UNROLL for (int t = 0; t < tokens; t++) acc[t] =
            _mm512_fmadd_ps(column, _mm512_set1_ps(x[(size_t)t * x_stride + (size_t)c]), acc[t]);
    }
}

/* The exact values of a group: values [32 columns][16 rows]. */
static void group_values(float (*values)[PANEL_ROWS], const uint8_t *w, enum wfmt fmt) {
    const bool int4 = fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M, min = fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M;
    const size_t scales = int4 ? 256 : 512;
    __m512 scale = f16_to_f32x16(w + scales), minimum = min ? f16_to_f32x16(w + scales + 32) : _mm512_setzero_ps();
    for (int c = 0; c < GROUP_COLS; c++) {
        int chunk = int4 ? c % 16 / 4 : c / 4, shift = c % 4 * 8 + (int4 && c >= 16 ? 4 : 0);
        __m512i q = _mm512_srl_epi32(_mm512_loadu_si512((const void *)(w + 64 * chunk)), _mm_cvtsi32_si128(shift));
        q = int4 ? _mm512_and_si512(q, _mm512_set1_epi32(15)) : _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
        if (fmt == WFMT_INT4_G32) q = _mm512_sub_epi32(q, _mm512_set1_epi32(8));
        __m512 steps = _mm512_cvtepi32_ps(q);
        _mm512_storeu_ps(values[c], min ? _mm512_fmadd_ps(scale, steps, minimum) : _mm512_mul_ps(scale, steps));
    }
}

INLINE void float_tile(const struct tile *tile, enum wfmt fmt, int tokens) {
    const size_t x_stride = (size_t)tile->n_cols;
    const float *x = tile->x->f + (size_t)tile->first_token * x_stride;
    __m512 acc[TILE_TOKENS];
    UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    if (!wfmt_is_integer(fmt)) {
        float_columns(acc, tile->panel, fmt, tile->n_cols, x, x_stride, tokens);
    } else {
        float values[GROUP_COLS][PANEL_ROWS];
        const uint8_t *w = tile->panel;
        for (int c = 0; c < tile->n_cols; c += GROUP_COLS, w += wfmt_group_bytes(fmt)) {
            group_values(values, w, fmt);
            float_columns(acc, (const uint8_t *)values, WFMT_F32, GROUP_COLS, x + c, x_stride, tokens);
        }
    }
    UNROLL for (int t = 0; t < tokens; t++) _mm512_storeu_ps(tile->out[t], acc[t]);
}

typedef void tile_fn(const struct tile *tile);

/* Tiles of 1 to 4 tokens, and of 8; 5 to 7 are 4 and a rest. */
#define TILE(kind, fmt, n)                                                                                                     \
    static void fmt##_##kind##_##n(const struct tile *tile) { kind##_tile(tile, WFMT_##fmt, n); }
#define TILES(kind, fmt) TILE(kind, fmt, 1) TILE(kind, fmt, 2) TILE(kind, fmt, 3) TILE(kind, fmt, 4) TILE(kind, fmt, 8)
TILES(int4, INT4_G32)
TILES(int4, INT4_G32M)
TILES(int8, INT8_G32)
TILES(int8, INT8_G32M)
TILES(float, F32)
TILES(float, F16)
TILES(float, BF16)
TILES(float, INT4_G32)
TILES(float, INT4_G32M)
TILES(float, INT8_G32)
TILES(float, INT8_G32M)

#define ROW(kind, fmt)                                                                                                         \
    [WFMT_##fmt] = {[1] = fmt##_##kind##_1,                                                                                    \
                    [2] = fmt##_##kind##_2,                                                                                    \
                    [3] = fmt##_##kind##_3,                                                                                    \
                    [4] = fmt##_##kind##_4,                                                                                    \
                    [8] = fmt##_##kind##_8}
static tile_fn *const integer_tiles[WFMT_COUNT][TILE_TOKENS + 1] = {ROW(int4, INT4_G32), ROW(int4, INT4_G32M),
                                                                    ROW(int8, INT8_G32), ROW(int8, INT8_G32M)};
static tile_fn *const float_tiles[WFMT_COUNT][TILE_TOKENS + 1] = {
    ROW(float, F32),       ROW(float, F16),      ROW(float, BF16),     ROW(float, INT4_G32),
    ROW(float, INT4_G32M), ROW(float, INT8_G32), ROW(float, INT8_G32M)};

static int tile_tokens(int left) { return left >= 8 ? 8 : left >= 4 ? 4 : left; }

void linear_span_avx512(const struct linear_span *span) {
    const struct weight *w = span->job->w;
    size_t panel_bytes = wfmt_panel_bytes(w->fmt, w->n_cols);
    bool integer = wfmt_is_integer(w->fmt) && !span->use_f32;
    tile_fn *const *tiles = integer ? integer_tiles[w->fmt] : float_tiles[w->fmt];
    int end = span->first_token + span->n_tokens;
    float out[TILE_TOKENS][PANEL_ROWS];
    struct tile tile = {.x = span->x, .n_cols = w->n_cols, .out = out};
    for (int p = span->first_panel; p < span->first_panel + span->n_panels; p++) {
        tile.panel = (const uint8_t *)w->data + (size_t)p * panel_bytes;
        for (int t = span->first_token, n; t < end; t += n) {
            n = tile_tokens(end - t);
            tile.first_token = t;
            tiles[n](&tile);
            for (int i = 0; i < n; i++) linear_store(span->job, p, t + i, out[i]);
        }
    }
}
