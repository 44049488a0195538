/* One step's work as flat arrays: which tokens at which positions of which sequences, and which rows need logits. Filled by the
 * scheduler, read by the model. Rows of one sequence are consecutive. Memory: fixed at start, of the ledger's. */
#pragma once

#include "kernels/backend.h"

struct batch {
    int n_tokens, n_seqs, n_logits;
    int32_t *tokens;       /* [max_batch_tokens] */
    struct attn_seq *seqs; /* [max_seqs] */
    int32_t *logit_rows;   /* [max_batch_tokens] rows of the batch whose logits are wanted, ascending */
};
