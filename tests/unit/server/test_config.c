/* The server's configuration: each source, their order, and what every bad value is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/config.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
static char *no_environment[] = {NULL};

static enum status load(struct config *c, char *const *environment, struct err *err, const char *const *flags) {
    char *argv[32];
    int argc = 0;
    argv[argc++] = (char[]){"serve"};
    for (; *flags; flags++) argv[argc++] = (char *)(uintptr_t)*flags;
    argv[argc] = NULL;
    memset(err, 0, sizeof *err);
    return config_load(c, argc, argv, environment, err);
}
#define LOAD(c, environment, err, ...) load(c, environment, err, (const char *const[]){__VA_ARGS__ NULL})

/* A YAML file with `text`; the caller unlinks it. */
static void write_file(char path[32], const char *text) {
    strcpy(path, "/tmp/tally_config_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void defaults_are_those_of_the_table(void **state) {
    struct config c;
    struct err err;
    assert_int_equal(LOAD(&c, no_environment, &err, ), STATUS_OK);
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8000);
    assert_int_equal(c.threads, 0);
    assert_int_equal(c.memory_budget, 0);
    assert_int_equal(c.max_seqs, 16);
    assert_int_equal(c.max_batch_tokens, 0);
    assert_int_equal(c.max_queue, 128);
    assert_int_equal(c.block_tokens, 16);
    assert_int_equal(c.max_body, 1 << 20);
    assert_int_equal(c.activations, 0);
    assert_int_equal(c.log_level, LOG_INFO);
    assert_false(c.allow_remote);
    for (int i = 0; i < CONFIG_COUNT; i++) assert_int_equal(c.sources[i], SOURCE_DEFAULT);
    config_free(&c);
}

static void a_later_source_wins_and_is_named(void **state) {
    struct config c;
    struct err err;
    char path[32], from_file[64];
    char *environment[] = {(char[]){"PATH=/bin"}, (char[]){"TALLY_MAX_SEQS=3"}, (char[]){"TALLY_MAX_QUEUE=30"}, from_file,
                           NULL};
    write_file(path, "max_seqs: 2\nmax_queue: 20\nmax_batch_tokens: 200\nmodel: from-file.gguf\n");
    snprintf(from_file, sizeof from_file, "TALLY_CONFIG=%s", path);
    assert_int_equal(LOAD(&c, environment, &err, "--max-seqs", "4", ), STATUS_OK);
    assert_int_equal(c.max_seqs, 4);
    assert_int_equal(c.max_queue, 30);
    assert_int_equal(c.max_batch_tokens, 200);
    assert_string_equal(c.model, "from-file.gguf");
    assert_int_equal(c.sources[CONFIG_max_seqs], SOURCE_FLAG);
    assert_int_equal(c.sources[CONFIG_max_queue], SOURCE_ENVIRONMENT);
    assert_int_equal(c.sources[CONFIG_max_batch_tokens], SOURCE_FILE);
    assert_int_equal(c.sources[CONFIG_port], SOURCE_DEFAULT);
    config_free(&c);
    unlink(path);
}

static void the_flag_names_another_file_than_the_environment(void **state) {
    struct config c;
    struct err err;
    char path[32];
    char *environment[] = {(char[]){"TALLY_CONFIG=/nonexistent.yaml"}, NULL};
    write_file(path, "max_seqs: 7\n");
    assert_int_equal(LOAD(&c, environment, &err, "--config", path, ), STATUS_OK);
    assert_int_equal(c.max_seqs, 7);
    config_free(&c);
    unlink(path);
    assert_int_equal(LOAD(&c, environment, &err, ), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent.yaml"));
    config_free(&c);
}

static void flags_take_both_spellings_and_a_model_operand(void **state) {
    struct config c;
    struct err err;
    assert_int_equal(LOAD(&c, no_environment, &err, "m.gguf", "--max-seqs=5", "--memory-budget", "1.5GiB", "--activations",
                          "f32", "--allow-remote", "--host", "0.0.0.0", "--threads", "auto", "--no-vllm-metric-names", ),
                     STATUS_OK);
    assert_string_equal(c.model, "m.gguf");
    assert_int_equal(c.max_seqs, 5);
    assert_int_equal(c.memory_budget, 3LL << 29);
    assert_int_equal(c.activations, 1);
    assert_true(c.allow_remote);
    assert_false(c.vllm_metric_names);
    struct engine_options options = config_engine_options(&c);
    assert_true(options.activations_f32);
    assert_int_equal(options.max_seqs, 5);
    assert_int_equal(options.memory_budget, 3LL << 29);
    config_free(&c);
}

static void sizes_have_binary_suffixes(void **state) {
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"0", 0},          {"1048576", 1048576},   {"1K", 1024},        {"1KiB", 1024},
        {"3M", 3 << 20},   {"20GiB", 20LL << 30},  {"1.5G", 3LL << 29}, {"0.001K", 1},
        {"1T", 1LL << 40}, {"8192TiB", 1LL << 53}, {"12B", 12},
    };
    static const char *const bad[] = {
        "",    "K",       "1KB",  "1kib", "-1", " 1", "1 ", "1.5.5", "0x10", "9000TiB", "99999999999999999999999",
        "1e3", "1.2345G", "GiB1", "auto"};
    for (int i = 0; i < COUNT(good); i++) {
        int64_t bytes = -1;
        assert_true(bytes_parse(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        int64_t bytes;
        if (bytes_parse(bad[i], &bytes)) fail_msg("\"%s\" was taken as %lld", bad[i], (long long)bytes);
    }
}

/* Every bad value, through every source: the error names the option and what is allowed. */
static void a_bad_value_names_option_source_and_range(void **state) {
    static const struct {
        const char *option, *value, *allowed;
    } bad[] = {
        {"port", "65536", "0 to 65535"},
        {"port", "-1", "0 to 65535"},
        {"port", "http", "0 to 65535"},
        {"port", "", "0 to 65535"},
        {"port", "80 ", "0 to 65535"},
        {"port", " 80", "0 to 65535"},
        {"port", "8e1", "0 to 65535"},
        {"port", "0x50", "0 to 65535"},
        {"port", "99999999999999999999", "0 to 65535"},
        {"port", "auto", "0 to 65535"},
        {"threads", "0", "1 to 256, or auto"},
        {"threads", "257", "1 to 256, or auto"},
        {"memory_budget", "1KiB", "1MiB to 1024TiB"},
        {"memory_budget", "20GB", "suffixes K, KiB"},
        {"memory_budget", "-1", "or auto"},
        {"max_context", "1", "2 to 16777216, or auto"},
        {"max_seqs", "0", "1 to 1024"},
        {"max_seqs", "auto", "1 to 1024"},
        {"max_batch_tokens", "0", "1 to 65536, or auto"},
        {"max_queue", "-1", "0 to 65536"},
        {"block_tokens", "8", "16 to 256"},
        {"block_tokens", "24", "multiples of 16"},
        {"activations", "int4", "int8 or f32"},
        {"activations", "", "int8 or f32"},
        {"activations", "int", "int8 or f32"},
        {"max_body", "1", "1KiB to 1GiB"},
        {"max_connections", "0", "1 to 65536"},
        {"prep_threads", "65", "1 to 64"},
        {"drain_timeout", "3601", "0 to 3600"},
        {"log_level", "loud", "error or warn or info or debug"},
        {"allow_remote", "maybe", "true or false"},
        {"host", "example.org", "IPv4 and IPv6 addresses"},
        {"host", "0.0.0.0", "--allow-remote"},
        {"host", "::", "--allow-remote"},
        {"host", "192.168.1.1", "--allow-remote"},
        {"request_memory", "1K", "1MiB to"},
        {"header_timeout", "0", "1 to 3600"},
        {"idle_timeout", "0", "1 to 86400"},
    };
    for (int i = 0; i < COUNT(bad); i++)
        for (enum option_source source = SOURCE_FILE; source <= SOURCE_FLAG; source++) {
            struct config c;
            struct err err;
            char flag[128], variable[128], text[128], path[32] = "";
            char *environment[] = {source == SOURCE_ENVIRONMENT ? variable : NULL, NULL};
            snprintf(flag, sizeof flag, "--%s=%s", bad[i].option, bad[i].value);
            snprintf(variable, sizeof variable, "TALLY_%s=%s", bad[i].option, bad[i].value);
            for (char *p = variable; *p != '='; p++)
                if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 32);
            snprintf(text, sizeof text, "%s: \"%s\"\n", bad[i].option, bad[i].value);
            write_file(path, text);
            enum status status = source == SOURCE_FLAG   ? LOAD(&c, environment, &err, flag, )
                                 : source == SOURCE_FILE ? LOAD(&c, environment, &err, "--config", path, )
                                                         : LOAD(&c, environment, &err, );
            unlink(path);
            config_free(&c);
            if (status != STATUS_INVALID) fail_msg("%s from %s was taken", flag, option_source_text(source));
            assert_string_equal(err.param, bad[i].option);
            if (!strstr(err.text, bad[i].allowed)) fail_msg("%s: \"%s\" does not say \"%s\"", flag, err.text, bad[i].allowed);
            const char *named = source == SOURCE_FILE ? path : source == SOURCE_ENVIRONMENT ? "environment" : "--";
            if (!strstr(err.text, named) && !strstr(err.text, option_source_text(source)))
                fail_msg("\"%s\" does not name its source %s", err.text, option_source_text(source));
        }
}

static void an_unknown_flag_is_refused_with_the_nearest(void **state) {
    struct config c;
    struct err err;
    assert_int_equal(LOAD(&c, no_environment, &err, "--max-seq", "3", ), STATUS_INVALID);
    assert_non_null(strstr(err.text, "--max-seq: "));
    assert_non_null(strstr(err.text, "did you mean --max-seqs?"));
    config_free(&c);
    static const char *const bad[][3] = {{"--zzzzzzzzzzz"}, {"-p", "80"},   {"--no-port"},           {"a.gguf", "b.gguf"},
                                         {"--=3"},          {"--max-seqs"}, {"--json"} /* plan's */, {"--no-no-allow-remote"}};
    for (int i = 0; i < COUNT(bad); i++) {
        assert_int_equal(LOAD(&c, no_environment, &err, bad[i][0], bad[i][1], ), STATUS_INVALID);
        assert_true(strlen(err.text) > 10);
        config_free(&c);
    }
}

static void a_hostile_file_is_an_error_that_names_it(void **state) {
    static const struct {
        const char *text, *says;
    } files[] = {
        {"max_seq: 3\n", "Unexpected key: max_seq in mapping (line: 1, column: 1); allowed are model"},
        {"max_seqs: [3]\n", "max_seqs"},
        {"max_seqs: {a: 1}\n", "max_seqs"},
        {"max_seqs: 3\nmax_seqs: 4\n", "max_seqs"},
        {"- 1\n", "MAPPING"},
        {"plain\n", ""},
        {"a: b: c\n", "line"},
        {"model: &a x\nhost: *a\n", "alias"},
        {"max_seqs:\n", "1 to 1024"},
        {"max_seqs: null\n", "1 to 1024"},
        {"Max_Seqs: 3\n", "allowed are"},
        {"\"model: x\n", "unexpected end"},
        {"config: other.yaml\n", "allowed are"},
        {"json: true\n", "allowed are"},
    };
    for (int i = 0; i < COUNT(files); i++) {
        struct config c = {0};
        struct err err;
        char path[32];
        write_file(path, files[i].text);
        if (LOAD(&c, no_environment, &err, "--config", path, ) != STATUS_INVALID) fail_msg("taken: %s", files[i].text);
        assert_non_null(strstr(err.text, path));
        if (!strstr(err.text, files[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", files[i].text, err.text, files[i].says);
        config_free(&c);
        unlink(path);
    }
}

static void an_empty_file_and_one_of_comments_change_nothing(void **state) {
    static const char *const texts[] = {"", "# nothing\n", "---\n{}\n"};
    for (int i = 0; i < COUNT(texts); i++) {
        struct config c;
        struct err err;
        char path[32];
        write_file(path, texts[i]);
        if (LOAD(&c, no_environment, &err, "--config", path, )) fail_msg("%s", err.text);
        assert_int_equal(c.max_seqs, 16);
        config_free(&c);
        unlink(path);
    }
}

static void a_file_that_cannot_be_read_is_an_error(void **state) {
    struct config c;
    struct err err;
    assert_int_equal(LOAD(&c, no_environment, &err, "--config", "/nonexistent/tally.yaml", ), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/tally.yaml"));
    config_free(&c);
    assert_int_equal(LOAD(&c, no_environment, &err, "--config", "/", ), STATUS_IO);
    config_free(&c);
}

static void kubernetes_service_links_are_explained(void **state) {
    struct config c;
    struct err err;
    char *environment[] = {(char[]){"TALLY_PORT=tcp://10.0.0.1:8000"}, NULL};
    assert_int_equal(LOAD(&c, environment, &err, ), STATUS_INVALID);
    assert_non_null(strstr(err.text, "enableServiceLinks"));
    config_free(&c);
}

static void an_unknown_variable_is_no_error(void **state) {
    struct config c;
    struct err err;
    char *environment[] = {(char[]){"TALLY_ISA=plain"}, (char[]){"TALLY_=1"}, (char[]){"TALLYMAX_SEQS=1"},
                           (char[]){"TALLY_MAX_SEQ=1"}, NULL};
    log_set_level(LOG_ERROR);
    assert_int_equal(LOAD(&c, environment, &err, ), STATUS_OK);
    assert_int_equal(c.max_seqs, 16);
    config_free(&c);
}

static void loopback_is_known(void **state) {
    assert_true(config_host_is_loopback("127.0.0.1"));
    assert_true(config_host_is_loopback("127.1.2.3"));
    assert_true(config_host_is_loopback("::1"));
    assert_true(config_host_is_loopback("localhost"));
    assert_false(config_host_is_loopback("0.0.0.0"));
    assert_false(config_host_is_loopback("::"));
    assert_false(config_host_is_loopback("::2"));
    assert_false(config_host_is_loopback("10.0.0.1"));
    assert_false(config_host_is_loopback("localhost.example.org"));
}

/* What is printed is a file that gives the same configuration again. */
static void the_printout_is_a_file_that_says_the_same(void **state) {
    struct config c, again;
    struct err err;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(LOAD(&c, no_environment, &err, "--max-seqs", "5", "--memory-budget", "3MiB", "--model", "a \"b\\c.gguf",
                          "--activations", "f32", ),
                     STATUS_OK);
    FILE *out = open_memstream(&text, &n);
    config_print(&c, out);
    fclose(out);
    assert_non_null(strstr(text, "# flag"));
    assert_int_equal(LOAD(&again, no_environment, &err, ), STATUS_OK);
    if (config_from_yaml(&again, "printed", text, n, &err)) fail_msg("%s\n%s", err.text, text);
    assert_string_equal(again.model, c.model);
    assert_int_equal(again.max_seqs, 5);
    assert_int_equal(again.memory_budget, 3 << 20);
    assert_int_equal(again.activations, 1);
    config_free(&again);
    config_free(&c);
    free(text);
}

/* configs/tally.yaml has every key, with the default as its value. */
static void the_example_file_has_every_key_at_its_default(void **state) {
    struct config c;
    struct err err;
    if (LOAD(&c, no_environment, &err, "--config", TALLY_SOURCE_DIR "/configs/tally.yaml", )) fail_msg("%s", err.text);
    struct config defaults;
    assert_int_equal(LOAD(&defaults, no_environment, &err, ), STATUS_OK);
    struct option_table t = config_table(&c), d = config_table(&defaults);
    for (int i = 0; i < CONFIG_COUNT; i++) {
        char value[256], expected[256];
        if (c.sources[i] != SOURCE_FILE) fail_msg("configs/tally.yaml lacks %s", t.options[i].name);
        option_format(&t, &t.options[i], value, sizeof value);
        option_format(&d, &d.options[i], expected, sizeof expected);
        if (i != CONFIG_model) assert_string_equal(value, expected);
    }
    config_free(&c);
    config_free(&defaults);
}

static void help_names_every_option_with_its_default(void **state) {
    struct config c;
    struct option_table t = config_table(&c);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    config_print_help("plan", out);
    fclose(out);
    for (int i = 0; i < t.n; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "  --%s", t.options[i].name);
        for (char *p = flag; *p; p++)
            if (*p == '_') *p = '-';
        if (!strstr(text, flag)) fail_msg("help lacks %s", flag);
    }
    for (char *line = text; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 110);
    free(text);
    struct err err;
    assert_int_equal(LOAD(&c, no_environment, &err, "--nonsense", "--help", ), STATUS_OK);
    assert_true(c.want_help);
    config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(a_later_source_wins_and_is_named),
        cmocka_unit_test(the_flag_names_another_file_than_the_environment),
        cmocka_unit_test(flags_take_both_spellings_and_a_model_operand),
        cmocka_unit_test(sizes_have_binary_suffixes),
        cmocka_unit_test(a_bad_value_names_option_source_and_range),
        cmocka_unit_test(an_unknown_flag_is_refused_with_the_nearest),
        cmocka_unit_test(a_hostile_file_is_an_error_that_names_it),
        cmocka_unit_test(an_empty_file_and_one_of_comments_change_nothing),
        cmocka_unit_test(a_file_that_cannot_be_read_is_an_error),
        cmocka_unit_test(kubernetes_service_links_are_explained),
        cmocka_unit_test(an_unknown_variable_is_no_error),
        cmocka_unit_test(loopback_is_known),
        cmocka_unit_test(the_printout_is_a_file_that_says_the_same),
        cmocka_unit_test(the_example_file_has_every_key_at_its_default),
        cmocka_unit_test(help_names_every_option_with_its_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
