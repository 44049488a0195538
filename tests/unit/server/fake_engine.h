/* A stand-in for the engine and the tokenizer, so that the server is tested alone: deterministic tokens, and steps that happen
 * only when a test says so.
 *
 * Vocabulary: 256 bytes; 256 <s> (BOS, control); 257 </s> (end, control); 258 "llo"; 259 "wor"; 260 " the"; 261 half of "€";
 * 262 <|sep|> (control). A prompt that contains "say:" is answered with the tokens of what follows, then </s>; "fail:" fails
 * after two tokens; any other with the alphabet, choice c beginning at letter c, until max_tokens. A sequence spends one step
 * in prefill. */
#pragma once

#include "engine/engine.h"

#define FAKE_VOCAB 263
#define FAKE_BOS 256
#define FAKE_END 257

/* With the gate on, steps are taken only by fake_engine_step. */
void fake_engine_gate(struct engine *e, bool on);
/* Lets n steps happen and waits for them; steps with nothing to do count too. */
void fake_engine_step(struct engine *e, int n);
void fake_engine_stuck(struct engine *e, bool stuck);
/* The fake tokenizer adds a BOS to texts, or not (the default). Before requests. */
void fake_tokenizer_set_bos(bool adds_bos);
int fake_encode(const char *text, size_t n, unsigned flags, int32_t *ids, int max);
