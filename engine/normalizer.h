/* NFC, in linear time and bounded memory. */
#pragma once

#include <stddef.h>

/* Writes text[0..n), valid UTF-8, normalized to NFC, to out; returns its bytes, or (size_t)−1 when it needs more than max. Runs of
 * more than NORMALIZER_RUN characters that all combine with each other are cut, and each part is normalized. */
size_t normalizer_nfc(const char *text, size_t n, char *out, size_t max);

#define NORMALIZER_RUN 256
