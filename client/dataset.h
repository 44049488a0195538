/* What is asked: prompts as JSON values, the i-th the same for the same seed, whatever order they are asked in. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "engine/base/err.h"

enum dataset_kind {
    DATASET_TOKENS, /* n_tokens random ids in [0, vocab): exactly that many tokens for the server, no tokenizer needed */
    DATASET_WORDS,  /* n_tokens random English words: for servers without token arrays; tokens are then about that many */
    DATASET_FILE,   /* a prompt a line, in turn */
};

struct dataset {
    enum dataset_kind kind;
    uint64_t seed;
    int64_t n_tokens, vocab;
    char **prompts; /* DATASET_FILE: [n_prompts], owned */
    int64_t n_prompts;
};

/* Reads the prompts of a file: a line that begins with { is a JSON object with a string "prompt", any other is the prompt itself; blank
 * lines are skipped. d->kind becomes DATASET_FILE. Errors name file and line. */
enum status dataset_read_file(struct dataset *d, const char *path, struct err *err);
/* The i-th prompt: an array of integers or a string, a new reference; NULL when out of memory. */
json_t *dataset_prompt(const struct dataset *d, uint64_t index);
void dataset_free(struct dataset *d);
