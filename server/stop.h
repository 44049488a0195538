/* Stop strings, matched in text, whatever tokens the text came in.
 *
 * Text is held back only while it is the beginning of a stop string; what was held is given out when it turns out not to be
 * one, or when the text ends. A stop string itself is never given out. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MAX_STOPS 16
#define MAX_STOP_BYTES 1024 /* of one stop string */

struct stop_set {
    int n;
    struct stop_string {
        const char *text;
        uint16_t n;
        const uint16_t *fail; /* [n] the longest proper border of text[0..i], see Knuth, Morris and Pratt 1977 */
    } strings[MAX_STOPS];
};

/* Where one text stands. Plain data: a copy is an independent matcher at the same place. Zero: the beginning. */
struct stop_state {
    uint16_t matched[MAX_STOPS]; /* bytes of each stop string that end the text so far */
};

/* Fills fail [n] for text[0..n). */
void stop_prepare(const char *text, uint16_t n, uint16_t *fail);
/* Appends in[0..n) to the text; writes what may be given out to out, which must hold MAX_STOP_BYTES + n, and its length to
 * *n_out. Returns the stop string that ended the text, or −1. Where two end at one byte the longer wins, so no part of either
 * is given out. */
int stop_push(const struct stop_set *set, struct stop_state *state, const char *in, size_t n, char *out, size_t *n_out);
/* The text ended: writes what was held back. At most MAX_STOP_BYTES. */
size_t stop_flush(const struct stop_set *set, struct stop_state *state, char *out);
