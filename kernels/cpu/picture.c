/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that only move elements about: patches, planes and pixels, upsampling. Types may
 * differ between in and out; rows go through a stack buffer then.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct picture_op {
    struct cpu_device *cpu;
    struct kr_tensor out, x;
};

/* One element as F32 and back; these paths are short. */
static float get_one(const struct picture_op *op, int64_t index)
{
    float value;
    if (op->x.dtype == KR_F32)
        return ((const float *)op->x.data)[index];
    op->cpu->rows->to_f32(&value, cpu_at(op->x.data, op->x.dtype, index), op->x.dtype, 1);
    return value;
}

static void put_one(const struct picture_op *op, int64_t index, float value)
{
    if (op->out.dtype == KR_F32)
        ((float *)op->out.data)[index] = value;
    else
        op->cpu->rows->to_bf16((uint16_t *)op->out.data + index, &value, KR_F32, 1);
}

static void run_patchify(void *arg, int64_t py, int thread)
{
    const struct picture_op *op = arg;
    int64_t c = op->x.dim[0], h = op->x.dim[1], w = op->x.dim[2];
    (void)thread;
    for (int64_t px = 0; px < w / 2; px++)
        for (int64_t i = 0; i < c * 4; i++) {
            int64_t y = 2 * py + i / 2 % 2, x = 2 * px + i % 2;
            put_one(op, (py * (w / 2) + px) * c * 4 + i, get_one(op, (i / 4 * h + y) * w + x));
        }
}

void cpu_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z)
{
    struct picture_op op = {cpu_of(dev), out, z};
    cpu_each(op.cpu, z.dim[1] / 2, run_patchify, &op);
}

static void run_unpatchify(void *arg, int64_t py, int thread)
{
    const struct picture_op *op = arg;
    int64_t c = op->out.dim[0], h = op->out.dim[1], w = op->out.dim[2];
    (void)thread;
    for (int64_t px = 0; px < w / 2; px++)
        for (int64_t i = 0; i < c * 4; i++) {
            int64_t y = 2 * py + i / 2 % 2, x = 2 * px + i % 2;
            put_one(op, (i / 4 * h + y) * w + x, get_one(op, (py * (w / 2) + px) * c * 4 + i));
        }
}

void cpu_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens)
{
    struct picture_op op = {cpu_of(dev), z, tokens};
    cpu_each(op.cpu, z.dim[1] / 2, run_unpatchify, &op);
}

static void run_planes_to_pixels(void *arg, int64_t y, int thread)
{
    const struct picture_op *op = arg;
    int64_t h = op->out.dim[0], w = op->out.dim[1], c = op->out.dim[2];
    (void)thread;
    for (int64_t x = 0; x < w; x++)
        for (int64_t i = 0; i < c; i++)
            put_one(op, (y * w + x) * c + i, get_one(op, (i * h + y) * w + x));
}

void cpu_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct picture_op op = {cpu_of(dev), out, x};
    cpu_each(op.cpu, out.dim[0], run_planes_to_pixels, &op);
}

static void run_pixels_to_planes(void *arg, int64_t y, int thread)
{
    const struct picture_op *op = arg;
    int64_t h = op->x.dim[0], w = op->x.dim[1], c = op->x.dim[2];
    (void)thread;
    for (int64_t i = 0; i < c; i++)
        for (int64_t x = 0; x < w; x++)
            put_one(op, (i * h + y) * w + x, get_one(op, (y * w + x) * c + i));
}

void cpu_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct picture_op op = {cpu_of(dev), out, x};
    cpu_each(op.cpu, x.dim[0], run_pixels_to_planes, &op);
}

/* c elements from x to out, converting. */
static void move_pixel(const struct picture_op *op, int64_t to, int64_t from, int64_t c)
{
    void *out = (void *)(uintptr_t)cpu_at(op->out.data, op->out.dtype, to);
    const void *x = cpu_at(op->x.data, op->x.dtype, from);
    if (op->out.dtype == op->x.dtype)
        memcpy(out, x, (size_t)c * kr_dtype_size(op->x.dtype));
    else if (op->out.dtype == KR_BF16)
        op->cpu->rows->to_bf16(out, x, op->x.dtype, (size_t)c);
    else
        op->cpu->rows->to_f32(out, x, op->x.dtype, (size_t)c);
}

/* One row of x: twice each pixel, and all that twice. */
static void run_upsample2(void *arg, int64_t y, int thread)
{
    const struct picture_op *op = arg;
    int64_t w = op->x.dim[1], c = op->x.dim[2];
    size_t pixel = (size_t)c * kr_dtype_size(op->out.dtype);
    char *to = (char *)(uintptr_t)cpu_at(op->out.data, op->out.dtype, 4 * y * w * c);
    char *below = to + 2 * (size_t)w * pixel;
    (void)thread;
    for (int64_t x = 0; x < w; x++, to += 2 * pixel, below += 2 * pixel) {
        move_pixel(op, (4 * y * w + 2 * x) * c, (y * w + x) * c, c);
        memcpy(to + pixel, to, pixel);
        memcpy(below, to, 2 * pixel);
    }
}

void cpu_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct picture_op op = {cpu_of(dev), out, x};
    cpu_each(op.cpu, x.dim[0], run_upsample2, &op);
}
