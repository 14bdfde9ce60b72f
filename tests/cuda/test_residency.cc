/* SPDX-License-Identifier: Apache-2.0
 *
 * Where weights are, and how they get there: whatever the residency, the ring's size, the order of
 * use and the way of the copies, what an operation reads is what the file has. The emulation runs
 * what is queued as late as the waits allow, so one that is missing shows.
 */
#include "tests/cuda/devices.h"

#include "kernels/cuda/weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two stages of weights in one mapped file, some of them so large that they are blocks of their
 * own, at odd addresses; pairs of them are used together. */
enum { STAGES = 2, EACH = 6, WEIGHTS = STAGES * EACH };
static const int64_t LARGE = 263 * 1000; /* more than fits a slab */

struct model {
    char *map;
    size_t map_size;
    struct kr_weight weight[WEIGHTS][2];
    int parts[WEIGHTS];
    struct kr_tensor out[WEIGHTS]; /* copies of what was read */
};

static int64_t elements(const struct model *m, int i)
{
    int64_t n = 0;
    for (int k = 0; k < m->parts[i]; k++)
        n += m->weight[i][k].out * m->weight[i][k].in;
    return n;
}

static char *new_file(size_t bytes)
{
    char path[] = "/tmp/kread-weights-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    char *rw = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(rw, MAP_FAILED);
    for (size_t i = 0; i + 1 < bytes; i += 2) { /* bfloat16 between 1 and 2 */
        rw[i] = (char)number_below(256);
        rw[i + 1] = 0x3f;
    }
    munmap(rw, bytes);
    char *map = (char *)mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    close(fd);
    return map;
}

static struct model new_model(void)
{
    struct model m = {};
    size_t at = 4096 + 6;
    m.map_size = (size_t)12 << 20;
    m.map = new_file(m.map_size);
    for (int i = 0; i < WEIGHTS; i++) {
        m.parts[i] = 1 + i % 2;
        for (int k = 0; k < m.parts[i]; k++) {
            struct kr_weight *w = &m.weight[i][k];
            w->data = m.map + at;
            w->dtype = KR_BF16;
            w->in = 10;
            w->out = i % 3 == 0 ? LARGE / 10 : 50 + 100 * number_below(9);
            w->scale = 1;
            at += (size_t)(w->out * w->in) * 2 + (size_t)number_below(3) * 2;
        }
    }
    assert_true(at < m.map_size);
    return m;
}

static void free_model(struct model *m)
{
    munmap(m->map, m->map_size);
}

/* What an operation does with weight i: reads it, into out[i]. */
static void use(struct kr_device *dev, struct model *m, int i)
{
    const struct kr_weight *parts[] = {&m->weight[i][0], &m->weight[i][1]};
    struct kr_tensor as = m->out[i];
    as.data = (void *)cuda_weight(cuda_of(dev), parts, m->parts[i]);
    if (as.data)
        kr_copy(dev, m->out[i], as);
}

static void check(struct kr_device *dev, const struct model *m, int i);

/* Some results are fetched while the next weights are on their way. */
static void use_stage(struct kr_device *dev, struct model *m, int stage, int times)
{
    for (int t = 0; t < times; t++)
        for (int i = 0; i < EACH; i++) {
            use(dev, m, stage * EACH + i);
            if (!dev->planning && i == 1)
                check(dev, m, stage * EACH + i);
        }
}

static size_t plan(struct kr_device *dev, struct model *m)
{
    kr_plan_begin(dev);
    for (int i = 0; i < WEIGHTS; i++)
        m->out[i] = kr_new(dev, KR_BF16, elements(m, i), 0, 0, 0);
    for (int s = 0; s < STAGES; s++) {
        use_stage(dev, m, s, 1);
        kr_stage_end(dev);
    }
    return kr_plan_end(dev);
}

static void begin(struct kr_device *dev, struct model *m, size_t bytes)
{
    char why[200] = "";
    if (kr_job_begin(dev, NULL, bytes, why, sizeof why))
        fail_msg("%s", why);
    for (int i = 0; i < WEIGHTS; i++)
        m->out[i] = kr_new(dev, KR_BF16, elements(m, i), 0, 0, 0);
}

static void check(struct kr_device *dev, const struct model *m, int i)
{
    float *got = floats_of(dev, m->out[i]);
    int64_t at = 0;
    for (int k = 0; k < m->parts[i]; k++) {
        const struct kr_weight *w = &m->weight[i][k];
        for (int64_t j = 0; j < w->out * w->in; j++, at++) {
            float want;
            cuda_to_f32(&want, (const char *)w->data + 2 * j, KR_BF16, 1);
            if (got[at] != want)
                fail_msg("weight %d: element %lld is %g and the file has %g", i, (long long)at,
                         (double)got[at], (double)want);
        }
    }
    free(got);
}

static void check_all(struct kr_device *dev, const struct model *m)
{
    for (int i = 0; i < WEIGHTS; i++)
        check(dev, m, i);
}

static struct devices open_devices(uint64_t seed)
{
    struct emu_options options = {};
    options.architecture = 80;
    options.memory = (size_t)96 << 20;
    options.seed = seed;
    numbers_seed(seed);
    return devices_open(&options, 0);
}

/* ------------------------------------------------------------------------- the modes ------ */

static void run_job(struct kr_device *dev, struct model *m)
{
    begin(dev, m, plan(dev, m));
    use_stage(dev, m, 0, 1);
    kr_stage_end(dev);
    use_stage(dev, m, 1, 2);
    kr_stage_end(dev);
    check_all(dev, m);
    kr_job_end(dev);
}

static void test_every_residency_reads_what_the_file_has(void **)
{
    static const enum kr_residency residencies[] = {KR_RESIDENT, KR_CACHED, KR_STREAM, KR_STREAM};
    for (int by_host = 0; by_host < 2; by_host++)
        for (int i = 0; i < 4; i++) {
            struct devices d = open_devices(20 + (uint64_t)i);
            struct kr_device *dev = d.dev[GPU];
            struct model m = new_model();
            if (by_host)
                devices_cuda(&d)->reads_mappings = 0;
            plan(dev, &m);
            size_t bytes = kr_plan_weights(dev, residencies[i]);
            kr_device_residency(dev, residencies[i], i == 3 ? 2 * bytes : bytes);
            run_job(dev, &m);
            run_job(dev, &m);
            if (residencies[i] != KR_RESIDENT)
                assert_int_equal(
                    mappings_have(devices_cuda(&d), &devices_cuda(&d)->weights->list[0].part[0]),
                    !by_host);
            devices_close(&d);
            free_model(&m);
        }
}

/* What is held is what was planned, when it was planned. */
static void test_held_bytes_are_as_planned(void **)
{
    struct devices d = open_devices(30);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    size_t arena = plan(dev, &m), all = kr_plan_weights(dev, KR_RESIDENT),
           stage = kr_plan_weights(dev, KR_CACHED), ring = kr_plan_weights(dev, KR_STREAM);
    assert_true(ring < stage && stage < all);
    assert_int_equal(kr_weights_held(dev), 0);

    begin(dev, &m, arena);
    use_stage(dev, &m, 0, 1);
    use_stage(dev, &m, 1, 1);
    kr_stage_end(dev);
    kr_job_end(dev);
    assert_true(kr_weights_held(dev) <= all && kr_weights_held(dev) > all - (8 << 20));

    kr_device_residency(dev, KR_CACHED, 0);
    assert_int_equal(kr_weights_held(dev), 0);
    begin(dev, &m, arena);
    use_stage(dev, &m, 0, 2);
    assert_true(kr_weights_held(dev) > 0 && kr_weights_held(dev) <= stage);
    kr_stage_end(dev);
    assert_int_equal(kr_weights_held(dev), 0);
    use_stage(dev, &m, 1, 1);
    kr_job_end(dev); /* a job that fails ends its stage, too */
    assert_int_equal(kr_weights_held(dev), 0);

    kr_device_residency(dev, KR_STREAM, ring);
    begin(dev, &m, arena);
    use_stage(dev, &m, 0, 2);
    assert_true(kr_weights_held(dev) <= ring);
    kr_job_end(dev);
    devices_close(&d);
    free_model(&m);
}

static void test_resident_weights_are_copied_once(void **)
{
    struct devices d = open_devices(31);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    struct emu_figures before, after;
    run_job(dev, &m);
    begin(dev, &m, plan(dev, &m));
    emu_read_figures(&before);
    for (int i = 0; i < 2 * WEIGHTS; i++)
        use(dev, &m, i % WEIGHTS);
    emu_read_figures(&after);
    assert_int_equal(after.copies, before.copies);
    check_all(dev, &m);
    devices_close(&d);
    free_model(&m);
}

/* ------------------------------------------------------------------ another order ------ */

/* The first stage is skipped, runs twice, or its weights come in any order. */
static void test_an_order_that_was_not_planned(void **)
{
    for (uint64_t seed = 40; seed < 44; seed++) {
        struct devices d = open_devices(seed);
        struct kr_device *dev = d.dev[GPU];
        struct model m = new_model();
        plan(dev, &m);
        if (seed % 2)
            devices_cuda(&d)->reads_mappings = 0;
        kr_device_residency(dev, KR_STREAM,
                            kr_plan_weights(dev, KR_STREAM) + (size_t)number_below(3000000));
        begin(dev, &m, plan(dev, &m));
        use_stage(dev, &m, 1, 2);
        for (int i = 0; i < 30; i++) {
            int k = (int)number_below(WEIGHTS);
            use(dev, &m, k);
            if (number_below(4) == 0)
                use(dev, &m, k);
            if (number_below(8) == 0)
                check(dev, &m, k);
        }
        use_stage(dev, &m, 0, 2);
        check_all(dev, &m);
        devices_close(&d);
        free_model(&m);
    }
}

static void test_without_a_plan(void **)
{
    struct devices d = open_devices(50);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    size_t arena = plan(dev, &m), ring = kr_plan_weights(dev, KR_STREAM);
    kr_device_residency(dev, KR_STREAM, ring);
    begin(dev, &m, arena);
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < STAGES; s++)
            use_stage(dev, &m, s, 2);
    check_all(dev, &m);
    devices_close(&d);
    free_model(&m);
}

static void test_a_weight_that_does_not_fit_the_ring(void **)
{
    struct devices d = open_devices(51);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    kr_device_residency(dev, KR_STREAM, 100000);
    begin(dev, &m, plan(dev, &m));
    use(dev, &m, 0);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_NO_MEMORY);
    assert_non_null(strstr(kr_device_fault_text(dev), "does not fit the ring of"));
    devices_close(&d);
    free_model(&m);
}

/* Other files at the addresses of the ones before: what kr_device_residency() is called for. */
static void test_residency_forgets_all_weights(void **)
{
    struct devices d = open_devices(52);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    run_job(dev, &m);
    assert_int_equal(mprotect(m.map, m.map_size, PROT_READ), 0);
    char *other = new_file(m.map_size);
    assert_ptr_equal(mremap(other, m.map_size, m.map_size, MREMAP_MAYMOVE | MREMAP_FIXED, m.map),
                     m.map);
    kr_device_residency(dev, KR_RESIDENT, 0);
    run_job(dev, &m);
    devices_close(&d);
    free_model(&m);
}

/* Files that went: what came after a weight when they were there is not looked for. */
static void test_nothing_comes_that_is_not_planned(void **)
{
    for (int residency = KR_RESIDENT; residency <= KR_STREAM; residency++) {
        struct devices d = open_devices(57);
        struct kr_device *dev = d.dev[GPU];
        struct model m = new_model();
        size_t end = cuda_round_up(4096 + 6 + (size_t)LARGE * 2, 4096), ring = 4 << 20;
        run_job(dev, &m);
        kr_device_residency(dev, (enum kr_residency)residency, ring);
        assert_int_equal(mprotect(m.map + end, m.map_size - end, PROT_NONE), 0);
        kr_plan_begin(dev);
        m.out[0] = kr_new(dev, KR_BF16, elements(&m, 0), 0, 0, 0);
        use(dev, &m, 0);
        kr_stage_end(dev);
        begin(dev, &m, kr_plan_end(dev) * WEIGHTS);
        use(dev, &m, 0);
        use(dev, &m, 0);
        check(dev, &m, 0);
        kr_job_end(dev);
        devices_close(&d);
        free_model(&m);
    }
}

/* What an operation makes of a weight is made once a stage at most, and counted. */
static void test_made_from_weights(void **)
{
    for (int residency = KR_RESIDENT; residency <= KR_STREAM; residency++) {
        struct devices d = open_devices(53);
        struct kr_device *dev = d.dev[GPU];
        struct cuda_device *cuda = devices_cuda(&d);
        static const char key[2] = "";
        int fresh = 0;
        char why[100];
        kr_plan_begin(dev);
        assert_null(cuda_made(cuda, key, 1000000, &fresh));
        assert_true(fresh);
        kr_plan_end(dev);
        kr_device_residency(dev, (enum kr_residency)residency, 0);
        assert_int_equal(kr_job_begin(dev, NULL, 0, why, sizeof why), 0);
        void *at = cuda_made(cuda, key, 1000000, &fresh);
        assert_true(at && fresh);
        assert_ptr_equal(cuda_made(cuda, key, 1000000, &fresh), at);
        assert_false(fresh);
        assert_int_equal(kr_weights_held(dev), 2 << 20);
        kr_stage_end(dev);
        assert_int_equal(kr_weights_held(dev), residency == KR_RESIDENT ? 2 << 20 : 0);
        assert_non_null(cuda_made(cuda, key, 1000000, &fresh));
        assert_int_equal(fresh, residency != KR_RESIDENT);
        cuda_made_free(cuda, key);
        assert_int_equal(kr_weights_held(dev), 0);
        devices_close(&d);
    }
}

/* Convolutions of all sizes, the third a block of memory of its own. */
enum { CONVS = 4 };
static const int64_t conv_size[CONVS][2] = {{16, 3}, {40, 40}, {320, 300}, {3, 96}};

static size_t device_memory(void)
{
    struct emu_figures figures;
    emu_read_figures(&figures);
    return figures.used;
}

/* Returns the bytes that their kernels take in the product's order. */
static size_t make_convs(struct kr_conv *c, const char *file)
{
    size_t bytes = 0;
    for (int i = 0; i < CONVS; i++) {
        c[i].data = file;
        c[i].dtype = KR_BF16;
        c[i].out = conv_size[i][0];
        c[i].in = conv_size[i][1];
        c[i].kt = 1;
        c[i].kh = c[i].kw = 3;
        file += (size_t)(c[i].out * c[i].in) * 9 * 2;
        bytes += (size_t)(c[i].out * cuda_pieces(c[i].in, 32) * 32) * 9 * 2;
    }
    return bytes;
}

static void convolve(struct kr_device *dev, struct kr_conv *c)
{
    struct kr_mark mark = kr_arena_mark(dev);
    for (int i = 0; i < 2 * CONVS; i++) {
        struct kr_tensor x = kr_new(dev, KR_F32, 3, 2, c[i % CONVS].in, 0),
                         y = kr_new(dev, KR_F32, 3, 2, c[i % CONVS].out, 0);
        float zeros[3 * 2 * 300] = {};
        kr_upload(dev, x, zeros);
        kr_conv2d(dev, y, x, &c[i % CONVS]);
        kr_arena_release(dev, mark);
    }
}

/* What a plan says of prepared kernels is what is allocated for them, no matter where weights are
 * and how often the stage comes. */
static void test_prepared_kernels_are_planned(void **)
{
    for (int residency = KR_RESIDENT; residency <= KR_STREAM; residency++) {
        struct devices d = open_devices(54);
        struct kr_device *dev = d.dev[GPU];
        char *file = new_file((size_t)4 << 20), why[100];
        struct kr_conv c[CONVS] = {};
        size_t least = make_convs(c, file);
        kr_plan_begin(dev);
        convolve(dev, c);
        size_t arena = kr_plan_end(dev), planned = kr_plan_prepared(dev),
               weights = kr_plan_weights(dev, (enum kr_residency)residency);
        assert_true(planned >= least && planned < least + ((size_t)2 << 20));
        assert_true(weights >= planned);
        assert_int_equal(kr_prepared_bytes(dev), 0);
        kr_device_residency(dev, (enum kr_residency)residency, weights);
        assert_int_equal(kr_job_begin(dev, NULL, arena, why, sizeof why), 0);
        size_t before = device_memory();
        for (int stage = 0; stage < 2; stage++) {
            convolve(dev, c);
            assert_int_equal(kr_device_sync(dev), KR_FINE);
            assert_int_equal(kr_prepared_bytes(dev), planned);
            assert_true(kr_weights_held(dev) <= weights);
            assert_true(device_memory() - before <= weights);
            assert_true(device_memory() - before >= least);
            kr_stage_end(dev);
            assert_int_equal(kr_prepared_bytes(dev), residency == KR_RESIDENT ? planned : 0);
        }
        kr_job_end(dev);
        for (int i = 0; i < CONVS; i++)
            kr_conv_fini(dev, &c[i]);
        assert_int_equal(kr_prepared_bytes(dev), 0);
        devices_close(&d);
        munmap(file, (size_t)4 << 20);
    }
}

/* ------------------------------------------------------------------- ahead of their use ------ */

/* Weights that stay have company before they are used; none comes of another stage. */
static void test_kept_weights_come_ahead(void **)
{
    for (int i = 0; i < 4; i++) {
        struct devices d = open_devices(55 + (uint64_t)i);
        struct kr_device *dev = d.dev[GPU];
        struct cuda_weights *all = devices_cuda(&d)->weights;
        struct model m = new_model();
        size_t arena = plan(dev, &m);
        devices_cuda(&d)->reads_mappings = i / 2;
        kr_device_residency(dev, i % 2 ? KR_RESIDENT : KR_CACHED, 0);
        begin(dev, &m, arena);
        for (int k = 0; k < WEIGHTS; k++) {
            int stage = k / EACH * EACH;
            if (k == stage)
                kr_stage_end(dev);
            use(dev, &m, k);
            for (int ahead = 1; ahead <= 2; ahead++)
                assert_non_null(all->list[stage + (k + ahead) % EACH].at);
            assert_true(k < EACH ? !all->list[EACH].at : i % 2 || !all->list[0].at);
            assert_true(all->copies - all->came <= WEIGHTS_AHEAD);
        }
        assert_int_equal(all->copies, WEIGHTS);
        assert_int_equal(all->came, WEIGHTS);
        check_all(dev, &m);
        devices_close(&d);
        free_model(&m);
    }
}

/* As they come, but not as was planned, and again with nothing left. */
static void test_kept_weights_in_any_order(void **)
{
    for (uint64_t seed = 65; seed < 71; seed++) {
        struct devices d = open_devices(seed);
        struct kr_device *dev = d.dev[GPU];
        struct model m = new_model();
        size_t arena = plan(dev, &m);
        devices_cuda(&d)->reads_mappings = seed % 2;
        kr_device_residency(dev, seed % 3 ? KR_CACHED : KR_RESIDENT, 0);
        begin(dev, &m, arena);
        for (int stage = STAGES - 1; stage >= 0; stage--) {
            for (int i = 0; i < 3 * EACH; i++) {
                int k = stage * EACH + (int)number_below(EACH);
                use(dev, &m, k);
                if (number_below(6) == 0)
                    check(dev, &m, k);
            }
            use_stage(dev, &m, stage, 1);
            kr_stage_end(dev);
        }
        check_all(dev, &m);
        devices_close(&d);
        free_model(&m);
    }
}

/* Whether all allocations of a job went well with the nth failing. If not the job says so, the next
 * one runs, and nothing is left. */
static int keep_with_failure(int nth, enum kr_residency residency)
{
    struct devices d = open_devices(80);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    size_t arena = plan(dev, &m);
    kr_device_residency(dev, residency, 0);
    begin(dev, &m, arena);
    emu_fail_allocation(nth);
    for (int i = 0; i < WEIGHTS; i++) {
        if (i == EACH)
            kr_stage_end(dev);
        use(dev, &m, i);
    }
    emu_fail_allocation(0);
    int fine = kr_device_sync(dev) == KR_FINE;
    if (!fine) {
        assert_int_equal(kr_device_sync(dev), KR_FAULT_NO_MEMORY);
        assert_non_null(strstr(kr_device_fault_text(dev), "out of memory"));
    }
    kr_job_end(dev);
    run_job(dev, &m);
    devices_close(&d);
    free_model(&m);
    return fine;
}

static void test_out_of_memory_ahead_of_use(void **)
{
    for (int residency = KR_RESIDENT; residency <= KR_CACHED; residency++) {
        int nth = 1;
        while (!keep_with_failure(nth, (enum kr_residency)residency))
            nth++;
        assert_in_range(nth, 4, 40); /* slabs and blocks */
    }
}

/* --------------------------------------------------------------------- planted faults ------ */

/* A job without one of the waits between streams; how many findings that makes. */
static int keep_without(int wait, enum kr_residency residency, uint64_t seed)
{
    struct devices d = open_devices(seed);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    size_t arena = plan(dev, &m);
    kr_device_residency(dev, residency, 0);
    begin(dev, &m, arena);
    emu_skip_wait(wait);
    for (int i = 0; i < WEIGHTS; i++) {
        if (i == EACH)
            kr_stage_end(dev);
        use(dev, &m, i);
    }
    CUDA(cudaDeviceSynchronize());
    emu_skip_wait(-1);
    int found = emu_reported(EMU_RACE_STREAM) + emu_reported(EMU_UNWRITTEN);
    emu_forget_reports();
    devices_close(&d);
    free_model(&m);
    return found;
}

static int is_missed(int wait, enum kr_residency residency)
{
    for (uint64_t seed = 75; seed < 79; seed++)
        if (keep_without(wait, residency, seed))
            return 1;
    return 0;
}

static void test_a_wait_for_a_kept_weight_is_missed(void **)
{
    static uint64_t before[1000];
    const struct emu_wait *waits;
    for (int residency = KR_RESIDENT; residency <= KR_CACHED; residency++) {
        int count = emu_waits(&waits), tried = 0;
        assert_true(count < 1000);
        for (int i = 0; i < count; i++)
            before[i] = waits[i].count;
        assert_int_equal(keep_without(-1, (enum kr_residency)residency, 75), 0);
        for (int i = 0, now = emu_waits(&waits); i < now; i++)
            if (waits[i].kind == EMU_WAIT_STREAM && waits[i].count > (i < count ? before[i] : 0)) {
                assert_true(is_missed(i, (enum kr_residency)residency));
                tried++;
            }
        assert_int_equal(tried, 1); /* the one in weights.cu */
    }
}

/* The ring once more, with a wait that can be left out. */
static cudaStream_t without_waits_of;

static cudaError_t wait_or_not(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return stream == without_waits_of ? cudaSuccess : cudaStreamWaitEvent(stream, event, flags);
}

#define cudaStreamWaitEvent wait_or_not
#define ring_open           planted_open
#define ring_close          planted_close
#define ring_drop           planted_drop
#define ring_weight         planted_weight
#define ring_held           planted_held
#include "kernels/cuda/ring.cu"
#undef cudaStreamWaitEvent

/* The plan says what comes before anything has, and is not forgotten with the copies. */
static void test_the_ring_runs_ahead_from_the_first_weight_on(void **)
{
    struct devices d = open_devices(61);
    struct kr_device *dev = d.dev[GPU];
    struct model m = new_model();
    size_t arena = plan(dev, &m);
    kr_device_residency(dev, KR_STREAM, 4 * kr_plan_weights(dev, KR_STREAM));
    begin(dev, &m, arena);
    for (int i = 0; i < WEIGHTS; i++) {
        use(dev, &m, i);
        struct ring *ring = devices_cuda(&d)->weights->ring;
        assert_int_equal(in_use(ring)->number, i);
        assert_true(is_there(ring, i / EACH * EACH + (i + 1) % EACH));
    }
    check_all(dev, &m);
    devices_close(&d);
    free_model(&m);
}

/* Streams all weights some times; how many findings that makes. */
static int stream_without(int waits_of_compute, int waits_of_copy)
{
    struct devices d = open_devices(60);
    struct kr_device *dev = d.dev[GPU];
    struct cuda_device *cuda = devices_cuda(&d);
    struct model m = new_model();
    plan(dev, &m);
    kr_device_residency(dev, KR_STREAM, kr_plan_weights(dev, KR_STREAM));
    begin(dev, &m, plan(dev, &m));
    without_waits_of = waits_of_compute ? cuda->stream[0] : waits_of_copy ? cuda->copy : NULL;
    for (int i = 0; i < 3 * WEIGHTS; i++) {
        struct kr_tensor as = m.out[i % WEIGHTS];
        as.data = (void *)planted_weight(cuda, i % WEIGHTS);
        assert_non_null(as.data);
        kr_copy(dev, m.out[i % WEIGHTS], as);
    }
    CUDA(cudaDeviceSynchronize());
    int found = emu_reported(EMU_RACE_STREAM) + emu_reported(EMU_UNWRITTEN);
    emu_forget_reports();
    without_waits_of = NULL;
    devices_close(&d);
    free_model(&m);
    return found;
}

static void test_a_wait_that_is_missing_is_found(void **)
{
    assert_int_equal(stream_without(0, 0), 0);
    assert_true(stream_without(1, 0) > 0);
    assert_true(stream_without(0, 1) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_residency_reads_what_the_file_has),
        cmocka_unit_test(test_held_bytes_are_as_planned),
        cmocka_unit_test(test_resident_weights_are_copied_once),
        cmocka_unit_test(test_an_order_that_was_not_planned),
        cmocka_unit_test(test_without_a_plan),
        cmocka_unit_test(test_a_weight_that_does_not_fit_the_ring),
        cmocka_unit_test(test_residency_forgets_all_weights),
        cmocka_unit_test(test_nothing_comes_that_is_not_planned),
        cmocka_unit_test(test_made_from_weights),
        cmocka_unit_test(test_prepared_kernels_are_planned),
        cmocka_unit_test(test_kept_weights_come_ahead),
        cmocka_unit_test(test_kept_weights_in_any_order),
        cmocka_unit_test(test_out_of_memory_ahead_of_use),
        cmocka_unit_test(test_a_wait_for_a_kept_weight_is_missed),
        cmocka_unit_test(test_the_ring_runs_ahead_from_the_first_weight_on),
        cmocka_unit_test(test_a_wait_that_is_missing_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
