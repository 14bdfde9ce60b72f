/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/shapes.h"

#include <stdio.h>

#include "daemon/model/rope.h"

int model_size(const struct weights *weights, const char *name, int axis, int64_t *size,
               struct kr_err *err)
{
    int64_t dim[8];
    int rank = weights_shape(weights, name, dim);

    if (rank < 0)
        return kr_fail(err, KR_BAD_FILE, "%s: has no %s, so it isn't the model it is used as",
                       weights_name(weights), name);
    if (rank <= axis || dim[axis] < 1)
        return kr_fail(err, KR_BAD_FILE, "%s: %s has rank %d with no usable dimension %d",
                       weights_name(weights), name, rank, axis);
    *size = dim[axis];
    return 0;
}

int64_t model_layers(const struct weights *weights, const char *start)
{
    int64_t n = 0;
    char name[64];

    for (;; n++) {
        snprintf(name, sizeof(name), "%s%lld.", start, (long long)n);
        if (weights_count(weights, name) == 0)
            return n;
    }
}

int model_heads(const struct weights *weights, const char *norm, const char *query, const char *key,
                struct model_heads *heads, struct kr_err *err)
{
    int64_t head, q, k;

    if (model_size(weights, norm, 0, &head, err) || model_size(weights, query, 0, &q, err) ||
        model_size(weights, key, 0, &k, err))
        return -1;
    if (head % 2 != 0 || head > ROPE_MAX_HEAD)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s has %lld elements, want a head size that is even and at most %d",
                       weights_name(weights), norm, (long long)head, ROPE_MAX_HEAD);
    if (q % head != 0 || k % head != 0)
        return kr_fail(
            err, KR_BAD_FILE, "%s: %s has %lld rows and %s %lld, which aren't whole heads of %lld",
            weights_name(weights), query, (long long)q, key, (long long)k, (long long)head);
    *heads = (struct model_heads){.heads = q / head, .kv_heads = k / head, .head = head};
    if (heads->heads % heads->kv_heads != 0)
        return kr_fail(
            err, KR_BAD_FILE, "%s: %lld query heads of %s can't share %lld key heads evenly",
            weights_name(weights), (long long)heads->heads, query, (long long)heads->kv_heads);
    return 0;
}
