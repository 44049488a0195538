/* See stop.h.
 *
 * One Knuth-Morris-Pratt automaton a string. What is held back is the longest partial match, and that is by definition a prefix
 * of its stop string: so nothing is buffered, the held bytes are read from the stop string itself, and a state is 32 bytes that
 * can be copied and replayed. A match can't begin before the held bytes, since its own partial match was at most the longest.
 *
 * Text comes in whole characters and stop strings are valid UTF-8, so cuts fall between characters. */
#include "server/stop.h"

#include <string.h>

void stop_prepare(const char *text, uint16_t n, uint16_t *fail) {
    uint16_t k = 0;
    if (n) fail[0] = 0;
    for (uint16_t i = 1; i < n; i++) {
        while (k && text[i] != text[k]) k = fail[k - 1];
        if (text[i] == text[k]) k++;
        fail[i] = k;
    }
}

static uint16_t advance(const struct stop_string *s, uint16_t k, char c) {
    while (k && s->text[k] != c) k = s->fail[k - 1];
    return s->text[k] == c ? (uint16_t)(k + 1) : k;
}

/* The string with the longest partial match; its length in *n, 0 when nothing is held. */
static int longest(const struct stop_set *set, const struct stop_state *state, size_t *n) {
    int best = 0;
    *n = 0;
    for (int i = 0; i < set->n; i++)
        if (state->matched[i] > *n) best = i, *n = state->matched[i];
    return best;
}

/* Feeds one byte; the longest string that it completes, or −1. */
static int feed(const struct stop_set *set, struct stop_state *state, char c) {
    int hit = -1;
    for (int i = 0; i < set->n; i++) {
        const struct stop_string *s = &set->strings[i];
        state->matched[i] = advance(s, state->matched[i], c);
        if (state->matched[i] == s->n && (hit < 0 || s->n > set->strings[hit].n)) hit = i;
    }
    return hit;
}

int stop_push(const struct stop_set *set, struct stop_state *state, const char *in, size_t n, char *out, size_t *n_out) {
    size_t held, still, i = 0;
    int holder = longest(set, state, &held), hit = -1;
    if (held) memcpy(out, set->strings[holder].text, held);
    while (i < n && hit < 0) hit = feed(set, state, in[i++]);
    if (i) memcpy(out + held, in, i);
    if (hit >= 0) {
        *n_out = held + i - set->strings[hit].n;
        *state = (struct stop_state){{0}};
        return hit;
    }
    longest(set, state, &still);
    *n_out = held + n - still;
    return -1;
}

size_t stop_flush(const struct stop_set *set, struct stop_state *state, char *out) {
    size_t held;
    int holder = longest(set, state, &held);
    if (held) memcpy(out, set->strings[holder].text, held);
    *state = (struct stop_state){{0}};
    return held;
}
