#include <stdlib.h>
#include <string.h>

#include "fake_engine.h"

struct tokenizer {
    int unused;
};
struct tokenizer_scratch {
    size_t max_bytes;
};

static struct tokenizer the_tokenizer;
static bool adds_bos;
static const struct {
    int32_t id;
    const char *text;
} longer[] = {
    {258, "llo"}, {259, "wor"}, {260, " the"}, {261, "\xe2\x82"}, {256, "<s>"}, {257, "</s>"}, {262, "<|sep|>"},
};
static char bytes[256];

void fake_tokenizer_set_bos(bool on) { adds_bos = on; }

const struct tokenizer *engine_tokenizer(const struct engine *e) {
    for (int i = 0; i < 256 && !bytes[255]; i++) bytes[i] = (char)i;
    return &the_tokenizer;
}

int tokenizer_n_tokens(const struct tokenizer *t) { return FAKE_VOCAB; }

struct text_view tokenizer_piece(const struct tokenizer *t, int32_t id) {
    if (id < 256) return (struct text_view){&bytes[id], 1};
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (longer[i].id == id) return (struct text_view){longer[i].text, strlen(longer[i].text)};
    return (struct text_view){"", 0};
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) { return id == 256 || id == 257 || id == 262; }

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) { return id == FAKE_END; }

int32_t tokenizer_bos(const struct tokenizer *t) { return adds_bos ? FAKE_BOS : -1; }

static int32_t longest_at(const char *text, size_t n, unsigned flags, size_t *length) {
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        size_t m = strlen(longer[i].text);
        if (tokenizer_is_control(NULL, longer[i].id) && !(flags & ENCODE_SPECIAL)) continue;
        if (m <= n && memcmp(text, longer[i].text, m) == 0) {
            *length = m;
            return longer[i].id;
        }
    }
    *length = 1;
    return (unsigned char)*text;
}

int fake_encode(const char *text, size_t n, unsigned flags, int32_t *ids, int max) {
    int count = 0;
    size_t length;
    if ((flags & ENCODE_BOS) && adds_bos && !(n >= 3 && memcmp(text, "<s>", 3) == 0)) {
        if (count < max) ids[count] = FAKE_BOS;
        count++;
    }
    for (size_t i = 0; i < n; i += length, count++) {
        int32_t id = longest_at(text + i, n - i, flags, &length);
        if (count < max) ids[count] = id;
    }
    return count;
}

size_t tokenizer_scratch_bytes(size_t max_bytes) { return sizeof(struct tokenizer_scratch); }

struct tokenizer_scratch *tokenizer_scratch_create(struct memory_source memory, size_t max_bytes, struct err *err) {
    struct tokenizer_scratch *s = memory.alloc(memory.context, sizeof *s);
    if (s) s->max_bytes = max_bytes;
    return s;
}

void tokenizer_scratch_destroy(struct tokenizer_scratch *s) {}

enum status tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, unsigned flags,
                             int32_t *ids, size_t max_ids, size_t *n_ids, struct err *err) {
    if (n > s->max_bytes) return err_set(err, STATUS_TOO_LARGE, "text too long");
    *n_ids = (size_t)fake_encode(text, n, flags, ids, (int)max_ids);
    return *n_ids > max_ids ? err_set(err, STATUS_TOO_LARGE, "too many tokens") : STATUS_OK;
}

/* The detokenizer is the real one and asks this of its tokenizer. */
bool tokenizer_drops_first_space(const struct tokenizer *t) { return false; }
