/* The YAML file, through libcyaml: the only file that knows it.
 *
 * The schema is made from CONFIG_TABLE: a mapping of optional scalars. Every value is taken as text and parsed by option_set, so that
 * a file and a flag obey the same rules and are refused with the same words. Aliases are off: a file of nested aliases grows
 * exponentially. libcyaml's own words (unknown key, line and column) are kept from its log. */
#include <cyaml/cyaml.h>
#include <string.h>

#include "server/config.h"

/* What libcyaml fills: one text an option, NULL where the file has none. */
struct yaml_file {
#define X(name, ...) char *name;
    CONFIG_TABLE(X)
#undef X
};

#define X(name, ...) CYAML_FIELD_STRING_PTR(#name, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct yaml_file, name, 0, 4096),
static const cyaml_schema_field_t fields[] = {CONFIG_TABLE(X) CYAML_FIELD_END};
#undef X
#define X(name, ...) " " #name
static const char allowed_keys[] = CONFIG_TABLE(X);
#undef X
static const cyaml_schema_value_t schema = {CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct yaml_file, fields)};

/* libcyaml says first what is wrong, then "Backtrace:", then where: "in mapping field 'x' (line: 3, column: 1)". The first and the
 * third are kept. */
struct complaint {
    char text[256];
    int n_lines;
};

__attribute__((format(printf, 3, 0))) static void keep_complaint(cyaml_log_t level, void *context, const char *format,
                                                                 va_list args) {
    struct complaint *complaint = context;
    char line[160];
    if (level < CYAML_LOG_ERROR || complaint->n_lines++ > 2 || complaint->n_lines == 2) return;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = 0;
    const char *start = strncmp(line, "Load: ", 6) ? line : line + 6;
    while (*start == ' ') start++;
    size_t used = strlen(complaint->text);
    snprintf(complaint->text + used, sizeof complaint->text - used, "%s%.120s", used ? " " : "", start);
}

static cyaml_config_t library(struct complaint *complaint) {
    return (cyaml_config_t){.log_fn = complaint ? keep_complaint : NULL,
                            .log_ctx = complaint,
                            .mem_fn = cyaml_mem,
                            .log_level = CYAML_LOG_ERROR,
                            .flags = CYAML_CFG_NO_ALIAS};
}

static enum status apply(struct config *c, const char *name, const struct yaml_file *file, struct err *err) {
    struct option_table t = config_table(c);
    char *const texts[] = {
#define X(name, ...) file->name,
        CONFIG_TABLE(X)
#undef X
    };
    for (int i = 0; i < CONFIG_COUNT; i++) {
        char where[256];
        if (!texts[i]) continue;
        snprintf(where, sizeof where, "%.120s: %s", name, t.options[i].name);
        enum status status = option_set(&t, &t.options[i], texts[i], SOURCE_FILE, where, err);
        if (status) return status;
    }
    return STATUS_OK;
}

enum status config_from_yaml(struct config *c, const char *name, const char *text, size_t n, struct err *err) {
    struct complaint complaint = {0};
    cyaml_config_t config = library(&complaint);
    cyaml_data_t *data = NULL;
    cyaml_err_t result = cyaml_load_data((const uint8_t *)text, n, &config, &schema, &data, NULL);
    if (result == CYAML_ERR_INVALID_KEY)
        return err_set_param(err, STATUS_INVALID, "config", "%.100s: %s; allowed are%s", name, complaint.text, allowed_keys);
    if (result)
        return err_set_param(err, STATUS_INVALID, "config", "%.120s: %s: %s", name, cyaml_strerror(result), complaint.text);
    c->file = data;
    return data ? apply(c, name, (const struct yaml_file *)data, err) : STATUS_OK;
}

void config_free(struct config *c) {
    cyaml_config_t config = library(NULL);
    if (c->file) cyaml_free(&config, &schema, c->file, 0);
    c->file = NULL;
}
