/* What a run says: a progress line, a table for people, JSON for programs. */
#pragma once

#include <stdio.h>

#include "client/bench_options.h"
#include "client/summary.h"
#include "engine/base/err.h"

struct progress {
    FILE *out;   /* NULL: silent */
    bool is_tty; /* redraws one line five times a second; else a line every five seconds */
    int64_t last_us, last_chunks;
};

/* Shows progress if it is time to; `what` is being counted: "requests". */
void progress_show(struct progress *p, int64_t now_us, int64_t done, int64_t total, int64_t failed, int64_t active,
                   int64_t chunks, const char *what);
/* Ends the line that is being redrawn. */
void progress_end(struct progress *p);

void report_table(struct summary *s, const struct bench_options *o, const char *model, FILE *out);
/* JSON with the keys of vllm bench serve where it has them. NULL when out of memory. A new reference. */
json_t *report_json(struct summary *s, const struct bench_options *o, const char *model);
/* Writes the JSON to a file, or to standard output for "-". */
enum status report_write_json(struct summary *s, const struct bench_options *o, const char *model, const char *path,
                              struct err *err);
