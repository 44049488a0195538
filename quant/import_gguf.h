/* GGUF's tensor types into Tally's formats.
 *
 * Without loss: F32, F16, BF16 as they are; Q4_0 → INT4_G32; Q4_1 → INT4_G32M; Q8_0, Q5_0 → INT8_G32; Q5_1 → INT8_G32M.
 * With scale·sub-scale rounded to F16: Q4_K → INT4_G32M, Q5_K → INT8_G32M.
 * Requantized (its groups are of 16): Q6_K → INT8_G32, round to nearest, scale = absolute maximum / 127. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/format.h"

/* GGUF's numbers for the types that can be imported. */
enum ggml_type {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_BF16 = 30,
};

/* Name of any GGUF type number ("Q2_K", also of those not imported), or "type 77". Static storage or thread-local. */
const char *ggml_type_name(uint32_t type);
/* Elements and bytes of a block of an importable type; false for any other. */
bool ggml_type_block(uint32_t type, int *elements, int *bytes);
/* The format an importable type becomes. */
enum wfmt import_gguf_format(uint32_t type);
/* Packs rows [first_row, first_row + 16) of a GGUF tensor into one panel of import_gguf_format(type).
 * src: the tensor's data, rows contiguous; rows past n_rows become zero. Needs no workspace. */
void import_gguf_panel(void *panel, uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t first_row);
/* A row as floats straight from the file's bytes, out [n_cols]: what import is tested against, and how norms are read. */
void ggml_row_f32(uint32_t type, const void *row, int64_t n_cols, float *out);
