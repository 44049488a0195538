/* JSON written by appending to memory that somebody else owns: no allocation, exact control of numbers and escapes.
 *
 * Commas are put where the last byte written asks for one, so objects and arrays are written in order without counting. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_out {
    char *data;
    size_t n, max;
    bool overflow; /* something did not fit; data[0..n) is then cut at the last whole append */
};

void json_out_init(struct json_out *o, void *memory, size_t max);
/* Bytes as they are, no comma. */
void json_out_raw(struct json_out *o, const char *text, size_t n);
void json_out_text(struct json_out *o, const char *text);
void json_out_printf(struct json_out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The inside of a string: quotes, controls and DEL escaped, invalid UTF-8 as U+FFFD. No quotes around it, no comma. */
void json_out_escaped(struct json_out *o, const char *text, size_t n);

/* Values: preceded by a comma where one belongs. */
void json_out_open(struct json_out *o, char bracket);
void json_out_close(struct json_out *o, char bracket);
void json_out_key(struct json_out *o, const char *key);
void json_out_string(struct json_out *o, const char *text, size_t n);
void json_out_cstr(struct json_out *o, const char *text); /* NULL: null */
void json_out_int(struct json_out *o, int64_t value);
void json_out_uint(struct json_out *o, uint64_t value);
/* Nine digits; NaN and the infinities, which JSON has no word for, as null. */
void json_out_number(struct json_out *o, double value);
void json_out_bool(struct json_out *o, bool value);
void json_out_null(struct json_out *o);
