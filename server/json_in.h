/* JSON read from clients: parsed in bounded memory, then taken apart by typed, ranged getters whose errors name the JSON path.
 *
 * The only file that knows jansson on the serving side. Bodies are parsed strictly: duplicate keys, \u0000, lone surrogates,
 * bad UTF-8, NaN and numbers too large to represent are refused. Unknown keys are ignored by whoever doesn't ask for them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct json_value; /* a value within a document */

enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_INTEGER,
    JSON_KIND_REAL,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT
};

/* Routes jansson's memory: while a thread has memory bound, its documents come from there, others from the system. Once, before
 * threads start. */
void json_in_init(void);
/* Gives this thread's documents `bytes` of memory, NULL to end that. Each json_in_parse starts it over: one document at a time.
 * */
void json_in_bind(void *memory, size_t bytes);

/* Parses data[0..n): one object, nothing behind it. The document is valid until the thread's next json_in_parse or
 * json_in_done. STATUS_INVALID: line, column and reason. STATUS_TOO_LARGE: it does not fit the bound memory. */
enum status json_in_parse(const char *data, size_t n, const struct json_value **root, struct err *err);
void json_in_done(const struct json_value *root);

enum json_kind json_in_kind(const struct json_value *v);
const char *json_in_kind_name(const struct json_value *v); /* "a string" */
/* NULL when the key is absent or null: optional fields may be null everywhere. */
const struct json_value *json_in_get(const struct json_value *object, const char *key);
bool json_in_is_empty(const struct json_value *object);
size_t json_in_count(const struct json_value *array);
const struct json_value *json_in_at(const struct json_value *array, size_t i);
const char *json_in_string(const struct json_value *string, size_t *n);
int64_t json_in_integer(const struct json_value *integer);

/* A field of `object`, which `path` names ("" for the root). Absent or null leaves *out as it is. Each refuses another type or
 * a value out of range with STATUS_INVALID, param = path.key. */
enum status json_in_int(const struct json_value *object, const char *path, const char *key, int64_t least, int64_t most,
                        int64_t *out, struct err *err);
/* Integers are numbers too. */
enum status json_in_number(const struct json_value *object, const char *path, const char *key, double least, double most,
                           double *out, struct err *err);
enum status json_in_bool(const struct json_value *object, const char *path, const char *key, bool *out, struct err *err);
enum status json_in_object(const struct json_value *object, const char *path, const char *key, const struct json_value **out,
                           struct err *err);
