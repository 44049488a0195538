/* Writes GGUF files for tests: good ones by its typed calls, broken ones by lying through the fields marked "may lie".
 *
 *     struct gguf_writer w;
 *     gw_init(&w);
 *     gw_text(&w, "general.architecture", "llama");
 *     gw_tensor(&w, "output_norm.weight", GGML_F32, 1, (int64_t[]){64}, data);
 *     char path[64];
 *     gw_temp(&w, path);      ... use it ...   unlink(path);
 *     gw_free(&w);
 *
 * Memory grows with realloc; a failure ends the test program. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/import_gguf.h"

struct gw_bytes {
    uint8_t *data;
    size_t n;
};

struct gguf_writer {
    uint32_t version, alignment;     /* may lie: 3 and 32; alignment is also how data is padded, so add the key beside it */
    int64_t extra_kv, extra_tensors; /* may lie: added to the true counts */
    uint64_t n_kv, n_tensors;
    struct gw_bytes kv, infos, data, file;
};

static inline void gw_put(struct gw_bytes *b, const void *data, size_t n) {
    if (!n) return;
    b->data = realloc(b->data, b->n + n);
    if (!b->data) abort();
    if (data) memcpy(b->data + b->n, data, n);
    else memset(b->data + b->n, 0, n);
    b->n += n;
}
static inline void gw_put_u32(struct gw_bytes *b, uint32_t v) { gw_put(b, &v, sizeof v); }
static inline void gw_put_u64(struct gw_bytes *b, uint64_t v) { gw_put(b, &v, sizeof v); }
static inline void gw_put_text(struct gw_bytes *b, const char *text, size_t n) {
    gw_put_u64(b, n);
    gw_put(b, text, n);
}
static inline void gw_pad(struct gw_bytes *b, size_t alignment) {
    if (alignment && b->n % alignment) gw_put(b, NULL, alignment - b->n % alignment);
}

static inline void gw_init(struct gguf_writer *w) { *w = (struct gguf_writer){.version = 3, .alignment = 32}; }
static inline void gw_free(struct gguf_writer *w) {
    free(w->kv.data);
    free(w->infos.data);
    free(w->data.data);
    free(w->file.data);
    gw_init(w);
}

/* --- metadata: type numbers are the format's (0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, 10 u64,
 * 11 i64, 12 f64) --- */

/* Key and type alone: the value follows by gw_put*(&w->kv, ...). */
static inline void gw_key(struct gguf_writer *w, const char *key, uint32_t type) {
    gw_put_text(&w->kv, key, strlen(key));
    gw_put_u32(&w->kv, type);
    w->n_kv++;
}
static inline void gw_value(struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes) {
    gw_key(w, key, type);
    gw_put(&w->kv, value, bytes);
}
static inline void gw_u32(struct gguf_writer *w, const char *key, uint32_t v) { gw_value(w, key, 4, &v, 4); }
static inline void gw_i32(struct gguf_writer *w, const char *key, int32_t v) { gw_value(w, key, 5, &v, 4); }
static inline void gw_f32(struct gguf_writer *w, const char *key, float v) { gw_value(w, key, 6, &v, 4); }
static inline void gw_f64(struct gguf_writer *w, const char *key, double v) { gw_value(w, key, 12, &v, 8); }
static inline void gw_u64(struct gguf_writer *w, const char *key, uint64_t v) { gw_value(w, key, 10, &v, 8); }
static inline void gw_i64(struct gguf_writer *w, const char *key, int64_t v) { gw_value(w, key, 11, &v, 8); }
static inline void gw_bool(struct gguf_writer *w, const char *key, int v) { gw_value(w, key, 7, &(uint8_t){(uint8_t)v}, 1); }
static inline void gw_text_n(struct gguf_writer *w, const char *key, const char *text, size_t n) {
    gw_key(w, key, 8);
    gw_put_text(&w->kv, text, n);
}
static inline void gw_text(struct gguf_writer *w, const char *key, const char *text) { gw_text_n(w, key, text, strlen(text)); }
/* An array's head: its elements follow by gw_put*(&w->kv, ...); n may lie. */
static inline void gw_array(struct gguf_writer *w, const char *key, uint32_t type, uint64_t n) {
    gw_key(w, key, 9);
    gw_put_u32(&w->kv, type);
    gw_put_u64(&w->kv, n);
}
static inline void gw_f32_array(struct gguf_writer *w, const char *key, const float *v, size_t n) {
    gw_array(w, key, 6, n);
    gw_put(&w->kv, v, n * 4);
}
static inline void gw_i32_array(struct gguf_writer *w, const char *key, const int32_t *v, size_t n) {
    gw_array(w, key, 5, n);
    gw_put(&w->kv, v, n * 4);
}
static inline void gw_text_array(struct gguf_writer *w, const char *key, const char *const *v, size_t n) {
    gw_array(w, key, 8, n);
    for (size_t i = 0; i < n; i++) gw_put_text(&w->kv, v[i], strlen(v[i]));
}

/* --- tensors --- */

/* A tensor's entry alone; everything may lie. */
static inline void gw_tensor_info(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const int64_t *ne,
                                  uint64_t offset) {
    gw_put_text(&w->infos, name, strlen(name));
    gw_put_u32(&w->infos, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) gw_put_u64(&w->infos, (uint64_t)ne[d]);
    gw_put_u32(&w->infos, type);
    gw_put_u64(&w->infos, offset);
    w->n_tensors++;
}
/* A tensor where it belongs; NULL data: zeros. Returns its bytes. */
static inline size_t gw_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const int64_t *ne,
                               const void *data) {
    int elements, block_bytes;
    if (!ggml_type_block(type, &elements, &block_bytes)) abort();
    size_t bytes = (size_t)(ne[0] / elements) * (size_t)block_bytes;
    for (uint32_t d = 1; d < n_dims; d++) bytes *= (size_t)ne[d];
    gw_pad(&w->data, w->alignment);
    gw_tensor_info(w, name, type, n_dims, ne, w->data.n);
    gw_put(&w->data, data, bytes);
    return bytes;
}

/* --- the file --- */

/* The file's bytes so far, w->file; valid until the next call. */
static inline struct gw_bytes *gw_build(struct gguf_writer *w) {
    struct gw_bytes *f = &w->file;
    f->n = 0;
    gw_put(f, "GGUF", 4);
    gw_put_u32(f, w->version);
    gw_put_u64(f, w->n_tensors + (uint64_t)w->extra_tensors);
    gw_put_u64(f, w->n_kv + (uint64_t)w->extra_kv);
    gw_put(f, w->kv.data, w->kv.n);
    gw_put(f, w->infos.data, w->infos.n);
    if (w->n_tensors) gw_pad(f, w->alignment);
    gw_put(f, w->data.data, w->data.n);
    return f;
}
/* Any bytes as a new file under $TMPDIR or /tmp; the caller unlinks it. */
static inline void gw_temp_bytes(const void *data, size_t n, char path[64]) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, 64, "%s/tally-test-XXXXXX", folder && strlen(folder) < 40 ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd)) {
        perror(path);
        abort();
    }
}
static inline void gw_temp(struct gguf_writer *w, char path[64]) {
    gw_build(w);
    gw_temp_bytes(w->file.data, w->file.n, path);
}
