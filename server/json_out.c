/* See json_out.h. An append that does not fit is dropped whole and sets `overflow`, which is sticky: later appends do nothing.
 * */
#include "server/json_out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

void json_out_init(struct json_out *o, void *memory, size_t max) { *o = (struct json_out){.data = memory, .max = max}; }

void json_out_raw(struct json_out *o, const char *text, size_t n) {
    if (o->overflow || n > o->max - o->n) {
        o->overflow = true;
        return;
    }
    if (n) memcpy(o->data + o->n, text, n);
    o->n += n;
}

void json_out_text(struct json_out *o, const char *text) { json_out_raw(o, text, strlen(text)); }

void json_out_printf(struct json_out *o, const char *format, ...) {
    size_t room = o->overflow ? 0 : o->max - o->n;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room ? o->data + o->n : NULL, room, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= room) o->overflow = true; /* the NUL must fit too */
    else o->n += (size_t)n;
}

static void escape_char(struct json_out *o, unsigned char c) {
    static const char letters[] = "btn\1fr"; /* 8..13; 11 has no short form */
    char text[8] = {'\\', (char)c};
    if (c == '"' || c == '\\') json_out_raw(o, text, 2);
    else if (c >= 8 && c <= 13 && c != 11) {
        text[1] = letters[c - 8];
        json_out_raw(o, text, 2);
    } else {
        snprintf(text, sizeof text, "\\u%04x", c);
        json_out_raw(o, text, 6);
    }
}

static bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

void json_out_escaped(struct json_out *o, const char *text, size_t n) {
    for (size_t i = 0; i < n && !o->overflow;) {
        size_t run = i;
        while (run < n && is_plain((unsigned char)text[run])) run++;
        json_out_raw(o, text + i, run - i);
        if ((i = run) == n) break;
        unsigned char c = (unsigned char)text[i];
        int length = c < 0x80 ? 0 : utf8_decode(text + i, n - i, NULL);
        if (c < 0x80) escape_char(o, c);
        else if (length) json_out_raw(o, text + i, (size_t)length);
        else json_out_raw(o, "\xef\xbf\xbd", 3);
        i += length ? (size_t)length : 1;
    }
}

/* A value needs a comma unless it begins the text, an object or an array, or follows its key. */
static void separate(struct json_out *o) {
    if (o->n && !memchr("{[:,\n ", o->data[o->n - 1], 6)) json_out_raw(o, ",", 1);
}

void json_out_open(struct json_out *o, char bracket) {
    separate(o);
    json_out_raw(o, &bracket, 1);
}

void json_out_close(struct json_out *o, char bracket) { json_out_raw(o, &bracket, 1); }

void json_out_string(struct json_out *o, const char *text, size_t n) {
    separate(o);
    json_out_raw(o, "\"", 1);
    json_out_escaped(o, text, n);
    json_out_raw(o, "\"", 1);
}

void json_out_key(struct json_out *o, const char *key) {
    json_out_string(o, key, strlen(key));
    json_out_raw(o, ":", 1);
}

void json_out_cstr(struct json_out *o, const char *text) {
    if (text) json_out_string(o, text, strlen(text));
    else json_out_null(o);
}

void json_out_int(struct json_out *o, int64_t value) {
    separate(o);
    json_out_printf(o, "%lld", (long long)value);
}

void json_out_uint(struct json_out *o, uint64_t value) {
    separate(o);
    json_out_printf(o, "%llu", (unsigned long long)value);
}

void json_out_number(struct json_out *o, double value) {
    separate(o);
    if (isfinite(value)) json_out_printf(o, "%.9g", value);
    else json_out_text(o, "null");
}

void json_out_bool(struct json_out *o, bool value) {
    separate(o);
    json_out_text(o, value ? "true" : "false");
}

void json_out_null(struct json_out *o) {
    separate(o);
    json_out_text(o, "null");
}
