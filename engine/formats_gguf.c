/* Opens a GGUF file: maps it, walks the header once, and keeps an index of what it found.
 *
 *     | magic version n_tensors n_kv | n_kv keys and values | n_tensors names, shapes, offsets | padding | data ... |
 *     0                                                                                      data_offset      file_bytes
 *
 * Rules, each with a test that breaks it:
 *  1. A byte is read only after the reader has found it inside the file. Lengths are compared with what is left, never added up.
 *  2. Memory is asked for after a count was compared with the bytes that so many entries need at least. So a header can make us
 *     hold at most a small multiple of its own size, and the entries stay under fixed limits too.
 *  3. Sizes and offsets are 64-bit with checked products. A tensor begins exactly where the one before it ends, padded, so no two
 *     overlap; and it ends inside the file. The padded sum can't wrap: each term was found to fit the file before it is added.
 *  4. Keys are unique, and so are tensor names. Both are looked up by binary search in a sorted index: a hash table could be
 *     made slow by a file that chooses its names, sorting can't.
 *  5. Texts from the file are shown in messages only after gguf_show made them harmless.
 *
 * The mapping is private and read-only. A file that somebody truncates while it is mapped makes the next touch of a lost page
 * a SIGBUS, which ends the process: model files must be replaced by renaming, not rewritten in place. Reading a copy
 * instead was rejected, as it doubles the memory a start needs.
 *
 * Numbers lie at any offset in the file, so they are copied out, never read through a cast pointer. One thread opens and closes;
 * any may read in between. */
#include "engine/formats_gguf_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/checked.h"
#include "quant/import_gguf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are little-endian and read as they lie");

#define HEADER_BYTES 24
#define DEFAULT_ALIGNMENT 32
#define MAX_KEY_BYTES 65535 /* the format's limit */
#define MAX_NAME_BYTES 63   /* as other readers of the format have it */
#define MAX_KV 65536        /* real files: under 100 */
#define MAX_TENSORS 1048576 /* real files: under 100,000 */
#define MIN_KV_BYTES 14     /* length, one byte of key, type, one byte of value */
#define MIN_TENSOR_BYTES 33 /* length, one byte of name, n_dims, one dimension, type, offset */

/* Where the walk is, and what it is reading: named in every error. */
struct reader {
    struct gguf *g;
    uint64_t at;
    const char *file; /* name without folders */
    char object[96];  /* "header", a key, a tensor's name */
    struct err *err;
};

static bool fail(struct reader *r, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fail(struct reader *r, enum status status, const char *format, ...) {
    char reason[320];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    err_set_param(r->err, status, r->object, "%.80s: %s: %s", r->file, r->object, reason);
    return false;
}

static void name_object(struct reader *r, const char *kind, struct text_view name) {
    snprintf(r->object, sizeof r->object, "%s%s", kind, gguf_show(name).text);
}

static uint64_t bytes_left(const struct reader *r) { return r->g->file_bytes - r->at; }

/* `n` bytes inside the file, or NULL and an error. */
static const uint8_t *take(struct reader *r, uint64_t n, const char *field) {
    if (n > bytes_left(r)) {
        fail(r, STATUS_CORRUPT, "%s of %" PRIu64 " bytes at byte %" PRIu64 ", but the file ends after %" PRIu64 " more", field,
             n, r->at, bytes_left(r));
        return NULL;
    }
    const uint8_t *p = r->g->map + r->at;
    r->at += n;
    return p;
}

static bool read_u32(struct reader *r, uint32_t *out, const char *field) {
    const uint8_t *p = take(r, sizeof *out, field);
    if (p) memcpy(out, p, sizeof *out);
    return p;
}

static bool read_u64(struct reader *r, uint64_t *out, const char *field) {
    const uint8_t *p = take(r, sizeof *out, field);
    if (p) memcpy(out, p, sizeof *out);
    return p;
}

static bool read_text(struct reader *r, struct text_view *out, const char *field) {
    uint64_t n;
    if (!read_u64(r, &n, field)) return false;
    const uint8_t *p = take(r, n, field);
    *out = (struct text_view){(const char *)p, n};
    return p;
}

/* --- header --- */

static bool read_count(struct reader *r, uint64_t *out, const char *field, uint64_t entry_bytes, uint64_t limit) {
    if (!read_u64(r, out, field)) return false;
    uint64_t possible = (r->g->file_bytes - HEADER_BYTES) / entry_bytes;
    if (*out > possible)
        return fail(r, STATUS_CORRUPT, "%s is %" PRIu64 "; a file of %" PRIu64 " bytes has room for at most %" PRIu64, field,
                    *out, r->g->file_bytes, possible);
    if (*out > limit) return fail(r, STATUS_UNSUPPORTED, "%s is %" PRIu64 "; at most %" PRIu64 " are read", field, *out, limit);
    return true;
}

static bool read_header(struct reader *r) {
    snprintf(r->object, sizeof r->object, "header");
    const uint8_t *magic = take(r, 4, "magic");
    if (!magic) return false;
    if (memcmp(magic, "GGUF", 4)) return fail(r, STATUS_CORRUPT, "magic is not \"GGUF\": not a GGUF file");
    uint32_t version;
    if (!read_u32(r, &version, "version")) return false;
    if (version && !(version & 0xffff))
        return fail(r, STATUS_UNSUPPORTED, "version 0x%08x: big-endian files are not read", version);
    if (version != 2 && version != 3) return fail(r, STATUS_UNSUPPORTED, "version is %u; allowed are 2 and 3", version);
    if (r->g->file_bytes < HEADER_BYTES)
        return fail(r, STATUS_CORRUPT, "the file has %" PRIu64 " bytes, a header has %d", r->g->file_bytes, HEADER_BYTES);
    return read_count(r, &r->g->n_tensors, "tensor count", MIN_TENSOR_BYTES, MAX_TENSORS) &&
           read_count(r, &r->g->n_kv, "metadata count", MIN_KV_BYTES, MAX_KV);
}

/* --- metadata --- */

static bool skip_strings(struct reader *r, uint64_t n) {
    struct text_view text;
    for (uint64_t i = 0; i < n; i++)
        if (!read_text(r, &text, "text")) return false;
    return true;
}

static bool skip_values(struct reader *r, struct gguf_kv *kv) {
    uint64_t width = (uint64_t)gguf_value_bytes(kv->type), least = width ? width : sizeof(uint64_t);
    if (kv->count > bytes_left(r) / least)
        return fail(r, STATUS_CORRUPT, "%" PRIu64 " values of type %s, but the file ends after %" PRIu64 " more bytes",
                    kv->count, gguf_value_name(kv->type), bytes_left(r));
    kv->values = r->g->map + r->at;
    return width ? take(r, kv->count * width, "value") != NULL : skip_strings(r, kv->count);
}

static bool read_value(struct reader *r, struct gguf_kv *kv) {
    kv->count = 1;
    if (!read_u32(r, &kv->type, "value type")) return false;
    kv->is_array = kv->type == GGUF_ARRAY;
    if (kv->is_array && (!read_u32(r, &kv->type, "array's element type") || !read_u64(r, &kv->count, "array's length")))
        return false;
    if (kv->is_array && kv->type == GGUF_ARRAY)
        return fail(r, STATUS_UNSUPPORTED, "an array of arrays; elements must be plain values");
    if (kv->type >= GGUF_N_VALUE_TYPES)
        return fail(r, STATUS_CORRUPT, "value type %u; allowed are 0 to %d", kv->type, GGUF_N_VALUE_TYPES - 1);
    return skip_values(r, kv);
}

static bool read_kv(struct reader *r, struct gguf_kv *kv, uint64_t index) {
    snprintf(r->object, sizeof r->object, "metadata entry %" PRIu64, index);
    if (!read_text(r, &kv->key, "key")) return false;
    if (!kv->key.n || kv->key.n > MAX_KEY_BYTES)
        return fail(r, STATUS_CORRUPT, "key of %" PRIu64 " bytes; allowed are 1 to %d", kv->key.n, MAX_KEY_BYTES);
    name_object(r, "", kv->key);
    return read_value(r, kv);
}

static int compare_kv(const void *a, const void *b) {
    return gguf_text_compare(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static bool read_metadata(struct reader *r) {
    struct gguf *g = r->g;
    g->kv = calloc(g->n_kv + 1, sizeof *g->kv);
    if (!g->kv) return fail(r, STATUS_NO_MEMORY, "no memory for %" PRIu64 " metadata entries", g->n_kv);
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (!read_kv(r, &g->kv[i], i)) return false;
    qsort(g->kv, g->n_kv, sizeof *g->kv, compare_kv);
    for (uint64_t i = 1; i < g->n_kv; i++) {
        if (compare_kv(&g->kv[i - 1], &g->kv[i])) continue;
        name_object(r, "", g->kv[i].key);
        return fail(r, STATUS_CORRUPT, "the key is there twice");
    }
    return true;
}

/* general.alignment, and that the model is one file. */
static bool read_layout(struct reader *r, uint64_t *alignment) {
    *alignment = DEFAULT_ALIGNMENT;
    const struct gguf_kv *kv = gguf_kv_find(r->g, "general.alignment");
    if (kv) {
        uint32_t value;
        name_object(r, "", kv->key);
        if (kv->is_array || kv->type != GGUF_U32)
            return fail(r, STATUS_CORRUPT, "is %s%s; must be u32", gguf_value_name(kv->type), kv->is_array ? " array" : "");
        memcpy(&value, kv->values, sizeof value);
        if (!value || value & (value - 1)) return fail(r, STATUS_CORRUPT, "is %u; must be a power of two", value);
        *alignment = value;
    }
    uint32_t n_files = 1;
    if (gguf_u32(r->g, "split.count", &n_files, r->err) < 0) return false;
    snprintf(r->object, sizeof r->object, "split.count");
    if (n_files > 1) return fail(r, STATUS_UNSUPPORTED, "the model is split over %u files; merge them into one first", n_files);
    return true;
}

/* --- tensors --- */

static bool read_shape(struct reader *r, struct gguf_tensor *t) {
    uint32_t n_dims;
    if (!read_u32(r, &n_dims, "number of dimensions")) return false;
    if (n_dims < 1 || n_dims > 4) return fail(r, STATUS_CORRUPT, "has %u dimensions; allowed are 1 to 4", n_dims);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++) t->ne[d] = 1;
    for (int d = 0; d < t->n_dims; d++) {
        uint64_t n;
        if (!read_u64(r, &n, "dimension")) return false;
        if (n < 1 || n > INT32_MAX)
            return fail(r, STATUS_CORRUPT, "dimension %d is %" PRId64 "; allowed are 1 to %d", d, (int64_t)n, INT32_MAX);
        t->ne[d] = (int64_t)n;
    }
    return true;
}

static bool read_type(struct reader *r, struct gguf_tensor *t) {
    int block_elements, block_bytes;
    if (!read_u32(r, &t->type, "type")) return false;
    if (!ggml_type_block(t->type, &block_elements, &block_bytes))
        return fail(r, STATUS_UNSUPPORTED,
                    "type %s; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K",
                    ggml_type_name(t->type));
    if (t->ne[0] % block_elements)
        return fail(r, STATUS_CORRUPT, "rows of %" PRId64 " elements, but %s has blocks of %d", t->ne[0],
                    ggml_type_name(t->type), block_elements);
    uint64_t n = (uint64_t)(t->ne[0] / block_elements);
    for (int d = 1; d < 4; d++)
        if (!checked_mul_u64(n, (uint64_t)t->ne[d], &n)) return fail(r, STATUS_CORRUPT, "has more elements than 64 bits count");
    if (!checked_mul_u64(n, (uint64_t)block_bytes, &t->bytes))
        return fail(r, STATUS_CORRUPT, "has more bytes than 64 bits count");
    return true;
}

/* Everything but `data`, which waits until the header's end is known; `offset` is from there. */
static bool read_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *offset, uint64_t index) {
    snprintf(r->object, sizeof r->object, "tensor %" PRIu64, index);
    if (!read_text(r, &t->name, "name")) return false;
    if (!t->name.n || t->name.n > MAX_NAME_BYTES)
        return fail(r, STATUS_CORRUPT, "name of %" PRIu64 " bytes; allowed are 1 to %d", t->name.n, MAX_NAME_BYTES);
    name_object(r, "tensor ", t->name);
    return read_shape(r, t) && read_type(r, t) && read_u64(r, offset, "offset");
}

/* Sets `data` from offset, rule 3. *end: where the next tensor begins, from the start of data. */
static bool place_tensor(struct reader *r, struct gguf_tensor *t, uint64_t offset, uint64_t alignment, uint64_t *end) {
    uint64_t data_bytes = r->g->file_bytes - r->g->data_offset;
    name_object(r, "tensor ", t->name);
    if (offset % alignment)
        return fail(r, STATUS_CORRUPT, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, offset, alignment);
    if (offset != *end)
        return fail(r, STATUS_CORRUPT, "offset %" PRIu64 "; the tensor before it ends at %" PRIu64, offset, *end);
    if (offset > data_bytes || t->bytes > data_bytes - offset)
        return fail(r, STATUS_CORRUPT,
                    "%" PRIu64 " bytes at %" PRIu64 " pass the end of the file, which has %" PRIu64 " bytes of data", t->bytes,
                    offset, data_bytes);
    t->data = r->g->map + r->g->data_offset + offset;
    *end = round_up(offset + t->bytes, alignment); /* at most file_bytes + alignment */
    return true;
}

static int compare_names(const void *a, const void *b, void *tensors) {
    const struct gguf_tensor *t = tensors;
    return gguf_text_compare(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static bool index_tensors(struct reader *r) {
    struct gguf *g = r->g;
    for (uint32_t i = 0; i < g->n_tensors; i++) g->by_name[i] = i;
    qsort_r(g->by_name, g->n_tensors, sizeof *g->by_name, compare_names, g->tensors);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        if (compare_names(&g->by_name[i - 1], &g->by_name[i], g->tensors)) continue;
        name_object(r, "tensor ", g->tensors[g->by_name[i]].name);
        return fail(r, STATUS_CORRUPT, "the name is there twice");
    }
    return true;
}

static bool read_tensors_at(struct reader *r, uint64_t *offsets, uint64_t alignment) {
    struct gguf *g = r->g;
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (!read_tensor(r, &g->tensors[i], &offsets[i], i)) return false;
    g->data_offset = round_up(r->at, alignment); /* alignment < 2^32: no overflow */
    if (g->data_offset > g->file_bytes) {
        snprintf(r->object, sizeof r->object, "header");
        if (g->n_tensors)
            return fail(r, STATUS_CORRUPT, "the file ends before its data begins, at byte %" PRIu64, g->data_offset);
        g->data_offset = g->file_bytes; /* a vocabulary alone needs no padding */
    }
    uint64_t end = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (!place_tensor(r, &g->tensors[i], offsets[i], alignment, &end)) return false;
    return index_tensors(r);
}

static bool read_tensors(struct reader *r, uint64_t alignment) {
    struct gguf *g = r->g;
    uint64_t *offsets = calloc(g->n_tensors + 1, sizeof *offsets);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    g->by_name = calloc(g->n_tensors + 1, sizeof *g->by_name);
    bool ok = offsets && g->tensors && g->by_name
                  ? read_tensors_at(r, offsets, alignment)
                  : fail(r, STATUS_NO_MEMORY, "no memory for %" PRIu64 " tensors", g->n_tensors);
    free(offsets);
    return ok;
}

/* --- the mapping --- */

static bool map_open_file(struct reader *r, int fd) {
    struct stat st;
    if (fstat(fd, &st)) return fail(r, STATUS_IO, "stat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return fail(r, STATUS_IO, "is not a regular file");
    if (!st.st_size) return fail(r, STATUS_CORRUPT, "is empty");
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return fail(r, STATUS_IO, "mmap: %s", strerror(errno));
    r->g->map = map;
    r->g->file_bytes = (uint64_t)st.st_size;
    return true;
}

static bool map_file(struct reader *r, const char *path) {
    snprintf(r->object, sizeof r->object, "file");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block; regular files ignore it */
    if (fd < 0) return fail(r, STATUS_IO, "open: %s", strerror(errno));
    bool ok = map_open_file(r, fd);
    close(fd);
    return ok;
}

static bool read_file(struct reader *r, const char *path) {
    uint64_t alignment;
    return map_file(r, path) && read_header(r) && read_metadata(r) && read_layout(r, &alignment) && read_tensors(r, alignment);
}

enum status gguf_open(struct gguf **out, const char *path, struct err *err) {
    struct err unwanted;
    const char *slash = strrchr(path, '/');
    struct reader r = {.file = slash ? slash + 1 : path, .err = err ? err : &unwanted, .g = calloc(1, sizeof(struct gguf))};
    *out = NULL;
    if (!r.g) return err_set(err, STATUS_NO_MEMORY, "%s: no memory", path);
    if (!read_file(&r, path)) {
        gguf_close(r.g);
        return r.err->status;
    }
    *out = r.g;
    return STATUS_OK;
}

void gguf_close(struct gguf *g) {
    if (!g) return;
    if (g->map) munmap((void *)(uintptr_t)g->map, (size_t)g->file_bytes);
    free(g->kv);
    free(g->tensors);
    free(g->by_name);
    free(g);
}

uint64_t gguf_file_bytes(const struct gguf *g) { return g->file_bytes; }

uint64_t gguf_data_offset(const struct gguf *g) { return g->data_offset; }

uint64_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t index) {
    return index < g->n_tensors ? &g->tensors[index] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name) {
    struct text_view wanted = {name, strlen(name)};
    uint64_t low = 0, high = g->n_tensors;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->by_name[middle]];
        int order = gguf_text_compare(t->name, wanted);
        if (!order) return t;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

void gguf_tensor_drop(const struct gguf *g, const struct gguf_tensor *t) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)t->data / page * page;
    /* Pages shared with a neighbour go too: they are clean, and come back when touched. */
    madvise((void *)start, (uintptr_t)t->data + t->bytes - start, MADV_DONTNEED);
}
