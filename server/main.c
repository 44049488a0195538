/* The program: one binary, a subcommand for each thing it does.
 *
 * What must happen before any thread exists happens here: the hash seed of the JSON library, and no setlocale, so that numbers are
 * written with a point everywhere. */
#include <jansson.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/commands.h"
#include "server/eval.h"

int64_t program_start_us;

static int cmd_version(int argc, char **argv) {
    puts("tally " TALLY_VERSION);
    return EXIT_DONE;
}

static int cmd_help(int argc, char **argv);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"serve", cmd_serve, "serve a model over an OpenAI-style HTTP API"},
    {"plan", cmd_plan, "print every byte that serving a model would take, without loading it"},
    {"bench", cmd_bench, "measure a server: latency, throughput, failures"},
    {"eval", cmd_eval, "measure a model's quality: perplexity, KL divergence"},
    {"version", cmd_version, "print the version"},
    {"help", cmd_help, "print this, or the help of a command"},
};

static const struct command *find(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static void print_usage(FILE *out) {
    fputs("usage: tally COMMAND [options]\n\nTally " TALLY_VERSION ", an LLM inference server with an exact memory ledger.\n\n",
          out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\ntally COMMAND --help prints a command's options.\n"
          "Exit code: 0 done, 1 failed at run time, 2 bad usage, configuration or model file.\n",
          out);
}

static int unknown(const char *name) {
    fprintf(stderr, "tally: %.80s: unknown command; allowed are", name);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) fprintf(stderr, " %s", commands[i].name);
    fputc('\n', stderr);
    return EXIT_USAGE;
}

static int cmd_help(int argc, char **argv) {
    char flag[] = "--help";
    if (argc < 2) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    const struct command *command = find(argv[1]);
    if (!command) return unknown(argv[1]);
    if (command->run == cmd_help || command->run == cmd_version) return cmd_help(1, argv);
    return command->run(2, (char *[]){argv[1], flag, NULL});
}

int main(int argc, char **argv) {
    program_start_us = clock_us();
    json_object_seed(0);
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return cmd_help(1, argv);
    if (strcmp(argv[1], "--version") == 0) return cmd_version(1, argv);
    const struct command *command = find(argv[1]);
    return command ? command->run(argc - 1, argv + 1) : unknown(argv[1]);
}
