#include "quant/format.h"

#include <math.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/err.h"
#include "engine/base/f16.h"

#define PANEL_ALIGN 64
#define CHUNK_BYTES 64 /* one 32-bit word of each of the 16 rows */

/* What of a format its name says: bits of an element, and whether a group has minima. */
struct wfmt_info {
    const char *name;
    int value_bytes; /* of an element of a float format, else 0 */
    int quant_bytes; /* of the 32·16 quants of a group, else 0 */
    int has_min;
};

static const struct wfmt_info infos[WFMT_COUNT] = {
    [WFMT_F32] = {"F32", 4, 0, 0},
    [WFMT_F16] = {"F16", 2, 0, 0},
    [WFMT_BF16] = {"BF16", 2, 0, 0},
    [WFMT_INT8_G32] = {"INT8_G32", 0, 8 * CHUNK_BYTES, 0},
    [WFMT_INT8_G32M] = {"INT8_G32M", 0, 8 * CHUNK_BYTES, 1},
    [WFMT_INT4_G32] = {"INT4_G32", 0, 4 * CHUNK_BYTES, 0},
    [WFMT_INT4_G32M] = {"INT4_G32M", 0, 4 * CHUNK_BYTES, 1},
};

static const struct wfmt_info *info_of(enum wfmt fmt) {
    if ((unsigned)fmt >= WFMT_COUNT) BUG("weight format %d", (int)fmt);
    return &infos[fmt];
}

const char *wfmt_name(enum wfmt fmt) { return info_of(fmt)->name; }

size_t wfmt_group_bytes(enum wfmt fmt) {
    const struct wfmt_info *info = info_of(fmt);
    if (!info->quant_bytes) BUG("%s has no groups", info->name);
    return (size_t)info->quant_bytes + (size_t)(1 + info->has_min) * PANEL_ROWS * sizeof(uint16_t);
}

size_t wfmt_panel_bytes(enum wfmt fmt, int n_cols) {
    const struct wfmt_info *info = info_of(fmt);
    if (n_cols < 0 || (info->quant_bytes && n_cols % GROUP_COLS)) BUG("%s panel of %d columns", info->name, n_cols);
    size_t bytes = info->quant_bytes ? (size_t)(n_cols / GROUP_COLS) * wfmt_group_bytes(fmt)
                                     : (size_t)n_cols * PANEL_ROWS * (size_t)info->value_bytes;
    return round_up(bytes, PANEL_ALIGN);
}

size_t weight_bytes(enum wfmt fmt, int64_t n_rows, int64_t n_cols) {
    if (n_rows < 0 || n_rows > INT32_MAX || n_cols < 0 || n_cols > INT32_MAX)
        BUG("weight of %lld x %lld", (long long)n_rows, (long long)n_cols);
    size_t n_panels = ((size_t)n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    return n_panels * wfmt_panel_bytes(fmt, (int)n_cols); /* at most 2^27 · (2^37 − 64): fits */
}

static uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* One row of a float panel. */
static void float_row_f32(enum wfmt fmt, const uint8_t *panel, int lane, int n_cols, float *out) {
    for (int c = 0; c < n_cols; c++) {
        size_t index = (size_t)c * PANEL_ROWS + (size_t)lane;
        if (fmt == WFMT_F32) memcpy(&out[c], panel + index * 4, 4);
        else if (fmt == WFMT_F16) out[c] = f16_to_f32(load_u16(panel + index * 2));
        else out[c] = bf16_to_f32(load_u16(panel + index * 2));
    }
}

/* Column c of a group, before scaling. */
static int group_quant(enum wfmt fmt, const uint8_t *group, int lane, int c) {
    int column = c; /* among those that chunks hold */
    if (fmt == WFMT_INT4_G32 || fmt == WFMT_INT4_G32M) column = c % 16;
    uint8_t byte = group[column / 4 * CHUNK_BYTES + 4 * lane + column % 4];
    if (fmt == WFMT_INT8_G32 || fmt == WFMT_INT8_G32M) return (int8_t)byte;
    int nibble = c < 16 ? byte & 15 : byte >> 4;
    return fmt == WFMT_INT4_G32 ? nibble - 8 : nibble;
}

static void group_row_f32(enum wfmt fmt, const uint8_t *group, int lane, float *out) {
    const struct wfmt_info *info = &infos[fmt];
    const uint8_t *scales = group + info->quant_bytes, *minima = scales + PANEL_ROWS * sizeof(uint16_t);
    float scale = f16_to_f32(load_u16(scales + 2 * lane));
    float min = info->has_min ? f16_to_f32(load_u16(minima + 2 * lane)) : 0;
    for (int c = 0; c < GROUP_COLS; c++) {
        float q = (float)group_quant(fmt, group, lane, c);
        out[c] = info->has_min ? fmaf(scale, q, min) : scale * q;
    }
}

void weight_row_f32(const struct weight *w, int row, float *out) {
    if (row < 0 || row >= w->n_rows) BUG("row %d of %d", row, w->n_rows);
    const uint8_t *panel = (const uint8_t *)w->data + (size_t)(row / PANEL_ROWS) * wfmt_panel_bytes(w->fmt, w->n_cols);
    int lane = row % PANEL_ROWS;
    if (!wfmt_is_integer(w->fmt)) {
        float_row_f32(w->fmt, panel, lane, w->n_cols, out);
        return;
    }
    size_t group_bytes = wfmt_group_bytes(w->fmt);
    for (int g = 0; g < w->n_cols / GROUP_COLS; g++)
        group_row_f32(w->fmt, panel + (size_t)g * group_bytes, lane, out + g * GROUP_COLS);
}
