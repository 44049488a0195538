#include "engine/base/utf8.h"

int utf8_decode(const char *s, size_t n, uint32_t *codepoint) {
    if (n == 0) return 0;
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c = u[0], lowest;
    int length;
    if (c < 0x80) {
        if (codepoint) *codepoint = c;
        return 1;
    }
    if (c >= 0xc2 && c <= 0xdf) length = 2, c &= 0x1f, lowest = 0x80;
    else if ((c & 0xf0) == 0xe0) length = 3, c &= 0x0f, lowest = 0x800;
    else if (c >= 0xf0 && c <= 0xf4) length = 4, c &= 0x07, lowest = 0x10000;
    else return 0;
    if (n < (size_t)length) return 0;
    for (int i = 1; i < length; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3f);
    }
    if (c < lowest || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
    if (codepoint) *codepoint = c;
    return length;
}

bool utf8_is_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        int length = utf8_decode(s + i, n - i, NULL);
        if (!length) return false;
        i += (size_t)length;
    }
    return true;
}

/* Could u[0..n) be the first bytes of a valid character? The second byte is where overlong forms and surrogates show. */
static bool is_prefix(const unsigned char *u, size_t n) {
    size_t length = u[0] >= 0xc2 && u[0] <= 0xdf ? 2 : (u[0] & 0xf0) == 0xe0 ? 3 : u[0] >= 0xf0 && u[0] <= 0xf4 ? 4 : 0;
    if (n >= length) return false;
    if (n >= 2) {
        unsigned low = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
        unsigned high = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
        if (u[1] < low || u[1] > high) return false;
    }
    return n < 3 || (u[2] & 0xc0) == 0x80;
}

size_t utf8_prefix(const char *s, size_t n) {
    for (size_t m = n < 3 ? n : 3; m > 0; m--)
        if (is_prefix((const unsigned char *)s, m)) return m;
    return 0;
}

size_t utf8_incomplete_tail(const char *s, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char *u = (const unsigned char *)s + n - back;
        if ((u[0] & 0xc0) == 0x80) continue;
        return is_prefix(u, back) ? back : 0;
    }
    return 0;
}
