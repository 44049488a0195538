/* Mutated GGUF files through everything that reads one: fuzz_gguf [count] [seed] [first round]
 *
 * Three good files are the corpus: a tiny model with a byte-level vocabulary, one with a SentencePiece vocabulary, and one of every
 * value and tensor type. Each round damages a copy in up to eight places (mostly in the header, with numbers that break
 * arithmetic), opens it, and uses whatever opened: every getter on keys that are there and that are not, the vocabulary, a
 * tokenizer of it that encodes and decodes, the model's description, the first and last byte and the last row and panel of each
 * tensor. It must not crash, under sanitizers above all, and whatever refuses must name what. A round depends on seed and number
 * alone: `fuzz_gguf 1 SEED N` repeats round N. */
#include <inttypes.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "engine/base/arena.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"
#include "engine/detokenizer.h"
#include "engine/formats_gguf_internal.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "tests/unit/engine/gguf_writer.h"

#define N_SEEDS 3
#define MAX_FILE 65536

static struct gguf_writer seeds[N_SEEDS];
static uint64_t random_state;
static uint64_t round_number, n_opened, n_vocabs, n_tokenizers, n_models;
static volatile uint8_t sink;

static uint64_t next(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static size_t below(size_t n) { return n ? next() % n : 0; }

static void broken(const char *what, const struct err *err) {
    fprintf(stderr, "round %" PRIu64 ": %s (status %d, param \"%s\", text \"%s\")\n", round_number, what, (int)err->status,
            err->param, err->text);
    abort();
}

/* A refusal has a status, names what it is about, and is a text that can be printed. */
static void check_error(const struct err *err, enum status status) {
    if (!status || err->status != status) broken("the error has another status", err);
    if (!err->text[0] || !err->param[0]) broken("the error names nothing", err);
    for (const char *c = err->text; *c; c++)
        if (*c < ' ' || *c > '~') broken("the error is not printable", err);
}

static void check_getter(int found, struct err *err) {
    if (found < 0) check_error(err, STATUS_CORRUPT);
    memset(err, 0, sizeof *err);
}

/* A mapping's last page goes on past the file, where sanitizers see nothing: views are compared with the file's end. */
static void check_inside(const struct gguf *g, const void *data, uint64_t n) {
    struct err none = {0};
    uint64_t at = (uint64_t)((const uint8_t *)data - g->map);
    if (n && (at > g->file_bytes || n > g->file_bytes - at)) broken("a view leaves the file", &none);
}

static void use_text(const struct gguf *g, struct text_view text) {
    check_inside(g, text.data, text.n);
    if (text.n) sink ^= (uint8_t)(text.data[0] ^ text.data[text.n - 1]);
}

/* --- corpus --- */

static void add_vocab(struct gguf_writer *w, const char *model) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b", "ab", "<0x0A>", ""};
    gw_text(w, "tokenizer.ggml.model", model);
    gw_text(w, "tokenizer.ggml.pre", "llama-bpe");
    gw_text_array(w, "tokenizer.ggml.tokens", tokens, 8);
    gw_f32_array(w, "tokenizer.ggml.scores", (float[]){0, 0, 0, -1, -2, -3, -4, -5}, 8);
    gw_i32_array(w, "tokenizer.ggml.token_type", (int32_t[]){2, 3, 3, 1, 1, 1, 6, 5}, 8);
    gw_text_array(w, "tokenizer.ggml.merges", (const char *const[]){"a b", "b a"}, 2);
    gw_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gw_bool(w, "tokenizer.ggml.add_bos_token", 1);
    gw_text(w, "tokenizer.chat_template", "{{ messages }}");
}

static void add_model_keys(struct gguf_writer *w) {
    gw_text(w, "general.architecture", "llama");
    gw_text(w, "general.name", "tiny");
    gw_u32(w, "llama.block_count", 1);
    gw_u32(w, "llama.context_length", 64);
    gw_u32(w, "llama.embedding_length", 32);
    gw_u32(w, "llama.feed_forward_length", 64);
    gw_u32(w, "llama.attention.head_count", 2);
    gw_u32(w, "llama.attention.head_count_kv", 1);
    gw_u32(w, "llama.rope.dimension_count", 16);
    gw_f32(w, "llama.rope.freq_base", 10000);
    gw_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gw_text(w, "llama.rope.scaling.type", "linear");
    gw_f32(w, "llama.rope.scaling.factor", 1);
}

static void add_model_tensors(struct gguf_writer *w) {
    static const struct {
        const char *name;
        int64_t cols, rows;
        uint32_t type;
    } tensors[] = {
        {"token_embd.weight", 32, 8, GGML_Q8_0},    {"output_norm.weight", 32, 1, GGML_F32},
        {"rope_freqs.weight", 8, 1, GGML_F32},      {"blk.0.attn_norm.weight", 32, 1, GGML_F32},
        {"blk.0.attn_q.weight", 32, 32, GGML_Q4_1}, {"blk.0.attn_k.weight", 32, 16, GGML_Q4_0},
        {"blk.0.attn_v.weight", 32, 16, GGML_Q5_1}, {"blk.0.attn_output.weight", 32, 32, GGML_F16},
        {"blk.0.ffn_norm.weight", 32, 1, GGML_F32}, {"blk.0.ffn_gate.weight", 32, 64, GGML_Q4_1},
        {"blk.0.ffn_up.weight", 32, 64, GGML_BF16}, {"blk.0.ffn_down.weight", 64, 32, GGML_Q5_0},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        gw_tensor(w, tensors[i].name, tensors[i].type, tensors[i].rows > 1 ? 2 : 1,
                  (int64_t[]){tensors[i].cols, tensors[i].rows}, NULL);
}

static void add_every_value_type(struct gguf_writer *w) {
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (uint32_t type = 0; type < 13; type++) {
        char key[16];
        snprintf(key, sizeof key, "type%u", type);
        if (type == 8) gw_text(w, key, "text");
        else if (type == 9) gw_text_array(w, key, (const char *const[]){"a", "", "bc"}, 3);
        else gw_value(w, key, type, &(uint64_t){1}, bytes[type]);
    }
    gw_f32_array(w, "floats", (float[]){1, 2, 3}, 3);
}

static void add_every_tensor_type(struct gguf_writer *w) {
    int elements, bytes;
    for (uint32_t type = 0; type < 64; type++)
        if (ggml_type_block(type, &elements, &bytes))
            gw_tensor(w, ggml_type_name(type), type, 4, (int64_t[]){256, 2, 1, 1}, NULL);
}

static void make_seeds(void) {
    for (int i = 0; i < N_SEEDS; i++) gw_init(&seeds[i]);
    seeds[1].version = 2;
    for (int i = 0; i < 2; i++) {
        add_model_keys(&seeds[i]);
        add_vocab(&seeds[i], i ? "llama" : "gpt2");
        add_model_tensors(&seeds[i]);
    }
    seeds[2].alignment = 64;
    gw_u32(&seeds[2], "general.alignment", 64);
    gw_value(&seeds[2], "split.count", 2, &(uint16_t){1}, 2);
    add_every_value_type(&seeds[2]);
    add_every_tensor_type(&seeds[2]);
    for (int i = 0; i < N_SEEDS; i++)
        if (gw_build(&seeds[i])->n > MAX_FILE / 2) abort();
}

/* --- damage --- */

struct image {
    uint8_t bytes[MAX_FILE];
    size_t n, header; /* the first `header` bytes are numbers and texts, the rest is data */
};

static uint64_t evil_number(void) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       7,
                                       8,
                                       13,
                                       31,
                                       32,
                                       64,
                                       255,
                                       256,
                                       0x7fff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x100000000,
                                       0x1fffffffffffffff,
                                       0x3fffffffffffffff,
                                       0x7fffffffffffffff,
                                       0x8000000000000000,
                                       0xffffffffffffffe0,
                                       0xfffffffffffffff8,
                                       0xffffffffffffffff};
    uint64_t n = numbers[below(sizeof numbers / sizeof *numbers)];
    return below(4) ? n : n + below(9) - 4;
}

/* Takes `cut` bytes out at `at` and puts `add` random ones in. */
static void replace_bytes(struct image *f, size_t at, size_t cut, size_t add) {
    if (cut > f->n - at) cut = f->n - at;
    memmove(f->bytes + at + add, f->bytes + at + cut, f->n - at - cut);
    for (size_t i = 0; i < add; i++) f->bytes[at + i] = (uint8_t)next();
    f->n += add - cut;
}

static void damage(struct image *f) {
    if (!f->n) return;
    size_t at = below(below(8) && f->header < f->n ? f->header : f->n), left = f->n - at;
    uint64_t evil = evil_number();
    switch (below(9)) {
    case 0: f->bytes[at] ^= (uint8_t)(1 << below(8)); break;
    case 1: f->bytes[at] = (uint8_t)evil; break;
    case 2: memcpy(f->bytes + at, &evil, left < 4 ? left : 4); break;
    case 3: memcpy(f->bytes + at, &evil, left < 8 ? left : 8); break;
    case 4: memcpy(f->bytes + 8 + 8 * below(2), &evil, f->n >= 24 ? 8 : 0); break; /* the counts */
    case 5: f->bytes[at] = (uint8_t)(f->bytes[at] + (below(2) ? 1 : -1)); break;
    case 6: replace_bytes(f, at, below(16), below(16)); break;
    case 7: memmove(f->bytes + at, f->bytes + below(f->n), left < 32 ? 0 : below(32)); break;
    default: f->n = below(4) ? f->n : at; break; /* cut short */
    }
}

static void make_image(struct image *f) {
    const struct gguf_writer *w = &seeds[below(N_SEEDS)];
    memset(f->bytes, 0, sizeof f->bytes);
    memcpy(f->bytes, w->file.data, w->file.n);
    f->n = w->file.n;
    f->header = 24 + w->kv.n + w->infos.n;
    for (size_t i = 1 + below(below(2) ? 1 : 8); i > 0; i--) damage(f); /* half of them by one stroke, so that many get far */
}

/* --- use --- */

static void use_key(const struct gguf *g, const char *key) {
    struct err err = {0};
    uint32_t u;
    float f, floats[8];
    bool b;
    int32_t ints[8];
    uint64_t n = 0;
    struct text_view text, texts[8];
    check_getter(gguf_u32(g, key, &u, &err), &err);
    check_getter(gguf_f32(g, key, &f, &err), &err);
    check_getter(gguf_bool(g, key, &b, &err), &err);
    if (gguf_text(g, key, &text, &err) > 0) use_text(g, text);
    memset(&err, 0, sizeof err);
    check_getter(gguf_array_count(g, key, &n, &err), &err);
    if (n > g->file_bytes) broken("an array longer than the file", &err);
    if (n > 8) n = 8;
    check_getter(gguf_f32_array(g, key, floats, n, &err), &err);
    check_getter(gguf_i32_array(g, key, ints, n, &err), &err);
    if (gguf_text_array(g, key, texts, n, &err) <= 0) return;
    for (uint64_t i = 0; i < n; i++) use_text(g, texts[i]);
}

static void use_keys(const struct gguf *g) {
    static const char *const keys[] = {"",
                                       "none",
                                       "general.alignment",
                                       "split.count",
                                       "general.architecture",
                                       "general.name",
                                       "llama.block_count",
                                       "llama.rope.freq_base",
                                       "floats",
                                       "type0",
                                       "type1",
                                       "type2",
                                       "type3",
                                       "type4",
                                       "type5",
                                       "type6",
                                       "type7",
                                       "type8",
                                       "type9",
                                       "type10",
                                       "type11",
                                       "type12",
                                       "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.scores",
                                       "tokenizer.ggml.token_type",
                                       "tokenizer.ggml.add_bos_token",
                                       "tokenizer.chat_template"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) use_key(g, keys[i]);
}

/* --- a tokenizer, of a vocabulary that the file states --- */

/* The ledger's budget: as much as any vocabulary of a small file needs, and a scratch. */
static void *arena_source(void *context, size_t bytes) { return arena_alloc(context, bytes); }

static const char sample[] = "ab ba\n\xe2\x96\x81<s>a</s> \xc3\xa9"
                             "e\xcc\x81 \xf0\x9f\x98\x80 123 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab<unk>";

static void decode(const struct tokenizer *t, const int32_t *ids, size_t n) {
    static char out[8 * MAX_FILE];
    struct detokenizer d;
    struct err none = {0};
    detokenizer_init(&d, true, true);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer_n_tokens(t)) broken("an id that is no token", &none);
        if (!utf8_is_valid(out,
                           detokenizer_push(&d, t, ids[i], out, 3 * (size_t)tokenizer_piece(t, ids[i]).n + DETOKENIZER_GROWTH)))
            broken("decoded text that is not UTF-8", &none);
    }
    sink ^= (uint8_t)detokenizer_finish(&d, out, 12);
}

static void use_tokenizer(const struct vocab *v) {
    static _Alignas(64) char memory[8 << 20];
    struct arena arena;
    struct err err = {0};
    arena_init(&arena, memory, sizeof memory);
    struct memory_source source = {arena_source, &arena};
    struct tokenizer *t = tokenizer_create(v, source, &err);
    if (!t) {
        if (err.status != STATUS_NO_MEMORY) check_error(&err, err.status);
        return;
    }
    n_tokenizers++;
    struct tokenizer_scratch *s = tokenizer_scratch_create(source, sizeof sample, &err);
    for (unsigned flags = 0; s && flags < 4; flags++) {
        int32_t ids[3 * sizeof sample];
        size_t n, max = flags == 3 ? 3 : 3 * sizeof sample;
        enum status status = tokenizer_encode(t, s, sample, sizeof sample - 1, flags, ids, max, &n, &err);
        if (status && (status != STATUS_TOO_LARGE || n <= max)) broken("a text that cannot be encoded", &err);
        decode(t, ids, n < max ? n : max);
    }
    tokenizer_scratch_destroy(s);
    tokenizer_destroy(t);
}

static void use_vocab(const struct gguf *g) {
    struct vocab v;
    struct err err = {0};
    enum status status = gguf_vocab(g, &v, &err);
    if (status) {
        check_error(&err, status);
        return;
    }
    n_vocabs++;
    for (int i = 0; i < v.n_tokens; i++) use_text(g, v.tokens[i]);
    for (int i = 0; i < v.n_merges; i++) use_text(g, v.merges[i]);
    if (v.chat_template.n) use_text(g, v.chat_template);
    const int ids[] = {v.bos, v.eos, v.eot, v.unk};
    for (int i = 0; i < 4; i++)
        if (ids[i] < -1 || ids[i] >= v.n_tokens) broken("a special id is out of range", &err);
    use_tokenizer(&v);
    vocab_free(&v);
}

/* The last row as floats, and the last panel packed. */
static void use_rows(const struct gguf_tensor *t) {
    static float row[4096];
    static uint8_t panel[PANEL_ROWS * 4096 * 4];
    int64_t n_rows = t->ne[1] * t->ne[2] * t->ne[3];
    if (t->ne[0] > 4096) return;
    uint64_t row_bytes = t->bytes / (uint64_t)n_rows;
    ggml_row_f32(t->type, (const char *)t->data + (uint64_t)(n_rows - 1) * row_bytes, t->ne[0], row);
    import_gguf_panel(panel, t->type, t->data, n_rows, t->ne[0], (n_rows - 1) / PANEL_ROWS * PANEL_ROWS);
}

static void use_tensors(const struct gguf *g, size_t file_bytes) {
    struct err err = {0};
    if (gguf_file_bytes(g) != file_bytes || gguf_data_offset(g) > file_bytes) broken("sizes", &err);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[64] = "";
        memcpy(name, t->name.data, t->name.n);
        if (strlen(name) == t->name.n && gguf_tensor_find(g, name) != t) broken("a tensor is not found by its name", &err);
        check_inside(g, t->data, t->bytes);
        sink ^= ((const uint8_t *)t->data)[0] ^ ((const uint8_t *)t->data)[t->bytes - 1];
        use_rows(t);
        gguf_tensor_drop(g, t);
    }
}

static void use_model(const struct gguf *g) {
    struct model_desc desc;
    struct err err = {0};
    enum status status = model_desc_read(g, &desc, &err);
    if (status) {
        if (!err.text[0] || !err.param[0]) broken("the error names nothing", &err);
        return;
    }
    n_models++;
    if (!model_weight_bytes(g, &desc) || !model_norm_bytes(g, &desc)) broken("a model of no bytes", &err);
}

static void use_file(int fd, const struct image *f) {
    char path[32];
    struct err err = {0};
    struct gguf *g;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ftruncate(fd, 0) || pwrite(fd, f->bytes, f->n, 0) != (ssize_t)f->n) abort();
    enum status status = gguf_open(&g, path, &err);
    if (status) {
        check_error(&err, status);
        return;
    }
    n_opened++;
    use_tensors(g, f->n);
    use_keys(g);
    use_vocab(g);
    use_model(g);
    gguf_close(g);
}

static void check_seeds(int fd, struct image *f) {
    for (int i = 0; i < N_SEEDS; i++) {
        memcpy(f->bytes, seeds[i].file.data, f->n = seeds[i].file.n);
        use_file(fd, f);
    }
    if (n_opened == 3 && n_vocabs == 2 && n_tokenizers == 2 && n_models == 2) return;
    fprintf(stderr,
            "the corpus is bad: %" PRIu64 " open, %" PRIu64 " vocabularies, %" PRIu64 " tokenizers, %" PRIu64 " models\n",
            n_opened, n_vocabs, n_tokenizers, n_models);
    abort();
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    static struct image image;
    int fd = memfd_create("fuzz_gguf", MFD_CLOEXEC);
    if (fd < 0) {
        perror("memfd_create");
        return 1;
    }
    printf("fuzz_gguf: %" PRIu64 " files, seed %" PRIu64 "\n", count, seed);
    fflush(stdout);
    log_set_level(LOG_ERROR);
    make_seeds();
    check_seeds(fd, &image);
    for (round_number = first; round_number < first + count; round_number++) {
        random_state = seed * 0x2545f4914f6cdd1d + round_number;
        make_image(&image);
        use_file(fd, &image);
    }
    printf("opened %" PRIu64 ", with vocabulary %" PRIu64 ", with tokenizer %" PRIu64 ", with model %" PRIu64
           "; no crash, every refusal named\n",
           n_opened, n_vocabs, n_tokenizers, n_models);
    for (int i = 0; i < N_SEEDS; i++) gw_free(&seeds[i]);
    close(fd);
    return 0;
}
