/* exp, log, sine and cosine in double, the same bits with any compiler, C library and CPU.
 *
 * What they feed (rotary tables, sampling) reaches tokens and logprobs, and libm differs between versions and machines. Plain C
 * multiplications, additions and divisions in one fixed order, compiled without contraction, do not. Accurate to about one unit
 * in the last place (relative 3e-16); not correctly rounded. */
#pragma once

/* e^x. Overflows to infinity above 709.78, and is 0 below −745.13; gradual in between. NaN gives NaN. */
double det_exp(double x);
/* Natural logarithm. 0 gives −infinity, a negative number NaN. */
double det_log(double x);
/* Sine and cosine of x radians. Accurate for |x| < 2^20 (positions times frequencies are below it), also beside multiples of
 * π/2; beyond, accuracy falls with |x|, and from 2^30 on, as for infinities and NaN, both are NaN. */
void det_sincos(double x, double *s, double *c);
