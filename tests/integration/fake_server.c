/* The server over the stand-in engine, with commands on standard input, each answered by one line:
 * `gate on|off`, `step N`, `stuck on|off`, `stats`. The flags are those of `tally serve`, as far as they mean something here.
 * */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/server/fake_engine.h"
#include "engine/base/log.h"
#include "server/server.h"

static struct server *server;
static struct engine *engine;

static void on_signal(int number) { server_stop(server); }

static void command(char *line) {
    struct engine_stats stats;
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, "gate on") == 0) fake_engine_gate(engine, true);
    else if (strcmp(line, "gate off") == 0) fake_engine_gate(engine, false);
    else if (strcmp(line, "stuck on") == 0) fake_engine_stuck(engine, true);
    else if (strcmp(line, "stuck off") == 0) fake_engine_stuck(engine, false);
    else if (strncmp(line, "step ", 5) == 0) fake_engine_step(engine, atoi(line + 5));
    engine_stats_read(engine, &stats);
    printf("{\"running\":%d,\"waiting\":%d,\"blocks_used\":%d,\"steps\":%llu,\"cancelled\":%llu}\n", stats.running,
           stats.waiting_seqs, stats.blocks_used, (unsigned long long)stats.steps,
           (unsigned long long)stats.finished[FINISH_CANCELLED]);
    fflush(stdout);
}

static void *read_commands(void *arg) {
    char line[256];
    while (fgets(line, sizeof line, stdin)) command(line);
    return NULL;
}

int main(int argc, char **argv) {
    struct server_options options = server_options_default();
    struct engine_options engine_options = {.max_context = 4096, .max_seqs = 64, .max_queue = 512, .block_tokens = 16};
    struct err err;
    pthread_t commands;
    bool gated = false;
    options.port = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        int n = atoi(value);
        if (!strcmp(name, "--port")) options.port = n;
        else if (!strcmp(name, "--host")) options.host = value;
        else if (!strcmp(name, "--max-seqs")) engine_options.max_seqs = n;
        else if (!strcmp(name, "--max-queue")) engine_options.max_queue = n;
        else if (!strcmp(name, "--max-context")) engine_options.max_context = n;
        else if (!strcmp(name, "--max-body")) options.max_body_bytes = (size_t)n;
        else if (!strcmp(name, "--max-connections")) options.max_connections = n;
        else if (!strcmp(name, "--max-requests")) options.max_requests = n;
        else if (!strcmp(name, "--request-memory")) options.request_memory_bytes = (size_t)n;
        else if (!strcmp(name, "--prep-threads")) options.prep_threads = n;
        else if (!strcmp(name, "--drain-timeout")) options.drain_timeout_s = n;
        else if (!strcmp(name, "--header-timeout")) options.header_timeout_s = n;
        else if (!strcmp(name, "--body-timeout")) options.body_timeout_s = n;
        else if (!strcmp(name, "--idle-timeout")) options.idle_timeout_s = n;
        else if (!strcmp(name, "--vllm-names")) options.vllm_metric_names = n;
        else if (!strcmp(name, "--gate")) gated = n;
        else if (!strcmp(name, "--bos")) fake_tokenizer_set_bos(n);
        else return 2;
    }
    engine_options.request_bytes = server_request_bytes(&options);
    engine_options.http_bytes = server_http_bytes(&options);
    if (engine_open(&engine, &engine_options, &err) != STATUS_OK || server_open(&server, &options, engine, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    fake_engine_gate(engine, gated);
    if (engine_start(engine, &err) != STATUS_OK) return 2;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    log_event(LOG_INFO, "listening", "port=%d", server_port(server));
    if (pthread_create(&commands, NULL, read_commands, NULL) != 0) return 2;
    int rc = server_run(server);
    server_close(server);
    _Exit(rc); /* the command thread waits in fgets */
}
