"""Writes quant.bin: blocks of every GGUF type that Tally imports, and what they mean as floats.

The floats come from the `gguf` package's numpy code (PyPI gguf, numpy), which shares nothing with quant/import_gguf.c. The first
rows are random bytes with scales of ordinary size, of either sign, zero and subnormal; the last rows are bell-shaped data, quantized
by the package where it can (not for the K types, whose rows are all random).

File: for each tensor  u32 type, n_rows, n_cols, row_bytes | rows as in a GGUF file | f32 expected [n_rows, n_cols].

    python3 make_quant.py quant.bin
"""
import struct
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

ROWS, COLS = 18, 256  # a full panel and two rows more; one block of the K types
F16_AT = {  # type: positions of its F16 fields in a block
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
CAN_QUANTIZE = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0)
EDGE_SCALES = [0.0, -0.0, 6e-8, -3e-6, 0.25]  # the third and fourth are subnormal in F16


def random_rows(rng, kind, n):
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n, COLS // elements, size), dtype=np.uint8)
    for row in range(n):
        for at in F16_AT[kind]:
            scales = rng.normal(0, 0.01, COLS // elements)
            if row < len(EDGE_SCALES):
                scales[0] = EDGE_SCALES[row]
            blocks[row, :, at:at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n, -1)


def float_rows(rng, kind):
    x = rng.normal(0, 0.05, (ROWS, COLS)).astype(np.float32)
    x[0, :8] = [0.0, -0.0, 1.0, -1.0, 6e-8, 65504.0, 1e-30, -2.5]
    return quants.quantize(x, kind).view(np.uint8).reshape(ROWS, -1)


def rows_of(rng, kind):
    if kind in (T.F32, T.F16, T.BF16):
        return float_rows(rng, kind)
    if kind not in CAN_QUANTIZE:
        return random_rows(rng, kind, ROWS)
    real = quants.quantize(rng.normal(0, 0.05, (ROWS - 9, COLS)).astype(np.float32), kind)
    return np.concatenate([random_rows(rng, kind, 9), real])


def main(path):
    rng = np.random.default_rng(20240607)
    with open(path, "wb") as out:
        for kind in (T.F32, T.F16, T.BF16, *F16_AT):
            raw = np.ascontiguousarray(rows_of(rng, kind))
            expected = quants.dequantize(raw if kind != T.F32 else raw.view(np.float32), kind).astype(np.float32)
            expected = expected.reshape(ROWS, COLS)
            out.write(struct.pack("<4I", int(kind), ROWS, COLS, raw.shape[1]))
            out.write(raw.tobytes())
            out.write(expected.tobytes())


main(sys.argv[1])
