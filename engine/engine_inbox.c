/* How requests reach the engine thread: submit copies a request into a free slot and links it; the engine takes the whole list at a
 * step's start. Neither waits for a step: the lock is held for a copy of a prompt at most. */
#include <string.h>

#include "engine/engine_internal.h"

void engine_inbox_init(struct engine *e) {
    struct inbox *in = &e->inbox;
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->has_mail, NULL);
    in->first = in->last = in->first_free = -1;
    for (int32_t i = e->store.n_requests - 1; i >= 0; i--) {
        e->store.requests[i].next = in->first_free;
        in->first_free = i;
    }
}

void engine_inbox_deinit(struct engine *e) {
    pthread_cond_destroy(&e->inbox.has_mail);
    pthread_mutex_destroy(&e->inbox.lock);
}

static enum status check_request(const struct engine *e, const struct engine_request *r, struct err *err) {
    int vocab = engine_vocab(e);
    if (r->n_prompt < 1) return err_set_param(err, STATUS_INVALID, "prompt", "prompt: is empty, at least one token is needed");
    if (r->max_tokens < 0)
        return err_set_param(err, STATUS_INVALID, "max_tokens", "max_tokens: is %d, at least 0 is needed", r->max_tokens);
    if ((int64_t)r->n_prompt + r->max_tokens > e->options.max_context)
        return err_set_param(
            err, STATUS_INVALID, r->n_prompt >= e->options.max_context ? "prompt" : "max_tokens",
            "This model's maximum context length is %d tokens. However, you requested %lld tokens (%d in the prompt, %d "
            "for the completion). Please reduce the prompt or max_tokens.",
            e->options.max_context, (long long)r->n_prompt + r->max_tokens, r->n_prompt, r->max_tokens);
    if (r->n_choices < 1 || r->n_choices > MAX_CHOICES)
        return err_set_param(err, STATUS_INVALID, "n", "n: is %d, allowed are 1 to %d", r->n_choices, MAX_CHOICES);
    if (r->n_logprobs < -1 || r->n_logprobs > MAX_TOP_LOGPROBS)
        return err_set_param(err, STATUS_INVALID, "logprobs", "logprobs: is %d, allowed are 0 to %d", r->n_logprobs,
                             MAX_TOP_LOGPROBS);
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
            return err_set_param(err, STATUS_INVALID, "prompt", "prompt: token id %d at %d, allowed are 0 to %d", r->prompt[i],
                                 i, vocab - 1);
    return STATUS_OK;
}

static void fill_slot(struct request *r, const struct engine_request *params, uint64_t id) {
    int32_t *prompt = r->prompt;
    memcpy(prompt, params->prompt, (size_t)params->n_prompt * sizeof *prompt);
    r->params = *params;
    r->params.prompt = prompt;
    r->id = id;
    atomic_store(&r->cancel_mask, 0);
    memset(r->choices, 0, sizeof r->choices); /* CHOICE_UNSTARTED */
    r->n_unstarted = params->n_choices;
    r->n_done = r->n_bypassed = 0;
    r->first_scheduled_us = -1;
    r->next = -1;
}

enum status engine_submit(struct engine *e, const struct engine_request *request, uint64_t *id, struct err *err) {
    enum status s = check_request(e, request, err);
    if (s) return s;
    struct inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    int32_t slot = in->first_free;
    if (in->is_draining) {
        s = err_set(err, STATUS_DRAINING, "the server is shutting down");
    } else if (slot < 0) {
        s = err_set(err, STATUS_BUSY, "the queue is full: %d requests run or wait", e->store.n_requests);
    } else {
        struct request *r = &e->store.requests[slot];
        in->first_free = r->next;
        *id = ++in->n_submitted * (uint64_t)e->store.n_requests + (uint64_t)slot;
        fill_slot(r, request, *id);
        if (in->last >= 0) e->store.requests[in->last].next = slot;
        else in->first = slot;
        in->last = slot;
        pthread_cond_signal(&in->has_mail);
    }
    pthread_mutex_unlock(&in->lock);
    return s;
}

void engine_cancel(struct engine *e, uint64_t id, int choice) {
    struct inbox *in = &e->inbox;
    struct request *r = &e->store.requests[id % (uint64_t)e->store.n_requests];
    pthread_mutex_lock(&in->lock);
    if (r->id == id && id != 0) {
        atomic_fetch_or(&r->cancel_mask, choice < 0 ? UINT32_MAX : 1u << (choice % 32));
        atomic_store(&in->has_cancels, true);
        pthread_cond_signal(&in->has_mail);
    }
    pthread_mutex_unlock(&in->lock);
}

void engine_drain(struct engine *e) {
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.is_draining = true;
    pthread_mutex_unlock(&e->inbox.lock);
}

bool engine_inbox_receive(struct engine *e, bool idle) {
    struct inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    while (idle && in->first < 0 && !in->is_stopping && !atomic_load(&in->has_cancels))
        pthread_cond_wait(&in->has_mail, &in->lock);
    int32_t first = in->first;
    bool is_stopping = in->is_stopping;
    in->first = in->last = -1;
    pthread_mutex_unlock(&in->lock);
    while (first >= 0) {
        int32_t next = e->store.requests[first].next;
        scheduler_enqueue(&e->scheduler, first);
        first = next;
    }
    return !is_stopping;
}

void engine_inbox_free(struct engine *e, int32_t request) {
    struct inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    e->store.requests[request].id = 0;
    e->store.requests[request].is_known = false;
    /* A cancel that came with the last token must not be waited for. */
    atomic_store(&e->store.requests[request].cancel_mask, 0);
    e->store.requests[request].next = in->first_free;
    in->first_free = request;
    pthread_mutex_unlock(&in->lock);
}
