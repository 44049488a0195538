/* How a finished sum becomes an output: bias first, the residual last. One function for every instruction set. */
#pragma once

#include "kernels/backend.h"

/* sums [16]: rows 16·panel ... of token `token`. Rows past the matrix are dropped. */
static inline void linear_store(const struct linear_job *job, int panel, int token, const float *sums) {
    int first_row = panel * PANEL_ROWS, n_rows = job->w->n_rows - first_row;
    if (n_rows > PANEL_ROWS) n_rows = PANEL_ROWS;
    float *y = job->y + (int64_t)token * job->y_stride + first_row;
    const float *bias = job->bias ? job->bias + first_row : NULL;
    if (n_rows == PANEL_ROWS && !bias) { /* the common cases, with constant bounds */
        if (job->add)
            for (int r = 0; r < PANEL_ROWS; r++) y[r] += sums[r];
        else
            for (int r = 0; r < PANEL_ROWS; r++) y[r] = sums[r];
        return;
    }
    for (int r = 0; r < n_rows; r++) {
        float value = bias ? sums[r] + bias[r] : sums[r];
        y[r] = job->add ? y[r] + value : value;
    }
}
