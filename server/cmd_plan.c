/* tally plan: what `tally serve` with the same options would hold, without loading anything. */
#include <jansson.h>

#include "server/commands.h"

static const char usage[] =
    "usage: tally plan MODEL.gguf [options]\n\n"
    "Prints every byte that tally serve would hold with the same options: owner, lifetime, formula. Reads only the file's "
    "header.\n"
    "Exit code: 0, or 2 for bad configuration or model file, also when the memory budget does not hold it.\n\n";

static const char *lifetime_text(enum lifetime lifetime) { return lifetime == LIFETIME_LOAD ? "load" : "serve"; }

static void print_table(const struct engine_options *resolved, const struct plan *plan) {
    char total[32], peak[32], budget[32] = "none";
    printf("%-20s %-18s %-6s %-6s %14s %14s  %s\n", "line", "owner", "device", "life", "bytes", "granted", "formula");
    for (int i = 0; i < LINE_COUNT; i++) {
        const struct ledger_line *line = &plan->lines[i];
        printf("%-20s %-18s %-6s %-6s %14zu %14zu  %s\n", line->id, line->owner, line->device, lifetime_text(line->lifetime),
               line->bytes, line->granted, line->formula);
    }
    bytes_format_short((int64_t)plan->total, total, sizeof total);
    bytes_format_short((int64_t)plan->peak, peak, sizeof peak);
    if (plan->budget) bytes_format_short((int64_t)plan->budget, budget, sizeof budget);
    printf("\ntotal while serving %zu bytes (%s), peak while loading %zu bytes (%s), budget %s\n", plan->total, total,
           plan->peak, peak, budget);
    printf("KV pool: %d blocks of %d tokens = %lld tokens, %zu bytes a token\n", plan->n_blocks, resolved->block_tokens,
           (long long)plan->kv_tokens, plan->kv_bytes_per_token);
    printf("resolved: threads=%d max_context=%d max_seqs=%d max_batch_tokens=%d max_queue=%d block_tokens=%d activations=%s\n",
           resolved->n_threads, resolved->max_context, resolved->max_seqs, resolved->max_batch_tokens, resolved->max_queue,
           resolved->block_tokens, resolved->activations_f32 ? "f32" : "int8");
}

static json_t *lines_json(const struct plan *plan) {
    json_t *lines = json_array();
    for (int i = 0; i < LINE_COUNT; i++) {
        const struct ledger_line *line = &plan->lines[i];
        json_array_append_new(lines,
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "id", line->id, "owner", line->owner, "device",
                                        line->device, "lifetime", lifetime_text(line->lifetime), "formula", line->formula,
                                        "bytes", (json_int_t)line->bytes, "granted", (json_int_t)line->granted));
    }
    return lines;
}

static json_t *options_json(const struct engine_options *resolved) {
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "model", resolved->model_path, "threads", resolved->n_threads,
                     "max_context", resolved->max_context, "max_seqs", resolved->max_seqs, "max_batch_tokens",
                     resolved->max_batch_tokens, "max_queue", resolved->max_queue, "block_tokens", resolved->block_tokens,
                     "activations", resolved->activations_f32 ? "f32" : "int8");
}

static int print_json(const struct engine_options *resolved, const struct plan *plan) {
    json_t *json = json_pack("{s:o, s:o, s:I, s:I, s:I, s:{s:i, s:I, s:I}}", "options", options_json(resolved), "lines",
                             lines_json(plan), "total_bytes", (json_int_t)plan->total, "peak_bytes", (json_int_t)plan->peak,
                             "budget_bytes", (json_int_t)plan->budget, "kv", "blocks", plan->n_blocks, "tokens",
                             (json_int_t)plan->kv_tokens, "bytes_per_token", (json_int_t)plan->kv_bytes_per_token);
    int failed = !json || json_dumpf(json, stdout, JSON_INDENT(2)) || putchar('\n') == EOF;
    json_decref(json);
    return failed ? EXIT_FAILED : EXIT_DONE;
}

int cmd_plan(int argc, char **argv) {
    struct config c;
    struct engine_options resolved;
    struct plan plan;
    struct err err = {0};
    int exit_code;
    if (!command_config(&c, argc, argv, usage, &exit_code)) return exit_code;
    struct engine_options options = command_engine_options(&c);
    if (engine_plan(&options, &resolved, &plan, &err)) exit_code = command_refuse(&err, c.model);
    else if (c.json) exit_code = print_json(&resolved, &plan);
    else print_table(&resolved, &plan);
    config_free(&c);
    return exit_code;
}
