/* Sources and their order, the checks between options, and how the result is printed. See config.h; the YAML part is config_yaml.c.
 *
 * An unknown TALLY_* variable is a warning and no error: other parts (TALLY_ISA) and container systems set some of their own. */
#include "server/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1 << 20)

#define X(name_, kind_, initial_, least, most, choices_, value_, help_)                                                        \
    {#name_, OPTION_##kind_, initial_, least, most, choices_, value_, help_, offsetof(struct config, name_)},
static const struct option config_options[CONFIG_COUNT + 3] = {
    CONFIG_TABLE(X){"config", OPTION_TEXT, "", 0, 0, "", "FILE",
                    "YAML file with any of these options, as in configs/tally.yaml.", offsetof(struct config, config)},
    {"print_config", OPTION_BOOL, "false", 0, 0, "", "", "Print every option with its value and source as YAML, and exit.",
     offsetof(struct config, print_config)},
    {"json", OPTION_BOOL, "false", 0, 0, "", "", "Print the plan as JSON.", offsetof(struct config, json)},
};
#undef X

struct option_table config_table(struct config *c) {
    return (struct option_table){config_options, CONFIG_COUNT + 3, c, c ? c->sources : NULL};
}

/* What a command takes as flags: --json is of plan alone. */
static struct option_table flag_table(struct config *c, const char *command) {
    struct option_table t = config_table(c);
    if (strcmp(command, "plan")) t.n--;
    return t;
}

/* ---- sources ---- */

/* The whole of a regular file, malloc'ed: a temporary of the start, freed by the caller. */
static enum status read_file(const char *path, char **text, size_t *n, struct err *err) {
    FILE *f = fopen(path, "re");
    if (!f) return err_set_param(err, STATUS_IO, "config", "--config: %s: cannot be opened: %s", path, strerror(errno));
    *text = malloc(MAX_FILE_BYTES + 1);
    *n = *text ? fread(*text, 1, MAX_FILE_BYTES + 1, f) : 0;
    enum status status = STATUS_OK;
    if (!*text) status = err_set(err, STATUS_NO_MEMORY, "--config: %s: out of memory", path);
    else if (ferror(f))
        status = err_set_param(err, STATUS_IO, "config", "--config: %s: cannot be read: %s", path, strerror(errno));
    else if (*n > MAX_FILE_BYTES)
        status = err_set_param(err, STATUS_TOO_LARGE, "config", "--config: %s: larger than 1 MiB", path);
    fclose(f);
    if (status) free(*text);
    return status;
}

static enum status apply_file(struct config *c, const char *path, struct err *err) {
    char *text = NULL;
    size_t n = 0;
    enum status status = read_file(path, &text, &n, err);
    if (status) return status;
    status = config_from_yaml(c, path, text, n, err);
    free(text);
    return status;
}

/* Environment variables that other parts read. */
static bool is_foreign_variable(const char *variable) {
    static const char *const names[] = {"TALLY_ISA=", "TALLY_BIN=", "TALLY_TEST_", "TALLY_BENCH_"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static void warn_of_unknown_variables(const struct option_table *t, char *const *environment) {
    for (; *environment; environment++) {
        char name[64];
        size_t n = strcspn(*environment, "=");
        if (strncmp(*environment, "TALLY_", 6) || is_foreign_variable(*environment)) continue;
        for (size_t i = 6; i < n && i - 6 < sizeof name; i++) name[i - 6] = (char)tolower((unsigned char)(*environment)[i]);
        if (n - 6 > sizeof name || !option_find(t, name, n - 6))
            log_event(LOG_WARN, "config", "environment variable %.*s is no option", (int)n, *environment);
    }
}

static enum status apply_environment(const struct option_table *t, char *const *environment, struct err *err) {
    for (char *const *e = environment; *e; e++)
        if (strncmp(*e, "TALLY_PORT=tcp://", 17) == 0)
            return err_set_param(err, STATUS_INVALID, "port",
                                 "environment: TALLY_PORT: \"%.80s\" is no port: Kubernetes sets it for a service named tally; "
                                 "rename the service or set enableServiceLinks: false",
                                 *e + 11);
    warn_of_unknown_variables(t, environment);
    return options_from_environment(t, environment, "TALLY", err);
}

/* ---- checks ---- */

bool config_host_is_loopback(const char *host) {
    unsigned char address[16];
    static const unsigned char loopback6[16] = {[15] = 1};
    if (strcmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, address) == 1) return address[0] == 127;
    return inet_pton(AF_INET6, host, address) == 1 && memcmp(address, loopback6, 16) == 0;
}

/* What no single option can say of itself; a refusal names the source, as option_set does. */
static enum status check(const struct config *c, struct err *err) {
    unsigned char address[16];
    if (c->block_tokens % 16)
        return err_set_param(err, STATUS_INVALID, "block_tokens",
                             "block_tokens (from %s): \"%lld\" is not allowed: allowed are multiples of 16 from 16 to 256",
                             option_source_text(c->sources[CONFIG_block_tokens]), (long long)c->block_tokens);
    if (strcmp(c->host, "localhost") && inet_pton(AF_INET, c->host, address) != 1 && inet_pton(AF_INET6, c->host, address) != 1)
        return err_set_param(err, STATUS_INVALID, "host",
                             "host (from %s): \"%.80s\" is not allowed: allowed are IPv4 and IPv6 addresses and localhost",
                             option_source_text(c->sources[CONFIG_host]), c->host);
    if (!config_host_is_loopback(c->host) && !c->allow_remote)
        return err_set_param(err, STATUS_INVALID, "host",
                             "host (from %s): \"%.80s\" can be reached by other hosts, and this version authenticates nobody: "
                             "allowed are localhost, 127.0.0.0/8 and ::1, and others only with --allow-remote",
                             option_source_text(c->sources[CONFIG_host]), c->host);
    return STATUS_OK;
}

/* Where the file is: the last of TALLY_CONFIG and --config. Flags are checked here too, so that a bad one is refused first. */
static enum status find_file(int argc, char **argv, char *const *environment, const char **path, struct err *err) {
    struct config scratch = {0};
    struct option_table t = flag_table(&scratch, argv[0]);
    const char *operand;
    options_init(&t);
    enum status status = options_from_flags(&t, argc, argv, &operand, 1, err);
    *path = scratch.config;
    for (; !status && !**path && *environment; environment++)
        if (strncmp(*environment, "TALLY_CONFIG=", 13) == 0) *path = *environment + 13;
    return status;
}

enum status config_load(struct config *c, int argc, char **argv, char *const *environment, struct err *err) {
    struct option_table all = config_table(c), flags = flag_table(c, argv[0]);
    const char *path, *operand;
    memset(c, 0, sizeof *c);
    options_init(&all);
    if ((c->want_help = options_want_help(argc, argv))) return STATUS_OK;
    enum status status = find_file(argc, argv, environment, &path, err);
    if (!status && *path) status = apply_file(c, path, err);
    if (!status) status = apply_environment(&all, environment, err);
    if (!status) status = options_from_flags(&flags, argc, argv, &operand, 1, err);
    if (!status && operand) status = option_set(&all, &config_options[CONFIG_model], operand, SOURCE_FLAG, "model", err);
    return status ? status : check(c, err);
}

/* ---- printing ---- */

void config_print_help(const char *command, FILE *out) {
    struct option_table t = flag_table(NULL, command);
    options_print_help(&t, out);
    fputs("  --help\n      Print this and exit.\n"
          "\nEach option down to --log-level may also stand in the YAML file (max_seqs: 16), and each in the environment\n"
          "(TALLY_MAX_SEQS=16). Order: default, file, environment, flag; the last one given wins.\n",
          out);
}

/* `text` in YAML's double quotes: n bytes are enough for 4 times the text. */
static void quote(const char *text, char *out, size_t n) {
    size_t used = 0;
    out[used++] = '"';
    for (; *text && used + 6 < n; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) used += (size_t)snprintf(out + used, n - used, "\\x%02x", c);
        else used += (size_t)snprintf(out + used, n - used, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    snprintf(out + used, n - used, "\"");
}

void config_print(struct config *c, FILE *out) {
    struct option_table t = config_table(c);
    for (int i = 0; i < CONFIG_COUNT; i++) {
        char value[4200], quoted[4 * sizeof value];
        option_format(&t, &config_options[i], value, sizeof value);
        quote(value, quoted, sizeof quoted);
        bool is_text = config_options[i].kind == OPTION_TEXT;
        fprintf(out, "%s: %-20s # %s\n", config_options[i].name, is_text ? quoted : value, option_source_text(c->sources[i]));
    }
}

void config_log(struct config *c) {
    struct option_table t = config_table(c);
    for (int i = 0; i < CONFIG_COUNT; i++) {
        char value[1024];
        option_format(&t, &config_options[i], value, sizeof value);
        log_event(c->sources[i] == SOURCE_DEFAULT ? LOG_DEBUG : LOG_INFO, "config", "%s=\"%s\" from=%s", config_options[i].name,
                  value, option_source_text(c->sources[i]));
    }
}

struct engine_options config_engine_options(const struct config *c) {
    return (struct engine_options){
        .model_path = c->model,
        .n_threads = (int)c->threads,
        .max_context = (int)c->max_context,
        .max_seqs = (int)c->max_seqs,
        .max_batch_tokens = (int)c->max_batch_tokens,
        .max_queue = (int)c->max_queue,
        .block_tokens = (int)c->block_tokens,
        .memory_budget = (size_t)c->memory_budget,
        .activations_f32 = c->activations == 1,
    };
}
