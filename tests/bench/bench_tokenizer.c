/* Speed of encoding and decoding: bench_tokenizer VOCABULARY.gguf [FILE...]
 *
 * Encodes about 4 MB of English-like text, the files' texts again and again with their words shuffled a little, in prompts of 64 KB,
 * and prints the least time of ten runs on one core, by the processor time used. Without files: a built-in paragraph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/checked.h"
#include "engine/detokenizer.h"
#include "engine/formats_gguf.h"
#include "engine/tokenizer.h"

enum { TEXT_BYTES = 4 << 20, PROMPT_BYTES = 64 << 10, RUNS = 10 };

static const char paragraph[] = "The quick brown fox jumps over the lazy dog, while 3 curious children watch from the garden "
                                "wall. It's half past seven; the "
                                "baker (who hasn't slept) carries 120 loaves to the market, and nobody asks why. \"Good "
                                "morning,\" says the postman. \"Anything "
                                "for me?\" There isn't.\n\nUnderstanding how memory is shared between processes requires some "
                                "patience: pages are mapped, counted, "
                                "and released again when the last owner goes away.\n";

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *heap_alloc(void *context, size_t bytes) {
    (void)context;
    return aligned_alloc(64, round_up(bytes, 64));
}

static char *read_files(int n_files, char **files, size_t *n) {
    char *all = malloc(TEXT_BYTES);
    if (!all) abort();
    *n = 0;
    for (int i = 0; i < n_files && *n < TEXT_BYTES; i++) {
        FILE *f = fopen(files[i], "rb");
        if (!f) {
            perror(files[i]);
            exit(1);
        }
        *n += fread(all + *n, 1, TEXT_BYTES - *n, f);
        fclose(f);
    }
    if (*n == 0) memcpy(all, paragraph, *n = sizeof paragraph - 1);
    return all;
}

/* Repeats the source, each time leaving out other words, so that it is not the same text over and over. */
static char *make_text(const char *source, size_t n_source) {
    char *text = malloc(TEXT_BYTES);
    uint64_t random = 1;
    size_t at = 0, used = 0;
    if (!text) abort();
    while (used < TEXT_BYTES) {
        size_t end = at;
        while (end < n_source && source[end] != ' ') end++;
        if (end < n_source) end++;
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (random >> 61 != 0 || end - at > 1000) {
            size_t n = end - at < TEXT_BYTES - used ? end - at : TEXT_BYTES - used;
            memcpy(text + used, source + at, n);
            used += n;
        }
        at = end == n_source ? 0 : end;
    }
    return text;
}

static void check(enum status status, const struct err *err) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static struct tokenizer *open_tokenizer(const char *path) {
    struct gguf *g;
    struct vocab vocab;
    struct err err = {0};
    check(gguf_open(&g, path, &err), &err);
    check(gguf_vocab(g, &vocab, &err), &err);
    double start = now_s();
    struct tokenizer *t = tokenizer_create(&vocab, (struct memory_source){heap_alloc, NULL}, &err);
    check(t ? STATUS_OK : err.status, &err);
    printf("%d tokens, tables of %.1f MB, built in %.0f ms\n", vocab.n_tokens, (double)tokenizer_bytes(&vocab) * 1e-6,
           (now_s() - start) * 1e3);
    vocab_free(&vocab);
    gguf_close(g);
    return t;
}

/* A prompt's bytes: PROMPT_BYTES or what is left, cut between characters. */
static size_t prompt_bytes(const char *text, size_t left) {
    size_t n = left < PROMPT_BYTES ? left : PROMPT_BYTES;
    while (n < left && n > 0 && (text[n] & 0xc0) == 0x80) n--;
    return n;
}

static size_t encode_all(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t n, int32_t *ids) {
    size_t n_ids = 0;
    for (size_t i = 0; i < n;) {
        struct err err = {0};
        size_t prompt = prompt_bytes(text + i, n - i), count;
        check(tokenizer_encode(t, s, text + i, prompt, ENCODE_SPECIAL, ids + n_ids, TEXT_BYTES - n_ids, &count, &err), &err);
        n_ids += count;
        i += prompt;
    }
    return n_ids;
}

static void decode_all(const struct tokenizer *t, const int32_t *ids, size_t n) {
    char out[4096];
    struct detokenizer d;
    detokenizer_init(&d, true, true);
    for (size_t i = 0; i < n; i++) detokenizer_push(&d, t, ids[i], out, sizeof out);
}

static void print_speed(const char *what, size_t bytes, size_t n_ids, double seconds) {
    printf("%s: %.1f MB/s, %.1f million tokens/s, %.2f bytes a token\n", what, (double)bytes * 1e-6 / seconds,
           (double)n_ids * 1e-6 / seconds, (double)bytes / (double)n_ids);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tokenizer VOCABULARY.gguf [FILE...]\n");
        return 2;
    }
    size_t n_source, n_ids = 0;
    struct err err = {0};
    char *source = read_files(argc - 2, argv + 2, &n_source), *text = make_text(source, n_source);
    size_t n = TEXT_BYTES;
    while (n > 0 && (text[n - 1] & 0x80)) n--; /* whole characters */
    struct tokenizer *t = open_tokenizer(argv[1]);
    struct tokenizer_scratch *s = tokenizer_scratch_create((struct memory_source){heap_alloc, NULL}, PROMPT_BYTES, &err);
    check(s ? STATUS_OK : err.status, &err);
    int32_t *ids = malloc(TEXT_BYTES * sizeof *ids);
    if (!ids) abort();
    double encode_s = 1e9, decode_s = 1e9;
    for (int run = 0; run < RUNS; run++) {
        double start = now_s();
        n_ids = encode_all(t, s, text, n, ids);
        double middle = now_s();
        decode_all(t, ids, n_ids);
        double end = now_s();
        if (middle - start < encode_s) encode_s = middle - start;
        if (end - middle < decode_s) decode_s = end - middle;
    }
    print_speed("encode", n, n_ids, encode_s);
    print_speed("decode", n, n_ids, decode_s);
    tokenizer_scratch_destroy(s);
    tokenizer_destroy(t);
    return 0;
}
