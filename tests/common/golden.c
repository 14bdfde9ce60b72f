/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/common/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

double golden_rms(const float *got, const float *want, size_t n)
{
    double error = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];

        error += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (!isfinite(error) || !isfinite(norm))
        return INFINITY;
    return error == 0 ? 0 : sqrt(error / norm);
}

double golden_max(const float *got, const float *want, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);

        if (!isfinite(d))
            return INFINITY;
        most = d > most ? d : most;
    }
    return most;
}

static int bad(const char *path, const char *why, char *message, size_t size)
{
    snprintf(message, size, "%s: %s", path, why);
    return -1;
}

static int copy_figures(const char *path, json_t *root, struct golden_figure *figures,
                        char *message, size_t size)
{
    const char *name;
    json_t *value;
    int n = 0;

    json_object_foreach(root, name, value)
    {
        if (!json_is_number(value) || strlen(name) >= sizeof(figures->name))
            return bad(path, "holds something else than short names with numbers", message, size);
        memcpy(figures[n].name, name, strlen(name) + 1);
        figures[n++].value = json_number_value(value);
    }
    return n;
}

int golden_figures(const char *path, struct golden_figure **figures, char *message, size_t size)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    int n;

    *figures = NULL;
    if (root == NULL)
        return bad(path, error.text, message, size);
    if (json_is_object(root)) {
        *figures = calloc(json_object_size(root) + 1, sizeof(**figures));
        n = *figures ? copy_figures(path, root, *figures, message, size)
                     : bad(path, "no memory", message, size);
    } else {
        n = bad(path, "is no JSON object", message, size);
    }
    json_decref(root);
    if (n < 0) {
        free(*figures);
        *figures = NULL;
    }
    return n;
}

double golden_figure(const struct golden_figure *figures, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(figures[i].name, name) == 0)
            return figures[i].value;
    return NAN;
}
