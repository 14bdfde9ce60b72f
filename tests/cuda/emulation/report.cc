/* SPDX-License-Identifier: Apache-2.0
 *
 * What was found, and the names of the places. A fault is kept once per kind, kernel and code
 * address, with the text of its first time and a count. Reports that no test has forgotten when the
 * program ends are printed, and the program fails.
 */
#include "internal.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

enum { MAX_REPORTS = 200, TEXT = 600 };

struct report {
    enum emu_kind kind;
    const void *kernel, *site;
    uint64_t count;
    char text[TEXT];
};

static struct report reports[MAX_REPORTS];
static int kept;
static int totals[EMU_KINDS];
static int at_exit_set;

const char *emu_kind_name(enum emu_kind kind)
{
    static const char *const names[EMU_KINDS] = {
        "divergent barrier", "divergent warp", "shared race",
        "global race",       "stream race",    "unwritten read",
        "out of bounds",     "use after free", "host memory",
        "device memory",     "read-only",      "misaligned",
        "asynchronous copy", "launch",         "capture",
        "cuBLASLt",          "misuse",         "leak"};
    return kind >= 0 && kind < EMU_KINDS ? names[kind] : "?";
}

/* ------------------------------------------------------------------------------ symbols ------ */

struct image {
    const char *file; /* mapped */
    size_t bytes;
    uintptr_t bias;
    char path[200];
};
static struct image image; /* the program or module that the emulation is part of */

static int find_image(struct dl_phdr_info *info, size_t, void *)
{
    uintptr_t here = (uintptr_t)&find_image;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || here - (info->dlpi_addr + p->p_vaddr) >= p->p_memsz)
            continue;
        snprintf(image.path, sizeof image.path, "%s", info->dlpi_name ? info->dlpi_name : "");
        if (!image.path[0] && readlink("/proc/self/exe", image.path, sizeof image.path - 1) < 0)
            return 1;
        int fd = open(image.path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        if (fd >= 0 && !fstat(fd, &st)) {
            void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
            if (map != MAP_FAILED)
                image.file = (const char *)map;
            image.bytes = (size_t)st.st_size;
            image.bias = info->dlpi_addr;
        }
        if (fd >= 0)
            close(fd);
        return 1;
    }
    return 0;
}

static const char *mangled_name(uintptr_t address)
{
    const ElfW(Ehdr) *e = (const ElfW(Ehdr) *)image.file;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(image.file + e->e_shoff);
    for (int s = 0; s < e->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(image.file + sections[s].sh_offset);
        const char *names = image.file + sections[sections[s].sh_link].sh_offset;
        size_t count = sections[s].sh_size / sizeof symbols[0];
        for (size_t i = 0; i < count; i++)
            if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC &&
                address - symbols[i].st_value < symbols[i].st_size)
                return names + symbols[i].st_name;
    }
    return NULL;
}

/* Cuts the parameters' types off, which say nothing here: the last group of parentheses. */
static void cut_parameters(char *name)
{
    size_t end = strlen(name);
    int depth = 0;
    if (!end || name[end - 1] != ')')
        return;
    for (size_t i = end; i-- > 1;) {
        depth += name[i] == ')';
        depth -= name[i] == '(';
        if (depth == 0) {
            name[i] = '\0';
            return;
        }
    }
}

const char *symbol_of(const void *code)
{
    static char name[256];
    if (!image.file)
        dl_iterate_phdr(find_image, NULL);
    const char *found = image.file ? mangled_name((uintptr_t)code - image.bias) : NULL;
    int status = -1;
    char *plain = found ? abi::__cxa_demangle(found, NULL, NULL, &status) : NULL;
    snprintf(name, sizeof name, "%s", plain ? plain : found ? found : "?");
    free(plain);
    cut_parameters(name);
    return name;
}

/* "file.cu:12" by addr2line where there is one, else "". */
static void line_of(const void *site, char *text, size_t size)
{
    char command[300];
    text[0] = '\0';
    if (!image.file)
        dl_iterate_phdr(find_image, NULL);
    snprintf(command, sizeof command, "addr2line -s -e '%s' 0x%lx 2>/dev/null", image.path,
             (unsigned long)((uintptr_t)site - image.bias - 1));
    FILE *pipe = site ? popen(command, "r") : NULL;
    if (pipe && fgets(text, (int)size, pipe))
        text[strcspn(text, "\n")] = '\0';
    if (pipe)
        pclose(pipe);
    if (text[0] == '?')
        text[0] = '\0';
}

/* ------------------------------------------------------------------------------ reports ------ */

static void print_reports(void)
{
    for (int i = 0; i < kept; i++) {
        char line[200];
        line_of(reports[i].site, line, sizeof line);
        fprintf(stderr, "emulated device: %s: %s%s%s%s; %llu time(s)\n",
                emu_kind_name(reports[i].kind), reports[i].text, line[0] ? " (" : "", line,
                line[0] ? ")" : "", (unsigned long long)reports[i].count);
    }
}

static void at_exit(void)
{
    emu_leaks();
    if (!emu_reports())
        return;
    print_reports();
    fprintf(stderr, "emulated device: %d report(s)\n", emu_reports());
    fflush(NULL);
    _exit(97);
}

static int describe_place(char *text, size_t size)
{
    if (!now.launch)
        return 0;
    int n = snprintf(text, size, "%s", symbol_of(now.launch->kernel));
    if (now.self)
        n += snprintf(text + n, size - (size_t)n, ", block (%u,%u,%u), thread (%u,%u,%u)",
                      emu_place.block.x, emu_place.block.y, emu_place.block.z, now.self->thread.x,
                      now.self->thread.y, now.self->thread.z);
    return n + snprintf(text + n, size - (size_t)n, ": ");
}

void report(enum emu_kind kind, const void *site, const char *format, ...)
{
    const void *kernel = now.launch ? now.launch->kernel : NULL;
    if (!at_exit_set++)
        atexit(at_exit);
    totals[kind]++;
    for (int i = 0; i < kept; i++)
        if (reports[i].kind == kind && reports[i].kernel == kernel && reports[i].site == site &&
            (site || kernel)) {
            reports[i].count++;
            return;
        }
    if (kept == MAX_REPORTS)
        return;
    struct report *r = &reports[kept++];
    *r = {kind, kernel, site, 1, ""};
    int n = describe_place(r->text, TEXT - 200);
    va_list args;
    va_start(args, format);
    vsnprintf(r->text + n, TEXT - (size_t)n, format, args);
    va_end(args);
}

/* Leaks count also where nothing else was ever reported. */
__attribute__((constructor)) static void watch_exit(void)
{
    if (!at_exit_set++)
        atexit(at_exit);
}

int emu_reports(void)
{
    int sum = 0;
    for (int k = 0; k < EMU_KINDS; k++)
        sum += totals[k];
    return sum;
}

int emu_reported(enum emu_kind kind)
{
    return totals[kind];
}

const char *emu_report_text(int index)
{
    return index >= 0 && index < kept ? reports[index].text : NULL;
}

void emu_forget_reports(void)
{
    kept = 0;
    memset(totals, 0, sizeof totals);
}
