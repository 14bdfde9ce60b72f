/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of a detached job's record. The input is a whole file, or, after a first byte
 * of 0xc1 (with which none begins), the body alone, which gets its envelope and its right checksum
 * here. What is read must be written back to a file that is read back to the same bytes.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *written(const struct kr_record *r, size_t *size)
{
    struct kr_out out;
    kr_out_init(&out);
    kr_record_write(&out, r);
    char *bytes = kr_out_take(&out, size);
    assert(bytes);
    return bytes;
}

static void read_file(const void *data, size_t size)
{
    struct kr_record r, again;
    struct kr_err err = {.code = KR_OK};
    size_t first_size, second_size;
    if (kr_record_read(&r, data, size, &err) < 0) {
        assert(err.code == KR_BAD_FILE && err.text[0] && !r.params.prompt && !r.client);
        return;
    }
    assert(r.job > 0 && r.params.count >= 1 && r.params.count <= 64 && r.params.seed >= 0);
    char *first = written(&r, &first_size);
    int rc = kr_record_read(&again, first, first_size, &err);
    assert(rc == 0);
    char *second = written(&again, &second_size);
    assert(first_size == second_size && memcmp(first, second, first_size) == 0);
    free(first);
    free(second);
    kr_record_fini(&r);
    kr_record_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kr_out out;
    if (size == 0 || data[0] != 0xc1) {
        read_file(data, size);
        return 0;
    }
    kr_out_init(&out);
    kr_out_array(&out, 4);
    kr_out_text(&out, "kread job");
    kr_out_int(&out, KR_RECORD_VERSION);
    kr_out_int(&out, kr_crc32(data + 1, size - 1));
    kr_out_bytes(&out, data + 1, size - 1);
    read_file(out.data, out.size);
    kr_out_fini(&out);
    return 0;
}
