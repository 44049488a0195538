/* What a run came to: every request that ended, added up. */
#pragma once

#include "client/request.h"
#include "client/stats.h"

struct summary {
    int64_t outcomes[OUTCOME_COUNT];
    char first_error[OUTCOME_COUNT][256]; /* the first of its kind */
    int64_t n_uncounted;                  /* answered in full, but without usage: chunks were counted */
    int64_t prompt_tokens, output_tokens; /* of requests answered in full */
    struct samples ttft, tpot, itl, e2e;  /* ms, of requests answered in full */
    struct samples lateness;              /* ms: how late the client itself sent, all requests */
    int64_t started_us, ended_us;         /* first due, last done */
    double cpu_s;                         /* the client's own */
    int64_t max_concurrent;
    int64_t max_chunks_per_s; /* chunks with text, in the best second */
    bool is_interrupted;
};

/* Counts a finished request. */
void summary_add(struct summary *s, const struct request *r);
void summary_free(struct summary *s);
int64_t summary_failed(const struct summary *s);
double summary_duration_s(const struct summary *s);
/* Was the client itself so late that its figures are not the server's? p99 over 1 ms and over 5 % of the median TTFT. */
bool summary_is_late(struct summary *s);
