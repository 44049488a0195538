/* exp, SiLU and GELU on lanes: our own, so that they have the same bits everywhere.
 *
 * exp(x) = 2^n · exp(r), n = round(x / ln 2), r = x − n·ln 2 in [−ln2/2, ln2/2]; exp(r) = 1 + r + r²·q(r), q of degree 4 found by
 * Remez's exchange for the smallest relative error (3.1e-9, a twentieth of a unit in the last place), Horner with fma. The scale
 * is applied as 2^(n−1) and then doubled, so that results up to the largest float come out. Results below 2.7e-38 are 0: none is
 * subnormal, whatever the CPU's mode. */
#pragma once

#include "kernels/cpu/lanes.h"

#define EXP_LOWEST (-86.5f)
#define EXP_HIGHEST 0x1.62e42ep6f /* 88.72283, the last whose e^x is a float */

/* e^x, −infinity and everything below EXP_LOWEST to 0, everything above EXP_HIGHEST to infinity, NaN to NaN. */
LANE_FN lanes lanes_exp(lanes x) {
    const lanes to_integer = lanes_set(0x1.8p23f);
    lanes shifted = lanes_fma(x, lanes_set(0x1.715476p0f), to_integer);
    lanes n = lanes_sub(shifted, to_integer);
    lanes r = lanes_fma(n, lanes_set(-0x1.62e4p-1f), x); /* 15 bits of ln 2: exact */
    r = lanes_fma(n, lanes_set(-0x1.7f7d1cp-20f), r);
    lanes q = lanes_fma(r, lanes_set(0x1.6a23dp-10f), lanes_set(0x1.123a2p-7f));
    q = lanes_fma(q, r, lanes_set(0x1.5558f2p-5f));
    q = lanes_fma(q, r, lanes_set(0x1.555492p-3f));
    q = lanes_fma(q, r, lanes_set(0x1.fffffcp-2f));
    lanes e = lanes_fma(lanes_mul(r, r), q, r);
    e = lanes_add(e, lanes_set(1));
    e = lanes_mul(lanes_mul(e, lanes_half_power(shifted)), lanes_set(2));
    e = lanes_if_less(x, lanes_set(EXP_LOWEST), lanes_zero(), e);
    return lanes_if_less(lanes_set(EXP_HIGHEST), x, lanes_set(INFINITY), e);
}

/* g / (1 + e^−g) */
LANE_FN lanes lanes_silu(lanes g) {
    lanes e = lanes_exp(lanes_sub(lanes_zero(), g));
    return lanes_div(g, lanes_add(lanes_set(1), e));
}

/* ½·g·(1 + tanh(√(2/π)·(g + 0.044715·g³))), which is g / (1 + e^(−2√(2/π)·(g + 0.044715·g³))). */
LANE_FN lanes lanes_gelu_tanh(lanes g) {
    lanes inner = lanes_fma(lanes_mul(g, g), lanes_set(0.044715f), lanes_set(1));
    lanes z = lanes_mul(lanes_mul(g, lanes_set(-0x1.988454p0f)), inner); /* −2√(2/π) */
    return lanes_div(g, lanes_add(lanes_set(1), lanes_exp(z)));
}
