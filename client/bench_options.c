#include "client/bench_options.h"

#include <string.h>

#define DEFAULT_CONCURRENCY 8

enum {
#define X(name, ...) BENCH_##name,
    BENCH_TABLE(X)
#undef X
        BENCH_COUNT
};

#define X(name_, kind_, initial_, least, most, choices_, value_, help_)                                                        \
    {#name_, OPTION_##kind_, initial_, least, most, choices_, value_, help_, offsetof(struct bench_options, name_)},
static const struct option bench_options[BENCH_COUNT] = {BENCH_TABLE(X)};
#undef X

/* A header must be "Name: value" (or Name=value, as vllm bench serve spells it) on one line. */
static enum status check_headers(const struct bench_options *o, struct err *err) {
    for (int i = 0; i < o->header.n; i++) {
        const char *text = o->header.items[i];
        size_t name = strcspn(text, ":= \t");
        if (name == 0 || !text[name] || text[name] == ' ' || text[name] == '\t' || strpbrk(text, "\r\n"))
            return err_set_param(err, STATUS_INVALID, "header",
                                 "--header: \"%.80s\" is not allowed: allowed is \"Name: value\"", text);
    }
    return STATUS_OK;
}

static enum status check(const struct bench_options *o, struct err *err) {
    if (strncmp(o->url, "http://", 7) && strncmp(o->url, "https://", 8))
        return err_set_param(err, STATUS_INVALID, "url",
                             "--url: \"%.80s\" is not allowed: allowed are http:// and https:// addresses", o->url);
    if (o->words && *o->prompts)
        return err_set_param(err, STATUS_INVALID, "words", "--words and --prompts: only one can say what the prompts are");
    return check_headers(o, err);
}

enum status bench_options_load(struct bench_options *o, int argc, char **argv, char *const *environment, struct err *err) {
    enum option_source sources[BENCH_COUNT];
    struct option_table t = {bench_options, BENCH_COUNT, o, sources};
    options_init(&t);
    enum status status = options_from_environment(&t, environment, "TALLY_BENCH", err);
    if (!status) status = options_from_flags(&t, argc, argv, NULL, 0, err);
    if (!status) status = check(o, err);
    if (status) return status;
    if (o->words) o->input_tokens = o->words;
    if (o->words || *o->prompts) o->token_ids = false;
    if (sources[BENCH_ignore_eos] == SOURCE_DEFAULT) o->ignore_eos = o->token_ids;
    if (o->concurrency == 0) o->concurrency = o->rate > 0 ? 16384 : DEFAULT_CONCURRENCY;
    if (o->concurrency > o->requests) o->concurrency = o->requests;
    return STATUS_OK;
}

void bench_options_print_help(FILE *out) {
    struct option_table t = {bench_options, BENCH_COUNT, NULL, NULL};
    options_print_help(&t, out);
}
