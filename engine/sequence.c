#include "engine/sequence.h"

#include "engine/base/checked.h"

static int blocks_of_context(const struct engine_options *o) {
    return (o->max_context + o->block_tokens - 1) / o->block_tokens;
}

int request_slots(const struct engine_options *o) { return o->max_seqs + o->max_queue; }

size_t sequence_store_bytes(const struct engine_options *o) {
    size_t tokens = round_up((size_t)o->max_context * sizeof(int32_t), 64);
    size_t seqs = (size_t)o->max_seqs, requests = (size_t)request_slots(o);
    return round_up(seqs * sizeof(struct sequence), 64) + round_up(requests * sizeof(struct request), 64) +
           (seqs + requests) * tokens;
}

size_t block_table_bytes(const struct engine_options *o) {
    return (size_t)o->max_seqs * round_up((size_t)blocks_of_context(o) * sizeof(int32_t), 64);
}

void sequence_store_init(struct sequence_store *s, const struct engine_options *o, struct ledger *ledger) {
    size_t token_bytes = (size_t)o->max_context * sizeof(int32_t);
    *s = (struct sequence_store){.max_seqs = o->max_seqs,
                                 .n_requests = request_slots(o),
                                 .max_context = o->max_context,
                                 .max_blocks = blocks_of_context(o)};
    s->sequences = ledger_alloc(ledger, LINE_SEQUENCES, (size_t)s->max_seqs * sizeof *s->sequences);
    s->requests = ledger_alloc(ledger, LINE_SEQUENCES, (size_t)s->n_requests * sizeof *s->requests);
    for (int i = 0; i < s->max_seqs; i++) {
        s->sequences[i].request = -1;
        s->sequences[i].tokens = ledger_alloc(ledger, LINE_SEQUENCES, token_bytes);
        s->sequences[i].blocks = ledger_alloc(ledger, LINE_KV_TABLES, (size_t)s->max_blocks * sizeof(int32_t));
    }
    for (int i = 0; i < s->n_requests; i++) s->requests[i].prompt = ledger_alloc(ledger, LINE_SEQUENCES, token_bytes);
}
