/* Random arrivals, lengths, choices, cancels and pools against the scheduler, with a stand-in for the model that notices any block
 * which does not hold what it should (scheduler_fixture.h). TALLY_SEED repeats a run, TALLY_ROUNDS makes it longer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/scheduler_fixture.h"

struct random {
    uint64_t state;
};

static uint64_t draw(struct random *r) { return world_mix(r->state++); }
static int between(struct random *r, int low, int high) { return low + (int)(draw(r) % (uint64_t)(high - low + 1)); }
static bool chance(struct random *r, int percent) { return between(r, 1, 100) <= percent; }

static long long from_environment(const char *name, long long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 0) : fallback;
}

#define MAX_REQUESTS 512

/* What the test remembers of the requests it sent, by order of arrival. */
struct history {
    int n;
    struct {
        uint64_t id;
        int32_t slot;
        bool is_single, has_left; /* of one choice; left the queue */
        int n_passed;             /* later ones that started while it waited */
    } entry[MAX_REQUESTS];
};

static bool is_in_queue(const struct world *w, int32_t slot, uint64_t id) {
    return w->store.requests[slot].id == id && w->store.requests[slot].n_unstarted > 0;
}

/* Rule 3: nobody is passed more than SCHEDULER_MAX_BYPASS times. */
static bool check_fairness(struct world *w, struct history *h) {
    for (int i = 0; i < h->n; i++) {
        if (h->entry[i].has_left || is_in_queue(w, h->entry[i].slot, h->entry[i].id)) continue;
        h->entry[i].has_left = true;
        for (int j = 0; j < i; j++)
            if (!h->entry[j].has_left && is_in_queue(w, h->entry[j].slot, h->entry[j].id)) h->entry[j].n_passed++;
    }
    for (int i = 0; i < h->n; i++)
        if (h->entry[i].is_single && h->entry[i].n_passed > SCHEDULER_MAX_BYPASS)
            return world_fail(w, "a request was passed more often than allowed");
    return true;
}

/* Who runs and lacks one token must get it in the next step, or be preempted in it. */
static bool step_keeping_decodes_going(struct world *w) {
    int32_t due[256];
    int n_due = 0, before[256];
    for (int i = 0; i < w->scheduler.n_running; i++) {
        int32_t index = w->scheduler.running[i];
        if (sequence_remaining(&w->store.sequences[index]) != 1) continue;
        before[n_due] = w->store.sequences[index].computed;
        due[n_due++] = index;
    }
    uint64_t preemptions = w->scheduler.preemptions;
    int oldest = w->scheduler.n_running ? w->scheduler.running[0] : -1;
    uint64_t oldest_admitted = oldest >= 0 ? w->store.sequences[oldest].admitted : 0;
    if (!world_step(w)) return false;
    for (int i = 0; i < n_due; i++) {
        const struct sequence *q = &w->store.sequences[due[i]];
        if (q->request >= 0 && q->state == CHOICE_RUNNING && q->computed != before[i] + 1 &&
            w->scheduler.preemptions == preemptions)
            return world_fail(w, "a running decode got no token in a step");
    }
    if (oldest >= 0 && w->store.sequences[oldest].request >= 0 && w->store.sequences[oldest].admitted == oldest_admitted &&
        w->store.sequences[oldest].state != CHOICE_RUNNING)
        return world_fail(w, "the oldest running sequence was preempted");
    return true;
}

static void arrive(struct world *w, struct random *r, struct history *h, bool is_hungry) {
    int most = w->options.max_context;
    int n_prompt = chance(r, 15) ? between(r, 1, most - 1) : between(r, 1, most / 8 + 1), left = most - n_prompt;
    int max_tokens = is_hungry ? left : chance(r, 5) ? 0 : between(r, 1, left < 40 ? left : 40);
    int n_choices = chance(r, 20) ? between(r, 2, MAX_CHOICES) : 1;
    uint64_t seed = draw(r) >> 1;
    int32_t slot = world_submit(w, seed, n_prompt, max_tokens, n_choices);
    if (slot < 0) return;
    h->entry[h->n].slot = slot;
    h->entry[h->n].id = w->store.requests[slot].id;
    h->entry[h->n].is_single = n_choices == 1;
    h->n++;
}

static void cancel_some(struct world *w, struct random *r, struct history *h) {
    if (h->n == 0) return;
    int i = between(r, 0, h->n - 1);
    int32_t slot = h->entry[i].slot;
    if (w->store.requests[slot].id != h->entry[i].id) return;
    int only = chance(r, 50) ? between(r, 0, w->store.requests[slot].params.n_choices - 1) : -1,
        n = w->store.requests[slot].params.n_choices;
    for (int choice = 0; choice < n; choice++)
        if (only < 0 || only == choice) world_cancel(w, slot, choice);
    if (!is_in_queue(w, slot, h->entry[i].id)) h->entry[i].has_left = true; /* not by passing anybody */
}

static struct engine_options random_options(struct random *r) {
    struct engine_options o = {
        .max_seqs = between(r, 1, 24), .max_queue = between(r, 0, 64), .block_tokens = 16 * between(r, 1, 2)};
    o.max_context = between(r, 2, 400);
    o.max_batch_tokens = o.max_seqs + between(r, 0, 128);
    return o;
}

/* One world, until everything sent has ended. */
static bool live(struct random *r, struct world *w) {
    struct history h = {0};
    int to_come = between(r, 1, MAX_REQUESTS - 1), percent = between(r, 2, 60), cancels = chance(r, 50) ? between(r, 1, 20) : 0;
    bool is_hungry = chance(r, 20);
    if (is_hungry) to_come = to_come / 8 + 1;
    for (long steps = 0; to_come > 0 || scheduler_has_work(&w->scheduler); steps++) {
        if (steps > 2000000) return world_fail(w, "it does not end");
        while (to_come > 0 && chance(r, percent)) arrive(w, r, &h, is_hungry), to_come--;
        if (chance(r, cancels)) cancel_some(w, r, &h);
        if (!step_keeping_decodes_going(w) || !check_fairness(w, &h)) return false;
    }
    for (int i = 0; i < w->store.n_requests; i++)
        if (w->store.requests[i].id) return world_fail(w, "a request never finished");
    if (w->pool.n_free != w->pool.n_blocks) return world_fail(w, "blocks leaked");
    return true;
}

static void every_admitted_request_finishes_as_if_alone(void **state) {
    uint64_t seed = (uint64_t)from_environment("TALLY_SEED", 20240611);
    int rounds = (int)from_environment("TALLY_ROUNDS", 150);
    printf("seed=%llu rounds=%d\n", (unsigned long long)seed, rounds);
    uint64_t preemptions = 0;
    for (int round = 0; round < rounds; round++) {
        struct random r = {world_mix(seed + (uint64_t)round)};
        struct engine_options o = random_options(&r);
        int least = (o.max_context + o.block_tokens - 1) / o.block_tokens;
        struct world w;
        world_open(&w, &o, least + between(&r, 0, 2 * least));
        if (!live(&r, &w))
            fail_msg("seed %llu round %d (seqs %d, context %d, batch %d, block %d, blocks %d): %s", (unsigned long long)seed,
                     round, o.max_seqs, o.max_context, o.max_batch_tokens, o.block_tokens, w.pool.n_blocks, w.failure);
        preemptions += w.scheduler.preemptions;
        world_close(&w);
    }
    printf("preemptions=%llu\n", (unsigned long long)preemptions);
    assert_true(preemptions > 0); /* else the pools were too large to test anything */
}

/* Demand of one and a half times the pool, kept up: it finishes, and preemption does not eat the work. */
static void an_oversubscribed_pool_finishes_without_thrashing(void **state) {
    struct engine_options o = {
        .max_seqs = 48, .max_queue = 200, .block_tokens = 16, .max_context = 1024, .max_batch_tokens = 256};
    struct world w;
    world_open(&w, &o, 768); /* 12288 tokens; 48 sequences of 384 on average want 18432 */
    struct random r = {7};
    int sent = 0;
    uint64_t steps = 0, tokens = 0;
    while (sent < 400 || scheduler_has_work(&w.scheduler)) {
        while (sent < 400) {
            int n_prompt = between(&r, 16, 240), max_tokens = between(&r, 16, 496);
            if (world_submit(&w, draw(&r) >> 1, n_prompt, max_tokens, 1) < 0) break;
            sent++;
            tokens += (uint64_t)(n_prompt + max_tokens - 1);
        }
        if (!world_step(&w)) fail_msg("%s", w.failure);
        steps++;
    }
    printf("steps=%llu tokens=%llu preemptions=%llu recomputed=%llu\n", (unsigned long long)steps, (unsigned long long)tokens,
           (unsigned long long)w.scheduler.preemptions, (unsigned long long)w.scheduler.recomputed_tokens);
    assert_true(w.scheduler.preemptions > 0);
    assert_true(w.scheduler.recomputed_tokens < tokens / 4);
    assert_int_equal(w.pool.n_free, w.pool.n_blocks);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_admitted_request_finishes_as_if_alone),
        cmocka_unit_test(an_oversubscribed_pool_finishes_without_thrashing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
