/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing past U+10FFFF. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid character at s[0..n), 1 to 4; 0 when there is none (bad or cut off). *codepoint may be NULL. */
int utf8_decode(const char *s, size_t n, uint32_t *codepoint);
bool utf8_is_valid(const char *s, size_t n);
/* The longest m ≤ 3 such that s[0..m) begins a valid character without being one, 0 if there is none: what one U+FFFD replaces. */
size_t utf8_prefix(const char *s, size_t n);
/* The bytes at the end of s[0..n) that begin a character and could still be completed, 0 to 3. */
size_t utf8_incomplete_tail(const char *s, size_t n);
