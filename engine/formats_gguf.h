/* GGUF v2 and v3, read through a private read-only mapping. Every count, length and extent is checked against the file's size in
 * 64 bits before it is used; a file that lies gets an error naming the field. Nothing here knows what a key means. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/vocab.h"

struct gguf; /* owns the mapping; text_views from it live until gguf_close */

struct gguf_tensor {
    struct text_view name;
    uint32_t type; /* GGUF's number; importable, its extent inside the file */
    int n_dims;    /* 1..4 */
    int64_t ne[4]; /* ne[0] runs fastest; unused are 1 */
    const void *data;
    uint64_t bytes;
};

/* Opens and checks a file. Errors: STATUS_IO, STATUS_CORRUPT, STATUS_UNSUPPORTED (tensor and type named). */
enum status gguf_open(struct gguf **out, const char *path, struct err *err);
void gguf_close(struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);
uint64_t gguf_data_offset(const struct gguf *g); /* where tensor data starts */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t index);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL: none */
/* Tells the kernel that a tensor's pages are no longer needed. */
void gguf_tensor_drop(const struct gguf *g, const struct gguf_tensor *t);

/* Typed getters. 1: found; 0: no such key (*out untouched); −1: there, but of another type or out of range (err filled, key named).
 * Integers of any width and sign are accepted where they fit. */
int gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err);
int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_text(const struct gguf *g, const char *key, struct text_view *out, struct err *err);
/* An array's element count, and elements by index (strings walked once into an array the caller gives). */
int gguf_array_count(const struct gguf *g, const char *key, uint64_t *n, struct err *err);
int gguf_text_array(const struct gguf *g, const char *key, struct text_view *out, uint64_t n, struct err *err);
int gguf_f32_array(const struct gguf *g, const char *key, float *out, uint64_t n, struct err *err);
int gguf_i32_array(const struct gguf *g, const char *key, int32_t *out, uint64_t n, struct err *err);

/* The file's vocabulary; arrays are malloc'ed (before the ledger exists, freed by vocab_free once the tokenizer is built). */
enum status gguf_vocab(const struct gguf *g, struct vocab *vocab, struct err *err);
void vocab_free(struct vocab *vocab);
