/* tally bench: the client is client/bench.c; this only names it as a subcommand. */
#include "client/bench.h"
#include "server/commands.h"

int cmd_bench(int argc, char **argv) { return bench_main(argc, argv); }
