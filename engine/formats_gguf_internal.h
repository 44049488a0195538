/* What the three GGUF files share: formats_gguf.c fills it, formats_gguf_values.c and formats_gguf_vocab.c read it. */
#pragma once

#include "engine/formats_gguf.h"

/* The format's numbers for value types. */
enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_VALUE_TYPES,
};

/* A metadata entry, checked: `count` values of `type` lie at `values`, strings as length and bytes. */
struct gguf_kv {
    struct text_view key;
    uint32_t type; /* of the elements, if is_array */
    bool is_array;
    uint64_t count; /* 1 if not an array */
    const uint8_t *values;
};

struct gguf {
    const uint8_t *map;
    uint64_t file_bytes, data_offset;
    uint64_t n_kv, n_tensors;
    struct gguf_kv *kv;          /* sorted by key */
    struct gguf_tensor *tensors; /* in the file's order */
    uint32_t *by_name;           /* indices of tensors, sorted by name */
};

/* Bytes of a value, 0 for strings, arrays and numbers that are no type. */
int gguf_value_bytes(uint32_t type);
const char *gguf_value_name(uint32_t type);
bool gguf_is_integer(uint32_t type);
/* NULL when there is none. */
const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key);
/* Memory order of bytes, shorter first among equal beginnings. */
int gguf_text_compare(struct text_view a, struct text_view b);

/* A text of a file, fit to be shown in a message: cut, and anything but printable ASCII as '?'. */
struct gguf_shown {
    char text[72];
};
struct gguf_shown gguf_show(struct text_view text);
