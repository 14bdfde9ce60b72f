/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket file and its lock, and the pictures that are written beside.
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
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/server/save.h"
#include "daemon/server/server.h"

struct place {
    char folder[64], path[96], lock[128];
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    assert_non_null(p);
    strcpy(p->folder, "/tmp/kread-test-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/s", p->folder);
    snprintf(p->lock, sizeof p->lock, "%s.lock", p->path);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    unlink(p->path);
    unlink(p->lock);
    assert_int_equal(rmdir(p->folder), 0);
    free(p);
    return 0;
}

static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    int rc = connect(fd, (struct sockaddr *)&address, sizeof address);
    close(fd);
    return rc;
}

static void opens_and_cleans_up(void **state)
{
    struct place *p = *state;
    struct listener l;
    struct stat st;
    struct kr_err err;
    assert_int_equal(listener_open(&l, p->path, 0640, &err), 0);
    assert_int_equal(stat(p->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(l.owner, geteuid());
    assert_int_equal(dial(p->path), 0);
    listener_close(&l);
    assert_int_equal(access(p->path, F_OK), -1);
    assert_int_equal(access(p->lock, F_OK), -1);
    listener_close(&l); /* closed ones stay closed */
}

static void refuses_a_second(void **state)
{
    struct place *p = *state;
    struct listener first, second;
    struct kr_err err;
    assert_int_equal(listener_open(&first, p->path, 0600, &err), 0);
    assert_int_equal(listener_open(&second, p->path, 0600, &err), -1);
    assert_non_null(strstr(err.text, "another kread"));
    assert_int_equal(access(p->lock, F_OK), 0); /* the first one's lock is left alone */
    assert_int_equal(dial(p->path), 0);
    listener_close(&first);
    assert_int_equal(listener_open(&second, p->path, 0600, &err), 0);
    listener_close(&second);
}

static void replaces_a_leftover(void **state)
{
    struct place *p = *state;
    struct listener l;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct kr_err err;
    strcpy(address.sun_path, p->path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    assert_int_equal(listener_open(&l, p->path, 0600, &err), 0);
    assert_int_equal(dial(p->path), 0);
    listener_close(&l);
}

static void leaves_symbolic_links_alone(void **state)
{
    struct place *p = *state;
    struct listener l;
    struct kr_err err;
    assert_int_equal(symlink("/tmp/elsewhere", p->path), 0);
    assert_int_equal(listener_open(&l, p->path, 0600, &err), -1);
    assert_non_null(strstr(err.text, "no socket"));
    assert_int_equal(unlink(p->path), 0);
    assert_int_equal(symlink("/etc/passwd", p->lock), 0);
    assert_int_equal(listener_open(&l, p->path, 0600, &err), -1);
    assert_non_null(strstr(err.text, p->lock));
}

static void saves_whole_files(void **state)
{
    struct place *p = *state;
    struct kr_err err;
    char command[200], data[5000], name[100] = "";
    memset(data, 'x', sizeof data);
    assert_int_equal(save_png(p->folder, 7, 1, data, sizeof data, &err), 0);
    snprintf(command, sizeof command, "cd %s && ls && cat *-7-1.png | wc -c && rm *.png",
             p->folder);
    FILE *shell = popen(command, "r");
    size_t n = fread(name, 1, sizeof name - 1, shell);
    pclose(shell);
    name[n] = '\0';
    assert_non_null(strstr(name, "-7-1.png\n5000\n"));
    assert_null(strstr(name, ".part"));
    assert_int_equal(save_png("/no/such/folder", 7, 1, data, sizeof data, &err), -1);
    assert_int_equal(err.code, KR_IO);
    assert_non_null(strstr(err.text, "output_dir"));
    assert_int_equal(save_png("/dev/full", 7, 1, data, sizeof data, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opens_and_cleans_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_a_second, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replaces_a_leftover, set_up, tear_down),
        cmocka_unit_test_setup_teardown(leaves_symbolic_links_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(saves_whole_files, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("listener", tests, NULL, NULL);
}
