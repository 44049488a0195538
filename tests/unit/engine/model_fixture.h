/* Where tests find model files: TALLY_MODEL or the cache that scripts/fetch-model fills, and the vocabularies beside it. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline const char *cache_path(char *out, size_t size, const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) snprintf(out, size, "%s/tally/%s", cache, name);
    else snprintf(out, size, "%s/.cache/tally/%s", home ? home : "", name);
    return out;
}

/* The demo model's path, or NULL after saying why a test is skipped. */
static inline const char *demo_model_path(void) {
    static char path[1024];
    const char *named = getenv("TALLY_MODEL");
    if (named && *named) snprintf(path, sizeof path, "%s", named);
    else cache_path(path, sizeof path, "models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (access(path, R_OK) == 0) return path;
    fprintf(stderr, "skipped: no demo model at %s (scripts/fetch-model brings it)\n", path);
    return NULL;
}
