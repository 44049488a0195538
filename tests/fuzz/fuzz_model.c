/* Mutated model files all the way to logits: fuzz_model [count] [seed] [first round]
 *
 * A round takes one of five tiny models (llama and qwen2, float and quantized, grouped heads, factors, a tied head) or makes one of
 * random shapes and types, damages it in up to four places, mostly in the header's numbers, opens its source, plans, opens an
 * evaluator under a budget of 24 MiB and, when all that succeeds, computes three tokens. It must end in an error that names what, or in a result; never in a crash,
 * a read outside (under sanitizers) or more memory than planned. Weights may be damaged into infinities and NaN: results may be too.
 * A round depends on seed and number alone: `fuzz_model 1 SEED N` repeats round N. */
#include <inttypes.h>
#include <sys/mman.h>

#include "engine/base/log.h"
#include "engine/evaluator.h"
#include "engine/plan.h"
#include "tests/unit/engine/tiny_model.h"

enum { N_SEEDS = 5, MAX_FILE = 1 << 22 };
#define BUDGET ((size_t)24 << 20)

static struct gguf_writer seeds[N_SEEDS];
static uint64_t random_state, round_number, n_described, n_opened, n_rows;
static volatile float sink;

static size_t below(size_t n) { return n ? tiny_next(&random_state) % n : 0; }

static void broken(const char *what, const struct err *err) {
    fprintf(stderr, "round %" PRIu64 ": %s (status %d, param \"%s\", text \"%s\")\n", round_number, what, (int)err->status,
            err->param, err->text);
    abort();
}

static void make_seeds(void) {
    for (int i = 0; i < N_SEEDS; i++) {
        struct tiny_model m = tiny_llama;
        m.n_layers = 1 + i % 2;
        m.context = 64;
        if (i == 1) m.architecture = "qwen2", m.has_biases = m.is_tied = 1, m.n_rot = 0;
        if (i == 2)
            m.type = m.embedding_type = GGML_Q4_1, m.has_factors = 1, m.scaling_type = "linear", m.rope_scale_factor = 2;
        if (i == 3) m.type = GGML_Q8_0, m.is_mixed = 1, m.embedding_type = GGML_Q4_0, m.n_kv_heads = 1;
        if (i == 4) m.type = m.embedding_type = GGML_Q4_K, m.hidden = m.ffn = 256, m.head_dim = 64, m.n_rot = 32, m.vocab = 20;
        tiny_build(&m, &seeds[i]);
        if (gw_build(&seeds[i])->n > MAX_FILE / 2) abort();
    }
}

/* ---- damage ---- */

struct image {
    uint8_t bytes[MAX_FILE];
    size_t n, kv_end, header; /* metadata end at kv_end, tensor entries at header */
};

/* Numbers that are plausible: what opens gets further than what does not. */
static uint32_t plausible(void) {
    static const uint32_t numbers[] = {0,          1,          2,          3,          4,          8,          15,
                                       16,         17,         20,         31,         32,         33,         48,
                                       64,         96,         128,        256,        257,        512,        4096,
                                       1 << 17,    1 << 20,    1 << 24,    0x7fffffff, 0x80000000, 0xffffffff, 0x7f800000,
                                       0x7fc00000, 0xff800000, 0x3f800000, 0x00000001, 0x7f7fffff};
    return numbers[below(sizeof numbers / sizeof *numbers)];
}

/* Where the value of some key lies: behind a text that holds a dot, past its type. */
static size_t some_value(const struct image *f) {
    for (int tries = 0; tries < 64; tries++) {
        size_t at = 24 + below(f->kv_end - 24);
        if (f->bytes[at] == '.') {
            while (at < f->kv_end && f->bytes[at] >= '.') at++;
            if (at + 8 < f->kv_end) return at + 4;
        }
    }
    return 24 + below(f->kv_end - 32);
}

static void damage(struct image *f) {
    uint32_t number = plausible();
    size_t at;
    switch (below(8)) {
    case 0:
    case 1:
    case 2: memcpy(f->bytes + some_value(f), &number, 4); break;
    case 3: /* a tensor's entry: dimensions, type or offset, one byte of them */
        f->bytes[f->kv_end + below(f->header - f->kv_end)] = (uint8_t)number;
        break;
    case 4: f->bytes[24 + below(f->header - 24)] ^= (uint8_t)(1 << below(8)); break;
    case 5: /* weights: scales and floats of any bits */
        at = f->header + below(f->n - f->header - 4);
        memcpy(f->bytes + at, &number, 4);
        break;
    case 6: f->bytes[24 + below(f->header - 24)] = (uint8_t)below(256); break;
    default: f->n = below(3) ? f->n : f->n - below(256); break;
    }
}

static int between(int low, int high) { return low + (int)below((size_t)(high - low + 1)); }

/* Shapes and types of every kind, some of them not allowed. */
static struct tiny_model random_model(void) {
    static const uint32_t types[] = {GGML_F32, GGML_F16, GGML_BF16, GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1, GGML_Q8_0};
    struct tiny_model m = tiny_llama;
    bool is_float = below(2);
    int step = is_float ? 1 : 32;
    if (below(2)) m.architecture = "qwen2", m.has_biases = 1;
    m.n_layers = between(1, 3);
    m.hidden = step * between(1, 100 / step);
    m.ffn = step * between(1, 130 / step);
    m.head_dim = is_float ? 16 * between(1, 4) : 32 * between(1, 2);
    m.n_heads = between(1, 6);
    m.n_kv_heads = between(1, m.n_heads);
    while (m.n_heads % m.n_kv_heads && below(16)) m.n_kv_heads--;
    m.n_rot = below(2) ? 0 : 2 * between(1, m.head_dim / 2);
    m.vocab = between(3, 70);
    m.n_tokens = below(4) ? 0 : between(1, m.vocab);
    m.context = between(1, 300);
    m.type = types[is_float ? below(3) : below(8)];
    m.embedding_type = types[is_float ? below(3) : below(8)];
    m.is_tied = (int)below(2), m.is_mixed = (int)below(2), m.has_factors = (int)below(2);
    m.seed = tiny_next(&random_state);
    return m;
}

static void make_image(struct image *f) {
    bool is_made = below(2);
    struct gguf_writer made, *w = is_made ? &made : &seeds[below(N_SEEDS)];
    if (is_made) {
        struct tiny_model m = random_model();
        tiny_build(&m, w);
        if (gw_build(w)->n > MAX_FILE) abort();
    }
    memcpy(f->bytes, w->file.data, w->file.n);
    f->n = w->file.n;
    f->kv_end = 24 + w->kv.n;
    f->header = f->kv_end + w->infos.n;
    for (size_t i = below(4) ? below(2) : 1 + below(4); i > 0; i--) damage(f);
    if (is_made) gw_free(w);
}

/* ---- use ---- */

static void use_row(void *context, int position, const float *logits, float log_sum_exp) {
    (void)context;
    (void)position;
    sink = logits[0] + log_sum_exp;
    n_rows++;
}

static void check_error(const struct err *err, enum status status) {
    if (!status || err->status != status) broken("the error has another status", err);
    if (!err->text[0]) broken("the error says nothing", err);
    for (const char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ') broken("the error is not printable", err);
}

static bool plan_one(const char *path, const struct engine_options *options) {
    struct model_source source;
    struct engine_options wanted = *options, resolved;
    struct plan plan;
    struct err err = {0};
    enum status status = model_source_open(&source, path, &err);
    if (status) {
        check_error(&err, status);
        if (!err.param[0]) broken("the error names nothing", &err);
        return false;
    }
    n_described++;
    wanted.max_seqs = 3;
    wanted.max_batch_tokens = 32;
    wanted.block_tokens = 16;
    status = plan_build(&source, &wanted, &resolved, &plan, &err);
    model_source_close(&source);
    if (status) check_error(&err, status);
    else if (plan.total > BUDGET || plan.kv_tokens < resolved.max_context) broken("the plan does not hold", &err);
    return true;
}

static void run_one(const char *path, const struct engine_options *options) {
    struct evaluator *e;
    struct err err = {0};
    enum status status = evaluator_open(&e, options, &err);
    if (status) {
        check_error(&err, status);
        return;
    }
    n_opened++;
    int32_t vocab = evaluator_vocab(e), ids[] = {0, vocab - 1, vocab / 2};
    if (evaluator_plan(e)->total > BUDGET) broken("more than the budget", &err);
    status = evaluator_append(e, ids, evaluator_max_context(e) < 3 ? evaluator_max_context(e) : 3, true, use_row, NULL, &err);
    if (status) check_error(&err, status);
    evaluator_close(e);
}

static void use_file(int fd, const struct image *f) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ftruncate(fd, 0) || pwrite(fd, f->bytes, f->n, 0) != (ssize_t)f->n) abort();
    struct engine_options options = {
        .model_path = path, .n_threads = 1, .memory_budget = BUDGET, .activations_f32 = round_number % 3 == 0};
    if (plan_one(path, &options)) run_one(path, &options);
}

static void check_seeds(int fd, struct image *f) {
    for (int i = 0; i < N_SEEDS; i++) {
        memcpy(f->bytes, seeds[i].file.data, f->n = seeds[i].file.n);
        use_file(fd, f);
    }
    if (n_described == N_SEEDS && n_opened == N_SEEDS && n_rows == 3 * N_SEEDS) return;
    fprintf(stderr, "the corpus is bad: %" PRIu64 " described, %" PRIu64 " opened\n", n_described, n_opened);
    abort();
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    static struct image image;
    int fd = memfd_create("fuzz_model", MFD_CLOEXEC);
    if (fd < 0) {
        perror("memfd_create");
        return 1;
    }
    printf("fuzz_model: %" PRIu64 " files, seed %" PRIu64 "\n", count, seed);
    fflush(stdout);
    log_set_level(LOG_ERROR);
    make_seeds();
    check_seeds(fd, &image);
    n_described = n_opened = n_rows = 0;
    for (round_number = first; round_number < first + count; round_number++) {
        random_state = seed * 0x2545f4914f6cdd1d + round_number;
        make_image(&image);
        use_file(fd, &image);
    }
    printf("described %" PRIu64 ", opened %" PRIu64 ", %" PRIu64 " rows of logits; no crash, every refusal named\n",
           n_described, n_opened, n_rows);
    for (int i = 0; i < N_SEEDS; i++) gw_free(&seeds[i]);
    close(fd);
    return 0;
}
