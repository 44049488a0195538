/* NFC in pieces: a text is cut into runs, and utf8proc decomposes, reorders and composes each on a stack buffer.
 *
 * A run begins at a character that never composes with, or is reordered before, what precedes it, so the runs' normal forms joined
 * are the text's. What does so are marks (Mn, Mc, Me), Hangul's conjoining vowels and finals, and, since Unicode 16, Kirat Rai's vowel
 * signs; everything else begins a run. So a run is a base and its marks, a few characters in any language, and only a made-up text has
 * one that must be cut (NORMALIZER_RUN). Most texts are ASCII, which is copied; the last ASCII character before another is the base of
 * what follows. */
#include "engine/normalizer.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

#define MAX_DECOMPOSED 4 /* code points that one becomes at most, canonically */

static bool starts_run(uint32_t c) {
    if (c < 0x300) return true;
    if ((c >= 0x1160 && c <= 0x11ff) || (c >= 0x16d63 && c <= 0x16d6a)) return false;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k != UTF8PROC_CATEGORY_MN && k != UTF8PROC_CATEGORY_MC && k != UTF8PROC_CATEGORY_ME &&
           utf8proc_get_property((utf8proc_int32_t)c)->combining_class == 0;
}

/* Bytes of the run at text[0..n): up to where the next begins. */
static size_t run_bytes(const char *text, size_t n) {
    size_t i = 0;
    for (int count = 0; i < n && count < NORMALIZER_RUN; count++) {
        uint32_t c;
        int length = utf8_decode(text + i, n - i, &c);
        if (count > 0 && starts_run(c)) break;
        i += (size_t)length;
    }
    return i;
}

static size_t normalize_run(const char *text, size_t n, char *out, size_t max) {
    utf8proc_int32_t buffer[NORMALIZER_RUN * MAX_DECOMPOSED + 1];
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, buffer,
                                                NORMALIZER_RUN * MAX_DECOMPOSED, options);
    if (count < 0 || count > NORMALIZER_RUN * MAX_DECOMPOSED) return (size_t)-1;
    count = utf8proc_normalize_utf32(buffer, count, options);
    size_t used = 0;
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        utf8proc_uint8_t bytes[4];
        size_t length = (size_t)utf8proc_encode_char(buffer[i], bytes);
        if (length > max - used) return (size_t)-1;
        memcpy(out + used, bytes, length);
        used += length;
    }
    return used;
}

static size_t ascii_bytes(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && (unsigned char)text[i] < 0x80) i++;
    return i;
}

size_t normalizer_nfc(const char *text, size_t n, char *out, size_t max) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        size_t plain = ascii_bytes(text + i, n - i);
        if (plain > 1 || i + plain == n) { /* the last one may combine with what follows */
            if (i + plain < n) plain--;
            if (plain > max - used) return (size_t)-1;
            memcpy(out + used, text + i, plain);
            used += plain;
            i += plain;
            continue;
        }
        size_t run = run_bytes(text + i, n - i), written = normalize_run(text + i, run, out + used, max - used);
        if (written == (size_t)-1) return written;
        used += written;
        i += run;
    }
    return used;
}
