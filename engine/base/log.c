#include "engine/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"error", "warn", "info", "debug"};
static enum log_level limit = LOG_INFO;

void log_set_level(enum log_level level) { limit = level; }

bool log_level_parse(const char *name, enum log_level *level) {
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    return false;
}

void log_event(enum log_level level, const char *event, const char *format, ...) {
    if (level > limit) return;
    char line[2048];
    struct timeval now;
    struct tm utc;
    gettimeofday(&now, NULL);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03dZ %s %s ", (int)(now.tv_usec / 1000), names[level], event);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - n, format, args);
    va_end(args);
    if (m > 0) n += (size_t)m;
    if (n > sizeof line - 1) n = sizeof line - 1;
    for (size_t i = 0; i < n; i++) /* one event, one line, whatever a value holds */
        if ((unsigned char)line[i] < 0x20) line[i] = ' ';
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) return; /* a closed stderr must not end serving */
}
