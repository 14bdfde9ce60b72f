# SPDX-License-Identifier: Apache-2.0
#
# kread. `make help` lists what there is to make. One static library a room, so that a program or a
# test links only what its row of the design's include table allows.

SHELL    := /bin/bash
VERSION  := 0.1.0
B        ?= build
PREFIX   ?= /usr/local
DESTDIR  ?=
CC       ?= gcc
PYTHON   ?= /usr/bin/python3
CFLAGS   ?= -O2 -g
SANITIZE ?=
WERROR   ?= $(if $(CI),yes)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

# ------------------------------------------------------------------------------------ flags -------
pkg     = $(shell pkg-config $(1) 2>/dev/null)
msgpack := $(if $(call pkg,--modversion msgpack),msgpack,msgpack-c)

warnings := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef \
            -Wpointer-arith -Wwrite-strings -Wformat=2 -Wno-format-nonliteral $(if $(WERROR),-Werror)
sanitize := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all)
flags    := -std=c11 -D_GNU_SOURCE -I. -pthread -fno-strict-aliasing -fno-math-errno \
            -ffp-contract=off -DKR_VERSION='"$(VERSION)"' $(warnings) $(sanitize) $(CFLAGS)

# A line a command; V=1 shows the commands.
brief = $(if $(V),,@echo "  $(1)  $@";)

# What one folder adds to the flags, and what a room's library needs at link time.
flags_kernels/cpu    := -O3 -fopenmp -Wno-psabi
flags_tests/bench    := -fopenmp
libs_proto           := $(call pkg,--libs $(msgpack))
libs_kernels         := -ldnnl -fopenmp -lm
libs_weights         := -ljansson $(libs_kernels) $(libs_proto)
libs_model           := $(call pkg,--libs libpcre2-8 libutf8proc) $(libs_weights)
libs_engine          := $(call pkg,--libs libpng) $(libs_model)
libs_server          := $(call pkg,--libs libuv) $(libs_proto)
libs_daemon          := -linih $(call pkg,--libs libsystemd) $(libs_server)

# ------------------------------------------------------------------------------------ rooms -------
objects  = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)/*.c))
archive  = $(B)/lib$(notdir $(1)).a
rooms   := proto kernels kernels/cpu daemon/weights daemon/model daemon/engine daemon/server \
           tests/common

# Two files that change only when what they hold does: other flags rebuild every object, and a source
# that comes or goes rebuilds the archives.
define stamp
ifneq ($(2),$$(file <$(B)/$(1)))
$$(shell mkdir -p $(B))
$$(file >$(B)/$(1),$(2))
endif
endef
$(eval $(call stamp,flags.stamp,$(strip $(CC) $(flags) $(foreach r,$(rooms),$(flags_$(r))))))
$(eval $(call stamp,sources.stamp,$(strip $(foreach r,$(rooms) daemon client,$(wildcard $(r)/*.c)))))

define room
$(call archive,$(1)): $(call objects,$(1)) $(B)/sources.stamp
	@rm -f $$@
	@$$(AR) rcs $$@ $$(filter %.o,$$^)
endef
$(foreach r,$(rooms),$(eval $(call room,$(r))))

lib_proto   := $(B)/libproto.a
lib_kernels := $(B)/libkernels.a $(B)/libcpu.a
lib_weights := $(B)/libweights.a $(lib_kernels) $(lib_proto)
lib_model   := $(B)/libmodel.a $(lib_weights)
lib_engine  := $(B)/libengine.a $(lib_model)
lib_server  := $(B)/libserver.a $(lib_proto)

$(B)/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	$(call brief,CC)$(CC) $(flags) $(flags_$(patsubst %/,%,$(dir $<))) -MMD -MP -c $< -o $@

# $(call program,OBJECTS,ARCHIVES,LIBRARIES): the archives of a room and its backends name each other.
program = $(call brief,LD)$(CC) $(flags) $(1) -o $@ -Wl,--start-group $(2) -Wl,--end-group $(3)

## all: build kread and kreactl into build/
.PHONY: all
all: $(B)/kread $(B)/kreactl

$(B)/kread: $(call objects,daemon) $(B)/libserver.a $(lib_engine)
	$(call program,$(call objects,daemon),$(B)/libserver.a $(lib_engine),$(libs_daemon) $(libs_engine))

$(B)/kreactl: $(call objects,client) $(lib_proto)
	$(call program,$(call objects,client),$(lib_proto),$(libs_proto))

# ------------------------------------------------------------------------------------ tests -------
test_rooms := proto kernels weights model engine server
tests_of    = $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/$(1)/test_*.c))
helpers_of  = $(patsubst %.c,$(B)/%.o,$(filter-out tests/$(1)/test_%,$(wildcard tests/$(1)/*.c)))
lib_common := $(B)/libcommon.a

define room_tests
$(B)/tests/$(1)/test_%: $(B)/tests/$(1)/test_%.o $(call helpers_of,$(1)) $(lib_$(1)) $(lib_common)
	$$(call program,$$< $(call helpers_of,$(1)),$(lib_common) $(lib_$(1)),$(libs_$(1)) -ljansson -lcmocka -lm)
endef
$(foreach r,$(test_rooms),$(eval $(call room_tests,$(r))))

# The whole daemon around an engine that only pretends.
$(B)/tests/kread-fake: $(call objects,daemon) $(B)/tests/server/fake_engine.o $(lib_server)
	$(call program,$(call objects,daemon) $(B)/tests/server/fake_engine.o,$(lib_server),$(libs_daemon) -lm)

fuzzers := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/tests/fuzz/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(lib_model)
	$(call program,$< $(B)/tests/fuzz/replay.o,$(lib_model),$(libs_model))

c_tests  := $(foreach r,$(test_rooms),$(call tests_of,$(r)))
programs := $(B)/kread $(B)/kreactl $(B)/tests/kread-fake

## check: install what is needed, build, run all tests
.PHONY: check test
check: deps
	$(MAKE) test
test: $(c_tests) $(fuzzers) $(programs)
	$(PYTHON) tests/run --build $(B) $(c_tests) $(fuzzers)

## asan, ubsan, tsan: the tests under a sanitizer (tsan: those with threads)
.PHONY: asan ubsan tsan
asan:
	$(MAKE) test B=$(B)/asan SANITIZE=address,undefined CFLAGS='-O1 -g'
ubsan:
	$(MAKE) test B=$(B)/ubsan SANITIZE=undefined CFLAGS='-O1 -g'
tsan:
	$(MAKE) tsan-run B=$(B)/tsan SANITIZE=thread CFLAGS='-O1 -g'
tsan_tests := $(call tests_of,proto) $(call tests_of,server) $(B)/tests/kernels/test_device \
              $(B)/tests/model/test_tokenizer $(B)/tests/engine/test_job
.PHONY: tsan-run
tsan-run: $(tsan_tests) $(B)/tests/kread-fake $(B)/kreactl
	$(PYTHON) tests/run --build $(B) --pytest tests/server $(tsan_tests)

## lint: include table, function lengths, formatting, cppcheck
.PHONY: lint format
lint:
	$(PYTHON) tests/lint
## format: rewrite all C sources with clang-format
format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

# ------------------------------------------------------------------------------- benchmarks -------
benches := $(patsubst tests/bench/%.c,$(B)/bench/%,$(wildcard tests/bench/bench_*.c))
$(B)/bench/%: $(B)/tests/bench/%.o $(lib_engine)
	@mkdir -p $(@D)
	$(call program,$<,$(lib_engine),$(libs_engine))

## bench: ratios of speed, each against something in the same run
.PHONY: bench
bench: all $(benches)
	@for b in $(benches); do echo "== $$(basename $$b)"; $$b || exit 1; done

## fuzz: build the fuzzers with clang's libFuzzer into build/fuzz/
.PHONY: fuzz
fuzz:
	@mkdir -p $(B)/fuzz
	@for f in $(wildcard tests/fuzz/fuzz_*.c); do \
	    clang -std=c11 -D_GNU_SOURCE -I. -O1 -g -fsanitize=fuzzer,address,undefined $$f \
	        $(wildcard proto/*.c daemon/weights/*.c daemon/model/tokenizer*.c kernels/*.c) \
        $(libs_model) -o $(B)/fuzz/$$(basename $$f .c) || exit 1; done

# ----------------------------------------------------------------------------------- set-up -------
## deps: install the packages that build, tests and lint need (Debian, Ubuntu)
.PHONY: deps
deps:
	@tests/deps

## demo: install, build, start the daemon, make a picture, stop it
.PHONY: demo
demo: deps
	$(MAKE) -j$$(nproc) all
	@demo/run $(B)

## install: into $(DESTDIR)$(PREFIX)
.PHONY: install install-files
install: all
	$(MAKE) install-files
at := $(DESTDIR)$(PREFIX)
install-files:
	install -d $(at)/bin $(at)/share/kread/demo/tokenizer $(at)/share/doc/kread \
	    $(at)/lib/systemd/system $(at)/lib/sysusers.d
	install -m 755 $(B)/kread $(B)/kreactl $(at)/bin/
	install -m 644 demo/demo.ini demo/*.safetensors $(at)/share/kread/demo/
	install -m 644 demo/tokenizer/*.json demo/tokenizer/merges.txt $(at)/share/kread/demo/tokenizer/
	install -m 644 README.md CHANGELOG.md LICENSE NOTICE docs/*.md etc/kread.ini $(at)/share/doc/kread/
	install -m 644 systemd/kread.sysusers $(at)/lib/sysusers.d/kread.conf
	for unit in systemd/*.service systemd/*.socket; do \
	    sed 's|@PREFIX@|$(PREFIX)|g' $$unit >$(at)/lib/systemd/system/$$(basename $$unit); done

## clean: remove build/
.PHONY: clean
clean:
	rm -rf $(B)

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' Makefile

-include $(shell find $(B) -name '*.d' 2>/dev/null)
