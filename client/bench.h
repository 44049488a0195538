/* tally bench: load on any server that speaks the OpenAI completions API, and what came of it.
 *
 * Definitions (printed in the JSON too):
 *   sent      when the request was handed to the network; in the open loop latencies count from when it was *scheduled*, so that a
 *             late client or a full concurrency limit does not flatter the server (coordinated omission)
 *   TTFT      to the first chunk that carries text
 *   ITL       gaps between chunks that carry text
 *   TPOT      (end-to-end latency − TTFT) / (output tokens − 1), requests with at least 2 output tokens
 *   E2E       to the end of the answer
 *   tokens    from the server's `usage`; chunks are counted where a server gives none, and the report says so */
#pragma once

/* The subcommand; argv[0] is its name. Exit code: 0; 1 when any request failed; 2 for bad usage or a server that cannot be asked. */
int bench_main(int argc, char **argv);
