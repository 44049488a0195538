/* What a packed weight matrix is: the byte layouts that the loader writes, the ledger prices and the kernels read.
 *
 * A matrix W [n_rows, n_cols] (y = W x) is cut into panels of 16 rows; rows of the last panel that do not exist are zero with
 * scale zero. Panels lie one after the other, each 64-byte aligned. Within a panel the columns run in order, so a kernel walks a
 * panel once from front to back, whatever its tile, with one row per 32-bit lane: AVX-512 takes 16 rows at a time, AVX2 the same
 * bytes as two halves of 8, plain C one by one. No sum ever crosses lanes, which is why all give the same bits.
 *
 *   integer formats, for each group of 32 columns (n_cols % 32 = 0):
 *     INT4: 4 chunks of 64 bytes; byte 4r+j of chunk i: low nibble = q[r][4i+j], high nibble = q[r][16+4i+j]      256 bytes
 *     INT8: 8 chunks of 64 bytes; byte 4r+j of chunk i = q[r][4i+j], signed                                       512 bytes
 *     16 scales, F16                                                                                               32 bytes
 *     16 minima, F16, in the formats that end in M                                                                 32 bytes
 *   float formats, for each column: 16 values of 2 or 4 bytes
 *
 *   value: INT4_G32 scale·(q − 8) · INT4_G32M scale·q + min · INT8_G32 scale·q · INT8_G32M scale·q + min, q unsigned in INT4.
 *
 * Rejected: a panel of 8 rows (AVX-512 would load two), scales in F32 (6 bits a weight in decode, where bytes are the limit). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PANEL_ROWS 16
#define GROUP_COLS 32

enum wfmt { WFMT_F32, WFMT_F16, WFMT_BF16, WFMT_INT8_G32, WFMT_INT8_G32M, WFMT_INT4_G32, WFMT_INT4_G32M, WFMT_COUNT };

/* A packed matrix. Does not own `data`. */
struct weight {
    enum wfmt fmt;
    int n_rows, n_cols;
    const void *data; /* weight_bytes(fmt, n_rows, n_cols) bytes, 64-byte aligned */
};

const char *wfmt_name(enum wfmt fmt);
static inline int wfmt_is_integer(enum wfmt fmt) { return fmt >= WFMT_INT8_G32; }

/* Bytes of one group of 32 columns of a panel; integer formats only. */
size_t wfmt_group_bytes(enum wfmt fmt);
/* Bytes of a panel, of 16 rows. */
size_t wfmt_panel_bytes(enum wfmt fmt, int n_cols);
/* Bytes of a whole matrix, last panel padded. Dimensions come checked: each at most 2^31 − 1. */
size_t weight_bytes(enum wfmt fmt, int64_t n_rows, int64_t n_cols);
/* Row `row` as floats, out [n_cols]: scale·q rounded once, then + min rounded once (fma where both). The meaning of a format. */
void weight_row_f32(const struct weight *w, int row, float *out);
