/* Linear layers with AVX2.
 *
 * A panel's group of 32 columns is read as two halves of 8 rows, one row per 32-bit lane, four columns in a lane's bytes, and met by
 * four activations broadcast to all lanes. A tile is 16 rows by 1 to 4 tokens: each activation load serves two halves, each weight load
 * four tokens.
 *
 *   INT4  `vpmaddubsw` multiplies unsigned nibbles by signed activations and adds pairs in 16 bits; a pair is at most 2·15·127 = 3,810,
 *         so the 4 steps of 16 columns are summed in 16 bits with `vpaddw` and widened once by `vpmaddwd` with ones. This is
 *         what makes it faster than the usual widening in each step: 0.19 against 0.35 ns for 32 MACs on a Zen 3 at 3.2 GHz.
 *   INT8  even and odd columns are widened to 16 bits by two shifts, shared by the tile's tokens, and met by pairs of INT16 activations in
 *         `vpmaddwd`, which sums in 32 bits. The usual way with INT8 activations (`vpsignb`, `vpmaddubsw`, `vpmaddwd`, `vpaddd`) takes as
 *         many instructions for 256 times coarser activations.
 *   float 16 rows by 1 to 6 tokens, one fused multiply-add per column, row half and token; exact integer weights become a block of
 *         32 columns of floats first.
 *
 * Compilers like to turn a chain of integer adds into a tree, which takes more registers than there are: KEEP forbids it (73 → 99
 * GMAC/s with gcc 12). */
#include "kernels/cpu/linear.h"

#include <string.h>

#include "kernels/cpu/linear_store.h"
#include "kernels/cpu/simd.h"

#if defined(TALLY_SANITIZE) /* all inlined, with a check at every access, gcc takes minutes */
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif
#define KEEP(v) __asm__("" : "+x"(v))
#define UNROLL _Pragma("GCC unroll 32")
#define INT_TOKENS 4 /* the largest tiles */
#define FLOAT_TOKENS 6
#define HALVES 2      /* of a panel: 8 rows a register */
#define PREFETCH 1024 /* bytes ahead of the weights read now */

/* A tile's input: tokens first_token ... */
struct tile {
    const uint8_t *panel;
    const struct act *x;
    int first_token, n_cols;
    float (*out)[PANEL_ROWS]; /* [tokens of the tile] */
};

INLINE __m256 f16_to_f32x8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

INLINE __m256i broadcast4(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* sums += w·x in 16 bits, or = for the first step of a group. */
INLINE void step_int4(__m256i *sum, __m256i nibbles, __m256i x, bool first) {
    __m256i pairs = _mm256_maddubs_epi16(nibbles, x);
    *sum = first ? pairs : _mm256_add_epi16(*sum, pairs);
    KEEP(*sum);
}

/* The dots of 16 columns, the low nibbles of a group or the high ones, 16 bits in pairs: sum [half][token]. */
INLINE void half_group_int4(__m256i sum[HALVES][INT_TOKENS], const uint8_t *w, bool high, const int8_t *x, size_t x_stride,
                            int tokens) {
    const __m256i low = _mm256_set1_epi8(15);
    UNROLL for (int i = 0; i < 4; i++) {
        __m256i nibbles[HALVES];
        UNROLL for (int h = 0; h < HALVES; h++) {
            __m256i both = _mm256_loadu_si256((const void *)(w + 64 * i + 32 * h));
            nibbles[h] = _mm256_and_si256(high ? _mm256_srli_epi16(both, 4) : both, low);
        }
        UNROLL for (int t = 0; t < tokens; t++) {
            __m256i xt = broadcast4(x + (size_t)t * x_stride + 4 * i);
            UNROLL for (int h = 0; h < HALVES; h++) step_int4(&sum[h][t], nibbles[h], xt, i == 0);
        }
    }
}

/* s = x_scale·dot of 16 columns, or on top of what s holds. */
INLINE __m256 scaled_dot(__m256i sum, enum wfmt fmt, const int32_t *x_zero, const float *x_scale, bool first, __m256 s) {
    __m256i dot = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    if (fmt == WFMT_INT4_G32) dot = _mm256_add_epi32(dot, _mm256_set1_epi32(*x_zero));
    __m256 scale = _mm256_set1_ps(*x_scale), value = _mm256_cvtepi32_ps(dot);
    return first ? _mm256_mul_ps(scale, value) : _mm256_fmadd_ps(scale, value, s);
}

INLINE __m256i broadcast_pair(const int16_t *p) {
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm256_set1_epi32(two);
}

/* The dots of INT8 weights with INT16 activations, in 32 bits. */
INLINE void group_int8(__m256i sum[HALVES][INT_TOKENS], const uint8_t *w, const int16_t *x, size_t x_stride, int tokens) {
    UNROLL for (int i = 0; i < 8; i++) {
        __m256i even[HALVES], odd[HALVES];
        UNROLL for (int h = 0; h < HALVES; h++) {
            __m256i both = _mm256_loadu_si256((const void *)(w + 64 * i + 32 * h));
            even[h] = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8);
            odd[h] = _mm256_srai_epi16(both, 8);
        }
        UNROLL for (int t = 0; t < tokens; t++) {
            const int16_t *xt = x + (size_t)t * x_stride + 4 * i;
            __m256i x_even = broadcast_pair(xt), x_odd = broadcast_pair(xt + 2);
            UNROLL for (int h = 0; h < HALVES; h++) {
                __m256i pairs = _mm256_madd_epi16(even[h], x_even);
                sum[h][t] = i == 0 ? pairs : _mm256_add_epi32(sum[h][t], pairs);
                KEEP(sum[h][t]);
                sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_madd_epi16(odd[h], x_odd));
                KEEP(sum[h][t]);
            }
        }
    }
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
    __m256 acc[HALVES][INT_TOKENS];
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++) acc[h][t] = _mm256_setzero_ps();

    for (size_t g = 0; g < n_groups; g++, w += group_bytes, x += GROUP_COLS) {
        __m256i sum[HALVES][INT_TOKENS];
        __m256 s[HALVES][INT_TOKENS];
        if (tokens == 1)
            UNROLL for (size_t i = 0; i < group_bytes; i += 64) _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        UNROLL for (int part = 0; part < 2; part++) { /* columns 0–15, 16–31 */
            half_group_int4(sum, w, part == 1, x + part * ACT_GROUP_COLS, x_stride, tokens);
            UNROLL for (int t = 0; t < tokens; t++) {
                size_t at = ((size_t)t * n_groups + g) * 2 + (size_t)part;
                UNROLL for (int h = 0; h < HALVES; h++) s[h][t] =
                    scaled_dot(sum[h][t], fmt, &x_zero[at], &x_scale[at], part == 0, part == 0 ? acc[h][t] : s[h][t]);
            }
        }
        UNROLL for (int h = 0; h < HALVES; h++) {
            __m256 w_scale = f16_to_f32x8(w + 256 + 16 * h);
            __m256 w_min = min ? f16_to_f32x8(w + 288 + 16 * h) : _mm256_setzero_ps();
            UNROLL for (int t = 0; t < tokens; t++) {
                acc[h][t] = _mm256_fmadd_ps(w_scale, s[h][t], acc[h][t]);
                if (min) acc[h][t] = _mm256_fmadd_ps(w_min, _mm256_set1_ps(x_sum[(size_t)t * n_groups + g]), acc[h][t]);
            }
        }
    }
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++)
        _mm256_storeu_ps(&tile->out[t][8 * h], acc[h][t]);
}

INLINE void int8_tile(const struct tile *tile, enum wfmt fmt, int tokens) {
    const bool min = fmt == WFMT_INT8_G32M;
    const size_t group_bytes = 512 + (min ? 64 : 32), n_groups = (size_t)tile->n_cols / GROUP_COLS,
                 x_stride = (size_t)tile->n_cols;
    const int16_t *x = tile->x->wide + (size_t)tile->first_token * x_stride;
    const float *x_scale = tile->x->wide_scale + (size_t)tile->first_token * n_groups;
    const float *x_sum = tile->x->wide_sum + (size_t)tile->first_token * n_groups;
    const uint8_t *w = tile->panel;
    __m256 acc[HALVES][INT_TOKENS];
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++) acc[h][t] = _mm256_setzero_ps();

    for (size_t g = 0; g < n_groups; g++, w += group_bytes, x += GROUP_COLS) {
        __m256i sum[HALVES][INT_TOKENS];
        if (tokens == 1)
            UNROLL for (size_t i = 0; i < group_bytes; i += 64) _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        group_int8(sum, w, x, x_stride, tokens);
        UNROLL for (int h = 0; h < HALVES; h++) {
            __m256 w_scale = f16_to_f32x8(w + 512 + 16 * h);
            __m256 w_min = min ? f16_to_f32x8(w + 544 + 16 * h) : _mm256_setzero_ps();
            UNROLL for (int t = 0; t < tokens; t++) {
                size_t at = (size_t)t * n_groups + g;
                __m256 scale = _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scale[at]));
                acc[h][t] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[h][t]), acc[h][t]);
                if (min) acc[h][t] = _mm256_fmadd_ps(w_min, _mm256_set1_ps(x_sum[at]), acc[h][t]);
            }
        }
    }
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++)
        _mm256_storeu_ps(&tile->out[t][8 * h], acc[h][t]);
}

/* 8 values of a column of a float format. */
INLINE __m256 load_column(const uint8_t *column, enum wfmt fmt, int half) {
    if (fmt == WFMT_F32) return _mm256_loadu_ps((const float *)(const void *)column + 8 * half);
    if (fmt == WFMT_F16) return f16_to_f32x8(column + 16 * half);
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(column + 16 * half)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE void float_columns(__m256 acc[HALVES][FLOAT_TOKENS], const uint8_t *w, enum wfmt fmt, int n_cols, const float *x,
                          size_t x_stride, int tokens) {
    const size_t column_bytes = PANEL_ROWS * (fmt == WFMT_F32 ? 4 : 2);
    for (int c = 0; c < n_cols; c++, w += column_bytes) {
        __m256 w0 = load_column(w, fmt, 0), w1 = load_column(w, fmt, 1);
        UNROLL for (int t = 0; t < tokens; t++) {
            __m256 xt = _mm256_set1_ps(x[(size_t)t * x_stride + (size_t)c]);
            acc[0][t] = _mm256_fmadd_ps(w0, xt, acc[0][t]);
            acc[1][t] = _mm256_fmadd_ps(w1, xt, acc[1][t]);
        }
    }
}

/* The exact values of a group: values [32 columns][16 rows]. */
static void group_values(float (*values)[PANEL_ROWS], const uint8_t *w, enum wfmt fmt) {
    const bool int4 = fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M, min = fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M;
    const size_t scales = int4 ? 256 : 512;
    for (int h = 0; h < HALVES; h++) {
        __m256 scale = f16_to_f32x8(w + scales + 16 * h),
               minimum = min ? f16_to_f32x8(w + scales + 32 + 16 * h) : _mm256_setzero_ps();
        for (int c = 0; c < GROUP_COLS; c++) {
            int chunk = int4 ? c % 16 / 4 : c / 4, shift = c % 4 * 8 + (int4 && c >= 16 ? 4 : 0);
            __m256i q = _mm256_srl_epi32(_mm256_loadu_si256((const void *)(w + 64 * chunk + 32 * h)), _mm_cvtsi32_si128(shift));
            q = int4 ? _mm256_and_si256(q, _mm256_set1_epi32(15)) : _mm256_srai_epi32(_mm256_slli_epi32(q, 24), 24);
            if (fmt == WFMT_INT4_G32) q = _mm256_sub_epi32(q, _mm256_set1_epi32(8));
            __m256 steps = _mm256_cvtepi32_ps(q);
            __m256 value = min ? _mm256_fmadd_ps(scale, steps, minimum) : _mm256_mul_ps(scale, steps);
            _mm256_storeu_ps(&values[c][8 * h], value);
        }
    }
}

INLINE void float_tile(const struct tile *tile, enum wfmt fmt, int tokens) {
    const size_t x_stride = (size_t)tile->n_cols;
    const float *x = tile->x->f + (size_t)tile->first_token * x_stride;
    __m256 acc[HALVES][FLOAT_TOKENS];
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++) acc[h][t] = _mm256_setzero_ps();
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
    UNROLL for (int h = 0; h < HALVES; h++) UNROLL for (int t = 0; t < tokens; t++)
        _mm256_storeu_ps(&tile->out[t][8 * h], acc[h][t]);
}

typedef void tile_fn(const struct tile *tile);

#define INTEGER_TILE(kind, fmt, n)                                                                                             \
    static void fmt##_int_##n(const struct tile *tile) { kind##_tile(tile, WFMT_##fmt, n); }
#define INTEGER_TILES(kind, fmt)                                                                                               \
    INTEGER_TILE(kind, fmt, 1) INTEGER_TILE(kind, fmt, 2) INTEGER_TILE(kind, fmt, 3) INTEGER_TILE(kind, fmt, 4)
INTEGER_TILES(int4, INT4_G32)
INTEGER_TILES(int4, INT4_G32M)
INTEGER_TILES(int8, INT8_G32)
INTEGER_TILES(int8, INT8_G32M)

#define FLOAT_TILE(fmt, n)                                                                                                     \
    static void fmt##_float_##n(const struct tile *tile) { float_tile(tile, WFMT_##fmt, n); }
#define FLOAT_TILES(fmt)                                                                                                       \
    FLOAT_TILE(fmt, 1) FLOAT_TILE(fmt, 2) FLOAT_TILE(fmt, 3) FLOAT_TILE(fmt, 4) FLOAT_TILE(fmt, 5) FLOAT_TILE(fmt, 6)
FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)
FLOAT_TILES(INT4_G32)
FLOAT_TILES(INT4_G32M)
FLOAT_TILES(INT8_G32)
FLOAT_TILES(INT8_G32M)

#define INTEGER_ROW(fmt) [WFMT_##fmt] = {fmt##_int_1, fmt##_int_2, fmt##_int_3, fmt##_int_4}
#define FLOAT_ROW(fmt) [WFMT_##fmt] = {fmt##_float_1, fmt##_float_2, fmt##_float_3, fmt##_float_4, fmt##_float_5, fmt##_float_6}
static tile_fn *const integer_tiles[WFMT_COUNT][INT_TOKENS] = {INTEGER_ROW(INT4_G32), INTEGER_ROW(INT4_G32M),
                                                               INTEGER_ROW(INT8_G32), INTEGER_ROW(INT8_G32M)};
static tile_fn *const float_tiles[WFMT_COUNT][FLOAT_TOKENS] = {FLOAT_ROW(F32),      FLOAT_ROW(F16),       FLOAT_ROW(BF16),
                                                               FLOAT_ROW(INT4_G32), FLOAT_ROW(INT4_G32M), FLOAT_ROW(INT8_G32),
                                                               FLOAT_ROW(INT8_G32M)};

void linear_span_avx2(const struct linear_span *span) {
    const struct weight *w = span->job->w;
    size_t panel_bytes = wfmt_panel_bytes(w->fmt, w->n_cols);
    bool integer = wfmt_is_integer(w->fmt) && !span->use_f32;
    tile_fn *const *tiles = integer ? integer_tiles[w->fmt] : float_tiles[w->fmt];
    int max_tokens = integer ? INT_TOKENS : FLOAT_TOKENS, end = span->first_token + span->n_tokens;
    float out[FLOAT_TOKENS][PANEL_ROWS];
    struct tile tile = {.x = span->x, .n_cols = w->n_cols, .out = out};
    for (int p = span->first_panel; p < span->first_panel + span->n_panels; p++) {
        tile.panel = (const uint8_t *)w->data + (size_t)p * panel_bytes;
        for (int t = span->first_token, n; t < end; t += n) {
            n = end - t < max_tokens ? end - t : max_tokens;
            tile.first_token = t;
            tiles[n - 1](&tile);
            for (int i = 0; i < n; i++) linear_store(span->job, p, t + i, out[i]);
        }
    }
}
