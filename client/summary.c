#include "client/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double ms(int64_t us) { return (double)us / 1000; }

void summary_add(struct summary *s, const struct request *r) {
    int64_t n = request_output_tokens(r);
    s->outcomes[r->outcome]++;
    samples_add(&s->lateness, fmax(0, ms(r->sent_us - r->due_us)));
    if (r->outcome != OUTCOME_OK) {
        char *first = s->first_error[r->outcome];
        if (!*first) snprintf(first, sizeof s->first_error[0], "%s", r->error);
        return;
    }
    if (r->output_tokens < 0) s->n_uncounted++;
    if (r->prompt_tokens > 0) s->prompt_tokens += r->prompt_tokens;
    s->output_tokens += n;
    double ttft = ms(r->first_us - r->scheduled_us), e2e = ms(r->end_us - r->scheduled_us);
    samples_add(&s->e2e, e2e);
    if (r->n_chunks == 0) return; /* tokens without text, as control tokens are: there is no first text to time */
    samples_add(&s->ttft, ttft);
    if (n > 1) samples_add(&s->tpot, (e2e - ttft) / (double)(n - 1));
    samples_append(&s->itl, &r->gaps);
}

void summary_free(struct summary *s) {
    struct samples *all[] = {&s->ttft, &s->tpot, &s->itl, &s->e2e, &s->lateness};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

int64_t summary_failed(const struct summary *s) {
    int64_t failed = 0;
    for (int i = 0; i < OUTCOME_COUNT; i++)
        if (i != OUTCOME_OK) failed += s->outcomes[i];
    return failed;
}

double summary_duration_s(const struct summary *s) {
    return s->ended_us > s->started_us ? (double)(s->ended_us - s->started_us) / 1e6 : 0;
}

bool summary_is_late(struct summary *s) {
    double late = samples_percentile(&s->lateness, 99);
    return late > 1 && late > 0.05 * samples_percentile(&s->ttft, 50);
}
