/* One /v1/completions request, parsed and priced: parameters, prompts as token ids, and room for every token of its answer.
 *
 * An answer is kept as tokens and log probabilities, never as text or JSON: their number is bounded by max_tokens, so a
 * request's memory is known to the byte before it is admitted, and a slow reader can make nothing grow. Text is made when it is
 * sent (render.h).
 *
 *   one run of the page pool:  | prompts | choices | ids of all prompts | records and tops of prompts (echo with logprobs)
 *                              | records and tops of choices | stop strings and their automata |
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/text_cursor.h"

#define MAX_PROMPTS 64

struct token_record {
    int32_t id;
    float logprob; /* NAN: none, the first token of a prompt */
    uint8_t n_top;
    bool is_releasing; /* its arrival made text available: an event ends here */
};

struct top_record {
    int32_t id;
    float logprob;
};

struct completion_prompt {
    const int32_t *ids; /* [n] */
    int n;
    bool hides_bos; /* ids[0] is a BOS that the tokenizer added to a text: not part of an echo */
    bool is_submitted;
    uint64_t engine_id;
    struct token_record *records; /* [n] or NULL */
    struct top_record *tops;      /* [n, n_top] or NULL */
    int n_records;
};

enum choice_end { END_NONE, END_STOP, END_LENGTH };

struct completion_choice {
    int prompt;
    struct token_record *records; /* [max_tokens] */
    struct top_record *tops;      /* [max_tokens, n_top] or NULL */
    int n_records, n_generated /* the end token counts too */;
    size_t n_released; /* bytes of text that arrived and may be given */
    int n_listed;      /* records that begin before a stop string's cut; what logprobs list */
    enum choice_end end;
    int stop_hit;              /* the stop string that ended it, or −1 */
    int64_t first_us, last_us; /* of its tokens */
    struct text_cursor arrived;
    /* What has been written into the answer. */
    int n_given;
    bool is_prompt_given, is_end_given;
    struct text_cursor given;
    struct char_counter given_chars;
};

struct completion {
    bool stream, include_usage, continuous_usage, echo, ignore_eos;
    int n, max_tokens;
    int n_logprobs; /* −1: none */
    struct sampling sampling;
    struct stop_set stops;
    int n_prompts, n_choices /* n_prompts · n; index = prompt · n + choice */;
    struct completion_prompt *prompts;
    struct completion_choice *choices;
    void *run;
    size_t run_bytes;
    char id[40]; /* "cmpl-..." */
    int64_t created;
    const char *model_name;
};

static inline int completion_n_top(const struct completion *c) { return c->n_logprobs > 0 ? c->n_logprobs : 0; }
