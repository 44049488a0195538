/* Two readers of the same bytes, on purpose: ggml_row_f32 spells out what each GGUF type means, element by element, and is what
 * tests compare; import_gguf_panel repacks whole groups and is what a start of the server waits for.
 *
 * Packing turns 16 rows into one panel. A group of 32 columns of one row becomes
 *
 *     words[0..3] or [0..7]  the quants, 4 columns a word: word i of row r goes to word r of chunk i (format.h)
 *     scale, min             F16
 *
 * so that a block of Q4_0 or Q4_1 is copied in four words, and Q8_0 in eight: GGUF's order of nibbles (low: columns 0–15, high:
 * 16–31) is that of the panels. The other types are first brought into that shape. A panel's groups run on the outside and its
 * rows inside: the panel is written once from front to back, while 16 rows are read side by side.
 *
 * Where scale · sub-scale is rounded to F16, each value is off by at most 2^-11 of its scale·q and of its minimum. Q6_K has a
 * scale every 16 columns, so a group takes a common one: off by half a step of it, 1/254 of the group's largest value. Keeping
 * Q6_K exact would need a format of its own in every kernel; it is the smallest part of common files.
 *
 * Nothing here trusts a scale: infinities and NaN give such values, never undefined behaviour. Sources need no alignment. */
#include "quant/import_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/f16.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are little-endian and read as they lie");

#define K_BLOCK 256 /* elements of a super-block */

/* A group of 32 columns of one row, as the panel wants it. */
struct group {
    uint32_t words[8];
    uint16_t scale, min;
};

/* Reads group `g` of a row. */
typedef void (*group_reader)(struct group *out, const uint8_t *row, int64_t g);

struct type_info {
    const char *name;
    int elements, bytes; /* of a block; 0 when not importable */
    enum wfmt fmt;
};

static const struct type_info types[] = {
    [GGML_F32] = {"F32", 1, 4, WFMT_F32},
    [GGML_F16] = {"F16", 1, 2, WFMT_F16},
    [GGML_Q4_0] = {"Q4_0", 32, 18, WFMT_INT4_G32},
    [GGML_Q4_1] = {"Q4_1", 32, 20, WFMT_INT4_G32M},
    [GGML_Q5_0] = {"Q5_0", 32, 22, WFMT_INT8_G32},
    [GGML_Q5_1] = {"Q5_1", 32, 24, WFMT_INT8_G32M},
    [GGML_Q8_0] = {"Q8_0", 32, 34, WFMT_INT8_G32},
    [9] = {.name = "Q8_1"},
    [10] = {.name = "Q2_K"},
    [11] = {.name = "Q3_K"},
    [GGML_Q4_K] = {"Q4_K", K_BLOCK, 144, WFMT_INT4_G32M},
    [GGML_Q5_K] = {"Q5_K", K_BLOCK, 176, WFMT_INT8_G32M},
    [GGML_Q6_K] = {"Q6_K", K_BLOCK, 210, WFMT_INT8_G32},
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [20] = {.name = "IQ4_NL"},
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [23] = {.name = "IQ4_XS"},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [GGML_BF16] = {"BF16", 1, 2, WFMT_BF16},
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [39] = {.name = "MXFP4"},
    [40] = {.name = "NVFP4"},
    [41] = {.name = "Q1_0"},
    [42] = {.name = "Q2_0"},
};
#define N_TYPES (sizeof types / sizeof *types)

const char *ggml_type_name(uint32_t type) {
    static _Thread_local char unknown[24];
    if (type < N_TYPES && types[type].name) return types[type].name;
    snprintf(unknown, sizeof unknown, "type %u", type);
    return unknown;
}

bool ggml_type_block(uint32_t type, int *elements, int *bytes) {
    if (type >= N_TYPES || !types[type].elements) return false;
    *elements = types[type].elements;
    *bytes = types[type].bytes;
    return true;
}

static const struct type_info *importable(uint32_t type) {
    if (type >= N_TYPES || !types[type].elements) BUG("%s is not an importable type", ggml_type_name(type));
    return &types[type];
}

enum wfmt import_gguf_format(uint32_t type) { return importable(type)->fmt; }

static uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float load_f16(const uint8_t *p) { return f16_to_f32(load_u16(p)); }

/* Element j (0..31) of 16 bytes of nibbles: the low ones first. */
static int nibble(const uint8_t *qs, int j) { return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4; }

/* Scale and minimum k (0..7) of Q4_K and Q5_K, 6 bits each. */
static void k_scale_min(const uint8_t *s, int k, int *scale, int *min) {
    if (k < 4) {
        *scale = s[k] & 63;
        *min = s[k + 4] & 63;
    } else {
        *scale = (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
        *min = s[k + 4] >> 4 | (s[k] >> 6) << 4;
    }
}

/* Element j (0..31) of sub-block k (0..7) of Q4_K's and Q5_K's 128 bytes of nibbles. */
static int k_nibble(const uint8_t *qs, int k, int j) {
    uint8_t byte = qs[k / 2 * 32 + j];
    return k % 2 ? byte >> 4 : byte & 15;
}

/* Element e (0..255) of a Q6_K block, −32..31. */
static int q6_quant(const uint8_t *block, int e) {
    const uint8_t *ql = block + e / 128 * 64, *qh = block + 128 + e / 128 * 32;
    int part = e % 128 / 32, l = e % 32;
    int low = part < 2 ? ql[l + 32 * part] & 15 : ql[l + 32 * (part - 2)] >> 4;
    return (low | (qh[l] >> (2 * part) & 3) << 4) - 32;
}

static float q6_scale(const uint8_t *block, int e) { return load_f16(block + 208) * (float)(int8_t)block[192 + e / 16]; }

/* Sub-block k (0..7) of 32 elements at once: where it lies is the same for all of them. */
static void q6_quants(int8_t *q, const uint8_t *block, int k) {
    const uint8_t *ql = block + k / 4 * 64 + k % 2 * 32, *qh = block + 128 + k / 4 * 32;
    int low_shift = k % 4 < 2 ? 0 : 4, high_shift = k % 4 * 2;
    for (int l = 0; l < 32; l++) q[l] = (int8_t)(((ql[l] >> low_shift & 15) | (qh[l] >> high_shift & 3) << 4) - 32);
}

/* --- the reference: one block as floats --- */

static void small_block_f32(uint32_t type, const uint8_t *b, float *out) {
    float d = load_f16(b), m = type == GGML_Q4_1 || type == GGML_Q5_1 ? load_f16(b + 2) : 0;
    for (int j = 0; j < 32; j++) {
        switch (type) {
        case GGML_Q4_0: out[j] = d * (float)(nibble(b + 2, j) - 8); break;
        case GGML_Q4_1: out[j] = d * (float)nibble(b + 4, j) + m; break;
        case GGML_Q5_0: out[j] = d * (float)((nibble(b + 6, j) | (int)(load_u32(b + 2) >> j & 1) << 4) - 16); break;
        case GGML_Q5_1: out[j] = d * (float)(nibble(b + 8, j) | (int)(load_u32(b + 4) >> j & 1) << 4) + m; break;
        default: out[j] = d * (float)(int8_t)b[2 + j]; break; /* Q8_0 */
        }
    }
}

static void k_block_f32(uint32_t type, const uint8_t *b, float *out) {
    for (int e = 0; e < K_BLOCK; e++) {
        if (type == GGML_Q6_K) {
            out[e] = q6_scale(b, e) * (float)q6_quant(b, e);
            continue;
        }
        int k = e / 32, j = e % 32, scale, min;
        k_scale_min(b + 4, k, &scale, &min);
        int q = type == GGML_Q4_K ? k_nibble(b + 16, k, j) : k_nibble(b + 48, k, j) | (b[16 + j] >> k & 1) << 4;
        out[e] = load_f16(b) * (float)scale * (float)q - load_f16(b + 2) * (float)min;
    }
}

void ggml_row_f32(uint32_t type, const void *row, int64_t n_cols, float *out) {
    const struct type_info *info = importable(type);
    const uint8_t *p = row;
    if (n_cols % info->elements) BUG("%s row of %lld columns", info->name, (long long)n_cols);
    for (int64_t c = 0; c < n_cols; c += info->elements, p += info->bytes, out += info->elements) {
        if (type == GGML_F32) memcpy(out, p, sizeof *out);
        else if (type == GGML_F16) *out = load_f16(p);
        else if (type == GGML_BF16) *out = bf16_to_f32(load_u16(p));
        else if (info->elements == 32) small_block_f32(type, p, out);
        else k_block_f32(type, p, out);
    }
}

/* --- readers of one group --- */

static void read_q4_0(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g * 18;
    out->scale = load_u16(b);
    memcpy(out->words, b + 2, 16);
}

static void read_q4_1(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g * 20;
    out->scale = load_u16(b);
    out->min = load_u16(b + 2);
    memcpy(out->words, b + 4, 16);
}

static void read_q8_0(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g * 34;
    out->scale = load_u16(b);
    memcpy(out->words, b + 2, 32);
}

/* Bits 0 to 3 into the lowest bits of four bytes. */
static uint32_t spread_bits(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

/* 32 five-bit quants of 16 bytes of nibbles and their high bits, four a word. A byte is the nibble plus `if_set` or `if_clear`,
 * which share no bit with it. */
static void read_five_bits(struct group *out, const uint8_t *qs, uint32_t high, uint32_t if_set, uint32_t if_clear) {
    for (int i = 0; i < 8; i++) {
        uint32_t nibbles = load_u32(qs + i % 4 * 4) >> (i < 4 ? 0 : 4) & 0x0f0f0f0fu, bits = spread_bits(high >> (4 * i));
        out->words[i] = nibbles | bits * if_set | (bits ^ 0x01010101u) * if_clear;
    }
}

static void read_q5_0(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g * 22;
    out->scale = load_u16(b);
    read_five_bits(out, b + 6, load_u32(b + 2), 0, 0xf0); /* −16 + nibble */
}

static void read_q5_1(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g * 24;
    out->scale = load_u16(b);
    out->min = load_u16(b + 2);
    read_five_bits(out, b + 8, load_u32(b + 4), 0x10, 0);
}

/* Scale and minimum of sub-block k of Q4_K and Q5_K, each rounded to F16 once: the products are exact in F32. */
static void read_k_scale(struct group *out, const uint8_t *b, int k) {
    int scale, min;
    k_scale_min(b + 4, k, &scale, &min);
    out->scale = f32_to_f16(load_f16(b) * (float)scale);
    out->min = f32_to_f16(-(load_f16(b + 2) * (float)min));
}

static void read_q4_k(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g / 8 * 144;
    int k = (int)(g % 8);
    uint8_t packed[16];
    for (int j = 0; j < 16; j++) packed[j] = (uint8_t)(k_nibble(b + 16, k, j) | k_nibble(b + 16, k, j + 16) << 4);
    memcpy(out->words, packed, sizeof packed);
    read_k_scale(out, b, k);
}

static void read_q5_k(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g / 8 * 176;
    int k = (int)(g % 8);
    uint8_t q[GROUP_COLS];
    for (int j = 0; j < GROUP_COLS; j++) q[j] = (uint8_t)(k_nibble(b + 48, k, j) | (b[16 + j] >> k & 1) << 4);
    memcpy(out->words, q, sizeof q);
    read_k_scale(out, b, k);
}

/* x to the nearest integer, ties to even, of −127..127; NaN, which only a broken file has, becomes −127. */
static int8_t round_int8(float x) {
    x = x >= -127 ? x : -127;
    x = x <= 127 ? x : 127;
    return (int8_t)(int32_t)(x + 0x1.8p23f - 0x1.8p23f);
}

static void read_q6_k(struct group *out, const uint8_t *row, int64_t g) {
    const uint8_t *b = row + g / 8 * 210;
    int first = (int)(g % 8) * GROUP_COLS;
    float x[GROUP_COLS], largest = 0;
    int8_t q[GROUP_COLS];
    q6_quants(q, b, (int)(g % 8));
    for (int half = 0; half < 2; half++) {
        float scale = q6_scale(b, first + 16 * half);
        for (int j = 16 * half; j < 16 * half + 16; j++) x[j] = scale * (float)q[j];
    }
    for (int j = 0; j < GROUP_COLS; j++) largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
    out->scale = f32_to_f16(largest / 127);
    float scale = f16_to_f32(out->scale); /* quants are of the scale that is kept */
    float inverse = scale > 0 ? 1 / scale : 0;
    for (int j = 0; j < GROUP_COLS; j++) q[j] = round_int8(x[j] * inverse);
    memcpy(out->words, q, sizeof q);
}

static group_reader reader_of(uint32_t type) {
    switch (type) {
    case GGML_Q4_0: return read_q4_0;
    case GGML_Q4_1: return read_q4_1;
    case GGML_Q5_0: return read_q5_0;
    case GGML_Q5_1: return read_q5_1;
    case GGML_Q8_0: return read_q8_0;
    case GGML_Q4_K: return read_q4_k;
    case GGML_Q5_K: return read_q5_k;
    case GGML_Q6_K: return read_q6_k;
    default: BUG("%s has no groups", ggml_type_name(type));
    }
}

/* --- panels --- */

/* Stores one row's group into the panel's group: n_words chunks, then scales, then minima. */
static inline void store_group(uint8_t *to, const struct group *from, int lane, int n_words, bool has_min) {
    uint8_t *scales = to + n_words * 4 * PANEL_ROWS;
    for (int i = 0; i < n_words; i++) memcpy(to + i * 4 * PANEL_ROWS + 4 * lane, &from->words[i], 4);
    memcpy(scales + 2 * lane, &from->scale, 2);
    if (has_min) memcpy(scales + 2 * PANEL_ROWS + 2 * lane, &from->min, 2);
}

/* Both return the end of what they wrote. */
static uint8_t *pack_groups(uint8_t *panel, group_reader read, enum wfmt fmt, const uint8_t *rows, size_t row_bytes, int n_rows,
                            int64_t n_groups) {
    const size_t group_bytes = wfmt_group_bytes(fmt);
    const int n_words = fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M ? 4 : 8;
    const bool has_min = fmt == WFMT_INT4_G32M || fmt == WFMT_INT8_G32M;
    struct group group = {0};
    for (int64_t g = 0; g < n_groups; g++, panel += group_bytes) {
        if (n_rows < PANEL_ROWS) memset(panel, 0, group_bytes);
        for (int r = 0; r < n_rows; r++) {
            read(&group, rows + (size_t)r * row_bytes, g);
            store_group(panel, &group, r, n_words, has_min);
        }
    }
    return panel;
}

static uint8_t *pack_floats(uint8_t *panel, size_t value_bytes, const uint8_t *rows, size_t row_bytes, int n_rows,
                            int64_t n_cols) {
    for (int64_t c = 0; c < n_cols; c++, panel += PANEL_ROWS * value_bytes, rows += value_bytes) {
        if (n_rows < PANEL_ROWS) memset(panel, 0, PANEL_ROWS * value_bytes);
        for (int r = 0; r < n_rows; r++) {
            if (value_bytes == 4) memcpy(panel + r * 4, rows + (size_t)r * row_bytes, 4);
            else memcpy(panel + r * 2, rows + (size_t)r * row_bytes, 2);
        }
    }
    return panel;
}

void import_gguf_panel(void *panel, uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t first_row) {
    const struct type_info *info = importable(type);
    if (n_cols < 0 || n_cols > INT32_MAX || n_cols % info->elements || first_row < 0 || first_row % PANEL_ROWS ||
        first_row >= n_rows)
        BUG("%s panel at row %lld of %lld x %lld", info->name, (long long)first_row, (long long)n_rows, (long long)n_cols);
    size_t row_bytes = (size_t)(n_cols / info->elements) * (size_t)info->bytes;
    const uint8_t *rows = (const uint8_t *)src + (size_t)first_row * row_bytes;
    int rows_here = n_rows - first_row < PANEL_ROWS ? (int)(n_rows - first_row) : PANEL_ROWS;
    uint8_t *end;
    if (wfmt_is_integer(info->fmt)) {
        end = pack_groups(panel, reader_of(type), info->fmt, rows, row_bytes, rows_here, n_cols / GROUP_COLS);
    } else {
        end = pack_floats(panel, (size_t)info->bytes, rows, row_bytes, rows_here, n_cols);
    }
    uint8_t *padded_end = (uint8_t *)panel + wfmt_panel_bytes(info->fmt, (int)n_cols);
    memset(end, 0, (size_t)(padded_end - end));
}
