/* tally serve: load a model, listen, serve until a signal.
 *
 * Signals: SIGTERM and SIGINT drain (running requests end, new ones are refused, at most --drain-timeout); a second one cuts the drain
 * short; a third ends the process on the spot, for the case that something hangs. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "server/commands.h"

static const char usage[] = "usage: tally serve MODEL.gguf [options]\n\n"
                            "Serves a model over an OpenAI-style HTTP API until SIGTERM or SIGINT.\n"
                            "Exit code: 0 stopped by a signal, 1 failed while serving, 2 bad configuration or model file.\n\n";

static struct server *serving; /* for the handler: set once, before the handlers are */
static atomic_int n_signals;

static void on_signal(int number) {
    if (atomic_fetch_add(&n_signals, 1) >= 2) _exit(128 + number);
    server_stop(serving);
}

static void install_handlers(struct server *server) {
    struct sigaction action = {.sa_handler = on_signal};
    serving = server;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* A connection is a descriptor: as many as the system lets us have, and a warning when that is too few. */
static void raise_descriptor_limit(int max_connections) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)max_connections + 64)
        log_event(LOG_WARN, "descriptors", "limit=%llu max_connections=%d", (unsigned long long)limit.rlim_cur,
                  max_connections);
}

static void log_ready(const struct engine *e, const struct ledger *ledger, const char *host, int port) {
    const struct engine_options *resolved = engine_resolved(e);
    const struct plan *plan = ledger_plan(ledger);
    char total[32], peak[32];
    bytes_format_short((int64_t)plan->total, total, sizeof total);
    bytes_format_short((int64_t)plan->peak, peak, sizeof peak);
    bool is_v6 = strchr(host, ':') != NULL;
    log_event(LOG_INFO, "ready",
              "after_ms=%lld model=\"%s\" backend=\"%s\" threads=%d planned_bytes=%zu planned=\"%s\" peak=\"%s\" "
              "kv_tokens=%lld max_context=%d "
              "url=http://%s%s%s:%d",
              (long long)(clock_us() - program_start_us) / 1000, engine_model_name(e), engine_backend_name(e),
              resolved->n_threads, plan->total, total, peak, (long long)plan->kv_tokens, resolved->max_context,
              is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

/* From a loaded engine to the end of serving. */
static int serve(struct engine *e, const struct server_options *options) {
    struct server *server;
    struct err err = {0};
    if (server_open(&server, options, e, &err)) {
        fprintf(stderr, "tally: %s\n", err.text);
        return err.status == STATUS_INVALID ? EXIT_USAGE : EXIT_FAILED;
    }
    int exit_code = EXIT_FAILED;
    install_handlers(server);
    ledger_ready(engine_ledger(e));
    if (engine_start(e, &err)) {
        fprintf(stderr, "tally: %s\n", err.text);
    } else {
        log_ready(e, engine_ledger(e), options->host, server_port(server));
        exit_code = server_run(server);
    }
    signal(SIGTERM, SIG_IGN); /* the server is going: nothing is left to stop */
    signal(SIGINT, SIG_IGN);
    server_close(server);
    return exit_code;
}

int cmd_serve(int argc, char **argv) {
    struct config c;
    struct engine *e;
    struct err err = {0};
    int exit_code;
    if (!command_config(&c, argc, argv, usage, &exit_code)) return exit_code;
    config_log(&c);
    if (!config_host_is_loopback(c.host))
        log_event(LOG_WARN, "listen", "host=%s other hosts can reach this server and it authenticates nobody", c.host);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit((int)c.max_connections);
    struct server_options server = command_server_options(&c);
    struct engine_options options = command_engine_options(&c);
    if (engine_open(&e, &options, &err)) {
        exit_code = command_refuse(&err, c.model);
    } else {
        exit_code = serve(e, &server);
        engine_close(e);
    }
    config_free(&c);
    return exit_code;
}
