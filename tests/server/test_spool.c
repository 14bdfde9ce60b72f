/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of the state directory, the figures of past jobs and the allow lists, without a server.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/server/access.h"
#include "daemon/server/figures.h"
#include "daemon/server/spool.h"

struct bench {
    char root[64], dir[96];
    struct spool spool;
};

static int set_up(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    struct kr_err err;
    assert_non_null(b);
    strcpy(b->root, "/tmp/kread-spool-XXXXXX");
    assert_non_null(mkdtemp(b->root));
    snprintf(b->dir, sizeof b->dir, "%s/a/b", b->root);
    assert_int_equal(spool_open(&b->spool, b->dir, &err), 0);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;
    char command[128];
    spool_close(&b->spool);
    spool_close(&b->spool); /* a second time does nothing */
    snprintf(command, sizeof command, "rm -rf %s", b->root);
    assert_int_equal(system(command), 0);
    free(b);
    return 0;
}

static void knows_its_names(void **state)
{
    static const char *const foreign[] = {"",
                                          "1",
                                          "1.png",
                                          "01.job",
                                          "0.job",
                                          "-1.job",
                                          "1.job ",
                                          "1-.png",
                                          "1--1.png",
                                          "1-01.png",
                                          "1-0.png.part",
                                          "1.job.part",
                                          "x.job",
                                          "1.done",
                                          "1.failed.part",
                                          "1-0.PNG",
                                          "+1.job",
                                          "18446744073709551616.job",
                                          "9223372036854775808.job"};
    char name[SPOOL_NAME];
    uint64_t job;
    int64_t index;
    (void)state;
    spool_name(name, 12, SPOOL_RECORD);
    assert_string_equal(name, "12.job");
    assert_true(spool_parse_name(name, &job, &index) && job == 12 && index == -1);
    spool_name(name, INT64_MAX, 63);
    assert_string_equal(name, "9223372036854775807-63.png");
    assert_true(spool_parse_name(name, &job, &index) && job == INT64_MAX && index == 63);
    spool_name(name, 12, SPOOL_FAILED);
    assert_string_equal(name, "12.failed");
    assert_true(spool_parse_name(name, &job, &index) && job == 12 && index == SPOOL_FAILED);
    spool_name(name, 12, SPOOL_CANCELLED);
    assert_string_equal(name, "12.cancelled");
    assert_true(spool_parse_name(name, &job, &index) && job == 12 && index == SPOOL_CANCELLED);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        assert_false(spool_parse_name(foreign[i], &job, &index));
}

static void reads_what_it_wrote(void **state)
{
    struct bench *b = *state;
    struct kr_err err;
    void *data;
    size_t size;
    for (int round = 0; round < 2; round++) {
        const char *text = round ? "shorter" : "the first version";
        assert_int_equal(spool_write(&b->spool, "1.job", text, strlen(text), &err), 0);
        assert_int_equal(spool_read(&b->spool, "1.job", 100, &data, &size, &err), 0);
        assert_int_equal(size, strlen(text));
        assert_memory_equal(data, text, size);
        free(data);
    }
    assert_int_equal(spool_read(&b->spool, "1.job", 6, &data, &size, &err), -1);
    assert_int_equal(err.code, KR_BAD_FILE);
    assert_int_equal(spool_remove(&b->spool, "1.job", &err), 0);
    assert_int_equal(spool_remove(&b->spool, "1.job", &err), 0);
    assert_int_equal(spool_read(&b->spool, "1.job", 100, &data, &size, &err), -1);
    assert_int_equal(err.code, KR_IO);
    assert_null(data);
}

static int seen;

static void each(void *user, const char *name, uint64_t job, int64_t index, size_t size)
{
    (void)user;
    (void)name;
    seen++;
    assert_true(job == 5 && index >= -1 && index <= 1 && size == 1);
}

static void lists_jobs_and_clears_leftovers(void **state)
{
    static const char *const names[] = {"5.job", "5-0.png", "5-1.png", "note", "5-2.png.part"};
    struct bench *b = *state;
    char path[160];
    struct kr_err err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(spool_write(&b->spool, names[i], "x", 1, &err), 0);
    seen = 0;
    assert_int_equal(spool_list(&b->spool, each, NULL, &err), 0);
    assert_int_equal(seen, 3);
    snprintf(path, sizeof path, "%s/jobs/5-2.png.part", b->dir);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/jobs/note", b->dir);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(spool_damaged(&b->spool), 0);
    assert_int_equal(spool_set_aside(&b->spool, "5.job", &err), 0);
    assert_int_equal(spool_write(&b->spool, "5.job", "y", 1, &err), 0);
    assert_int_equal(spool_set_aside(&b->spool, "5.job", &err), 0); /* beside its namesake */
    assert_int_equal(spool_damaged(&b->spool), 2);
    assert_int_equal(spool_set_aside(&b->spool, "6.job", &err), -1);
}

static void keeps_the_number(void **state)
{
    struct bench *b = *state;
    char path[160];
    struct kr_err err;
    uint64_t number = 7;
    assert_int_equal(spool_number(&b->spool, &number, &err), 0);
    assert_true(number == 0);
    assert_int_equal(spool_set_number(&b->spool, 123456789012, &err), 0);
    assert_int_equal(spool_number(&b->spool, &number, &err), 0);
    assert_true(number == 123456789012);
    snprintf(path, sizeof path, "%s/number", b->dir);
    static const char *const bad[] = {"", "12", "x\n", "12\n13\n", "99999999999999999999\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(bad[i], f);
        fclose(f);
        assert_int_equal(spool_number(&b->spool, &number, &err), -1);
        assert_int_equal(err.code, KR_BAD_FILE);
        assert_true(number == 0);
    }
}

static void is_one_daemons(void **state)
{
    struct bench *b = *state;
    struct spool second;
    struct kr_err err;
    assert_int_equal(spool_open(&second, b->dir, &err), -1);
    assert_int_equal(err.code, KR_BUSY);
    assert_non_null(strstr(err.text, b->dir));
    assert_false(spool_is_open(&second));
    spool_close(&b->spool);
    assert_int_equal(spool_open(&second, b->dir, &err), 0);
    spool_close(&second);
    assert_int_equal(spool_open(&second, "/dev/null/x", &err), -1);
    assert_int_equal(err.code, KR_IO);
}

/* ------------------------------------------------------------------------------ figures ------- */

static void counts_percentiles_by_nearest_rank(void **state)
{
    struct figures *f = calloc(1, sizeof *f);
    struct kr_params p = {.width = 10, .height = 10, .steps = 1, .count = 1};
    (void)state;
    assert_non_null(f);
    assert_true(figures_percentile(f, FIGURE_TOTAL, 0.5) == 0);
    assert_true(figures_estimate(f, &p) < 0);
    for (int i = 1; i <= 100; i++) {
        double took[FIGURES] = {[FIGURE_TOTAL] = (i * 37) % 101}; /* 1 to 100 in some order */
        figures_add(f, &p, took, 1);
    }
    assert_int_equal(figures_count(f), 100);
    assert_true(figures_percentile(f, FIGURE_TOTAL, 0.5) == 50);
    assert_true(figures_percentile(f, FIGURE_TOTAL, 0.9) == 90);
    assert_true(figures_percentile(f, FIGURE_TOTAL, 0.99) == 99);
    assert_true(figures_percentile(f, FIGURE_ENCODE, 0.99) == 0);
    for (int i = 0; i < FIGURES_WINDOW; i++) {
        double took[FIGURES] = {[FIGURE_TOTAL] = 3};
        figures_add(f, &p, took, 1);
    }
    assert_int_equal(figures_count(f), FIGURES_WINDOW); /* what was before has left the window */
    assert_true(figures_percentile(f, FIGURE_TOTAL, 0.99) == 3);
    free(f);
}

static void estimates_by_the_work(void **state)
{
    struct figures *f = calloc(1, sizeof *f);
    struct kr_params p = {.width = 100, .height = 100, .steps = 10, .count = 1};
    const double nothing[FIGURES] = {0};
    (void)state;
    assert_non_null(f);
    for (int i = 0; i < FIGURES_RATES; i++)
        figures_add(f, &p, nothing, i < 5 ? 1000 : 2); /* a few that were slow do not count */
    assert_true(figures_estimate(f, &p) > 1.99 && figures_estimate(f, &p) < 2.01);
    p.steps = 30;
    p.count = 2;
    p.width = 50;
    p.cfg = 3.5;
    double twelve = figures_estimate(f, &p); /* 2 s x 3 x 2 / 2 x 2 */
    assert_true(twelve > 11.99 && twelve < 12.01);
    free(f);
}

/* ------------------------------------------------------------------------------ access -------- */

static void reads_allow_lists(void **state)
{
    struct access a;
    struct kr_err err;
    int pair[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(access_init(&a, NULL, "", &err), 0);
    assert_true(a.everyone && access_allows(&a, pair[0]));
    access_fini(&a);
    assert_int_equal(access_init(&a, "root,\t 5 , daemon", "root 70000", &err), 0);
    assert_int_equal(a.user_count, 3);
    assert_int_equal(a.users[0], 0);
    assert_int_equal(a.users[1], 5);
    assert_int_equal(a.group_count, 2);
    assert_int_equal(a.groups[1], 70000);
    assert_true(access_allows(&a, pair[0])); /* we are who runs the daemon */
    access_fini(&a);
    assert_int_equal(access_init(&a, "root, nobody-here", NULL, &err), -1);
    assert_int_equal(err.code, KR_BAD_CONFIG);
    assert_non_null(strstr(err.text, "nobody-here"));
    assert_int_equal(access_init(&a, NULL, "-1", &err), -1);
    assert_int_equal(access_init(&a, NULL, "4294967295", &err), -1);
    assert_true(access_owns(0, 77) && access_owns(77, 77));
    assert_false(access_owns(geteuid() + 1, geteuid() + 2));
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_names),
        cmocka_unit_test_setup_teardown(reads_what_it_wrote, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lists_jobs_and_clears_leftovers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keeps_the_number, set_up, tear_down),
        cmocka_unit_test_setup_teardown(is_one_daemons, set_up, tear_down),
        cmocka_unit_test(counts_percentiles_by_nearest_rank),
        cmocka_unit_test(estimates_by_the_work),
        cmocka_unit_test(reads_allow_lists),
    };
    return cmocka_run_group_tests_name("spool", tests, NULL, NULL);
}
