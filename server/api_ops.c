#include "server/api_ops.h"

#include <string.h>

#include "engine/base/log.h"
#include "server/server_state.h"

static void answer_json(struct exchange *x, int http, const struct json_out *o) {
    x->answer.http = http;
    x->answer.content_type = "application/json";
    x->answer.data = o->data;
    x->answer.n = o->n;
}

static void begin_inline(struct exchange *x, struct json_out *o) {
    json_out_init(o, x->inline_answer, sizeof x->inline_answer);
    json_out_open(o, '{');
}

static void end_json(struct exchange *x, int http, struct json_out *o) {
    json_out_text(o, "}\n");
    answer_json(x, http, o);
}

/* The state of a stuck engine goes to the log, once each time it sticks. */
static bool is_stuck(struct server *server, struct engine_stats *stats) {
    engine_stats_read(server->engine, stats);
    if (stats->stuck && !server->is_stuck_logged)
        log_event(LOG_ERROR, "engine_stuck",
                  "running=%d waiting_blocks=%d waiting_seqs=%d waiting_tokens=%d blocks_used=%d blocks_total=%d steps=%llu",
                  stats->running, stats->waiting_capacity, stats->waiting_seqs, stats->waiting_tokens, stats->blocks_used,
                  stats->blocks_total, (unsigned long long)stats->steps);
    server->is_stuck_logged = stats->stuck;
    return stats->stuck;
}

static void answer_state(struct server *server, struct exchange *x, bool refuses_when_draining) {
    struct engine_stats stats;
    struct json_out o;
    bool stuck = is_stuck(server, &stats);
    begin_inline(x, &o);
    json_out_key(&o, "status");
    json_out_cstr(&o, stuck ? "stuck" : server->is_draining ? "draining" : "ok");
    json_out_key(&o, "running");
    json_out_int(&o, stats.running);
    json_out_key(&o, "waiting");
    json_out_int(&o, stats.waiting_capacity + stats.waiting_seqs + stats.waiting_tokens);
    end_json(x, stuck || (server->is_draining && refuses_when_draining) ? 503 : 200, &o);
}

void api_ops_health(struct server *server, struct exchange *x) { answer_state(server, x, false); }

void api_ops_ready(struct server *server, struct exchange *x) { answer_state(server, x, true); }

void api_ops_version(struct server *server, struct exchange *x) {
    struct json_out o;
    begin_inline(x, &o);
    json_out_key(&o, "version");
    json_out_cstr(&o, TALLY_VERSION);
    json_out_key(&o, "backend");
    json_out_cstr(&o, engine_backend_name(server->engine));
    end_json(x, 200, &o);
}

void api_ops_models(struct server *server, struct exchange *x) {
    struct json_out o;
    begin_inline(x, &o);
    json_out_key(&o, "object");
    json_out_cstr(&o, "list");
    json_out_key(&o, "data");
    json_out_text(&o, "[{");
    json_out_key(&o, "id");
    json_out_cstr(&o, server->model_name);
    json_out_key(&o, "object");
    json_out_cstr(&o, "model");
    json_out_key(&o, "created");
    json_out_int(&o, server->started_unix_s);
    json_out_key(&o, "owned_by");
    json_out_cstr(&o, "tally");
    json_out_key(&o, "root");
    json_out_cstr(&o, engine_model_name(server->engine));
    json_out_key(&o, "max_model_len");
    json_out_int(&o, server->max_context);
    json_out_key(&o, "vocab_size"); /* for clients that send token ids */
    json_out_int(&o, engine_vocab(server->engine));
    json_out_text(&o, "}]");
    end_json(x, 200, &o);
}

/* One of the few larger buffers, taken until the exchange ends; NULL, and 429, when all are being sent. */
static char *take_buffer(struct server *server, struct exchange *x) {
    for (int i = 0; i < OPS_BUFFERS; i++) {
        if (server->ops_buffer_taken[i]) continue;
        server->ops_buffer_taken[i] = true;
        x->ops_buffer = i;
        return server->ops_buffers[i];
    }
    struct err err;
    err_set(&err, STATUS_BUSY, "server busy: every buffer for this page is in use; try again shortly");
    http_answer_error(x, &err);
    return NULL;
}

static void write_line(struct json_out *o, const struct ledger_line *line, size_t used) {
    json_out_open(o, '{');
    json_out_key(o, "id");
    json_out_cstr(o, line->id);
    json_out_key(o, "owner");
    json_out_cstr(o, line->owner);
    json_out_key(o, "device");
    json_out_cstr(o, line->device);
    json_out_key(o, "lifetime");
    json_out_cstr(o, line->lifetime == LIFETIME_LOAD ? "load" : "serve");
    json_out_key(o, "formula");
    json_out_cstr(o, line->formula);
    json_out_key(o, "bytes");
    json_out_uint(o, line->bytes);
    json_out_key(o, "granted");
    json_out_uint(o, line->granted);
    json_out_key(o, "used");
    json_out_uint(o, used);
    json_out_close(o, '}');
}

static void write_kv(struct json_out *o, const struct plan *plan, const struct engine_stats *stats) {
    json_out_key(o, "kv");
    json_out_open(o, '{');
    json_out_key(o, "blocks");
    json_out_int(o, plan->n_blocks);
    json_out_key(o, "blocks_used");
    json_out_int(o, stats->blocks_used);
    json_out_key(o, "tokens");
    json_out_int(o, plan->kv_tokens);
    json_out_key(o, "bytes_per_token");
    json_out_uint(o, plan->kv_bytes_per_token);
    json_out_close(o, '}');
}

void api_ops_memory(struct server *server, struct exchange *x) {
    const struct ledger *ledger = engine_ledger(server->engine);
    const struct plan *plan = ledger_plan(ledger);
    struct ledger_reading reading;
    struct engine_stats stats;
    struct json_out o;
    char *buffer = take_buffer(server, x);
    if (!buffer) return;
    ledger_read(ledger, &reading);
    engine_stats_read(server->engine, &stats);
    json_out_init(&o, buffer, OPS_BUFFER_BYTES);
    json_out_open(&o, '{');
    json_out_key(&o, "planned");
    json_out_uint(&o, plan->total);
    json_out_key(&o, "peak");
    json_out_uint(&o, plan->peak);
    json_out_key(&o, "budget");
    json_out_uint(&o, plan->budget);
    json_out_key(&o, "measured");
    json_out_uint(&o, reading.measured);
    json_out_key(&o, "unaccounted");
    json_out_int(&o, reading.unaccounted);
    json_out_key(&o, "allocs");
    json_out_uint(&o, reading.allocs);
    json_out_key(&o, "allocs_after_ready");
    json_out_uint(&o, reading.allocs_after_ready);
    write_kv(&o, plan, &stats);
    json_out_key(&o, "lines");
    json_out_open(&o, '[');
    for (int i = 0; i < LINE_COUNT; i++)
        if (plan->lines[i].id) write_line(&o, &plan->lines[i], reading.used[i]);
    json_out_close(&o, ']');
    end_json(x, 200, &o);
}

void api_ops_metrics(struct server *server, struct exchange *x) {
    char *buffer = take_buffer(server, x);
    if (!buffer) return;
    x->answer.n = metrics_write(server, buffer, OPS_BUFFER_BYTES);
    x->answer.data = buffer;
    x->answer.http = 200;
    x->answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
}
