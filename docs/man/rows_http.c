/* SPDX-License-Identifier: Apache-2.0 */
#include "docs/man/rows.h"

#include <string.h>

#include "client/http/settings.h"

static struct row of_setting(const struct setting *s, bool on_argv)
{
    struct row row = {.name = on_argv ? rows_dashed(s->name) : s->name,
                      .value = ROW_WORD,
                      .value_name = s->value_name,
                      .choices = s->choices,
                      .help = s->help,
                      .fallback = s->fallback};
    if (s->type == SETTING_FLAG)
        row.value = ROW_NOTHING;
    if (s->type == SETTING_PATH)
        row.value = ROW_FILE;
    if (s->type == SETTING_CHOICE)
        row.value = ROW_CHOICE;
    if (s->type == SETTING_BOOL) {
        row.value = ROW_CHOICE;
        row.choices = rows_yes_no;
    }
    if (s->type == SETTING_INT)
        row.range = rows_range(s->min, s->max);
    return row;
}

struct rows rows_http(bool on_argv)
{
    struct rows rows = {.count = 0};
    for (int i = 0; i < SETTINGS; i++)
        if (http_settings[i].places & (on_argv ? SETTING_ARGV : SETTING_FILE))
            rows_add(&rows, of_setting(&http_settings[i], on_argv));
    return rows;
}
