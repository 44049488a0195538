/* What `serve` and `plan` have in common: from the command line to the options of engine and HTTP server. */
#include <unistd.h>

#include "server/commands.h"

/* One line, whatever a file's name or an option holds. */
int command_refuse(const struct err *err, const char *model) {
    char text[sizeof err->text + 1024];
    bool is_of_file = err->status == STATUS_IO || err->status == STATUS_CORRUPT || err->status == STATUS_UNSUPPORTED;
    if (model && is_of_file) snprintf(text, sizeof text, "model %.1000s: %s", model, err->text);
    else snprintf(text, sizeof text, "%s", err->text);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    fprintf(stderr, "tally: %s\n", text);
    return EXIT_USAGE;
}

bool command_config(struct config *c, int argc, char **argv, const char *usage, int *exit_code) {
    struct err err = {0};
    *exit_code = EXIT_DONE;
    if (config_load(c, argc, argv, environ, &err)) {
        *exit_code = command_refuse(&err, NULL);
    } else if (c->want_help) {
        fputs(usage, stdout);
        config_print_help(argv[0], stdout);
    } else if (c->print_config) {
        config_print(c, stdout);
    } else if (!*c->model) {
        err_set(&err, STATUS_INVALID,
                "model: none was given: tally %s MODEL.gguf, or --model, TALLY_MODEL or model: in the file", argv[0]);
        *exit_code = command_refuse(&err, NULL);
    } else {
        log_set_level((enum log_level)c->log_level);
        return true;
    }
    config_free(c);
    return false;
}

struct server_options command_server_options(const struct config *c) {
    struct server_options options = server_options_default();
    options.host = c->host;
    options.port = (int)c->port;
    options.max_connections = (int)c->max_connections;
    options.max_requests = (int)(c->max_seqs + c->max_queue);
    options.max_body_bytes = (size_t)c->max_body;
    options.request_memory_bytes = (size_t)c->request_memory;
    options.prep_threads = (int)c->prep_threads;
    options.served_model_name = *c->served_model_name ? c->served_model_name : NULL;
    options.drain_timeout_s = (int)c->drain_timeout;
    options.header_timeout_s = (int)c->header_timeout;
    options.body_timeout_s = (int)c->body_timeout;
    options.idle_timeout_s = (int)c->idle_timeout;
    options.vllm_metric_names = c->vllm_metric_names;
    return options;
}

struct engine_options command_engine_options(const struct config *c) {
    struct server_options server = command_server_options(c);
    struct engine_options options = config_engine_options(c);
    options.request_bytes = server_request_bytes(&server);
    options.http_bytes = server_http_bytes(&server);
    return options;
}
