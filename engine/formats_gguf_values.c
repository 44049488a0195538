/* Metadata by key. The file was checked when it was opened, so here only types and ranges are in question. */
#include "engine/formats_gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int bytes;
} value_types[GGUF_N_VALUE_TYPES] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

int gguf_value_bytes(uint32_t type) { return type < GGUF_N_VALUE_TYPES ? value_types[type].bytes : 0; }

const char *gguf_value_name(uint32_t type) { return type < GGUF_N_VALUE_TYPES ? value_types[type].name : "unknown"; }

int gguf_text_compare(struct text_view a, struct text_view b) {
    int order = memcmp(a.data, b.data, a.n < b.n ? a.n : b.n);
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

struct gguf_shown gguf_show(struct text_view text) {
    struct gguf_shown shown;
    size_t room = sizeof shown.text - 4, n = text.n < room ? (size_t)text.n : room;
    for (size_t i = 0; i < n; i++) shown.text[i] = text.data[i] >= 0x20 && text.data[i] < 0x7f ? text.data[i] : '?';
    strcpy(shown.text + n, n < text.n ? "..." : "");
    return shown;
}

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key) {
    struct text_view wanted = {key, strlen(key)};
    uint64_t low = 0, high = g->n_kv;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = gguf_text_compare(g->kv[middle].key, wanted);
        if (!order) return &g->kv[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

static int wrong_type(const char *key, const struct gguf_kv *kv, const char *wanted, struct err *err) {
    err_set_param(err, STATUS_CORRUPT, key, "%s: is %s%s; must be %s", key, gguf_value_name(kv->type),
                  kv->is_array ? " array" : "", wanted);
    return -1;
}

/* A single value; *kv is NULL when there is no such key, −1 when it is an array. */
static int find_single(const struct gguf *g, const char *key, const struct gguf_kv **kv, const char *wanted, struct err *err) {
    *kv = gguf_kv_find(g, key);
    if (!*kv) return 0;
    return (*kv)->is_array ? wrong_type(key, *kv, wanted, err) : 1;
}

/* An array of at least `n` elements. */
static int find_array(const struct gguf *g, const char *key, uint64_t n, const struct gguf_kv **kv, const char *wanted,
                      struct err *err) {
    *kv = gguf_kv_find(g, key);
    if (!*kv) return 0;
    if (!(*kv)->is_array) return wrong_type(key, *kv, wanted, err);
    if ((*kv)->count >= n) return 1;
    err_set_param(err, STATUS_CORRUPT, key, "%s: has %" PRIu64 " elements; must have at least %" PRIu64, key, (*kv)->count, n);
    return -1;
}

bool gguf_is_integer(uint32_t type) {
    return gguf_value_bytes(type) && type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL;
}

/* Value `index` of an integer type, widened; false for other types. Unsigned ones past INT64_MAX become that. */
static bool read_integer(const struct gguf_kv *kv, uint64_t index, int64_t *out) {
    size_t width = (size_t)gguf_value_bytes(kv->type);
    uint64_t bits = 0;
    if (!gguf_is_integer(kv->type)) return false;
    memcpy(&bits, kv->values + index * width, width);
    switch (kv->type) {
    case GGUF_I8: *out = (int8_t)bits; break;
    case GGUF_I16: *out = (int16_t)bits; break;
    case GGUF_I32: *out = (int32_t)bits; break;
    case GGUF_I64: *out = (int64_t)bits; break;
    default: *out = bits > INT64_MAX ? INT64_MAX : (int64_t)bits; break;
    }
    return true;
}

/* Value `index` of a float type; false for other types. */
static bool read_float(const struct gguf_kv *kv, uint64_t index, double *out) {
    float f;
    if (kv->type == GGUF_F32) memcpy(&f, kv->values + index * sizeof f, sizeof f), *out = (double)f;
    else if (kv->type == GGUF_F64) memcpy(out, kv->values + index * sizeof *out, sizeof *out);
    else return false;
    return true;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err) {
    const struct gguf_kv *kv;
    int64_t value;
    int found = find_single(g, key, &kv, "an integer", err);
    if (found <= 0) return found;
    if (!read_integer(kv, 0, &value)) return wrong_type(key, kv, "an integer", err);
    if (value < 0 || value > UINT32_MAX) {
        err_set_param(err, STATUS_CORRUPT, key, "%s: is %s%" PRId64 "; allowed are 0 to %u", key,
                      value == INT64_MAX ? "at least " : "", value, UINT32_MAX);
        return -1;
    }
    *out = (uint32_t)value;
    return 1;
}

int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err) {
    const struct gguf_kv *kv;
    double value;
    int found = find_single(g, key, &kv, "f32 or f64", err);
    if (found <= 0) return found;
    if (!read_float(kv, 0, &value)) return wrong_type(key, kv, "f32 or f64", err);
    if (!(fabs(value) <= 0x1.fffffep127)) {
        err_set_param(err, STATUS_CORRUPT, key, "%s: is %g; must be a finite 32-bit float", key, value);
        return -1;
    }
    *out = (float)value;
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_single(g, key, &kv, "bool", err);
    if (found <= 0) return found;
    if (kv->type != GGUF_BOOL) return wrong_type(key, kv, "bool", err);
    if (kv->values[0] > 1) {
        err_set_param(err, STATUS_CORRUPT, key, "%s: is %u; a bool must be 0 or 1", key, kv->values[0]);
        return -1;
    }
    *out = kv->values[0];
    return 1;
}

/* The string at *p, which moves past it. */
static struct text_view next_text(const uint8_t **p) {
    struct text_view text;
    memcpy(&text.n, *p, sizeof text.n);
    text.data = (const char *)*p + sizeof text.n;
    *p += sizeof text.n + text.n;
    return text;
}

int gguf_text(const struct gguf *g, const char *key, struct text_view *out, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_single(g, key, &kv, "string", err);
    if (found <= 0) return found;
    if (kv->type != GGUF_STRING) return wrong_type(key, kv, "string", err);
    const uint8_t *p = kv->values;
    *out = next_text(&p);
    return 1;
}

int gguf_array_count(const struct gguf *g, const char *key, uint64_t *n, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_array(g, key, 0, &kv, "an array", err);
    if (found > 0) *n = kv->count;
    return found;
}

int gguf_text_array(const struct gguf *g, const char *key, struct text_view *out, uint64_t n, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_array(g, key, n, &kv, "string array", err);
    if (found <= 0) return found;
    if (kv->type != GGUF_STRING) return wrong_type(key, kv, "string array", err);
    const uint8_t *p = kv->values;
    for (uint64_t i = 0; i < n; i++) out[i] = next_text(&p);
    return 1;
}

int gguf_f32_array(const struct gguf *g, const char *key, float *out, uint64_t n, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_array(g, key, n, &kv, "an array of numbers", err);
    if (found <= 0) return found;
    for (uint64_t i = 0; i < n; i++) {
        double value;
        int64_t integer;
        if (read_float(kv, i, &value)) out[i] = (float)value;
        else if (read_integer(kv, i, &integer)) out[i] = (float)integer;
        else return wrong_type(key, kv, "an array of numbers", err);
        if (isnan(out[i])) {
            err_set_param(err, STATUS_CORRUPT, key, "%s: element %" PRIu64 " is not a number", key, i);
            return -1;
        }
    }
    return 1;
}

int gguf_i32_array(const struct gguf *g, const char *key, int32_t *out, uint64_t n, struct err *err) {
    const struct gguf_kv *kv;
    int found = find_array(g, key, n, &kv, "an array of integers", err);
    if (found <= 0) return found;
    for (uint64_t i = 0; i < n; i++) {
        int64_t value;
        if (!read_integer(kv, i, &value)) return wrong_type(key, kv, "an array of integers", err);
        if (value < INT32_MIN || value > INT32_MAX) {
            err_set_param(err, STATUS_CORRUPT, key, "%s: element %" PRIu64 " is %" PRId64 "; must fit 32 bits", key, i, value);
            return -1;
        }
        out[i] = (int32_t)value;
    }
    return 1;
}
