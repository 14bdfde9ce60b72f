/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU device: opening, memory, and its table of operations.
 */
#include "kernels/cpu/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t cpu_free_memory(const struct kr_device *dev)
{
    (void)dev;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file)
        return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    fclose(file);
    return (size_t)kib << 10;
}

static void *cpu_map(struct kr_device *dev, size_t bytes)
{
    (void)dev;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* only a hint */
    return at;
}

static void cpu_unmap(struct kr_device *dev, void *at, size_t bytes)
{
    (void)dev;
    munmap(at, bytes);
}

static void *cpu_alloc(struct kr_device *dev, size_t bytes)
{
    (void)dev;
    void *at;
    return posix_memalign(&at, KR_ALIGNMENT, bytes) ? NULL : at;
}

static void cpu_free(struct kr_device *dev, void *at)
{
    (void)dev;
    free(at);
}

/* Every operation has finished when it returns. */
static void cpu_sync(struct kr_device *dev)
{
    (void)dev;
}

static void cpu_upload(struct kr_device *dev, struct kr_tensor t, const float *host)
{
    size_t n = (size_t)kr_count(&t);
    if (t.dtype == KR_F32)
        memcpy(t.data, host, n * sizeof *host);
    else
        cpu_of(dev)->rows->to_bf16(t.data, host, KR_F32, n);
}

static void cpu_download(struct kr_device *dev, struct kr_tensor t, float *host)
{
    cpu_of(dev)->rows->to_f32(host, t.data, t.dtype, (size_t)kr_count(&t));
}

static void cpu_close(struct kr_device *dev)
{
    struct cpu_device *cpu = cpu_of(dev);
    pool_close(&cpu->pool);
    matmul_cache_free(cpu->matmuls);
    free(cpu);
}

static const struct kr_backend cpu_backend = {
    .close = cpu_close,
    .free_memory = cpu_free_memory,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .conv_fini = cpu_conv_fini,
    .sync = cpu_sync,
    .upload = cpu_upload,
    .download = cpu_download,
    .linear = cpu_linear,
    .linear_add = cpu_linear_add,
    .attention = cpu_attention,
    .conv2d = cpu_conv2d,
    .conv2d_add = cpu_conv2d_add,
    .copy = cpu_copy,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .qk_norm_rope = cpu_qk_norm_rope,
    .swiglu = cpu_swiglu,
    .mul_sigmoid = cpu_mul_sigmoid,
    .gelu_tanh = cpu_gelu_tanh,
    .add = cpu_add,
    .scale_rows = cpu_scale_rows,
    .add_scaled = cpu_add_scaled,
    .guide = cpu_guide,
    .mix_taps = cpu_mix_taps,
    .timestep = cpu_timestep,
    .patchify = cpu_patchify,
    .unpatchify = cpu_unpatchify,
    .planes_to_pixels = cpu_planes_to_pixels,
    .pixels_to_planes = cpu_pixels_to_planes,
    .scale_shift = cpu_scale_shift,
    .upsample2 = cpu_upsample2,
    .check_finite = cpu_check_finite,
};

/* -------------------------------------------------------------------------------- open ------ */

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static enum kr_isa best_isa(const struct cpu_features *f, enum kr_isa most)
{
    enum kr_isa best = f->amx      ? KR_ISA_AMX
                       : f->avx512 ? KR_ISA_AVX512
                       : f->avx2   ? KR_ISA_AVX2
                                   : KR_ISA_BASE;
    return most != KR_ISA_BEST && most < best ? most : best;
}

static const struct row_kernels *row_kernels_for(enum kr_isa isa, enum kr_dtype compute)
{
#if defined(__x86_64__)
    if (isa >= KR_ISA_AVX512 && compute == KR_BF16)
        return &row_kernels_bf16; /* AMX comes with AVX512_BF16 */
    if (isa >= KR_ISA_AVX512)
        return &row_kernels_avx512;
    if (isa == KR_ISA_AVX2)
        return &row_kernels_avx2;
#endif
    (void)isa, (void)compute;
    return &row_kernels_base;
}

static void name_device(struct cpu_device *cpu)
{
    static const char *const isa[] = {[KR_ISA_BASE] = "base",
                                      [KR_ISA_AVX2] = "avx2",
                                      [KR_ISA_AVX512] = "avx512",
                                      [KR_ISA_AMX] = "amx"};
    snprintf(cpu->base.name, sizeof cpu->base.name, "cpu: %d thread%s, %s (%s)", cpu->pool.threads,
             cpu->pool.threads > 1 ? "s" : "", cpu->base.compute == KR_BF16 ? "bf16" : "f32",
             isa[cpu->isa]);
}

struct kr_device *kr_device_open_cpu(const struct kr_device_options *options, char *why,
                                     size_t size)
{
    static const struct kr_device_options defaults;
    if (!options)
        options = &defaults;
    struct cpu_features f = cpu_features();
    enum kr_isa isa = best_isa(&f, options->isa);
    int bf16 = f.avx512_bf16 && isa >= KR_ISA_AVX512;
    if (options->compute == KR_COMPUTE_BF16 && !bf16) {
        snprintf(why, size,
                 "this CPU has neither AMX nor AVX512_BF16, so it can't multiply in "
                 "bfloat16; leave the choice to the program");
        return NULL;
    }
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    kr_device_init(&cpu->base, &cpu_backend);
    cpu->base.compute = bf16 && options->compute != KR_COMPUTE_F32 ? KR_BF16 : KR_F32;
    cpu->isa = isa;
    cpu->rows = row_kernels_for(isa, cpu->base.compute);
    if (pool_open(&cpu->pool, &cpu->base, options->threads > 0 ? options->threads : cores())) {
        snprintf(why, size, "only %d of %d threads could be started", cpu->pool.threads,
                 options->threads > 0 ? options->threads : cores());
        cpu_close(&cpu->base);
        return NULL;
    }
    name_device(cpu);
    return &cpu->base;
}
