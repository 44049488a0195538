/* The program's subcommands. Each is called with argv[0] = its own name and gives the process's exit code:
 * 0 done; 1 failed at run time; 2 bad usage, configuration or model file, with one line on stderr. */
#pragma once

#include <stdint.h>

#include "engine/engine.h"
#include "server/config.h"
#include "server/server.h"

enum { EXIT_DONE, EXIT_FAILED, EXIT_USAGE };

int cmd_serve(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_bench(int argc, char **argv);

/* clock_us() when main began. */
extern int64_t program_start_us;

/* Loads the configuration for `serve` or `plan`, and answers --help and --print-config. *exit_code is set when the command is over
 * already (then false is returned and nothing is left to free). */
bool command_config(struct config *c, int argc, char **argv, const char *usage, int *exit_code);
struct server_options command_server_options(const struct config *c);
/* With what the HTTP server wants planned. */
struct engine_options command_engine_options(const struct config *c);
/* Prints one line, "tally: text", and gives the exit code of an error. An error of the model's file is preceded by `model`, its path,
 * when that is given. */
int command_refuse(const struct err *err, const char *model);
