/* See options.h. Nothing is allocated: texts stay where their source has them.
 *
 * Unknown names are errors, not warnings: a misspelt limit that is silently ignored is a limit that does not hold. The nearest known
 * name by edit distance is offered. */
#include "engine/base/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 64
#define MAX_BYTES ((int64_t)1 << 53)

const char *option_source_text(enum option_source source) {
    static const char *const texts[] = {"default", "file", "environment", "flag"};
    return (unsigned)source < sizeof texts / sizeof *texts ? texts[source] : "?";
}

/* ---- sizes ---- */

static int suffix_shift(const char *suffix) {
    static const struct {
        const char *text;
        int shift;
    } suffixes[] = {
        {"", 0}, {"B", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"T", 40}, {"TiB", 40},
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(suffix, suffixes[i].text) == 0) return suffixes[i].shift;
    return -1;
}

bool bytes_parse(const char *text, int64_t *bytes) {
    const char *p = text;
    int64_t whole = 0, thousandths = 0;
    int n_fraction = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if ((whole = whole * 10 + (*p - '0')) > MAX_BYTES) return false;
    if (p == text) return false;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9' && n_fraction < 3; p++, n_fraction++) thousandths = thousandths * 10 + (*p - '0');
    for (; n_fraction < 3; n_fraction++) thousandths *= 10;
    int shift = suffix_shift(p);
    if (shift < 0 || whole > MAX_BYTES >> shift) return false;
    whole = (whole << shift) + (thousandths << shift) / 1000; /* at most 2^53 + 2^40 */
    if (whole > MAX_BYTES) return false;
    *bytes = whole;
    return true;
}

void bytes_format(int64_t bytes, char *text, size_t n) {
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    for (; i < 4 && bytes && bytes % 1024 == 0; i++) bytes /= 1024;
    snprintf(text, n, "%lld%s", (long long)bytes, suffixes[i]);
}

void bytes_format_short(int64_t bytes, char *text, size_t n) {
    static const char *const suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int i = 0;
    for (; i < 4 && fabs(value) >= 1024; i++) value /= 1024;
    snprintf(text, n, i ? "%.2f %s" : "%.0f %s", value, suffixes[i]);
}

/* ---- names ---- */

static char plain(char c) { return c == '-' ? '_' : c; }

static bool name_is(const struct option *o, const char *name, size_t n) {
    if (strlen(o->name) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (o->name[i] != plain(name[i])) return false;
    return true;
}

const struct option *option_find(const struct option_table *t, const char *name, size_t n) {
    for (int i = 0; i < t->n; i++)
        if (name_is(&t->options[i], name, n)) return &t->options[i];
    return NULL;
}

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein distance of two short names; large when one is too long. */
static int edit_distance(const char *a, size_t n_a, const char *b) {
    size_t n_b = strlen(b);
    int row[MAX_NAME + 1];
    if (n_a > MAX_NAME || n_b > MAX_NAME) return MAX_NAME;
    for (size_t j = 0; j <= n_b; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (plain(a[i - 1]) != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n_b];
}

static void flag_spelling(const char *name, char *text, size_t n) {
    snprintf(text, n, "--%s", name);
    for (char *p = text; *p; p++)
        if (*p == '_') *p = '-';
}

static enum status unknown_flag(const struct option_table *t, const char *arg, const char *name, size_t n, struct err *err) {
    const struct option *nearest = NULL;
    char flag[MAX_NAME + 3];
    int best = 4;
    for (int i = 0; i < t->n; i++) {
        int distance = edit_distance(name, n, t->options[i].name);
        if (distance < best) nearest = &t->options[i], best = distance;
    }
    if (!nearest) return err_set_param(err, STATUS_INVALID, arg, "%.80s: unknown option; --help lists what is allowed", arg);
    flag_spelling(nearest->name, flag, sizeof flag);
    return err_set_param(err, STATUS_INVALID, arg, "%.80s: unknown option; did you mean %s? --help lists what is allowed", arg,
                         flag);
}

/* ---- values ---- */

static void format_number(const struct option *o, double value, char *text, size_t n) {
    if (o->kind == OPTION_BYTES) bytes_format((int64_t)value, text, n);
    else if (o->kind == OPTION_INT) snprintf(text, n, "%lld", (long long)value);
    else snprintf(text, n, "%.15g", value);
}

static bool is_auto_allowed(const struct option *o) { return strcmp(o->initial, "auto") == 0; }

void option_allowed(const struct option *o, char *text, size_t n) {
    char low[32], high[32];
    switch (o->kind) {
    case OPTION_INT:
    case OPTION_BYTES:
    case OPTION_REAL:
        format_number(o, o->min, low, sizeof low);
        format_number(o, o->max, high, sizeof high);
        snprintf(text, n, "%s to %s%s%s", low, high, o->kind == OPTION_BYTES ? " (suffixes K, KiB, M, MiB, G, GiB)" : "",
                 is_auto_allowed(o) ? ", or auto" : "");
        break;
    case OPTION_CHOICE: {
        size_t used = 0;
        text[0] = 0;
        for (const char *p = o->choices; *p && used + 5 < n; p++)
            used += (size_t)(*p == '|' ? snprintf(text + used, n - used, " or ") : snprintf(text + used, n - used, "%c", *p));
        break;
    }
    case OPTION_BOOL: snprintf(text, n, "true or false"); break;
    default: snprintf(text, n, "any text"); break;
    }
}

static enum status refuse(const struct option *o, const char *text, const char *where, struct err *err) {
    char allowed[160];
    option_allowed(o, allowed, sizeof allowed);
    return err_set_param(err, STATUS_INVALID, o->name, "%.160s: \"%.80s\" is not allowed: allowed are %s", where, text,
                         allowed);
}

static int choice_index(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t length = strcspn(choices, "|");
        if (length == n && memcmp(choices, text, n) == 0) return i;
        if (!choices[length]) return -1;
        choices += length + 1;
    }
}

static const char *choice_text(const char *choices, int index, int *length) {
    for (; index > 0; index--) choices += strcspn(choices, "|") + 1;
    *length = (int)strcspn(choices, "|");
    return choices;
}

static bool parse_bool(const char *text, bool *value) {
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            if (strcmp(text, words[i][j]) == 0) {
                *value = j;
                return true;
            }
    return false;
}

/* Digits only for integers: no blanks, no hexadecimal, no fractions. */
static bool parse_int(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || !((*text >= '0' && *text <= '9') || *text == '-')) return false;
    *value = number;
    return true;
}

static bool parse_real(const char *text, double *value) {
    char *end;
    if (!((*text >= '0' && *text <= '9') || *text == '-' || *text == '.') || strpbrk(text, "xX")) return false;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

static bool in_range(const struct option *o, double value) { return value >= o->min && value <= o->max; }

static bool store(const struct option *o, const char *text, void *member) {
    struct option_list *list;
    double real;
    int64_t number;
    int index;
    switch (o->kind) {
    case OPTION_TEXT: *(const char **)member = text; return true;
    case OPTION_INT:
    case OPTION_BYTES:
        number = 0;
        if (!(is_auto_allowed(o) && strcmp(text, "auto") == 0) &&
            (!(o->kind == OPTION_INT ? parse_int(text, &number) : bytes_parse(text, &number)) || !in_range(o, (double)number)))
            return false;
        *(int64_t *)member = number;
        return true;
    case OPTION_REAL:
        if (!parse_real(text, &real) || !in_range(o, real)) return false;
        *(double *)member = real;
        return true;
    case OPTION_CHOICE:
        if ((index = choice_index(o->choices, text)) < 0) return false;
        *(int *)member = index;
        return true;
    case OPTION_BOOL: return parse_bool(text, member);
    case OPTION_LIST:
        list = member;
        if (list->n == OPTION_LIST_MAX) return false;
        list->items[list->n++] = text;
        return true;
    }
    return false;
}

static void *member_of(const struct option_table *t, const struct option *o) { return (char *)t->values + o->offset; }

enum status option_set(const struct option_table *t, const struct option *o, const char *text, enum option_source source,
                       const char *where, struct err *err) {
    if (!store(o, text, member_of(t, o))) return refuse(o, text, where, err);
    t->sources[o - t->options] = source;
    return STATUS_OK;
}

void options_init(const struct option_table *t) {
    for (int i = 0; i < t->n; i++) {
        const struct option *o = &t->options[i];
        struct err err;
        if (o->kind == OPTION_LIST) memset(member_of(t, o), 0, sizeof(struct option_list));
        else if (option_set(t, o, o->initial, SOURCE_DEFAULT, o->name, &err)) BUG("default of an option: %s", err.text);
        t->sources[i] = SOURCE_DEFAULT;
    }
}

void option_format(const struct option_table *t, const struct option *o, char *text, size_t n) {
    const void *member = member_of(t, o);
    const char *choice;
    int length;
    switch (o->kind) {
    case OPTION_TEXT: snprintf(text, n, "%s", *(const char *const *)member); break;
    case OPTION_INT:
    case OPTION_BYTES:
        if (is_auto_allowed(o) && *(const int64_t *)member == 0) snprintf(text, n, "auto");
        else format_number(o, (double)*(const int64_t *)member, text, n);
        break;
    case OPTION_REAL: format_number(o, *(const double *)member, text, n); break;
    case OPTION_CHOICE:
        choice = choice_text(o->choices, *(const int *)member, &length);
        snprintf(text, n, "%.*s", length, choice);
        break;
    case OPTION_BOOL: snprintf(text, n, "%s", *(const bool *)member ? "true" : "false"); break;
    case OPTION_LIST: snprintf(text, n, "%d given", ((const struct option_list *)member)->n); break;
    }
}

/* ---- sources ---- */

/* One flag; *i is moved past a value taken from the next argument. */
static enum status apply_flag(const struct option_table *t, int argc, char **argv, int *i, struct err *err) {
    const char *arg = argv[*i], *name = arg + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *o = option_find(t, name, n);
    char where[MAX_NAME + 3];
    if (!o && !equals && strncmp(name, "no-", 3) == 0) {
        o = option_find(t, name + 3, n - 3);
        if (o && o->kind == OPTION_BOOL) return option_set(t, o, "false", SOURCE_FLAG, arg, err);
        o = NULL;
    }
    if (!o) return unknown_flag(t, arg, name, n, err);
    flag_spelling(o->name, where, sizeof where);
    if (equals) return option_set(t, o, equals + 1, SOURCE_FLAG, where, err);
    if (o->kind == OPTION_BOOL) return option_set(t, o, "true", SOURCE_FLAG, where, err);
    if (*i + 1 >= argc) {
        char allowed[160];
        option_allowed(o, allowed, sizeof allowed);
        return err_set_param(err, STATUS_INVALID, o->name, "%s: needs a value: allowed are %s", where, allowed);
    }
    return option_set(t, o, argv[++*i], SOURCE_FLAG, where, err);
}

enum status options_from_flags(const struct option_table *t, int argc, char **argv, const char **operands, int max_operands,
                               struct err *err) {
    int n_operands = 0;
    bool has_flags = true;
    for (int i = 0; i < max_operands; i++) operands[i] = NULL;
    for (int i = 1; i < argc; i++) {
        if (has_flags && strcmp(argv[i], "--") == 0) {
            has_flags = false;
        } else if (has_flags && argv[i][0] == '-' && argv[i][1] == '-') {
            enum status status = apply_flag(t, argc, argv, &i, err);
            if (status) return status;
        } else if (has_flags && argv[i][0] == '-' && argv[i][1]) {
            return err_set_param(err, STATUS_INVALID, argv[i], "%.80s: unknown option; options begin with --", argv[i]);
        } else if (n_operands == max_operands) {
            return err_set_param(err, STATUS_INVALID, argv[i], "%.80s: unexpected argument; options begin with --", argv[i]);
        } else {
            operands[n_operands++] = argv[i];
        }
    }
    return STATUS_OK;
}

static bool variable_is(const char *variable, const char *prefix, const char *name) {
    size_t n = strlen(prefix);
    if (strncmp(variable, prefix, n) || variable[n] != '_') return false;
    for (variable += n + 1; *name; name++, variable++)
        if (*variable != (*name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name)) return false;
    return *variable == '=';
}

enum status options_from_environment(const struct option_table *t, char *const *environment, const char *prefix,
                                     struct err *err) {
    for (; *environment; environment++)
        for (int i = 0; i < t->n; i++) {
            const struct option *o = &t->options[i];
            const char *equals = strchr(*environment, '=');
            char where[MAX_NAME * 2];
            if (o->kind == OPTION_LIST || !variable_is(*environment, prefix, o->name)) continue;
            snprintf(where, sizeof where, "environment: %.*s", (int)(equals - *environment), *environment);
            enum status status = option_set(t, o, equals + 1, SOURCE_ENVIRONMENT, where, err);
            if (status) return status;
        }
    return STATUS_OK;
}

/* ---- help ---- */

bool options_want_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* Words of `text` in lines of at most 100 columns, each indented by six. */
static void print_wrapped(const char *text, FILE *out) {
    int column = 0;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column && column + 1 + n > 94) column = 0, fputc('\n', out);
        fprintf(out, "%s%.*s", column ? " " : "      ", n, text);
        column += n + (column > 0);
        text += n;
        while (*text == ' ') text++;
    }
    fputc('\n', out);
}

void options_print_help(const struct option_table *t, FILE *out) {
    for (int i = 0; i < t->n; i++) {
        const struct option *o = &t->options[i];
        char flag[MAX_NAME + 3], allowed[160], text[1024];
        flag_spelling(o->name, flag, sizeof flag);
        fprintf(out, "  %s%s%s\n", flag, *o->value ? " " : "", o->value);
        option_allowed(o, allowed, sizeof allowed);
        bool has_default = o->kind != OPTION_LIST && *o->initial, has_range = o->kind != OPTION_TEXT && o->kind != OPTION_LIST;
        snprintf(text, sizeof text, "%s%s%s%s%s%s%s", o->help, has_default || has_range ? " [" : "",
                 has_default ? "default " : "", has_default ? o->initial : "", has_default && has_range ? "; " : "",
                 has_range ? allowed : "", has_default || has_range ? "]" : "");
        print_wrapped(text, out);
    }
}
