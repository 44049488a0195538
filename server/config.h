/* The server's configuration: defaults ← YAML file ← environment (TALLY_*) ← flags, a later source winning.
 *
 * CONFIG_TABLE is the one list of options. The struct's members, flags, environment variables, YAML keys, ranges, help and the
 * printout of resolved values all come from it. */
#pragma once

#include <stdio.h>

#include "engine/base/log.h"
#include "engine/base/options.h"
#include "engine/engine.h"

/* X(name, kind, default, least, most, choices, value, help) */
#define CONFIG_TABLE(X)                                                                                                        \
    X(model, TEXT, "", 0, 0, "", "FILE", "GGUF file to serve; may also be given as the first argument.")                       \
    X(served_model_name, TEXT, "", 0, 0, "", "NAME",                                                                           \
      "Name in /v1/models and in answers; empty: the file's name without .gguf.")                                              \
    X(host, TEXT, "127.0.0.1", 0, 0, "", "ADDRESS",                                                                            \
      "IPv4 or IPv6 address, or localhost, to listen on. An address other hosts can reach needs --allow-remote.")              \
    X(port, INT, "8000", 0, 65535, "", "N", "TCP port to listen on; 0 takes a free one and logs it.")                          \
    X(allow_remote, BOOL, "false", 0, 0, "", "",                                                                               \
      "Listen on an address that other hosts can reach. Nobody is authenticated: put a proxy in front.")                       \
    X(threads, INT, "auto", 1, 256, "", "N",                                                                                   \
      "CPU threads that compute; auto: every CPU that affinity and cgroup quota allow.")                                       \
    X(memory_budget, BYTES, "auto", 1048576, 1125899906842624.0, "", "BYTES",                                                  \
      "Bytes the server may hold in all; the KV pool gets what the rest leaves. What does not fit is refused before loading.") \
    X(max_context, INT, "auto", 2, 16777216, "", "TOKENS",                                                                     \
      "Longest prompt and completion together; auto: the model's own, at most what the KV pool can hold.")                     \
    X(max_seqs, INT, "16", 1, 1024, "", "N", "Sequences computed in one step.")                                                \
    X(max_batch_tokens, INT, "auto", 1, 65536, "", "TOKENS",                                                                   \
      "Tokens computed in one step, at least max_seqs; longer prompts go in chunks. auto: 256, or max_seqs if that is more.")  \
    X(max_queue, INT, "128", 0, 65536, "", "N", "Requests that may wait beyond those running; more are answered 429.")         \
    X(block_tokens, INT, "16", 16, 256, "", "TOKENS", "Tokens a KV block holds; a multiple of 16.")                            \
    X(activations, CHOICE, "int8", 0, 0, "int8|f32", "KIND", "Activations of matrix products; f32 is exact and slow.")         \
    X(max_body, BYTES, "1MiB", 1024, 1073741824, "", "BYTES", "Largest request body; a larger one is answered 413.")           \
    X(request_memory, BYTES, "16MiB", 1048576, 1099511627776.0, "", "BYTES",                                                   \
      "Bodies, prompts and answers of all requests together; past it requests are answered 429.")                              \
    X(max_connections, INT, "256", 1, 65536, "", "N", "Open client connections; more wait in the backlog.")                    \
    X(prep_threads, INT, "1", 1, 64, "", "N", "Threads that parse requests and tokenize prompts.")                             \
    X(header_timeout, INT, "10", 1, 3600, "", "SECONDS", "A connection must bring its whole headers in this time.")            \
    X(body_timeout, INT, "60", 1, 3600, "", "SECONDS", "A request must bring its whole body in this time.")                    \
    X(idle_timeout, INT, "60", 1, 86400, "", "SECONDS",                                                                        \
      "An idle connection, or a reader that takes nothing, is closed after this.")                                             \
    X(drain_timeout, INT, "30", 0, 3600, "", "SECONDS", "How long running requests may go on after SIGTERM.")                  \
    X(vllm_metric_names, BOOL, "true", 0, 0, "", "", "Give /metrics also under the vllm: names that gateways scrape.")         \
    X(log_level, CHOICE, "info", 0, 0, "error|warn|info|debug", "LEVEL", "Least important events to log.")

#define CONFIG_MEMBER_TEXT const char *
#define CONFIG_MEMBER_INT int64_t
#define CONFIG_MEMBER_BYTES int64_t
#define CONFIG_MEMBER_CHOICE int
#define CONFIG_MEMBER_BOOL bool

enum config_option {
#define X(name, ...) CONFIG_##name,
    CONFIG_TABLE(X)
#undef X
        CONFIG_COUNT
};

struct config {
#define X(name, kind, ...) CONFIG_MEMBER_##kind name;
    CONFIG_TABLE(X)
#undef X
    /* How the command was called. */
    const char *config;      /* the YAML file, "" for none */
    bool json, print_config; /* tally plan --json, tally serve --print-config */
    bool want_help;
    enum option_source sources[CONFIG_COUNT + 3];
    void *file; /* owns the texts that came from the YAML file; config_free frees it */
};

/* Fills `c` from all sources: argv[0] is the command's name, environment "NAME=value" strings. The file is --config or TALLY_CONFIG.
 * With --help only want_help is set. Errors: STATUS_INVALID or STATUS_IO, param naming the option, the text its source and what is
 * allowed. Call config_free in either case. */
enum status config_load(struct config *c, int argc, char **argv, char *const *environment, struct err *err);
void config_free(struct config *c);

/* Applies YAML text over `c`; `name` is the file's name for errors. Called by config_load. */
enum status config_from_yaml(struct config *c, const char *name, const char *text, size_t n, struct err *err);

struct option_table config_table(struct config *c);
/* The options of "serve" or "plan", with defaults and ranges. */
void config_print_help(const char *command, FILE *out);
/* The whole configuration as YAML, each line with the source of its value. */
void config_print(struct config *c, FILE *out);
/* One log event a value that is not a default. */
void config_log(struct config *c);

/* The engine's part. request_bytes and http_bytes are left 0. */
struct engine_options config_engine_options(const struct config *c);
/* Is `host` an address of this machine only (127.0.0.0/8, ::1, localhost)? */
bool config_host_is_loopback(const char *host);
