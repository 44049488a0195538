/* Against an exact reference: perplexity on the same ids, a lower bound of the KL divergence from the best ids of some positions,
 * and greedy outputs up to where they part, with the reference's lead there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/eval.h"

static enum status bad(struct err *err, const char *field) {
    return err_set_param(err, STATUS_CORRUPT, field, "golden file: %s is missing or of the wrong type", field);
}

/* A JSON array of ids as a new array; NULL when it is not one. */
static int32_t *read_ids(const json_t *array, int *n) {
    if (!json_is_array(array) || json_array_size(array) == 0 || json_array_size(array) > 1 << 20) return NULL;
    *n = (int)json_array_size(array);
    int32_t *ids = calloc((size_t)*n, sizeof *ids);
    for (int i = 0; ids && i < *n; i++) {
        const json_t *value = json_array_get(array, (size_t)i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > INT32_MAX) {
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    return ids;
}

static enum status compare_perplexity(struct evaluator *e, const json_t *golden, int limit, FILE *logprobs,
                                      struct golden_result *out, struct err *err) {
    int n = 0;
    const json_t *exact = json_object_get(golden, "nll");
    int32_t *ids = read_ids(json_object_get(golden, "ids"), &n);
    if (!ids || json_array_size(exact) != (size_t)n - 1) {
        free(ids);
        return bad(err, "perplexity");
    }
    if (limit > 1 && limit < n) n = limit;
    float *nll = calloc((size_t)n, sizeof *nll);
    enum status s = nll ? eval_perplexity(e, ids, n, nll, logprobs, &out->perplexity, err) : STATUS_NO_MEMORY;
    double exact_sum = 0, difference = 0;
    for (int i = 0; s == STATUS_OK && i < n - 1; i++) {
        double value = json_number_value(json_array_get(exact, (size_t)i));
        exact_sum += value;
        difference += fabs(value - (double)nll[i]);
    }
    out->has_perplexity = true;
    out->golden_perplexity = exp(exact_sum / (n - 1));
    out->ratio = exp(out->perplexity.mean_nll) / out->golden_perplexity;
    out->mean_abs_nll_difference = difference / (n - 1);
    free(ids);
    free(nll);
    return s;
}

struct top_walk {
    const json_t *rows;
    size_t next;
    int vocab;
    double kl_sum, kl_max;
    int n_top1_same;
    bool is_bad;
};

/* KL of one row with everything outside the reference's best merged into one bucket: at most the true KL. */
static void compare_top_row(void *context, int position, const float *logits, float log_sum_exp) {
    struct top_walk *w = context;
    const json_t *row = json_array_get(w->rows, w->next);
    if (!row || json_integer_value(json_object_get(row, "position")) != position) return;
    const json_t *ids = json_object_get(row, "ids"), *logps = json_object_get(row, "logprobs");
    double kl = 0, p_sum = 0, q_sum = 0;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id < 0 || id >= w->vocab) {
            w->is_bad = true;
            return;
        }
        double log_p = json_number_value(json_array_get(logps, i)), log_q = (double)logits[id] - (double)log_sum_exp;
        kl += exp(log_p) * (log_p - log_q);
        p_sum += exp(log_p);
        q_sum += exp(log_q);
    }
    if (p_sum < 1 && q_sum < 1) kl += (1 - p_sum) * log((1 - p_sum) / (1 - q_sum));
    int best = 0;
    for (int i = 1; i < w->vocab; i++)
        if (logits[i] > logits[best]) best = i;
    w->n_top1_same += best == json_integer_value(json_array_get(ids, 0));
    w->kl_sum += kl;
    if (kl > w->kl_max) w->kl_max = kl;
    w->next++;
}

static enum status compare_top(struct evaluator *e, const json_t *top, struct golden_result *out, struct err *err) {
    int n = 0;
    int32_t *ids = read_ids(json_object_get(top, "ids"), &n);
    struct top_walk walk = {.rows = json_object_get(top, "rows"), .vocab = evaluator_vocab(e)};
    if (!ids || json_array_size(walk.rows) == 0) {
        free(ids);
        return bad(err, "top");
    }
    evaluator_reset(e);
    enum status s = evaluator_append(e, ids, n, true, compare_top_row, &walk, err);
    free(ids);
    if (s) return s;
    if (walk.is_bad || walk.next != json_array_size(walk.rows)) return bad(err, "top.rows");
    out->has_top = true;
    out->n_top_rows = (int)walk.next;
    out->mean_kl_at_least = walk.kl_sum / (double)walk.next;
    out->max_kl_at_least = walk.kl_max;
    out->top1_agreement = (double)walk.n_top1_same / (double)walk.next;
    return STATUS_OK;
}

struct best_of_row {
    int vocab;
    int32_t id;
    double logprob;
};

static void find_best(void *context, int position, const float *logits, float log_sum_exp) {
    struct best_of_row *b = context;
    (void)position;
    b->id = 0;
    for (int i = 1; i < b->vocab; i++)
        if (logits[i] > logits[b->id]) b->id = i;
    b->logprob = (double)logits[b->id] - (double)log_sum_exp;
}

/* One prompt: follows the exact output until this model's best token is another. */
static enum status compare_greedy_one(struct evaluator *e, const json_t *entry, struct golden_result *out, struct err *err) {
    int n = 0;
    const json_t *tokens = json_object_get(entry, "tokens"), *token;
    int32_t *ids = read_ids(json_object_get(entry, "ids"), &n);
    if (!ids || !json_is_array(tokens)) {
        free(ids);
        return bad(err, "greedy");
    }
    struct best_of_row best = {.vocab = evaluator_vocab(e)};
    evaluator_reset(e);
    enum status s = evaluator_append(e, ids, n, false, find_best, &best, err);
    free(ids);
    size_t i;
    bool same = true;
    json_array_foreach((json_t *)(uintptr_t)tokens, i, token) {
        if (s || !same) break;
        int32_t exact = (int32_t)json_integer_value(json_object_get(token, "id"));
        double lead = json_number_value(json_object_get(token, "lead"));
        double difference = fabs(best.logprob - json_number_value(json_object_get(token, "logprob")));
        same = best.id == exact;
        if (!same && lead > out->max_lead_at_parting) out->max_lead_at_parting = lead;
        if (same && difference > out->max_logprob_difference) out->max_logprob_difference = difference;
        if (same && i + 1 < json_array_size(tokens)) s = evaluator_append(e, &exact, 1, false, find_best, &best, err);
    }
    out->n_greedy++;
    out->n_greedy_same += same;
    return s;
}

static enum status compare_greedy(struct evaluator *e, const json_t *entries, int limit, struct golden_result *out,
                                  struct err *err) {
    size_t n = json_array_size(entries);
    if (limit > 0 && (size_t)limit < n) n = (size_t)limit;
    out->has_greedy = true;
    for (size_t i = 0; i < n; i++) {
        enum status s = compare_greedy_one(e, json_array_get(entries, i), out, err);
        if (s) return s;
        fprintf(stderr, "\rgreedy %zu of %zu ", i + 1, n);
    }
    fputc('\n', stderr);
    return STATUS_OK;
}

enum status eval_golden(struct evaluator *e, const json_t *golden, struct golden_limits limits, FILE *logprobs,
                        struct golden_result *out, struct err *err) {
    memset(out, 0, sizeof *out);
    const json_t *perplexity = json_object_get(golden, "perplexity"), *top = json_object_get(golden, "top");
    const json_t *greedy = json_object_get(golden, "greedy");
    enum status s = STATUS_OK;
    if (!perplexity && !top && !greedy) return bad(err, "perplexity, top or greedy");
    if (perplexity && (s = compare_perplexity(e, perplexity, limits.n_ids, logprobs, out, err))) return s;
    if (top && (s = compare_top(e, top, out, err))) return s;
    if (json_is_array(greedy)) s = compare_greedy(e, greedy, limits.n_prompts, out, err);
    return s;
}
