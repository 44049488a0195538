/* tally eval MODEL: quality in process, on the same forward as serving. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/eval.h"

static const char usage[] = "usage: tally eval MODEL [--text FILE] [--golden FILE] [options]\n"
                            "\n"
                            "Measures a model's quality in process, with the kernels that serve it.\n"
                            "\n"
                            "  --text FILE          perplexity of a UTF-8 text, in windows of the context\n"
                            "  --golden FILE        against an exact reference (made by tests/golden/make.py): perplexity on "
                            "its ids, a lower bound of the\n"
                            "                       KL divergence, and greedy outputs up to where they part\n"
                            "  --tokens N           at most the first N tokens (default: all)\n"
                            "  --prompts N          at most the first N greedy prompts of --golden (default: all)\n"
                            "  --context N          window of --text, in tokens (default: 2048, at most the model's)\n"
                            "  --activations KIND   int8, as served, or f32: exact and slow (default: int8)\n"
                            "  --threads N          (default: every usable CPU)\n"
                            "  --logprobs FILE      writes each scored row's log-probabilities as float32, [rows][vocabulary]\n"
                            "  --json               prints the result as JSON\n";

struct eval_options {
    const char *model, *text, *golden, *logprobs;
    int tokens, prompts, context, threads;
    bool f32, json;
};

/* ---- perplexity ---- */

struct nll_walk {
    const int32_t *ids;
    int n, vocab;
    double sum, sum_squares;
    float *nll;
    FILE *logprobs;
    float *row; /* [vocab] when logprobs */
    bool is_write_failed;
};

static void add_row(void *context, int position, const float *logits, float log_sum_exp) {
    struct nll_walk *w = context;
    if (position + 1 >= w->n) return;
    double nll = (double)log_sum_exp - (double)logits[w->ids[position + 1]];
    w->sum += nll;
    w->sum_squares += nll * nll;
    if (w->nll) w->nll[position] = (float)nll;
    if (w->logprobs) {
        for (int i = 0; i < w->vocab; i++) w->row[i] = (float)((double)logits[i] - (double)log_sum_exp);
        w->is_write_failed |= fwrite(w->row, sizeof *w->row, (size_t)w->vocab, w->logprobs) != (size_t)w->vocab;
    }
    if (position % 64 == 63) fprintf(stderr, "\rscored %d of %d ", position + 1, w->n - 1);
}

enum status eval_perplexity(struct evaluator *e, const int32_t *ids, int n, float *nll, FILE *logprobs, struct perplexity *out,
                            struct err *err) {
    struct nll_walk w = {.ids = ids, .n = n, .vocab = evaluator_vocab(e), .nll = nll, .logprobs = logprobs};
    if (n < 2) return err_set(err, STATUS_INVALID, "eval: at least 2 tokens are needed, there are %d", n);
    if (logprobs && !(w.row = malloc((size_t)w.vocab * sizeof *w.row)))
        return err_set(err, STATUS_NO_MEMORY, "eval: no memory for a row");
    evaluator_reset(e);
    enum status s = evaluator_append(e, ids, n, true, add_row, &w, err);
    free(w.row);
    fputc('\n', stderr);
    if (s) return s;
    if (w.is_write_failed) return err_set(err, STATUS_IO, "eval: --logprobs: writing failed: %s", strerror(errno));
    double count = n - 1, mean = w.sum / count, variance = w.sum_squares / count - mean * mean;
    *out = (struct perplexity){n - 1, mean, variance > 0 ? sqrt(variance / count) : 0};
    return STATUS_OK;
}

static char *read_file(const char *path, size_t *n, struct err *err) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (!f) {
        err_set(err, STATUS_IO, "eval: %s: %s", path, strerror(errno));
        return NULL;
    }
    if (fseek(f, 0, SEEK_END) == 0 && ftell(f) >= 0 && (text = malloc((size_t)ftell(f) + 1))) {
        size_t size = (size_t)ftell(f);
        rewind(f);
        *n = fread(text, 1, size, f);
        text[*n] = 0;
    } else {
        err_set(err, STATUS_IO, "eval: %s: cannot be read", path);
    }
    fclose(f);
    return text;
}

static void *plain_alloc(void *context, size_t bytes) {
    (void)context;
    return calloc(1, bytes ? bytes : 1);
}

/* A text's ids, BOS in front where the vocabulary wants one. */
static enum status encode_file(struct evaluator *e, const char *path, int32_t **ids, size_t *n_ids, struct err *err) {
    size_t n = 0;
    char *text = read_file(path, &n, err);
    if (!text) return STATUS_IO;
    struct memory_source memory = {plain_alloc, NULL}; /* lives as long as the process */
    struct tokenizer_scratch *scratch = tokenizer_scratch_create(memory, n, err);
    *ids = malloc((n + 2) * sizeof **ids);
    enum status s = scratch && *ids
                        ? tokenizer_encode(evaluator_tokenizer(e), scratch, text, n, ENCODE_BOS, *ids, n + 2, n_ids, err)
                        : STATUS_NO_MEMORY;
    if (scratch) tokenizer_scratch_destroy(scratch);
    free(text);
    return s;
}

/* Perplexity of a text in windows of the context, each scored without what came before it. */
static enum status eval_text(struct evaluator *e, const struct eval_options *o, FILE *logprobs, struct perplexity *out,
                             struct err *err) {
    int32_t *ids = NULL;
    size_t n = 0;
    enum status s = encode_file(e, o->text, &ids, &n, err);
    int window = o->context < evaluator_max_context(e) ? o->context : evaluator_max_context(e);
    if (o->tokens > 0 && (size_t)o->tokens < n) n = (size_t)o->tokens;
    double sum = 0, squares = 0;
    int scored = 0;
    for (size_t first = 0; s == STATUS_OK && first + 1 < n; first += (size_t)window) {
        struct perplexity part;
        int m = n - first < (size_t)window ? (int)(n - first) : window;
        if ((s = eval_perplexity(e, ids + first, m, NULL, logprobs, &part, err))) break;
        sum += part.mean_nll * part.n_scored;
        squares += part.std_error * part.std_error * part.n_scored * part.n_scored;
        scored += part.n_scored;
    }
    free(ids);
    if (s) return s;
    if (scored == 0) return err_set(err, STATUS_INVALID, "eval: %s has fewer than 2 tokens", o->text);
    *out = (struct perplexity){scored, sum / scored, sqrt(squares) / scored};
    return STATUS_OK;
}

/* ---- report ---- */

static json_t *perplexity_json(const struct perplexity *p) {
    return json_pack("{s:i, s:f, s:f, s:f}", "tokens", p->n_scored, "perplexity", exp(p->mean_nll), "mean_nll", p->mean_nll,
                     "std_error", p->std_error);
}

static json_t *golden_json(const struct golden_result *g) {
    json_t *out = json_object();
    if (g->has_perplexity) {
        json_object_set_new(out, "perplexity", perplexity_json(&g->perplexity));
        json_object_set_new(out, "golden_perplexity", json_real(g->golden_perplexity));
        json_object_set_new(out, "perplexity_ratio", json_real(g->ratio));
        json_object_set_new(out, "mean_abs_nll_difference", json_real(g->mean_abs_nll_difference));
    }
    if (g->has_top) {
        json_object_set_new(out, "mean_kl_at_least", json_real(g->mean_kl_at_least));
        json_object_set_new(out, "max_kl_at_least", json_real(g->max_kl_at_least));
        json_object_set_new(out, "top1_agreement", json_real(g->top1_agreement));
    }
    if (g->has_greedy) {
        json_object_set_new(out, "greedy_prompts", json_integer(g->n_greedy));
        json_object_set_new(out, "greedy_same", json_integer(g->n_greedy_same));
        json_object_set_new(out, "greedy_max_lead_at_parting", json_real(g->max_lead_at_parting));
        json_object_set_new(out, "greedy_max_logprob_difference", json_real(g->max_logprob_difference));
    }
    return out;
}

static void print_golden(const struct golden_result *g) {
    if (g->has_perplexity)
        printf("perplexity            %.4f over %d tokens, exact %.4f, ratio %.5f\n", exp(g->perplexity.mean_nll),
               g->perplexity.n_scored, g->golden_perplexity, g->ratio);
    if (g->has_top)
        printf("KL divergence         at least %.6f mean, %.6f max, over %d rows; same best token %.1f %%\n",
               g->mean_kl_at_least, g->max_kl_at_least, g->n_top_rows, 100 * g->top1_agreement);
    if (g->has_greedy)
        printf(
            "greedy outputs        %d of %d the same; largest exact lead at a parting %.4f; logprobs within %.5f before it\n",
            g->n_greedy_same, g->n_greedy, g->max_lead_at_parting, g->max_logprob_difference);
}

/* ---- the command ---- */

static int parse_count(const char *name, const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 1 || value > 1 << 24) {
        fprintf(stderr, "tally eval: --%s is '%s', allowed are 1 to %d\n", name, text, 1 << 24);
        exit(2);
    }
    return (int)value;
}

static int refuse(const char *text) {
    fprintf(stderr, "tally eval: %s\n\n%s", text, usage);
    return 2;
}

static int parse(int argc, char **argv, struct eval_options *o) {
    static const struct option flags[] = {
        {"text", required_argument, NULL, 't'},
        {"golden", required_argument, NULL, 'g'},
        {"tokens", required_argument, NULL, 'n'},
        {"context", required_argument, NULL, 'c'},
        {"activations", required_argument, NULL, 'a'},
        {"threads", required_argument, NULL, 'p'},
        {"prompts", required_argument, NULL, 'q'},
        {"logprobs", required_argument, NULL, 'l'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int c;
    optind = 1;
    while ((c = getopt_long(argc, argv, "h", flags, NULL)) != -1) switch (c) {
        case 't': o->text = optarg; break;
        case 'g': o->golden = optarg; break;
        case 'n': o->tokens = parse_count("tokens", optarg); break;
        case 'q': o->prompts = parse_count("prompts", optarg); break;
        case 'c': o->context = parse_count("context", optarg); break;
        case 'p': o->threads = parse_count("threads", optarg); break;
        case 'l': o->logprobs = optarg; break;
        case 'j': o->json = true; break;
        case 'a':
            if (strcmp(optarg, "int8") != 0 && strcmp(optarg, "f32") != 0)
                return refuse("--activations: allowed are int8 and f32");
            o->f32 = strcmp(optarg, "f32") == 0;
            break;
        case 'h': fputs(usage, stdout); exit(0);
        default: return refuse("bad usage");
        }
    if (optind != argc - 1) return refuse("exactly one MODEL is needed");
    o->model = argv[optind];
    return o->text || o->golden ? 0 : refuse("one of --text and --golden is needed");
}

static enum status measure(struct evaluator *e, const struct eval_options *o, FILE *logprobs, json_t *report, struct err *err) {
    enum status s;
    json_object_set_new(report, "backend", json_string(evaluator_backend_name(e)));
    json_object_set_new(report, "activations", json_string(o->f32 ? "f32" : "int8"));
    if (o->text) {
        struct perplexity p = {0};
        if ((s = eval_text(e, o, logprobs, &p, err))) return s;
        if (!o->json)
            printf("perplexity            %.4f over %d tokens (mean −log p %.5f ± %.5f)\n", exp(p.mean_nll), p.n_scored,
                   p.mean_nll, p.std_error);
        json_object_set_new(report, "text", perplexity_json(&p));
    }
    if (o->golden) {
        struct golden_result g = {0};
        json_error_t where;
        json_t *golden = json_load_file(o->golden, JSON_ALLOW_NUL, &where);
        if (!golden) return err_set(err, STATUS_CORRUPT, "eval: %s: line %d: %s", o->golden, where.line, where.text);
        s = eval_golden(e, golden, (struct golden_limits){o->tokens, o->prompts}, logprobs, &g, err);
        json_decref(golden);
        if (s) return s;
        if (!o->json) print_golden(&g);
        json_object_set_new(report, "golden", golden_json(&g));
    }
    return STATUS_OK;
}

int cmd_eval(int argc, char **argv) {
    struct eval_options o = {.context = 2048};
    int rc = parse(argc, argv, &o);
    if (rc) return rc;
    struct err err = {0};
    struct evaluator *e = NULL;
    FILE *logprobs = o.logprobs ? fopen(o.logprobs, "wb") : NULL;
    json_t *report = json_object();
    struct engine_options options = {.model_path = o.model, .n_threads = o.threads, .activations_f32 = o.f32};
    enum status s = STATUS_OK;
    if (o.logprobs && !logprobs) s = err_set(&err, STATUS_IO, "eval: %s: %s", o.logprobs, strerror(errno));
    if (!s) s = evaluator_open(&e, &options, &err);
    if (!s) s = measure(e, &o, logprobs, report, &err);
    if (logprobs && fclose(logprobs) != 0 && !s) s = err_set(&err, STATUS_IO, "eval: %s: %s", o.logprobs, strerror(errno));
    if (!s && o.json) json_dumpf(report, stdout, JSON_INDENT(2)), putchar('\n');
    if (s) fprintf(stderr, "tally eval: %s\n", err.text);
    json_decref(report);
    evaluator_close(e);
    return s == STATUS_OK ? 0 : s == STATUS_CORRUPT || s == STATUS_UNSUPPORTED || s == STATUS_INVALID ? 2 : 1;
}
