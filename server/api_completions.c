/* See api_completions.h. The order: types and ranges of every field, prompts to token ids, the context's limit, then the price
 * in memory and the run that holds it all. A field that would change the answer but is not served yet is refused unless
 * neutral. */
#include "server/api_completions.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/arena.h"
#include "engine/base/checked.h"
#include "engine/base/clock.h"
#include "server/json_in.h"

#define DEFAULT_MAX_TOKENS 16

struct parse {
    struct completion *c;
    const struct json_value *body;
    const struct prep_bench *bench;
    const struct api_limits *limits;
    struct err *err;
    size_t n_ids; /* in bench->ids, of all prompts */
    struct {
        size_t start, n;
        bool hides_bos;
    } prompts[MAX_PROMPTS];
    struct {
        const char *text;
        size_t n;
    } stops[MAX_STOPS]; /* within the document */
};

static uint64_t random_u64(void) {
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) == (ssize_t)sizeof value) return value;
    return (uint64_t)clock_us() * 0x9e3779b97f4a7c15u;
}

static enum status check_model(struct parse *p) {
    const struct json_value *v = json_in_get(p->body, "model");
    size_t n;
    if (!v) return STATUS_OK;
    if (json_in_kind(v) != JSON_KIND_STRING)
        return err_set_param(p->err, STATUS_INVALID, "model", "model: must be a string, not %s", json_in_kind_name(v));
    const char *name = json_in_string(v, &n);
    if (n == strlen(p->limits->model_name) && memcmp(name, p->limits->model_name, n) == 0) return STATUS_OK;
    return err_set_param(p->err, STATUS_NOT_FOUND, "model", "model: '%.64s' is not served here; this server has '%s'", name,
                         p->limits->model_name);
}

/* A field that is accepted only where it changes nothing. */
static enum status check_neutral_number(struct parse *p, const char *key, double neutral) {
    double got = neutral;
    enum status status = json_in_number(p->body, "", key, -HUGE_VAL, HUGE_VAL, &got, p->err);
    if (status != STATUS_OK || got == neutral) return status;
    return err_set_param(p->err, STATUS_UNSUPPORTED, key, "%s: not supported yet; leave it out or send %g", key, neutral);
}

static enum status check_unsupported(struct parse *p) {
    static const struct {
        const char *key;
        double neutral;
    } numbers[] = {
        {"presence_penalty", 0},
        {"frequency_penalty", 0},
        {"repetition_penalty", 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        enum status status = check_neutral_number(p, numbers[i].key, numbers[i].neutral);
        if (status != STATUS_OK) return status;
    }
    const struct json_value *suffix = json_in_get(p->body, "suffix"), *bias = json_in_get(p->body, "logit_bias");
    size_t n = 0;
    if (suffix && (json_in_kind(suffix) != JSON_KIND_STRING || (json_in_string(suffix, &n), n)))
        return err_set_param(p->err, STATUS_UNSUPPORTED, "suffix", "suffix: not supported yet; leave it out");
    if (bias && (json_in_kind(bias) != JSON_KIND_OBJECT || !json_in_is_empty(bias)))
        return err_set_param(p->err, STATUS_UNSUPPORTED, "logit_bias", "logit_bias: not supported yet; leave it out");
    return STATUS_OK;
}

static enum status parse_sampling(struct parse *p) {
    double temperature = 1, top_p = 1, min_p = 0;
    int64_t top_k = 0, seed;
    struct err *err = p->err;
    enum status status;
    if ((status = json_in_number(p->body, "", "temperature", 0, 2, &temperature, err)) != STATUS_OK) return status;
    if ((status = json_in_number(p->body, "", "top_p", 0, 1, &top_p, err)) != STATUS_OK) return status;
    if ((status = json_in_number(p->body, "", "min_p", 0, 1, &min_p, err)) != STATUS_OK) return status;
    if ((status = json_in_int(p->body, "", "top_k", -1, INT32_MAX, &top_k, err)) != STATUS_OK) return status;
    if ((float)top_p <= 0) return err_set_param(err, STATUS_INVALID, "top_p", "top_p: must be more than 0 and at most 1");
    seed = (int64_t)random_u64();
    if ((status = json_in_int(p->body, "", "seed", INT64_MIN, INT64_MAX, &seed, err)) != STATUS_OK) return status;
    p->c->sampling = (struct sampling){.temperature = (float)temperature,
                                       .top_p = (float)top_p,
                                       .min_p = (float)min_p,
                                       .top_k = top_k < 0 ? 0 : (int)top_k,
                                       .seed = (uint64_t)seed};
    return STATUS_OK;
}

static enum status parse_counts(struct parse *p) {
    int64_t n = 1, max_tokens = DEFAULT_MAX_TOKENS, logprobs = -1, best_of;
    struct err *err = p->err;
    enum status status;
    if ((status = json_in_int(p->body, "", "n", 1, MAX_CHOICES, &n, err)) != STATUS_OK) return status;
    if ((status = json_in_int(p->body, "", "max_tokens", 0, INT32_MAX / 2, &max_tokens, err)) != STATUS_OK) return status;
    if ((status = json_in_int(p->body, "", "logprobs", 0, MAX_TOP_LOGPROBS, &logprobs, err)) != STATUS_OK) return status;
    best_of = n;
    if ((status = json_in_int(p->body, "", "best_of", 1, MAX_CHOICES, &best_of, err)) != STATUS_OK) return status;
    if (best_of != n)
        return err_set_param(err, STATUS_UNSUPPORTED, "best_of", "best_of: only the value of n (%d) is supported", (int)n);
    if (max_tokens == 0 && !p->c->echo)
        return err_set_param(err, STATUS_INVALID, "max_tokens",
                             "max_tokens: must be at least 1; 0 is for echo, which is not asked");
    p->c->n = (int)n;
    p->c->max_tokens = (int)max_tokens;
    p->c->n_logprobs = (int)logprobs;
    return STATUS_OK;
}

static enum status parse_flags(struct parse *p) {
    struct completion *c = p->c;
    const struct json_value *options;
    struct err *err = p->err;
    enum status status;
    if ((status = json_in_bool(p->body, "", "stream", &c->stream, err)) != STATUS_OK) return status;
    if ((status = json_in_bool(p->body, "", "echo", &c->echo, err)) != STATUS_OK) return status;
    if ((status = json_in_bool(p->body, "", "ignore_eos", &c->ignore_eos, err)) != STATUS_OK) return status;
    if ((status = json_in_object(p->body, "", "stream_options", &options, err)) != STATUS_OK) return status;
    if (!options) return STATUS_OK;
    if (!c->stream) return err_set_param(err, STATUS_INVALID, "stream_options", "stream_options: only with \"stream\": true");
    if ((status = json_in_bool(options, "stream_options", "include_usage", &c->include_usage, err)) != STATUS_OK) return status;
    return json_in_bool(options, "stream_options", "continuous_usage_stats", &c->continuous_usage, err);
}

static enum status add_stop(struct parse *p, const char *name, const struct json_value *v) {
    size_t n = 0;
    if (json_in_kind(v) != JSON_KIND_STRING)
        return err_set_param(p->err, STATUS_INVALID, name, "%s: must be a string, not %s", name, json_in_kind_name(v));
    const char *text = json_in_string(v, &n);
    if (n == 0 || n > MAX_STOP_BYTES)
        return err_set_param(p->err, STATUS_INVALID, name, "%s: must have 1 to %d bytes, not %zu", name, MAX_STOP_BYTES, n);
    p->stops[p->c->stops.n].text = text;
    p->stops[p->c->stops.n++].n = n;
    return STATUS_OK;
}

static enum status parse_stop(struct parse *p) {
    const struct json_value *v = json_in_get(p->body, "stop");
    if (!v) return STATUS_OK;
    if (json_in_kind(v) != JSON_KIND_ARRAY) return add_stop(p, "stop", v);
    if (json_in_count(v) > MAX_STOPS)
        return err_set_param(p->err, STATUS_INVALID, "stop", "stop: at most %d strings, not %zu", MAX_STOPS, json_in_count(v));
    for (size_t i = 0; i < json_in_count(v); i++) {
        char name[32];
        snprintf(name, sizeof name, "stop[%zu]", i);
        enum status status = add_stop(p, name, json_in_at(v, i));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status refuse_context(struct parse *p, size_t n_prompt) {
    int limit = p->limits->max_context, asked = p->c->max_tokens;
    return err_set_param(
        p->err, STATUS_INVALID, n_prompt > (size_t)limit ? "prompt" : "max_tokens",
        "the prompt has %zu tokens and max_tokens asks for %d more: %zu together, and this server's context holds %d", n_prompt,
        asked, n_prompt + (size_t)asked, limit);
}

/* Ends a prompt whose ids lie at the end of the bench. */
static enum status add_prompt(struct parse *p, size_t n, bool hides_bos) {
    if (n + (size_t)p->c->max_tokens > (size_t)p->limits->max_context) return refuse_context(p, n);
    p->prompts[p->c->n_prompts].start = p->n_ids;
    p->prompts[p->c->n_prompts].n = n;
    p->prompts[p->c->n_prompts++].hides_bos = hides_bos;
    p->n_ids += n;
    return STATUS_OK;
}

static enum status too_many_ids(struct parse *p, const char *name) {
    return err_set_param(p->err, STATUS_INVALID, name, "%s: the prompts have more than %zu tokens together", name,
                         p->bench->max_ids);
}

static enum status text_prompt(struct parse *p, const char *name, const struct json_value *v) {
    const struct tokenizer *t = p->bench->tokenizer;
    size_t n_text, n = 0;
    const char *text = json_in_string(v, &n_text);
    int32_t *ids = p->bench->ids + p->n_ids;
    enum status status = tokenizer_encode(t, p->bench->scratch, text, n_text, ENCODE_BOS | ENCODE_SPECIAL, ids,
                                          p->bench->max_ids - p->n_ids, &n, p->err);
    if (status == STATUS_TOO_LARGE && n > (size_t)p->limits->max_context) return refuse_context(p, n);
    if (status == STATUS_TOO_LARGE) return too_many_ids(p, name);
    if (status != STATUS_OK) return status;
    if (n == 0)
        return err_set_param(p->err, STATUS_INVALID, name, "%s: empty, and this model has no BOS token to begin with", name);
    int32_t bos = tokenizer_bos(t);
    bool hides_bos = false;
    if (bos >= 0 && ids[0] == bos) {
        struct text_view piece = tokenizer_piece(t, bos);
        hides_bos = !(piece.n && n_text >= piece.n && memcmp(text, piece.data, piece.n) == 0);
    }
    return add_prompt(p, n, hides_bos);
}

static enum status token_prompt(struct parse *p, const char *name, const struct json_value *array) {
    size_t n = json_in_count(array);
    if (n == 0) return err_set_param(p->err, STATUS_INVALID, name, "%s: an empty array of token ids", name);
    if (n > (size_t)p->limits->max_context) return refuse_context(p, n);
    if (n > p->bench->max_ids - p->n_ids) return too_many_ids(p, name);
    for (size_t i = 0; i < n; i++) {
        const struct json_value *v = json_in_at(array, i);
        char at[64];
        snprintf(at, sizeof at, "%s[%zu]", name, i);
        if (json_in_kind(v) != JSON_KIND_INTEGER)
            return err_set_param(p->err, STATUS_INVALID, at, "%s: must be a token id, not %s", at, json_in_kind_name(v));
        int64_t id = json_in_integer(v);
        if (id < 0 || id >= p->limits->vocab)
            return err_set_param(p->err, STATUS_INVALID, at, "%s: token id %lld is not from 0 to %d", at, (long long)id,
                                 p->limits->vocab - 1);
        p->bench->ids[p->n_ids + i] = (int32_t)id;
    }
    return add_prompt(p, n, false);
}

static enum status one_prompt(struct parse *p, const char *name, const struct json_value *v) {
    if (json_in_kind(v) == JSON_KIND_STRING) return text_prompt(p, name, v);
    if (json_in_kind(v) == JSON_KIND_ARRAY) return token_prompt(p, name, v);
    return err_set_param(p->err, STATUS_INVALID, name, "%s: must be a string or an array of token ids, not %s", name,
                         json_in_kind_name(v));
}

static enum status parse_prompts(struct parse *p) {
    const struct json_value *v = json_in_get(p->body, "prompt");
    if (!v) return err_set_param(p->err, STATUS_INVALID, "prompt", "prompt: required");
    if (json_in_kind(v) != JSON_KIND_ARRAY || json_in_count(v) == 0) return one_prompt(p, "prompt", v);
    enum json_kind first = json_in_kind(json_in_at(v, 0));
    if (first == JSON_KIND_INTEGER || first == JSON_KIND_REAL) return token_prompt(p, "prompt", v);
    if (json_in_count(v) > MAX_PROMPTS)
        return err_set_param(p->err, STATUS_INVALID, "prompt", "prompt: at most %d prompts, not %zu", MAX_PROMPTS,
                             json_in_count(v));
    for (size_t i = 0; i < json_in_count(v); i++) {
        char name[32];
        snprintf(name, sizeof name, "prompt[%zu]", i);
        enum status status = one_prompt(p, name, json_in_at(v, i));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* Σ of pieces as arena_alloc rounds them. */
static bool add_piece(size_t *total, size_t count, size_t each) {
    size_t bytes;
    return checked_mul_size(count, each, &bytes) && bytes <= SIZE_MAX - 64 &&
           checked_add_size(*total, round_up(bytes, 64), total);
}

static bool price(const struct parse *p, size_t *total) {
    const struct completion *c = p->c;
    size_t n_choices = (size_t)c->n_choices, tokens = (size_t)c->max_tokens, n_top = (size_t)completion_n_top(c),
           n_prompt = p->n_ids;
    bool ok = add_piece(total, (size_t)c->n_prompts, sizeof *c->prompts) && add_piece(total, n_choices, sizeof *c->choices) &&
              add_piece(total, n_prompt, sizeof(int32_t));
    size_t per_choice = 0, per_prompt = 0;
    ok = ok && add_piece(&per_choice, tokens, sizeof(struct token_record)) &&
         add_piece(&per_choice, tokens * n_top, sizeof(struct top_record));
    ok = ok && add_piece(total, n_choices, per_choice);
    if (c->echo && c->n_logprobs >= 0)
        ok = ok && add_piece(&per_prompt, n_prompt, sizeof(struct token_record)) &&
             add_piece(&per_prompt, n_prompt * n_top, sizeof(struct top_record)) &&
             add_piece(&per_prompt, (size_t)c->n_prompts, 128) && add_piece(total, 1, per_prompt);
    for (int i = 0; i < c->stops.n; i++)
        ok = ok && add_piece(total, p->stops[i].n + 1, 1) && add_piece(total, p->stops[i].n, 2);
    return ok;
}

static void *carve(struct arena *arena, size_t count, size_t each) {
    void *piece = arena_alloc(arena, count * each);
    if (!piece) BUG("completions: a request was priced below what it takes");
    memset(piece, 0, count * each);
    return piece;
}

static void carve_prompts(struct parse *p, struct arena *arena) {
    struct completion *c = p->c;
    size_t n_top = (size_t)completion_n_top(c);
    int32_t *ids = carve(arena, p->n_ids, sizeof *ids);
    memcpy(ids, p->bench->ids, p->n_ids * sizeof *ids);
    for (int i = 0; i < c->n_prompts; i++) {
        struct completion_prompt *prompt = &c->prompts[i];
        *prompt = (struct completion_prompt){
            .ids = ids + p->prompts[i].start, .n = (int)p->prompts[i].n, .hides_bos = p->prompts[i].hides_bos};
        if (!c->echo || c->n_logprobs < 0) continue;
        prompt->records = carve(arena, (size_t)prompt->n, sizeof *prompt->records);
        if (n_top) prompt->tops = carve(arena, (size_t)prompt->n * n_top, sizeof *prompt->tops);
    }
}

/* The cursors of prompt i's first choice, past an echoed prompt; the prompt's other choices copy them. */
static void start_cursors(struct parse *p, struct completion_choice *choice) {
    const struct completion_prompt *prompt = &p->c->prompts[choice->prompt];
    text_cursor_init(&choice->given, p->c->echo);
    char_counter_init(&choice->given_chars, p->c->echo);
    choice->arrived = choice->given;
    if (!p->c->echo) return;
    for (int i = prompt->hides_bos; i < prompt->n; i++)
        text_cursor_prompt(&choice->arrived, p->bench->tokenizer, prompt->ids[i], p->bench->text);
}

static void carve_choices(struct parse *p, struct arena *arena) {
    struct completion *c = p->c;
    size_t n_top = (size_t)completion_n_top(c), tokens = (size_t)c->max_tokens;
    for (int i = 0; i < c->n_choices; i++) {
        struct completion_choice *choice = &c->choices[i];
        *choice = (struct completion_choice){.prompt = i / c->n, .stop_hit = -1, .is_prompt_given = !c->echo};
        choice->records = carve(arena, tokens, sizeof *choice->records);
        if (n_top) choice->tops = carve(arena, tokens * n_top, sizeof *choice->tops);
        if (i % c->n == 0) start_cursors(p, choice);
        else {
            const struct completion_choice *first = &c->choices[i - i % c->n];
            choice->given = first->given;
            choice->given_chars = first->given_chars;
            choice->arrived = first->arrived;
        }
    }
}

static void carve_stops(struct parse *p, struct arena *arena) {
    for (int i = 0; i < p->c->stops.n; i++) {
        struct stop_string *s = &p->c->stops.strings[i];
        uint16_t n = (uint16_t)p->stops[i].n;
        uint16_t *fail = carve(arena, n, sizeof *fail);
        char *text = carve(arena, (size_t)n + 1, 1);
        memcpy(text, p->stops[i].text, n);
        stop_prepare(text, n, fail);
        *s = (struct stop_string){.text = text, .n = n, .fail = fail};
    }
}

static enum status build(struct parse *p) {
    struct completion *c = p->c;
    struct arena arena;
    size_t bytes = 64;
    c->n_choices = c->n_prompts * c->n;
    if (!price(p, &bytes) || bytes > page_pool_capacity(p->limits->memory))
        return err_set_param(p->err, STATUS_INVALID, c->n_logprobs > 0 ? "logprobs" : "max_tokens",
                             "the answer could take %zu bytes of request memory, and this server has %zu", bytes,
                             page_pool_capacity(p->limits->memory));
    c->run = page_pool_alloc(p->limits->memory, bytes);
    if (!c->run) return err_set(p->err, STATUS_BUSY, "server busy: no room for another request now; try again shortly");
    c->run_bytes = bytes;
    arena_init(&arena, c->run, bytes);
    c->prompts = carve(&arena, (size_t)c->n_prompts, sizeof *c->prompts);
    c->choices = carve(&arena, (size_t)c->n_choices, sizeof *c->choices);
    carve_prompts(p, &arena);
    carve_choices(p, &arena);
    carve_stops(p, &arena);
    return STATUS_OK;
}

static enum status parse_all(struct parse *p) {
    static enum status (*const steps[])(struct parse *) = {
        check_model, parse_flags, parse_sampling, parse_counts, parse_stop, check_unsupported, parse_prompts, build,
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        enum status status = steps[i](p);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

enum status api_completions_parse(struct completion *c, const char *body, size_t n, const struct prep_bench *bench,
                                  const struct api_limits *limits, struct err *err) {
    struct parse p = {.c = c, .bench = bench, .limits = limits, .err = err};
    memset(c, 0, sizeof *c);
    c->model_name = limits->model_name;
    c->created = clock_unix_s();
    snprintf(c->id, sizeof c->id, "cmpl-%016llx%08x", (unsigned long long)random_u64(), (unsigned)random_u64());
    enum status status = json_in_parse(body, n, &p.body, err);
    if (status == STATUS_OK) status = parse_all(&p);
    json_in_done(p.body);
    if (status != STATUS_OK) c->n_prompts = c->n_choices = 0; /* what was counted was never carved */
    return status;
}

void completion_free(struct completion *c, struct page_pool *memory) {
    page_pool_free(memory, c->run, c->run_bytes);
    c->run = NULL;
}
