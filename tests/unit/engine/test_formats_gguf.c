/* One test for each rule that opens or refuses a GGUF file. Each builds a good file but for the one thing under test. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "engine/formats_gguf.h"
#include "tests/unit/engine/gguf_writer.h"

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS_FEATURE(address_sanitizer) ||                         \
    HAS_FEATURE(thread_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static struct gguf_writer w;
static struct err err;
static struct gguf *g;

static int fresh(void **state) {
    gw_init(&w);
    memset(&err, 0, sizeof err);
    g = NULL;
    return 0;
}

static int clean(void **state) {
    gguf_close(g);
    gw_free(&w);
    return 0;
}

static enum status open_bytes(const void *data, size_t n) {
    char path[64];
    gw_temp_bytes(data, n, path);
    enum status status = gguf_open(&g, path, &err);
    unlink(path);
    return status;
}

static enum status open_it(void) {
    gw_build(&w);
    return open_bytes(w.file.data, w.file.n);
}

static void assert_opens(void) {
    if (open_it()) fail_msg("%s", err.text);
}

/* The file is refused, and the message names what is wrong and with what. */
static void assert_refused(enum status status, const char *param, const char *text) {
    assert_int_equal(open_it(), status);
    assert_null(g);
    assert_int_equal(err.status, status);
    if (strcmp(err.param, param)) fail_msg("param is \"%s\", expected \"%s\" (%s)", err.param, param, err.text);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_non_null(strstr(err.text, param));
}

static const int64_t ne4[] = {32, 2, 2, 2};

static void add_small_tensor(const char *name) { gw_tensor(&w, name, GGML_F32, 1, (int64_t[]){4}, (float[]){1, 2, 3, 4}); }

/* --- good files --- */

static void test_a_file_of_every_value_type_reads_back(void **state) {
    gw_value(&w, "u8", 0, &(uint8_t){200}, 1);
    gw_value(&w, "i8", 1, &(int8_t){100}, 1);
    gw_value(&w, "u16", 2, &(uint16_t){60000}, 2);
    gw_value(&w, "i16", 3, &(int16_t){30000}, 2);
    gw_u32(&w, "u32", UINT32_MAX);
    gw_i32(&w, "i32", 7);
    gw_f32(&w, "f32", 0.5f);
    gw_bool(&w, "yes", 1);
    gw_bool(&w, "no", 0);
    gw_text(&w, "text", "hello");
    gw_text(&w, "empty", "");
    gw_u64(&w, "u64", 5000000);
    gw_i64(&w, "i64", 6);
    gw_f64(&w, "f64", 0.25);
    assert_opens();
    const struct {
        const char *key;
        uint32_t value;
    } integers[] = {{"u8", 200},         {"i8", 100}, {"u16", 60000},   {"i16", 30000},
                    {"u32", UINT32_MAX}, {"i32", 7},  {"u64", 5000000}, {"i64", 6}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        uint32_t v = 0;
        assert_int_equal(gguf_u32(g, integers[i].key, &v, &err), 1);
        assert_int_equal(v, integers[i].value);
    }
    float f;
    bool b;
    struct text_view t;
    assert_int_equal(gguf_f32(g, "f32", &f, &err), 1);
    assert_true(f == 0.5f);
    assert_int_equal(gguf_f32(g, "f64", &f, &err), 1);
    assert_true(f == 0.25f);
    assert_int_equal(gguf_bool(g, "yes", &b, &err), 1);
    assert_true(b);
    assert_int_equal(gguf_bool(g, "no", &b, &err), 1);
    assert_false(b);
    assert_int_equal(gguf_text(g, "text", &t, &err), 1);
    assert_int_equal(t.n, 5);
    assert_memory_equal(t.data, "hello", 5);
    assert_int_equal(gguf_text(g, "empty", &t, &err), 1);
    assert_int_equal(t.n, 0);
}

static void test_arrays_read_back(void **state) {
    const char *const texts[] = {"a", "", "ccc"};
    gw_text_array(&w, "texts", texts, 3);
    gw_f32_array(&w, "floats", (float[]){1, -2}, 2);
    gw_i32_array(&w, "ints", (int32_t[]){INT32_MIN, 9}, 2);
    gw_array(&w, "none", 4, 0);
    assert_opens();
    uint64_t n;
    struct text_view t[3];
    float f[2];
    int32_t i[2];
    assert_int_equal(gguf_array_count(g, "texts", &n, &err), 1);
    assert_int_equal(n, 3);
    assert_int_equal(gguf_text_array(g, "texts", t, 3, &err), 1);
    assert_int_equal(t[1].n, 0);
    assert_memory_equal(t[2].data, "ccc", 3);
    assert_int_equal(gguf_f32_array(g, "floats", f, 2, &err), 1);
    assert_true(f[1] == -2);
    assert_int_equal(gguf_f32_array(g, "ints", f, 2, &err), 1);
    assert_true(f[1] == 9);
    assert_int_equal(gguf_i32_array(g, "ints", i, 2, &err), 1);
    assert_int_equal(i[0], INT32_MIN);
    assert_int_equal(gguf_array_count(g, "none", &n, &err), 1);
    assert_int_equal(n, 0);
}

static void test_tensors_read_back_in_the_files_order(void **state) {
    add_small_tensor("z.weight");
    gw_tensor(&w, "a.weight", GGML_Q4_0, 4, ne4, NULL);
    gw_tensor(&w, "b", GGML_BF16, 2, (int64_t[]){3, 5}, NULL);
    assert_opens();
    assert_int_equal(gguf_n_tensors(g), 3);
    assert_null(gguf_tensor_at(g, 3));
    const struct gguf_tensor *t = gguf_tensor_at(g, 0);
    assert_int_equal(t->name.n, 8);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->ne[0], 4);
    assert_int_equal(t->ne[1] * t->ne[2] * t->ne[3], 1);
    float third;
    memcpy(&third, (const char *)t->data + 8, 4);
    assert_true(third == 3);
    t = gguf_tensor_find(g, "a.weight");
    assert_ptr_equal(t, gguf_tensor_at(g, 1));
    assert_int_equal(t->bytes, 8 * 18);
    assert_int_equal(gguf_tensor_find(g, "b")->bytes, 30);
    assert_null(gguf_tensor_find(g, "c"));
    assert_null(gguf_tensor_find(g, "a.weigh"));
    assert_null(gguf_tensor_find(g, ""));
    assert_int_equal(gguf_data_offset(g) % 32, 0);
    assert_int_equal(gguf_file_bytes(g), w.file.n);
}

static void test_dropped_pages_come_back(void **state) {
    static float data[8192];
    for (int i = 0; i < 8192; i++) data[i] = (float)i;
    gw_tensor(&w, "big", GGML_F32, 1, (int64_t[]){8192}, data);
    add_small_tensor("next");
    assert_opens();
    gguf_tensor_drop(g, gguf_tensor_find(g, "big"));
    assert_memory_equal(gguf_tensor_find(g, "big")->data, data, sizeof data);
    assert_memory_equal(gguf_tensor_find(g, "next")->data, ((float[]){1, 2, 3, 4}), 16);
}

static void test_version_2_is_read(void **state) {
    w.version = 2;
    gw_u32(&w, "k", 3);
    assert_opens();
}

static void test_other_alignments_are_read(void **state) {
    const uint32_t alignments[] = {1, 2, 64, 4096};
    for (int i = 0; i < 4; i++) {
        gw_init(&w);
        w.alignment = alignments[i];
        gw_u32(&w, "general.alignment", alignments[i]);
        gw_tensor(&w, "odd", GGML_F16, 1, (int64_t[]){3}, NULL);
        add_small_tensor("t");
        assert_opens();
        float first;
        memcpy(&first, gguf_tensor_find(g, "t")->data, 4); /* may be unaligned */
        assert_true(first == 1);
        gguf_close(g);
        gw_free(&w);
    }
    g = NULL;
}

static void test_a_file_without_tensors_needs_no_padding(void **state) {
    gw_text(&w, "k", "v");
    assert_opens();
    assert_int_equal(gguf_n_tensors(g), 0);
    assert_true(gguf_data_offset(g) <= gguf_file_bytes(g));
}

static void test_an_error_may_be_unwanted(void **state) {
    assert_int_equal(gguf_open(&g, "/nonexistent/x.gguf", NULL), STATUS_IO);
    gw_text(&w, "k", "v");
    assert_opens();
    assert_int_equal(gguf_u32(g, "k", &(uint32_t){0}, NULL), -1);
}

/* --- not a file --- */

static void test_a_missing_file_is_named(void **state) {
    assert_int_equal(gguf_open(&g, "/nonexistent/model.gguf", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "model.gguf"));
    assert_non_null(strstr(err.text, "No such file"));
}

static void test_a_folder_and_a_fifo_are_refused(void **state) {
    assert_int_equal(gguf_open(&g, "/tmp", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "regular file"));
    char path[64];
    gw_temp_bytes("", 0, path);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gguf_open(&g, path, &err), STATUS_IO); /* and does not wait for a writer */
    unlink(path);
}

static void test_an_empty_file_is_refused(void **state) {
    assert_int_equal(open_bytes("", 0), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "empty"));
}

/* --- header --- */

static void test_wrong_magic(void **state) {
    gw_build(&w);
    w.file.data[3] = 'f';
    assert_int_equal(open_bytes(w.file.data, w.file.n), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "magic"));
}

static void test_versions_other_than_2_and_3(void **state) {
    const uint32_t versions[] = {0, 1, 4, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        w.version = versions[i];
        assert_refused(STATUS_UNSUPPORTED, "header", "allowed are 2 and 3");
    }
}

static void test_big_endian_files(void **state) {
    w.version = 0x03000000;
    assert_refused(STATUS_UNSUPPORTED, "header", "big-endian");
}

static void test_counts_beyond_the_file(void **state) {
    const int64_t lies[] = {2, 1000, INT64_MAX, -2}; /* one key is there; -2: all ones but the last bit */
    gw_u32(&w, "k", 1);
    for (int i = 0; i < 4; i++) {
        w.extra_kv = lies[i];
        w.extra_tensors = 0;
        assert_int_equal(open_it(), STATUS_CORRUPT);
        w.extra_kv = 0;
        w.extra_tensors = lies[i];
        assert_int_equal(open_it(), STATUS_CORRUPT);
        if (lies[i] != 2) assert_refused(STATUS_CORRUPT, "header", "tensor count");
    }
}

/* Counts that a large file has room for are limited before memory is asked for. */
static void test_counts_have_limits(void **state) {
    char path[64];
    for (int which = 0; which < 2; which++) {
        gw_init(&w);
        if (which) w.extra_kv = 70000000;
        else w.extra_tensors = 30000000;
        gw_temp(&w, path);
        assert_int_equal(truncate(path, (off_t)1 << 30), 0); /* a hole: takes no space */
        assert_int_equal(gguf_open(&g, path, &err), STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "at most"));
        unlink(path);
        gw_free(&w);
    }
}

static void test_a_file_cut_anywhere_is_refused(void **state) {
    gw_u32(&w, "a", 1);
    gw_text(&w, "text", "hello");
    gw_text_array(&w, "texts", (const char *const[]){"x", "yy"}, 2);
    gw_i32_array(&w, "ints", (int32_t[]){1, 2, 3}, 3);
    add_small_tensor("t");
    gw_tensor(&w, "u", GGML_Q8_0, 1, (int64_t[]){32}, NULL);
    gw_build(&w);
    for (size_t n = 0; n < w.file.n; n++) {
        enum status status = open_bytes(w.file.data, n);
        if (status != STATUS_CORRUPT || !err.text[0]) fail_msg("cut to %zu of %zu bytes: %s", n, w.file.n, err.text);
    }
    assert_int_equal(open_bytes(w.file.data, w.file.n), STATUS_OK);
}

/* --- metadata --- */

static void test_an_empty_key(void **state) {
    gw_u32(&w, "", 1);
    assert_refused(STATUS_CORRUPT, "metadata entry 0", "key of 0 bytes");
}

static void test_a_key_past_the_formats_limit(void **state) {
    static char key[65537];
    memset(key, 'k', 65536);
    gw_u32(&w, key, 1);
    assert_refused(STATUS_CORRUPT, "metadata entry 0", "allowed are 1 to 65535");
}

static void test_a_key_twice(void **state) {
    gw_u32(&w, "first", 1);
    gw_u32(&w, "other", 1);
    gw_text(&w, "first", "again");
    assert_refused(STATUS_CORRUPT, "first", "twice");
}

static void test_key_lengths_beyond_the_file(void **state) {
    const uint64_t lies[] = {100000, (uint64_t)1 << 62, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        gw_init(&w);
        gw_put_u64(&w.kv, lies[i]);
        gw_put(&w.kv, NULL, 64);
        w.n_kv = 1;
        assert_refused(STATUS_CORRUPT, "metadata entry 0", "the file ends");
        gw_free(&w);
    }
}

static void test_value_types_that_do_not_exist(void **state) {
    const uint32_t types[] = {13, 77, 0x80000000, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        gw_init(&w);
        gw_value(&w, "odd", types[i], &(uint64_t){0}, 8);
        assert_refused(STATUS_CORRUPT, "odd", "allowed are 0 to 12");
        gw_free(&w);
        gw_array(&w, "odds", types[i], 1);
        gw_put_u64(&w.kv, 0);
        assert_refused(STATUS_CORRUPT, "odds", "allowed are 0 to 12");
        gw_free(&w);
    }
}

static void test_an_array_of_arrays(void **state) {
    gw_array(&w, "nested", 9, 1);
    gw_put(&w.kv, NULL, 64);
    assert_refused(STATUS_UNSUPPORTED, "nested", "array of arrays");
}

static void test_array_lengths_beyond_the_file(void **state) {
    const uint32_t types[] = {0, 5, 8, 12};
    const uint64_t lies[] = {1000, (uint64_t)1 << 61, ((uint64_t)1 << 61) + 1, UINT64_MAX};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 4; i++) {
            gw_init(&w);
            gw_array(&w, "long", types[t], lies[i]);
            gw_put(&w.kv, NULL, 64);
            assert_refused(STATUS_CORRUPT, "long", "values of type");
            gw_free(&w);
        }
}

static void test_text_lengths_beyond_the_file(void **state) {
    gw_key(&w, "text", 8);
    gw_put_u64(&w.kv, UINT64_MAX - 7);
    assert_refused(STATUS_CORRUPT, "text", "the file ends");
    gw_free(&w);
    gw_array(&w, "texts", 8, 2);
    gw_put_text(&w.kv, "good", 4);
    gw_put_u64(&w.kv, 1000);
    assert_refused(STATUS_CORRUPT, "texts", "the file ends");
}

static void test_messages_show_texts_harmlessly(void **state) {
    gw_u32(&w, "bad\n\x1b[31m%s%n", 1);
    gw_u32(&w, "bad\n\x1b[31m%s%n", 1);
    assert_refused(STATUS_CORRUPT, "bad??[31m%s%n", "twice");
    for (const char *c = err.text; *c; c++) assert_true(*c >= ' ' && *c < 127);
}

static void test_alignment_is_a_power_of_two(void **state) {
    const uint32_t bad[] = {0, 3, 33, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        gw_init(&w);
        gw_u32(&w, "general.alignment", bad[i]);
        assert_refused(STATUS_CORRUPT, "general.alignment", "power of two");
        gw_free(&w);
    }
}

static void test_alignment_is_a_u32(void **state) {
    gw_i32(&w, "general.alignment", 32);
    assert_refused(STATUS_CORRUPT, "general.alignment", "must be u32");
    gw_free(&w);
    gw_array(&w, "general.alignment", 4, 0);
    assert_refused(STATUS_CORRUPT, "general.alignment", "must be u32");
}

static void test_an_alignment_past_the_file(void **state) {
    gw_u32(&w, "general.alignment", 0x80000000);
    add_small_tensor("t");
    assert_refused(STATUS_CORRUPT, "header", "ends before its data");
}

static void test_split_models(void **state) {
    gw_value(&w, "split.count", 2, &(uint16_t){3}, 2);
    assert_refused(STATUS_UNSUPPORTED, "split.count", "3 files");
    gw_free(&w);
    gw_text(&w, "split.count", "3");
    assert_refused(STATUS_CORRUPT, "split.count", "must be an integer");
    gw_free(&w);
    gw_init(&w);
    gw_value(&w, "split.count", 2, &(uint16_t){1}, 2);
    assert_opens();
}

/* --- getters --- */

static void test_a_missing_key_leaves_the_value_alone(void **state) {
    gw_u32(&w, "key", 1);
    assert_opens();
    uint32_t u = 5;
    float f = 5;
    bool b = true;
    struct text_view t = {"x", 1};
    uint64_t n = 5;
    assert_int_equal(gguf_u32(g, "keys", &u, &err), 0);
    assert_int_equal(gguf_f32(g, "ke", &f, &err), 0);
    assert_int_equal(gguf_bool(g, "", &b, &err), 0);
    assert_int_equal(gguf_text(g, "a", &t, &err), 0);
    assert_int_equal(gguf_array_count(g, "z", &n, &err), 0);
    assert_int_equal(gguf_text_array(g, "z", &t, 1, &err), 0);
    assert_int_equal(gguf_f32_array(g, "z", &f, 1, &err), 0);
    assert_int_equal(gguf_i32_array(g, "z", (int32_t *)&u, 1, &err), 0);
    assert_true(u == 5 && f == 5 && b && t.n == 1 && n == 5);
    assert_string_equal(err.text, "");
}

static void assert_names(const char *key, int result) {
    assert_int_equal(result, -1);
    assert_string_equal(err.param, key);
    assert_non_null(strstr(err.text, key));
    assert_int_equal(err.status, STATUS_CORRUPT);
    memset(&err, 0, sizeof err);
}

static void test_values_of_another_type_are_named(void **state) {
    gw_text(&w, "text", "5");
    gw_u32(&w, "int", 5);
    gw_f32(&w, "float", 5);
    gw_bool(&w, "bool", 1);
    gw_i32_array(&w, "ints", (int32_t[]){5}, 1);
    gw_text_array(&w, "texts", (const char *const[]){"5"}, 1);
    gw_array(&w, "bools", 7, 1);
    gw_put(&w.kv, "\1", 1);
    assert_opens();
    uint32_t u;
    float f;
    bool b;
    struct text_view t;
    uint64_t n;
    assert_names("text", gguf_u32(g, "text", &u, &err));
    assert_names("float", gguf_u32(g, "float", &u, &err));
    assert_names("bool", gguf_u32(g, "bool", &u, &err));
    assert_names("ints", gguf_u32(g, "ints", &u, &err));
    assert_names("int", gguf_f32(g, "int", &f, &err));
    assert_names("ints", gguf_f32(g, "ints", &f, &err));
    assert_names("int", gguf_bool(g, "int", &b, &err));
    assert_names("bools", gguf_bool(g, "bools", &b, &err));
    assert_names("int", gguf_text(g, "int", &t, &err));
    assert_names("texts", gguf_text(g, "texts", &t, &err));
    assert_names("text", gguf_array_count(g, "text", &n, &err));
    assert_names("ints", gguf_text_array(g, "ints", &t, 1, &err));
    assert_names("texts", gguf_f32_array(g, "texts", &f, 1, &err));
    assert_names("texts", gguf_i32_array(g, "texts", (int32_t *)&u, 1, &err));
    assert_names("bools", gguf_i32_array(g, "bools", (int32_t *)&u, 1, &err));
    assert_names("int", gguf_i32_array(g, "int", (int32_t *)&u, 1, &err));
}

static void test_values_out_of_range_are_named(void **state) {
    gw_i32(&w, "negative", -1);
    gw_u64(&w, "large", (uint64_t)1 << 32);
    gw_u64(&w, "huge", UINT64_MAX);
    gw_f64(&w, "past_f32", 1e300);
    gw_f32(&w, "nan", __builtin_nanf(""));
    gw_f32(&w, "inf", __builtin_inff());
    gw_bool(&w, "two", 2);
    gw_array(&w, "longs", 11, 1);
    gw_put_u64(&w.kv, (uint64_t)1 << 40);
    gw_f32_array(&w, "nans", (float[]){1, __builtin_nanf("")}, 2);
    assert_opens();
    uint32_t u;
    float f, two[2];
    bool b;
    assert_names("negative", gguf_u32(g, "negative", &u, &err));
    assert_names("large", gguf_u32(g, "large", &u, &err));
    assert_names("huge", gguf_u32(g, "huge", &u, &err));
    assert_names("past_f32", gguf_f32(g, "past_f32", &f, &err));
    assert_names("nan", gguf_f32(g, "nan", &f, &err));
    assert_names("inf", gguf_f32(g, "inf", &f, &err));
    assert_names("two", gguf_bool(g, "two", &b, &err));
    assert_names("longs", gguf_i32_array(g, "longs", (int32_t *)&u, 1, &err));
    assert_names("nans", gguf_f32_array(g, "nans", two, 2, &err));
}

static void test_arrays_shorter_than_wanted_are_named(void **state) {
    gw_i32_array(&w, "ints", (int32_t[]){1, 2}, 2);
    gw_text_array(&w, "texts", (const char *const[]){"5"}, 1);
    assert_opens();
    int32_t i[3];
    float f[3];
    struct text_view t[2];
    assert_names("ints", gguf_i32_array(g, "ints", i, 3, &err));
    assert_names("ints", gguf_f32_array(g, "ints", f, 3, &err));
    assert_names("texts", gguf_text_array(g, "texts", t, 2, &err));
}

/* --- tensors --- */

static void test_tensor_names(void **state) {
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    add_small_tensor(name);
    assert_refused(STATUS_CORRUPT, "tensor 0", "allowed are 1 to 63");
    gw_free(&w);
    add_small_tensor("");
    assert_refused(STATUS_CORRUPT, "tensor 0", "allowed are 1 to 63");
    gw_free(&w);
    add_small_tensor(name + 1);
    assert_opens();
}

static void test_a_tensor_name_twice(void **state) {
    add_small_tensor("b");
    add_small_tensor("a");
    add_small_tensor("b");
    assert_refused(STATUS_CORRUPT, "tensor b", "twice");
}

static void test_numbers_of_dimensions(void **state) {
    const uint32_t bad[] = {0, 5, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        gw_init(&w);
        gw_put_text(&w.infos, "t", 1);
        gw_put_u32(&w.infos, bad[i]);
        gw_put(&w.infos, NULL, 64);
        w.n_tensors = 1;
        assert_refused(STATUS_CORRUPT, "tensor t", "allowed are 1 to 4");
        gw_free(&w);
    }
}

static void refuse_shape(uint32_t type, int64_t a, int64_t b, int64_t c, int64_t d, const char *text) {
    gw_init(&w);
    gw_tensor_info(&w, "t", type, 4, (int64_t[]){a, b, c, d}, 0);
    gw_put(&w.data, NULL, 4096);
    assert_refused(STATUS_CORRUPT, "tensor t", text);
    gw_free(&w);
}

static void test_dimensions_out_of_range(void **state) {
    refuse_shape(GGML_F32, 0, 1, 1, 1, "dimension 0 is 0");
    refuse_shape(GGML_F32, 1, 0, 1, 1, "dimension 1 is 0");
    refuse_shape(GGML_F32, 1, 1, 1, -1, "dimension 3 is -1");
    refuse_shape(GGML_F32, (int64_t)1 << 31, 1, 1, 1, "allowed are 1 to 2147483647");
    refuse_shape(GGML_F32, INT64_MIN, 1, 1, 1, "dimension 0");
}

/* llama.cpp issue 27203: (INT64_MAX, 2, 1, 1) passed its check of the element count. */
static void test_products_of_dimensions_that_wrap(void **state) {
    refuse_shape(GGML_F32, INT64_MAX, 2, 1, 1, "dimension 0");
    refuse_shape(GGML_Q4_0, INT64_MAX, 2, 1, 1, "dimension 0");
    refuse_shape(GGML_F32, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, "more elements");
    refuse_shape(GGML_F32, (int64_t)1 << 30, (int64_t)1 << 30, 8, 1, "more bytes");     /* 2^63 elements, 2^65 bytes */
    refuse_shape(GGML_F32, (int64_t)1 << 30, (int64_t)1 << 30, 4, 1, "more bytes");     /* exactly 2^64: 0 after wrapping */
    refuse_shape(GGML_F32, (int64_t)1 << 30, (int64_t)1 << 29, 4, 1, "pass the end");   /* 2^63 bytes */
    refuse_shape(GGML_F16, (int64_t)1 << 30, (int64_t)1 << 30, 16, 1, "more elements"); /* 2^64 elements */
    refuse_shape(GGML_Q4_K, (int64_t)1 << 30, (int64_t)1 << 30, 1 << 10, 1, "more bytes");
}

static void test_rows_that_are_no_whole_blocks(void **state) {
    refuse_shape(GGML_Q4_0, 33, 1, 1, 1, "blocks of 32");
    refuse_shape(GGML_Q8_0, 16, 2, 1, 1, "blocks of 32"); /* 32 in all, but rows are not whole */
    refuse_shape(GGML_Q6_K, 128, 2, 1, 1, "blocks of 256");
}

static void test_types_that_are_not_read_are_named(void **state) {
    const struct {
        uint32_t type;
        const char *name;
    } bad[] = {{10, "Q2_K"},   {11, "Q3_K"},    {9, "Q8_1"},
               {20, "IQ4_NL"}, {39, "MXFP4"},   {26, "I32"},
               {4, "type 4"},  {43, "type 43"}, {UINT32_MAX, "type 4294967295"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gw_init(&w);
        gw_tensor_info(&w, "blk.0.attn_q.weight", bad[i].type, 1, (int64_t[]){256}, 0);
        gw_put(&w.data, NULL, 4096);
        assert_refused(STATUS_UNSUPPORTED, "tensor blk.0.attn_q.weight", bad[i].name);
        assert_non_null(strstr(err.text, "Q4_K, Q5_K and Q6_K"));
        gw_free(&w);
    }
}

static void test_an_unaligned_offset(void **state) {
    gw_tensor_info(&w, "t", GGML_F32, 1, (int64_t[]){4}, 4);
    gw_put(&w.data, NULL, 4096);
    assert_refused(STATUS_CORRUPT, "tensor t", "not a multiple of the alignment 32");
}

static void test_offsets_that_overlap_or_leave_gaps(void **state) {
    const uint64_t offsets[] = {0, 64};
    for (int i = 0; i < 2; i++) {
        gw_init(&w);
        add_small_tensor("a");
        gw_tensor_info(&w, "b", GGML_F32, 1, (int64_t[]){4}, offsets[i]);
        gw_put(&w.data, NULL, 4096);
        assert_refused(STATUS_CORRUPT, "tensor b", "the tensor before it ends at 32");
        gw_free(&w);
    }
}

static void test_offsets_that_wrap(void **state) {
    gw_tensor_info(&w, "t", GGML_F32, 1, (int64_t[]){4}, UINT64_MAX - 31);
    gw_put(&w.data, NULL, 4096);
    assert_refused(STATUS_CORRUPT, "tensor t", "offset 18446744073709551584");
}

/* CVE-2026-7482: an extent past the end of the file. */
static void test_a_tensor_longer_than_the_file(void **state) {
    add_small_tensor("a");
    gw_tensor_info(&w, "b", GGML_F32, 1, (int64_t[]){1000}, 32);
    gw_put(&w.data, NULL, 4000 + 15);
    assert_refused(STATUS_CORRUPT, "tensor b", "pass the end of the file");
    gw_put(&w.data, NULL, 1); /* 16 of a, 16 of padding, 4,000 */
    assert_opens();
}

/* llama.cpp PR 24759: the size of a tensor, padded, wraps to 0. */
static void test_padding_that_wraps(void **state) {
    gw_tensor_info(&w, "t", GGML_F16, 4, (int64_t[]){INT32_MAX, INT32_MAX, 1, 2}, 0); /* near 2^64 bytes */
    gw_tensor_info(&w, "u", GGML_F32, 1, (int64_t[]){4}, 0);
    gw_put(&w.data, NULL, 4096);
    assert_refused(STATUS_CORRUPT, "tensor t", "pass the end of the file");
}

/* A header can't make us hold more than a small multiple of the file: under 64 MB of address space for one of 2 MB. */
static void test_lying_headers_take_little_memory(void **state) {
    if (SANITIZED) {
        print_message("skipped: sanitizers reserve address space of their own\n");
        skip();
    }
    struct rlimit before, low;
    static uint8_t zeros[2000000];
    w.extra_kv = 65536;
    w.extra_tensors = 60000;
    gw_put(&w.data, zeros, sizeof zeros);
    gw_build(&w);
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    getrlimit(RLIMIT_AS, &before);
    low = before;
    low.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + 64000000;
    setrlimit(RLIMIT_AS, &low);
    enum status status = open_bytes(w.file.data, w.file.n);
    setrlimit(RLIMIT_AS, &before);
    assert_int_equal(status, STATUS_CORRUPT); /* and not NO_MEMORY: the first key is empty */
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {
        T(test_a_file_of_every_value_type_reads_back),
        T(test_arrays_read_back),
        T(test_tensors_read_back_in_the_files_order),
        T(test_dropped_pages_come_back),
        T(test_version_2_is_read),
        T(test_other_alignments_are_read),
        T(test_a_file_without_tensors_needs_no_padding),
        T(test_an_error_may_be_unwanted),
        T(test_a_missing_file_is_named),
        T(test_a_folder_and_a_fifo_are_refused),
        T(test_an_empty_file_is_refused),
        T(test_wrong_magic),
        T(test_versions_other_than_2_and_3),
        T(test_big_endian_files),
        T(test_counts_beyond_the_file),
        T(test_counts_have_limits),
        T(test_a_file_cut_anywhere_is_refused),
        T(test_an_empty_key),
        T(test_a_key_past_the_formats_limit),
        T(test_a_key_twice),
        T(test_key_lengths_beyond_the_file),
        T(test_value_types_that_do_not_exist),
        T(test_an_array_of_arrays),
        T(test_array_lengths_beyond_the_file),
        T(test_text_lengths_beyond_the_file),
        T(test_messages_show_texts_harmlessly),
        T(test_alignment_is_a_power_of_two),
        T(test_alignment_is_a_u32),
        T(test_an_alignment_past_the_file),
        T(test_split_models),
        T(test_a_missing_key_leaves_the_value_alone),
        T(test_values_of_another_type_are_named),
        T(test_values_out_of_range_are_named),
        T(test_arrays_shorter_than_wanted_are_named),
        T(test_tensor_names),
        T(test_a_tensor_name_twice),
        T(test_numbers_of_dimensions),
        T(test_dimensions_out_of_range),
        T(test_products_of_dimensions_that_wrap),
        T(test_rows_that_are_no_whole_blocks),
        T(test_types_that_are_not_read_are_named),
        T(test_an_unaligned_offset),
        T(test_offsets_that_overlap_or_leave_gaps),
        T(test_offsets_that_wrap),
        T(test_a_tensor_longer_than_the_file),
        T(test_padding_that_wraps),
        T(test_lying_headers_take_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
