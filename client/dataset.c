/* A prompt is made when it is sent and depends on (seed, index) alone. Every prompt of a run has its own index, so that no two share a
 * prefix and a prefix cache gains nothing by accident. */
#include "client/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/arrivals.h"
#include "engine/base/utf8.h"

static const char *const words[] = {
    "about",    "above",    "across",   "after",    "again",     "air",      "all",      "almost",  "along",   "also",
    "always",   "among",    "animal",   "another",  "answer",    "around",   "away",     "back",    "because", "become",
    "before",   "began",    "begin",    "being",    "below",     "between",  "big",      "bird",    "black",   "blue",
    "boat",     "body",     "book",     "both",     "boy",       "bright",   "bring",    "build",   "call",    "came",
    "carry",    "catch",    "cause",    "change",   "children",  "city",     "clear",    "close",   "cold",    "color",
    "come",     "common",   "complete", "could",    "country",   "course",   "cover",    "cross",   "cut",     "dark",
    "day",      "decide",   "deep",     "did",      "different", "distance", "door",     "down",    "draw",    "drive",
    "dry",      "during",   "each",     "early",    "earth",     "ease",     "east",     "eat",     "end",     "enough",
    "even",     "every",    "example",  "eye",      "face",      "fall",     "family",   "far",     "farm",    "fast",
    "father",   "feel",     "feet",     "few",      "field",     "figure",   "final",    "find",    "fire",    "first",
    "fish",     "five",     "flower",   "fly",      "follow",    "food",     "force",    "form",    "found",   "four",
    "free",     "friend",   "from",     "front",    "full",      "game",     "garden",   "gave",    "girl",    "give",
    "gold",     "good",     "great",    "green",    "ground",    "group",    "grow",     "half",    "hand",    "happen",
    "hard",     "head",     "hear",     "heat",     "heavy",     "held",     "help",     "high",    "hill",    "home",
    "horse",    "hour",     "house",    "hundred",  "idea",      "inch",     "island",   "just",    "keep",    "kind",
    "king",     "know",     "lake",     "land",     "language",  "large",    "last",     "late",    "laugh",   "learn",
    "leave",    "letter",   "life",     "light",    "line",      "list",     "listen",   "little",  "live",    "long",
    "look",     "low",      "machine",  "main",     "make",      "many",     "map",      "mark",    "measure", "might",
    "mile",     "minute",   "money",    "moon",     "morning",   "mother",   "mountain", "move",    "much",    "music",
    "name",     "near",     "never",    "new",      "next",      "night",    "north",    "nothing", "notice",  "number",
    "ocean",    "often",    "old",      "once",     "only",      "open",     "order",    "other",   "over",    "page",
    "paper",    "part",     "pass",     "pattern",  "people",    "perhaps",  "person",   "picture", "piece",   "place",
    "plain",    "plan",     "plant",    "play",     "point",     "port",     "possible", "power",   "problem", "product",
    "pull",     "question", "quick",    "rain",     "reach",     "read",     "ready",    "real",    "record",  "red",
    "remember", "rest",     "river",    "road",     "rock",      "room",     "round",    "rule",    "run",     "school",
    "science",  "sea",      "second",   "sentence", "serve",     "shape",    "ship",     "short",   "show",    "side",
    "simple",   "size",     "sleep",    "slow",     "small",     "snow",     "song",     "sound",   "south",   "space",
    "special",  "stand",    "star",     "start",    "state",     "stay",     "step",     "still",   "stone",   "stop",
    "story",    "street",   "strong",   "study",    "summer",    "sun",      "table",    "talk",    "teach",   "ten",
    "thing",    "think",    "thought",  "thousand", "three",     "time",     "together", "town",    "travel",  "tree",
    "true",     "turn",     "two",      "under",    "unit",      "until",    "usual",    "very",    "voice",   "walk",
    "warm",     "watch",    "water",    "week",     "west",      "wheel",    "white",    "whole",   "wind",    "winter",
    "wonder",   "wood",     "word",     "work",     "world",     "write",    "year",     "young",
};
#define N_WORDS (sizeof words / sizeof *words)

/* ---- a file of prompts ---- */

/* The prompt on one line, malloc'ed; NULL with err filled. */
static char *prompt_of_line(const char *line, const char *path, int64_t number, struct err *err) {
    if (*line != '{') {
        char *copy = strdup(line);
        if (!copy) err_set(err, STATUS_NO_MEMORY, "--prompts: %s: out of memory", path);
        return copy;
    }
    json_error_t error;
    json_t *object = json_loads(line, 0, &error);
    const char *text = json_string_value(json_object_get(object, "prompt"));
    char *copy = text ? strdup(text) : NULL;
    if (!object)
        err_set_param(err, STATUS_INVALID, "prompts", "--prompts: %s: line %lld: %s", path, (long long)number, error.text);
    else if (!copy)
        err_set_param(err, STATUS_INVALID, "prompts", "--prompts: %s: line %lld: no string \"prompt\"", path,
                      (long long)number);
    json_decref(object);
    return copy;
}

static enum status add_line(struct dataset *d, const char *line, const char *path, int64_t number, struct err *err) {
    if (d->n_prompts % 256 == 0) {
        char **grown = realloc(d->prompts, (size_t)(d->n_prompts + 256) * sizeof *grown);
        if (!grown) return err_set(err, STATUS_NO_MEMORY, "--prompts: %s: out of memory", path);
        d->prompts = grown;
    }
    char *prompt = prompt_of_line(line, path, number, err);
    if (!prompt) return err->status;
    d->prompts[d->n_prompts++] = prompt;
    return STATUS_OK;
}

static enum status read_lines(struct dataset *d, FILE *f, const char *path, struct err *err) {
    char *line = NULL;
    size_t capacity = 0;
    enum status status = STATUS_OK;
    errno = 0;
    for (int64_t number = 1; !status; number++) {
        ssize_t n = getline(&line, &capacity, f);
        if (n < 0) break;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (strlen(line) != (size_t)n || !utf8_is_valid(line, (size_t)n))
            status = err_set_param(err, STATUS_INVALID, "prompts", "--prompts: %s: line %lld: not UTF-8 text", path,
                                   (long long)number);
        else if (n) status = add_line(d, line, path, number, err);
    }
    if (!status && ferror(f)) status = err_set_param(err, STATUS_IO, "prompts", "--prompts: %s: %s", path, strerror(errno));
    free(line);
    return status;
}

enum status dataset_read_file(struct dataset *d, const char *path, struct err *err) {
    struct err local = {0};
    FILE *f = fopen(path, "re");
    if (!f) return err_set_param(err, STATUS_IO, "prompts", "--prompts: %s: %s", path, strerror(errno));
    enum status status = read_lines(d, f, path, &local);
    fclose(f);
    if (!status && d->n_prompts == 0)
        status = err_set_param(&local, STATUS_INVALID, "prompts", "--prompts: %s: no prompts in it", path);
    if (status && err) *err = local;
    d->kind = DATASET_FILE;
    return status;
}

/* ---- prompts ---- */

static json_t *random_ids(const struct dataset *d, struct random_source *random) {
    json_t *ids = json_array();
    for (int64_t i = 0; i < d->n_tokens; i++)
        if (json_array_append_new(ids, json_integer((json_int_t)random_below(random, (uint64_t)d->vocab))))
            return json_decref(ids), NULL;
    return ids;
}

static json_t *random_words(const struct dataset *d, struct random_source *random) {
    size_t used = 0, capacity = (size_t)d->n_tokens * 16 + 1;
    char *text = malloc(capacity);
    if (!text) return NULL;
    text[0] = 0;
    for (int64_t i = 0; i < d->n_tokens; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", i ? " " : "", words[random_below(random, N_WORDS)]);
    json_t *prompt = json_string(text);
    free(text);
    return prompt;
}

json_t *dataset_prompt(const struct dataset *d, uint64_t index) {
    struct random_source random = random_open(d->seed, index);
    switch (d->kind) {
    case DATASET_TOKENS: return random_ids(d, &random);
    case DATASET_WORDS: return random_words(d, &random);
    case DATASET_FILE: return json_string(d->prompts[index % (uint64_t)d->n_prompts]);
    }
    return NULL;
}

void dataset_free(struct dataset *d) {
    for (int64_t i = 0; i < d->n_prompts; i++) free(d->prompts[i]);
    free(d->prompts);
    memset(d, 0, sizeof *d);
}
