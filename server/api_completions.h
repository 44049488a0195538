/* POST /v1/completions: from a body to a struct completion. Runs on a prep thread. */
#pragma once

#include "engine/engine.h"
#include "server/completion.h"
#include "server/page_pool.h"

/* What one prep thread works with. */
struct prep_bench {
    const struct tokenizer *tokenizer;
    struct tokenizer_scratch *scratch;
    int32_t *ids; /* [max_ids]: all prompts of one request */
    size_t max_ids;
    struct text_scratch *text;
};

struct api_limits {
    const char *model_name;
    int vocab, max_context;
    struct page_pool *memory;
};

/* Parses, checks and tokenizes body[0..n); on STATUS_OK c owns a run of limits->memory, given back by completion_free. On
 * failure err names the field and nothing is held. The bound memory of json_in is used. */
enum status api_completions_parse(struct completion *c, const char *body, size_t n, const struct prep_bench *bench,
                                  const struct api_limits *limits, struct err *err);
void completion_free(struct completion *c, struct page_pool *memory);
