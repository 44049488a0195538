/* See json_in.h.
 *
 * Memory: jansson calls our allocator; a thread with bound memory bumps a pointer in it and frees nothing until the next
 * document, so a document costs at most what was bound, whatever its shape. (One number in an array costs jansson 32 bytes and
 * its place in a table that doubles; a body of "[1,1,1" wants some 30 times its size and is refused where ordinary ones fit.) A
 * pointer outside the bound range belongs to the system allocator, so that a document may end on a thread whose binding has
 * changed. */
#include "server/json_in.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct bound {
    char *base;
    size_t used, size;
    bool exhausted;
};

static _Thread_local struct bound bound;
static json_malloc_t system_alloc;
static json_free_t system_free;

static void *take(size_t bytes) {
    if (!bound.base) return system_alloc(bytes);
    if (bytes > SIZE_MAX - 15 || ((bytes + 15) & ~(size_t)15) > bound.size - bound.used) {
        bound.exhausted = true;
        return NULL;
    }
    void *piece = bound.base + bound.used;
    bound.used += (bytes + 15) & ~(size_t)15;
    return piece;
}

static void give(void *piece) {
    char *p = piece;
    if (!p || (bound.base && p >= bound.base && p < bound.base + bound.size)) return;
    system_free(p);
}

void json_in_init(void) {
    static bool once;
    if (once) return;
    once = true;
    json_object_seed(0);
    json_get_alloc_funcs(&system_alloc, &system_free);
    json_set_alloc_funcs(take, give);
}

void json_in_bind(void *memory, size_t bytes) { bound = (struct bound){.base = memory, .size = bytes & ~(size_t)15}; }

static const json_t *node(const struct json_value *v) { return (const json_t *)(const void *)v; }

static const struct json_value *value(const json_t *j) { return (const struct json_value *)(const void *)j; }

/* jansson's reason without the piece of the body that it quotes. */
static enum status explain(json_error_t *error, struct err *err) {
    if (bound.exhausted || json_error_code(error) == json_error_out_of_memory)
        return err_set(err, STATUS_TOO_LARGE, "body: the JSON document needs more than the %zu bytes set aside to read it",
                       bound.size);
    char *quote = strstr(error->text, " near '");
    if (quote) *quote = 0;
    return err_set(err, STATUS_INVALID, "body: not valid JSON: line %d, column %d: %s", error->line, error->column,
                   error->text);
}

enum status json_in_parse(const char *data, size_t n, const struct json_value **root, struct err *err) {
    json_error_t error;
    bound.used = 0;
    bound.exhausted = false;
    *root = NULL;
    if (n == 0) return err_set(err, STATUS_INVALID, "body: empty; a JSON object is needed");
    json_t *document = json_loadb(data, n, JSON_REJECT_DUPLICATES, &error);
    if (!document) return explain(&error, err);
    if (!json_is_object(document)) {
        json_decref(document);
        return err_set(err, STATUS_INVALID, "body: must be a JSON object, not an array");
    }
    *root = value(document);
    return STATUS_OK;
}

void json_in_done(const struct json_value *root) {
    if (!root) return;
    json_t *document;
    memcpy(&document, &root, sizeof document); /* it was ours to change all along: const keeps callers from doing so */
    json_decref(document);
}

enum json_kind json_in_kind(const struct json_value *v) {
    if (!v) return JSON_KIND_NULL;
    switch (json_typeof(node(v))) {
    case JSON_TRUE:
    case JSON_FALSE: return JSON_KIND_BOOL;
    case JSON_INTEGER: return JSON_KIND_INTEGER;
    case JSON_REAL: return JSON_KIND_REAL;
    case JSON_STRING: return JSON_KIND_STRING;
    case JSON_ARRAY: return JSON_KIND_ARRAY;
    case JSON_OBJECT: return JSON_KIND_OBJECT;
    case JSON_NULL: break;
    }
    return JSON_KIND_NULL;
}

const char *json_in_kind_name(const struct json_value *v) {
    static const char *const names[] = {"null", "a boolean", "an integer", "a number", "a string", "an array", "an object"};
    return names[json_in_kind(v)];
}

const struct json_value *json_in_get(const struct json_value *object, const char *key) {
    const json_t *found = json_object_get(node(object), key);
    return json_is_null(found) ? NULL : value(found);
}

bool json_in_is_empty(const struct json_value *object) { return json_object_size(node(object)) == 0; }

size_t json_in_count(const struct json_value *array) { return json_array_size(node(array)); }

const struct json_value *json_in_at(const struct json_value *array, size_t i) { return value(json_array_get(node(array), i)); }

const char *json_in_string(const struct json_value *string, size_t *n) {
    *n = json_string_length(node(string));
    return json_string_value(node(string));
}

int64_t json_in_integer(const struct json_value *integer) { return json_integer_value(node(integer)); }

static void full_path(char *out, size_t max, const char *path, const char *key) {
    snprintf(out, max, "%s%s%s", path, *path ? "." : "", key);
}

static enum status wrong_type(struct err *err, const char *path, const char *key, const char *wanted,
                              const struct json_value *v) {
    char full[96];
    full_path(full, sizeof full, path, key);
    return err_set_param(err, STATUS_INVALID, full, "%s: must be %s, not %s", full, wanted, json_in_kind_name(v));
}

enum status json_in_int(const struct json_value *object, const char *path, const char *key, int64_t least, int64_t most,
                        int64_t *out, struct err *err) {
    const struct json_value *v = json_in_get(object, key);
    char full[96];
    if (!v) return STATUS_OK;
    if (json_in_kind(v) != JSON_KIND_INTEGER) return wrong_type(err, path, key, "an integer", v);
    int64_t got = json_in_integer(v);
    full_path(full, sizeof full, path, key);
    if (got < least || got > most)
        return err_set_param(err, STATUS_INVALID, full, "%s: must be from %lld to %lld, not %lld", full, (long long)least,
                             (long long)most, (long long)got);
    *out = got;
    return STATUS_OK;
}

enum status json_in_number(const struct json_value *object, const char *path, const char *key, double least, double most,
                           double *out, struct err *err) {
    const struct json_value *v = json_in_get(object, key);
    char full[96];
    if (!v) return STATUS_OK;
    if (json_in_kind(v) != JSON_KIND_INTEGER && json_in_kind(v) != JSON_KIND_REAL)
        return wrong_type(err, path, key, "a number", v);
    double got = json_number_value(node(v));
    full_path(full, sizeof full, path, key);
    if (!(got >= least && got <= most))
        return err_set_param(err, STATUS_INVALID, full, "%s: must be from %g to %g, not %g", full, least, most, got);
    *out = got;
    return STATUS_OK;
}

enum status json_in_bool(const struct json_value *object, const char *path, const char *key, bool *out, struct err *err) {
    const struct json_value *v = json_in_get(object, key);
    if (!v) return STATUS_OK;
    if (json_in_kind(v) != JSON_KIND_BOOL) return wrong_type(err, path, key, "true or false", v);
    *out = json_is_true(node(v));
    return STATUS_OK;
}

enum status json_in_object(const struct json_value *object, const char *path, const char *key, const struct json_value **out,
                           struct err *err) {
    const struct json_value *v = json_in_get(object, key);
    *out = v;
    if (v && json_in_kind(v) != JSON_KIND_OBJECT) return wrong_type(err, path, key, "an object", v);
    return STATUS_OK;
}
