/* The log: one line an event on stderr, `time level event key=value ...`. Any thread may write; a line is one write(2).
 *
 * Values are the caller's: a value with spaces is quoted by LOG_STR. Prompts and completions are never logged. */
#pragma once

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Lines above `level` are dropped. Call before threads start; the default is LOG_INFO. */
void log_set_level(enum log_level level);
/* "error", "warn", "info", "debug" → level; false when `name` is none of them. */
bool log_level_parse(const char *name, enum log_level *level);

/* log_event(LOG_INFO, "request_done", "id=%s tokens=%d", id, n) */
void log_event(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));
