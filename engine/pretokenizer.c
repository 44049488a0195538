#include "engine/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MAX_STAGES 2
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S "[" SPACES "]"
#define NOT_S "[^" SPACES "]"
#define CONTRACTIONS "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|'\\x{17f})"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" S "+(?!" NOT_S ")|" S "+"
#define LLAMA3(digits)                                                                                                         \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+|" S          \
                 "+(?!" NOT_S ")|" S "+"

static const struct family {
    const char *names; /* separated by spaces */
    const char *stages[MAX_STAGES];
    struct pretokenizer_kind kind;
} families[] = {
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling roberta-bpe gigachat", {GPT2, NULL}, {false, false}},
    {"smollm starcoder refact command-r codeshell exaone minerva", {"\\p{N}", GPT2}, {false, false}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0", {LLAMA3("\\p{N}{1,3}"), NULL}, {true, false}},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan", {LLAMA3("\\p{N}"), NULL}, {false, true}},
};

struct pretokenizer {
    pcre2_code *stages[MAX_STAGES];
    int n_stages;
};

/* The library's limits on steps and depth are for patterns of strangers. Ours are linear, but one word may take a step for each of
 * its bytes: with the default of ten million, ten megabytes of spaces would fail. */
struct pretokenizer_match {
    pcre2_match_data *data[MAX_STAGES];
    pcre2_match_context *limits;
};

static bool is_named(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0)) return true;
    return false;
}

static const struct family *find_family(const char *name) {
    if (!*name) return &families[0];
    if (strchr(name, ' ')) return NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (is_named(families[i].names, name)) return &families[i];
    return NULL;
}

static pcre2_code *compile(const char *pattern) {
    int error;
    PCRE2_SIZE where;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);
    if (!code) BUG("pretokenizer: pattern fails with %d at %zu: %s", error, where, pattern);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where executable memory is forbidden, the interpreter does it */
    return code;
}

/* The name comes from a file: what is not printable is shown as '?'. */
static enum status refuse(const char *name, struct err *err) {
    char shown[41];
    size_t n = 0;
    for (; name[n] && n < sizeof shown - 1; n++) shown[n] = (char)(name[n] < ' ' || name[n] > '~' ? '?' : name[n]);
    shown[n] = 0;
    return err_set_param(err, STATUS_UNSUPPORTED, "tokenizer.ggml.pre",
                         "tokenizer: tokenizer.ggml.pre '%s' is not supported, allowed are gpt-2, smollm, llama-bpe and qwen2",
                         shown);
}

enum status pretokenizer_open(struct pretokenizer **out, const char *name, struct pretokenizer_kind *kind, struct err *err) {
    const struct family *f = find_family(name);
    if (!f) return refuse(name, err);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p) BUG("pretokenizer: out of memory");
    while (p->n_stages < MAX_STAGES && f->stages[p->n_stages]) {
        p->stages[p->n_stages] = compile(f->stages[p->n_stages]);
        p->n_stages++;
    }
    *kind = f->kind;
    *out = p;
    return STATUS_OK;
}

void pretokenizer_close(struct pretokenizer *p) {
    if (!p) return;
    for (int i = 0; i < p->n_stages; i++) pcre2_code_free(p->stages[i]);
    free(p);
}

struct pretokenizer_match *pretokenizer_match_open(void) {
    struct pretokenizer_match *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->limits = pcre2_match_context_create(NULL);
    bool ok = m->limits != NULL;
    for (int i = 0; i < MAX_STAGES; i++) ok = (m->data[i] = pcre2_match_data_create(1, NULL)) && ok;
    if (!ok) {
        pretokenizer_match_close(m);
        return NULL;
    }
    pcre2_set_match_limit(m->limits, UINT32_MAX);
    pcre2_set_depth_limit(m->limits, UINT32_MAX);
    return m;
}

void pretokenizer_match_close(struct pretokenizer_match *m) {
    if (!m) return;
    for (int i = 0; i < MAX_STAGES; i++) pcre2_match_data_free(m->data[i]);
    pcre2_match_context_free(m->limits);
    free(m);
}

struct split {
    const struct pretokenizer *p;
    struct pretokenizer_match *m;
    uint32_t options;
    pretokenizer_word word;
    void *context;
};

/* The next match at or after `from`; false: none. The subject was validated once, by the caller. */
static bool match(const struct split *s, int stage, const char *text, size_t n, size_t from, size_t *start, size_t *end) {
    pcre2_match_data *data = s->m->data[stage];
    const pcre2_code *code = s->p->stages[stage];
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, s->options, data, s->m->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, s->options | PCRE2_NO_JIT, data, s->m->limits);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) BUG("pretokenizer: stage %d fails with %d at %zu of %zu bytes", stage, rc, from, n);
    *start = pcre2_get_ovector_pointer(data)[0];
    *end = pcre2_get_ovector_pointer(data)[1];
    return true;
}

/* Matches are words, and so is what lies between them; the next stage cuts each further. */
static void run_stage(const struct split *s, int stage, const char *text, size_t n) {
    if (n == 0) return;
    if (stage == MAX_STAGES || stage == s->p->n_stages) { /* n_stages is at most that; gcc must read it to know */
        s->word(s->context, text, n);
        return;
    }
    size_t at = 0, start, end;
    while (at < n && match(s, stage, text, n, at, &start, &end)) {
        if (end == start) end += (size_t)utf8_decode(text + start, n - start, NULL); /* no pattern here matches nothing */
        run_stage(s, stage + 1, text + at, start - at);
        run_stage(s, stage + 1, text + start, end - start);
        at = end;
    }
    run_stage(s, stage + 1, text + at, n - at);
}

void pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_match *m, const char *text, size_t n, bool use_jit,
                        pretokenizer_word word, void *context) {
    struct split s = {p, m, PCRE2_NO_UTF_CHECK | (use_jit ? 0 : PCRE2_NO_JIT), word, context};
    run_stage(&s, 0, text, n);
}
