/* Linear layers on a CPU: the piece of work that linear.c hands to one thread, and the functions that do it. */
#pragma once

#include "kernels/backend.h"

/* Panels [first_panel, +n_panels) of one job, for tokens [first_token, +n_tokens). */
struct linear_span {
    const struct linear_job *job;
    const struct act *x;
    bool use_f32; /* integer weights: read x->f and multiply by exact values */
    int first_panel, n_panels, first_token, n_tokens;
};

/* Each gives the same bits; plain is the specification. */
void linear_span_plain(const struct linear_span *span);
void linear_span_avx2(const struct linear_span *span);
void linear_span_avx512(const struct linear_span *span);

/* backend.linear: cuts the jobs into spans and runs them on the backend's threads. */
void cpu_linear(struct backend *b, const struct linear_job *jobs, int n_jobs, const struct act *x, int n_tokens, bool use_f32);
