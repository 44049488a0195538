/* The options of tally bench: one table, as the server's (server/config.h). Environment: TALLY_BENCH_NAME. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/options.h"

/* X(name, kind, default, least, most, choices, value, help) */
#define BENCH_TABLE(X)                                                                                                         \
    X(url, TEXT, "http://127.0.0.1:8000", 0, 0, "", "URL", "The server, without /v1.")                                         \
    X(model, TEXT, "", 0, 0, "", "NAME", "Model to ask for; empty: the first of /v1/models.")                                  \
    X(api_key, TEXT, "", 0, 0, "", "KEY", "Sent as a bearer token.")                                                           \
    X(header, LIST, "", 0, 0, "", "\"NAME: VALUE\"", "A header to send; may be given many times.")                             \
    X(requests, INT, "100", 1, 1000000, "", "N", "Requests to measure.")                                                       \
    X(warmup, INT, "0", 0, 1000000, "", "N", "Requests to send before, in the closed loop, that are not measured.")            \
    X(concurrency, INT, "auto", 1, 16384, "", "N",                                                                             \
      "Requests in flight: each that ends lets the next one go (closed loop). With --rate an upper limit. "                    \
      "auto: 8, or with --rate as many as are due.")                                                                           \
    X(rate, REAL, "0", 0, 1000000, "", "R",                                                                                    \
      "Requests a second, Poisson arrivals (open loop), whether or not answers keep up; "                                      \
      "latencies count from the scheduled time. 0: closed loop.")                                                              \
    X(seed, INT, "0", 0, 9007199254740991.0, "", "N", "Of prompts and arrivals: the same seed asks the same.")                 \
    X(input_tokens, INT, "128", 1, 1048576, "", "N", "Tokens of a random prompt, sent as token ids.")                          \
    X(words, INT, "0", 0, 1048576, "", "N", "Random English words as prompt instead, N of them.")                              \
    X(prompts, TEXT, "", 0, 0, "", "FILE", "Prompts from a file instead: a line each, or JSON lines with \"prompt\".")         \
    X(token_ids, BOOL, "true", 0, 0, "", "",                                                                                   \
      "Send token ids; --no-token-ids sends --input-tokens random words, for servers that take only text.")                    \
    X(vocab, INT, "auto", 1, 16777216, "", "N", "Random token ids are below this; auto: what /v1/models says.")                \
    X(output_tokens, INT, "64", 1, 1048576, "", "N", "Tokens to ask for (max_tokens).")                                        \
    X(temperature, REAL, "0", 0, 100, "", "T", "Sampling temperature; 0 is greedy.")                                           \
    X(ignore_eos, BOOL, "false", 0, 0, "", "",                                                                                 \
      "Ask to generate past the end token, so that outputs have one length. On by itself with random prompts of token ids; "   \
      "--no-ignore-eos turns it off.")                                                                                         \
    X(timeout, REAL, "600", 0.001, 86400, "", "SECONDS", "Longest time for one request.")                                      \
    X(json, TEXT, "", 0, 0, "", "FILE", "Write the results as JSON; - is standard output, in place of the table.")             \
    X(quiet, BOOL, "false", 0, 0, "", "", "No progress on standard error.")

#define BENCH_MEMBER_TEXT const char *
#define BENCH_MEMBER_INT int64_t
#define BENCH_MEMBER_REAL double
#define BENCH_MEMBER_BOOL bool
#define BENCH_MEMBER_LIST struct option_list

struct bench_options {
#define X(name, kind, ...) BENCH_MEMBER_##kind name;
    BENCH_TABLE(X)
#undef X
};

/* Environment, then flags, then checks; ignore_eos and concurrency are resolved. Errors: STATUS_INVALID naming the option. */
enum status bench_options_load(struct bench_options *o, int argc, char **argv, char *const *environment, struct err *err);
void bench_options_print_help(FILE *out);
