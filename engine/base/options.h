/* A table of options, and everything that follows from it: flags, environment variables, checks, help, and where each value came from.
 *
 * A command declares one array of `struct option` (best from an X-macro beside the struct that holds the values). Every source goes
 * through option_set, so that a value means the same and is refused with the same words on the command line, in the environment and
 * in a file. Sources are applied from weak to strong; a later one wins.
 *
 * Values are texts of the caller's that live as long as the result (argv and the environment do). One thread: the one that starts up. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/err.h"

/* What a value is, and the type of the member that holds it. */
enum option_kind {
    OPTION_TEXT,   /* const char *, "" when not set */
    OPTION_INT,    /* int64_t in [min, max]; 0 for "auto" where the default is auto */
    OPTION_BYTES,  /* int64_t, the same, with K, KiB, M, MiB, G, GiB, T, TiB as powers of 1024 */
    OPTION_REAL,   /* double in [min, max] */
    OPTION_CHOICE, /* int: the index in choices */
    OPTION_BOOL,   /* bool; --name and --no-name on the command line */
    OPTION_LIST,   /* struct option_list: may be given many times, on the command line only */
};

#define OPTION_LIST_MAX 32
struct option_list {
    int n;
    const char *items[OPTION_LIST_MAX];
};

struct option {
    const char *name; /* max_seqs: --max-seqs, TALLY_MAX_SEQS, max_seqs: in a file */
    enum option_kind kind;
    const char *initial; /* the default as its user would write it; "auto" also allows auto */
    double min, max;     /* INT, BYTES, REAL; below 2^53, so exact */
    const char *choices; /* CHOICE: "int8|f32" */
    const char *value;   /* what help calls the value: "N", "FILE" */
    const char *help;    /* with the unit */
    size_t offset;       /* of the member in the caller's struct */
};

enum option_source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct option_table {
    const struct option *options;
    int n;
    void *values;                /* the caller's struct */
    enum option_source *sources; /* [n]: where each value came from */
};

const char *option_source_text(enum option_source source); /* "default", "file", "environment", "flag" */

/* Sets every option to its default. A default that its own table refuses is a BUG. */
void options_init(const struct option_table *t);

/* The option called `name` (max_seqs, or max-seqs as flags spell it), or NULL. */
const struct option *option_find(const struct option_table *t, const char *name, size_t n);

/* Sets one option from text. `where` is what the error names first: "--max-seqs", "tally.yaml: max_seqs".
 * Errors: STATUS_INVALID, with the option's name as param, and what is allowed. */
enum status option_set(const struct option_table *t, const struct option *o, const char *text, enum option_source source,
                       const char *where, struct err *err);

/* Applies flags: argv[1..argc), `--name value`, `--name=value`, `--` ends flags. At most max_operands arguments that are no flags are
 * put into operands, NULL-filled. Errors: an unknown flag (with the nearest known), a value missing or refused, too many operands. */
enum status options_from_flags(const struct option_table *t, int argc, char **argv, const char **operands, int max_operands,
                               struct err *err);

/* Applies PREFIX_NAME for every option that `environment` ("NAME=value" strings, NULL-ended) has. */
enum status options_from_environment(const struct option_table *t, char *const *environment, const char *prefix,
                                     struct err *err);

/* Is --help or -h among the flags? */
bool options_want_help(int argc, char **argv);

/* One paragraph an option: flag, help, default, range. */
void options_print_help(const struct option_table *t, FILE *out);

/* A value as its user would write it: "4GiB", "auto", "int8". Cut to n bytes, NUL-terminated. */
void option_format(const struct option_table *t, const struct option *o, char *text, size_t n);

/* `0.5`, `64`, `16 to 4096`, `int8 or f32`, ...: what the option allows, for errors and help. */
void option_allowed(const struct option *o, char *text, size_t n);

/* "1.5GiB" → bytes; false when it is no size or above 2^53. */
bool bytes_parse(const char *text, int64_t *bytes);
/* The shortest exact spelling: 16KiB, 1536MiB, 1000. */
void bytes_format(int64_t bytes, char *text, size_t n);
/* For people: "1.50 GiB". */
void bytes_format_short(int64_t bytes, char *text, size_t n);
