/* A vocabulary as a model file states it: what the tokenizer is built from. Arrays point into the file's mapping or are the
 * loader's; the tokenizer copies what it keeps. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum vocab_model { VOCAB_BPE /* byte-level, "gpt2" */, VOCAB_SPM /* SentencePiece-BPE, "llama" */ };
enum token_type { TOKEN_UNDEFINED, TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

struct text_view {
    const char *data;
    uint64_t n; /* bytes; not NUL-terminated */
};

struct vocab {
    enum vocab_model model;
    char pre[64]; /* pre-tokenizer's name, "" when the file has none */
    int n_tokens;
    struct text_view *tokens; /* [n_tokens] */
    float *scores;            /* [n_tokens] or NULL */
    int32_t *types;           /* [n_tokens] of enum token_type, or NULL: all normal */
    int n_merges;
    struct text_view *merges;       /* [n_merges] "left right" */
    int bos, eos, eot, unk;         /* −1 when there is none */
    bool add_bos, add_space_prefix; /* defaults applied (by model and pre) where the file is silent */
    struct text_view chat_template; /* n = 0: none */
};
