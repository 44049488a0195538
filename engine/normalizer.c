/* A character at which nothing before it can change starts a run: ASCII, and letters that are no part of a Hangul syllable. Runs are
 * decomposed, reordered and composed by utf8proc; most texts are ASCII, which is copied. */
#include "engine/normalizer.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

#define MAX_DECOMPOSED 4 /* code points that one becomes at most, canonically */

static int starts_run(uint32_t c) {
    if (c < 0x80) return 1;
    if (c >= 0x1100 && c <= 0x11ff) return 0; /* conjoining jamo */
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return p->combining_class == 0 && (k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
                                       k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO);
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
    utf8proc_ssize_t count =
        utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, buffer, NORMALIZER_RUN * MAX_DECOMPOSED, options);
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
