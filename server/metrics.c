#include "server/metrics.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/json_out.h"
#include "server/server_state.h"

const double metrics_bounds[N_BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15,
                                          0.25,  0.5,   0.75,  1,    2.5,  5,    10,   20,   40,   80,  160};

const char *const request_end_names[REQUEST_END_COUNT] = {"stop", "length", "abort", "error"};

void metrics_observe(struct histogram *h, int64_t us) {
    double seconds = us > 0 ? (double)us * 1e-6 : 0;
    int i = 0;
    while (i < N_BUCKETS && seconds > metrics_bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += seconds;
}

void metrics_count_http(struct metrics *m, int code) {
    int i = 0;
    while (api_error_http_codes[i] && api_error_http_codes[i] != code && i < MAX_HTTP_CODES - 1) i++;
    m->http[i]++;
}

/* ---- Text. A family is HELP, TYPE and samples; the writer is JSON's, whose strings escape just what Prometheus's labels do.
 * ---- */

struct page {
    struct json_out o;
    char prefix[8];   /* "tally_" or "vllm:" */
    char labels[400]; /* what every sample of these names carries, "" or `model_name="x"` */
};

static void family(struct page *p, const char *name, const char *type, const char *help) {
    json_out_printf(&p->o, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name, type);
}

static void sample_name(struct page *p, const char *name, const char *labels) {
    bool both = *p->labels && *labels;
    json_out_printf(&p->o, "%s%s", p->prefix, name);
    if (*p->labels || *labels) json_out_printf(&p->o, "{%s%s%s}", p->labels, both ? "," : "", labels);
    json_out_raw(&p->o, " ", 1);
}

static void sample_uint(struct page *p, const char *name, const char *labels, uint64_t value) {
    sample_name(p, name, labels);
    json_out_printf(&p->o, "%llu\n", (unsigned long long)value);
}

static void sample_number(struct page *p, const char *name, const char *labels, double value) {
    sample_name(p, name, labels);
    json_out_printf(&p->o, "%.9g\n", value);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t value) {
    family(p, name, "counter", help);
    sample_uint(p, name, "", value);
}

static void gauge(struct page *p, const char *name, const char *help, double value) {
    family(p, name, "gauge", help);
    sample_number(p, name, "", value);
}

static void histogram(struct page *p, const char *name, const char *help, const struct histogram *h) {
    char series[96], bound[40];
    uint64_t below = 0;
    family(p, name, "histogram", help);
    snprintf(series, sizeof series, "%s_bucket", name);
    for (int i = 0; i < N_BUCKETS; i++) {
        below += h->counts[i];
        snprintf(bound, sizeof bound, "le=\"%g\"", metrics_bounds[i]);
        sample_uint(p, series, bound, below);
    }
    sample_uint(p, series, "le=\"+Inf\"", h->n);
    snprintf(series, sizeof series, "%s_sum", name);
    sample_number(p, series, "", h->sum);
    snprintf(series, sizeof series, "%s_count", name);
    sample_uint(p, series, "", h->n);
}

static void by_reason(struct page *p, const char *name, const char *label, const struct metrics *m) {
    char labels[64];
    family(p, name, "counter", "Choices ended, by why.");
    for (int i = 0; i < REQUEST_END_COUNT; i++) {
        snprintf(labels, sizeof labels, "%s=\"%s\"", label, request_end_names[i]);
        sample_uint(p, name, labels, m->ended[i]);
    }
}

static void http_codes(struct page *p, const struct metrics *m) {
    char labels[32];
    family(p, "http_requests_total", "counter", "HTTP requests answered, by status code.");
    for (int i = 0; i < MAX_HTTP_CODES; i++) {
        int code = api_error_http_codes[i];
        snprintf(labels, sizeof labels, code ? "code=\"%d\"" : "code=\"other\"", code);
        sample_uint(p, "http_requests_total", labels, m->http[i]);
        if (!code) break;
    }
}

static void waiting(struct page *p, const struct engine_stats *stats) {
    family(p, "requests_waiting", "gauge", "Sequences waiting to be scheduled, by the bound that holds them back.");
    sample_number(p, "requests_waiting", "reason=\"kv_blocks\"", stats->waiting_capacity);
    sample_number(p, "requests_waiting", "reason=\"max_seqs\"", stats->waiting_seqs);
    sample_number(p, "requests_waiting", "reason=\"batch_tokens\"", stats->waiting_tokens);
}

static void own_names(struct page *p, struct server *server, const struct engine_stats *stats,
                      const struct ledger_reading *reading) {
    const struct metrics *m = &server->metrics;
    const struct plan *plan = ledger_plan(engine_ledger(server->engine));
    gauge(p, "requests_running", "Sequences in the current batch.", stats->running);
    waiting(p, stats);
    gauge(p, "kv_blocks", "KV cache blocks in the pool.", stats->blocks_total);
    gauge(p, "kv_blocks_used", "KV cache blocks that sequences hold.", stats->blocks_used);
    gauge(p, "kv_blocks_leaked", "KV cache blocks held although nothing runs or waits; stays 0.", stats->blocks_leaked);
    counter(p, "prompt_tokens_total", "Prompt tokens computed.", stats->prompt_tokens);
    counter(p, "generated_tokens_total", "Tokens generated.", stats->generated_tokens);
    counter(p, "recomputed_tokens_total", "Tokens computed again after a preemption.", stats->recomputed_tokens);
    counter(p, "scheduled_tokens_total", "Tokens in all steps.", stats->scheduled_tokens);
    counter(p, "steps_total", "Steps of the engine.", stats->steps);
    counter(p, "preemptions_total", "Sequences preempted for want of KV blocks.", stats->preemptions);
    by_reason(p, "choices_total", "reason", m);
    counter(p, "clients_gone_total", "Clients that left before their answer was whole.", m->client_gone);
    http_codes(p, m);
    gauge(p, "connections", "Open connections.", http_connections(server->http));
    gauge(p, "engine_stuck", "1 while work waits and nothing is scheduled.", stats->stuck);
    gauge(p, "request_memory_bytes", "Memory for bodies, prompts and answers.", (double)page_pool_capacity(&server->memory));
    gauge(p, "request_memory_used_bytes", "Part of it in use.", (double)page_pool_used(&server->memory));
    gauge(p, "memory_planned_bytes", "What the ledger planned.", (double)plan->total);
    gauge(p, "memory_budget_bytes", "The budget, 0 where none was given.", (double)plan->budget);
    gauge(p, "memory_measured_bytes", "Resident memory less the constant base.", (double)reading->measured);
    gauge(p, "memory_unaccounted_bytes", "Measured less planned.", (double)reading->unaccounted);
    counter(p, "ledger_allocs_after_ready_total", "Ledger allocations after ready; stays 0.", reading->allocs_after_ready);
#define X(field, name, vllm, help) histogram(p, name, help, &m->field);
    METRICS_HISTOGRAMS(X)
#undef X
}

static void vllm_names(struct page *p, struct server *server, const struct engine_stats *stats) {
    const struct metrics *m = &server->metrics;
    const struct engine_options *resolved = engine_resolved(server->engine);
    char labels[96];
    int waiting = stats->waiting_capacity + stats->waiting_seqs + stats->waiting_tokens;
    gauge(p, "num_requests_running", "Sequences in the current batch.", stats->running);
    gauge(p, "num_requests_waiting", "Sequences waiting to be scheduled.", waiting);
    gauge(p, "kv_cache_usage_perc", "Part of the KV cache in use, 0 to 1.",
          stats->blocks_total > 0 ? (double)stats->blocks_used / stats->blocks_total : 0);
    counter(p, "prompt_tokens_total", "Prompt tokens computed.", stats->prompt_tokens);
    counter(p, "generation_tokens_total", "Tokens generated.", stats->generated_tokens);
    counter(p, "num_preemptions_total", "Sequences preempted for want of KV blocks.", stats->preemptions);
    by_reason(p, "request_success_total", "finished_reason", m);
    family(p, "cache_config_info", "gauge", "The KV cache's shape.");
    snprintf(labels, sizeof labels, "block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"float16\"", resolved->block_tokens,
             stats->blocks_total);
    sample_uint(p, "cache_config_info", labels, 1);
#define X(field, name, vllm, help) histogram(p, vllm, help, &m->field);
    METRICS_HISTOGRAMS(X)
#undef X
}

size_t metrics_write(struct server *server, char *out, size_t max) {
    struct engine_stats stats;
    struct ledger_reading reading;
    struct page p = {.prefix = "tally_"};
    engine_stats_read(server->engine, &stats);
    ledger_read(engine_ledger(server->engine), &reading);
    json_out_init(&p.o, out, max);
    own_names(&p, server, &stats, &reading);
    if (server->options.vllm_metric_names) {
        struct json_out labels;
        char name[320];
        json_out_init(&labels, name, sizeof name - 1);
        json_out_escaped(&labels, server->model_name, strlen(server->model_name));
        name[labels.n] = 0;
        snprintf(p.prefix, sizeof p.prefix, "vllm:");
        snprintf(p.labels, sizeof p.labels, "model_name=\"%s\",engine=\"0\"", name);
        vllm_names(&p, server, &stats);
    }
    return p.o.overflow ? 0 : p.o.n;
}
