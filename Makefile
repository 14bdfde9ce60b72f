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
CUDA    ?= auto
nvcc    := $(if $(filter no,$(CUDA)),,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
ifeq ($(CUDA)$(nvcc),yes)
$(error CUDA=yes, and there is no nvcc here: install the CUDA toolkit 13, or add its bin folder to PATH)
endif
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
flags_daemon/engine  := -O3
flags_tests/bench    := -fopenmp
libs_proto           := $(call pkg,--libs $(msgpack))
libs_kernels         := -ldnnl -fopenmp -lm
libs_weights         := -ljansson $(libs_kernels) $(libs_proto)
libs_model           := $(call pkg,--libs libpcre2-8 libutf8proc) $(libs_weights)
libs_engine          := $(call pkg,--libs libpng) $(libs_model)
libs_server          := $(call pkg,--libs libuv) $(libs_proto)
libs_settings        := -linih $(libs_proto)
libs_daemon          := $(call pkg,--libs libsystemd) $(libs_server) $(libs_settings)
libs_http            := $(call pkg,--libs libmicrohttpd) -ljansson $(call pkg,--libs libsystemd) $(libs_settings)

# ------------------------------------------------------------------------------------ rooms -------
objects  = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)/*.c))
archive  = $(B)/lib$(notdir $(1)).a
rooms   := proto proto/settings kernels kernels/cpu daemon/weights daemon/model daemon/engine daemon/server \
           client tests/common

# Two files that change only when what they hold does: other flags rebuild every object, and a source
# that comes or goes rebuilds the archives.
define stamp
ifneq ($(2),$$(file <$(B)/$(1)))
$$(shell mkdir -p $(B))
$$(file >$(B)/$(1),$(2))
endif
endef
$(eval $(call stamp,flags.stamp,$(strip $(CC) $(flags) $(foreach r,$(rooms),$(flags_$(r))))))
$(eval $(call stamp,sources.stamp,$(strip $(foreach r,$(rooms) daemon client/kreactl client/http,$(wildcard $(r)/*.c)))))

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
lib_settings := $(B)/libsettings.a $(lib_proto)
lib_client  := $(B)/libclient.a $(lib_settings)

$(B)/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	$(call brief,CC)$(CC) $(flags) $(flags_$(patsubst %/,%,$(dir $<))) -MMD -MP -c $< -o $@

# $(call program,OBJECTS,ARCHIVES,LIBRARIES): the archives of a room and its backends name each other.
program = $(call brief,LD)$(CC) $(flags) $(1) -o $@ -Wl,--start-group $(2) -Wl,--end-group $(3)

## all: build kread, kreactl, kread-http and, where nvcc is (CUDA=auto|yes|no), kread-cuda.so into build/
.PHONY: all
all: $(B)/kread $(B)/kreactl $(B)/kread-http $(if $(nvcc),$(B)/kread-cuda.so)

$(B)/kread: $(call objects,daemon) $(B)/libserver.a $(B)/libsettings.a $(lib_engine)
	$(call program,$(call objects,daemon),$(B)/libserver.a $(B)/libsettings.a $(lib_engine),$(libs_daemon) $(libs_engine))

$(B)/kreactl: $(call objects,client/kreactl) $(lib_client)
	$(call program,$(call objects,client/kreactl),$(lib_client),$(libs_settings))

# The page's files are part of the program; page.S names them.
http_objects := $(call objects,client/http) $(B)/client/http/page.o
$(B)/client/http/page.o: client/http/page.S $(wildcard client/page/*)
	@mkdir -p $(@D)
	$(call brief,AS)$(CC) -I. -c $< -o $@
$(B)/kread-http: $(http_objects) $(lib_client)
	$(call program,$(http_objects),$(lib_client),$(libs_http))

# ------------------------------------------------------------------------------------- CUDA -------
# The module that kread opens at run time: the device, and its own copy of the half that all devices share.
# It needs libcublasLt.so; the CUDA runtime is inside.
cuda_archs   := 80 86 89 90 100 120
cuda_sources := $(wildcard kernels/cuda/*.cu)
nvcc_flags   := -std=c++17 -O3 -I. -DKR_VERSION='"$(VERSION)"' -Werror all-warnings -Xcompiler -fPIC,-fvisibility=hidden \
                $(foreach a,$(cuda_archs),-gencode arch=compute_$(a),code=sm_$(a)) \
                -gencode arch=compute_$(lastword $(cuda_archs)),code=compute_$(lastword $(cuda_archs))
pic = $(patsubst %.c,$(B)/pic/%.o,$(wildcard kernels/*.c))
$(B)/pic/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	$(call brief,CC)$(CC) $(flags) -fPIC -fvisibility=hidden -MMD -MP -c $< -o $@
$(B)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call brief,NVCC)$(nvcc) $(nvcc_flags) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(B)/kread-cuda.so: $(cuda_sources:%=$(B)/%.o) $(pic)
	$(call brief,LD)$(nvcc) -shared -o $@ $^ -lcublasLt

## cuda-report: registers, shared memory and spills of every CUDA kernel
.PHONY: cuda-report
cuda-report:
	@tests/cuda/report $(nvcc) $(nvcc_flags)

## gpu-kit: a folder, build/gpu, with what tests/gpu/run needs on a machine that has a GPU and nothing of ours
.PHONY: gpu-kit
gpu_tests := $(addprefix $(B)/tests/,engine/test_generate $(addprefix kernels/test_,rows linear attention conv))
$(B)/tests/gpu/gpu: $(B)/tests/gpu/gpu.o $(B)/libkernels.a
	$(call program,$<,$(B)/libkernels.a,-lm)
gpu-kit: $(B)/kread $(B)/kreactl $(B)/kread-cuda.so $(B)/tests/gpu/gpu $(gpu_tests)
	tests/gpu/kit $(B)

# The same sources for the host, where tests/cuda/emulation executes them: `fast`, and `checked`, whose
# every load and store is reported to it (the instrumentation is the thread sanitizer's, its library is not).
emulator_flags := -std=c++17 -D_GNU_SOURCE -Itests/cuda/include -I. -DKR_VERSION='"$(VERSION)"' -pthread -fPIC \
                  -fno-strict-aliasing -O2 -g -Wall -Wextra -Wno-unknown-pragmas -fno-extern-tls-init -fvisibility=hidden $(if $(WERROR),-Werror)
flags_fast     := -O3
flags_checked  := -fsanitize=thread,alignment,bounds --param tsan-instrument-func-entry-exit=0
emulator       := $(patsubst %.cc,$(B)/%.o,$(wildcard tests/cuda/emulation/*.cc))
$(B)/tests/cuda/%.o: tests/cuda/%.cc $(B)/flags.stamp
	@mkdir -p $(@D)
	$(call brief,CXX)$(CXX) $(emulator_flags) -O3 -MMD -MP -c $< -o $@
# The tests have kernels of their own, which are checked, too; the emulation itself is not.
$(B)/tests/cuda/test_%.o: tests/cuda/test_%.cc $(B)/flags.stamp
	@mkdir -p $(@D)
	$(call brief,CXX)$(CXX) $(emulator_flags) $(flags_checked) -MMD -MP -c $< -o $@
define emulated
$(B)/$(1)/%.o: %.cu $(B)/flags.stamp
	@mkdir -p $$(@D)
	$$(call brief,CXX)$(CXX) $(emulator_flags) $(flags_$(1)) -x c++ -MMD -MP -c $$< -o $$@
$(B)/$(1)/kread-cuda.so: $(cuda_sources:%.cu=$(B)/$(1)/%.o) $(emulator) $(pic)
	$$(call brief,LD)$(CXX) -shared -pthread -o $$@ $$^
endef
$(foreach e,fast checked,$(eval $(call emulated,$(e))))

cuda_helpers := $(patsubst %.cc,$(B)/%.o,$(filter-out tests/cuda/test_%,$(wildcard tests/cuda/*.cc))) $(emulator)
cuda_tests   := $(patsubst tests/%.cc,$(B)/tests/%,$(wildcard tests/cuda/test_*.cc))
$(B)/tests/cuda/test_%: $(B)/tests/cuda/test_%.o $(cuda_helpers) $(cuda_sources:%.cu=$(B)/checked/%.o) $(lib_model)
	$(call brief,LD)$(CXX) -pthread -o $@ $(filter %.o,$^) -Wl,--start-group $(lib_model) -Wl,--end-group $(libs_model) -lcmocka

# ----------------------------------------------------------------------------------- manual -------
# Pages and completions come out of the tables that the programs parse with.
generate := $(B)/docs/man/generate
man_objects := $(call objects,docs/man) $(B)/client/http/settings.o $(B)/daemon/options.o \
               $(filter-out %/kreactl.o,$(call objects,client/kreactl))
$(generate): $(man_objects) $(lib_client)
	$(call program,$(man_objects),$(lib_client),$(libs_settings))

pages       := kread.8 kread-http.8 kreactl.1 kread.ini.5 kread-protocol.7
manual      := $(pages:%=$(B)/man/%) $(B)/man/client.py
completions := $(foreach s,bash zsh fish,$(foreach p,kread kreactl kread-http,$(B)/completions/$(s)/$(p)))
$(B)/man/%: docs/man/%.in docs/protocol.md $(generate)
	@mkdir -p $(@D)
	$(call brief,MAN)$(generate) page $< docs/protocol.md >$@
$(B)/man/client.py: docs/protocol.md
	@mkdir -p $(@D)
	@sed -n '/^```python/,/^```/{/^```/!p}' $< >$@
$(completions): $(generate)
	@mkdir -p $(@D)
	@$(generate) $(notdir $(@D)) $(@F) >$@

## manual: the manual pages and the shells' completions into build/
.PHONY: manual
manual: $(manual) $(completions)

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
$(B)/tests/kread-fake: $(call objects,daemon) $(B)/tests/server/fake_engine.o $(lib_server) $(lib_settings)
	$(call program,$(call objects,daemon) $(B)/tests/server/fake_engine.o,$(lib_server) $(lib_settings),$(libs_daemon) -lm)

fuzzers := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/tests/fuzz/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(lib_model)
	$(call program,$< $(B)/tests/fuzz/replay.o,$(lib_model),$(libs_model))
setup := $(addprefix daemon/,config.c options.c setup.c server/access.c server/listener.c)
fuzz_config := $(B)/tests/fuzz/fuzz_config.o $(B)/tests/fuzz/replay.o $(setup:%.c=$(B)/%.o)
$(B)/tests/fuzz/fuzz_config: $(fuzz_config) $(lib_settings)
	$(call program,$(fuzz_config),$(lib_settings),$(libs_settings))
http_without_main := $(filter-out %/main.o,$(http_objects))
$(B)/tests/fuzz/fuzz_http_%: $(B)/tests/fuzz/fuzz_http_%.o $(B)/tests/fuzz/replay.o $(http_without_main) $(lib_client)
	$(call program,$< $(B)/tests/fuzz/replay.o $(http_without_main),$(lib_client),$(libs_http))

c_tests  := $(foreach r,$(test_rooms),$(call tests_of,$(r)))
programs := $(B)/kread $(B)/kreactl $(B)/kread-http $(B)/tests/kread-fake
# Fibers and the sanitizers know nothing of each other.
emulated_tests := $(if $(SANITIZE),,$(cuda_tests) $(B)/fast/kread-cuda.so)

## check: install what is needed, build, run all tests
.PHONY: check test
check: deps
	$(MAKE) test
test: $(c_tests) $(emulated_tests) $(fuzzers) $(programs) manual
	$(PYTHON) tests/run --build $(B) $(c_tests) $(filter-out %.so,$(emulated_tests)) $(fuzzers)

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
tsan-run: $(tsan_tests) $(B)/tests/kread-fake $(B)/kreactl $(B)/kread-http
	$(PYTHON) tests/run --build $(B) --pytest tests/server --pytest tests/http $(tsan_tests)

## check-clients: the HTTP shim with real clients, which come from PyPI
.PHONY: check-clients
check-clients: all $(B)/tests/kread-fake
	tests/clients/run $(B)

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
bench: all $(benches) $(B)/tests/kread-fake
	@for b in $(benches); do echo "== $$(basename $$b)"; $$b || exit 1; done
	@KREAD_BUILD=$(abspath $(B)) $(PYTHON) tests/bench/http_overhead.py
	@KREAD_BUILD=$(abspath $(B)) $(PYTHON) tests/bench/startup.py

## fuzz: build the fuzzers with clang's libFuzzer into build/fuzz/
.PHONY: fuzz
fuzz:
	@mkdir -p $(B)/fuzz
	@for f in $(wildcard tests/fuzz/fuzz_*.c); do \
	    setup=; [ $$f != tests/fuzz/fuzz_config.c ] || setup='$(setup) $(wildcard proto/settings/*.c) -linih'; \
	    clang -std=c11 -D_GNU_SOURCE -I. -O1 -g -DKR_VERSION='"$(VERSION)"' -fsanitize=fuzzer,address,undefined \
	        -fno-sanitize-recover=all $$f \
	        $(wildcard proto/*.c daemon/weights/*.c daemon/model/tokenizer*.c kernels/*.c) \
	        $(addprefix client/http/,ask.c body.c pngtext.c base64.c guard.c) $$setup \
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

## install, uninstall: into, from $(DESTDIR)$(PREFIX)
.PHONY: install install-files uninstall
install: all manual
	$(MAKE) install-files
at          := $(DESTDIR)$(PREFIX)
doc         := $(at)/share/doc/kread
unitdir     ?= $(PREFIX)/lib/systemd/system
userunitdir ?= $(PREFIX)/lib/systemd/user
zsh_dir     ?= site-functions
cuda_module  = $(wildcard $(B)/kread-cuda.so)
# $(call install_units,FILES,DIR): with the programs' place in them.
install_units = install -d $(DESTDIR)$(2); for unit in $(1); do \
    sed 's|@PREFIX@|$(PREFIX)|g' $$unit >$(DESTDIR)$(2)/$$(basename $$unit) || exit 1; done
install-files:
	install -d $(at)/bin $(at)/share/kread/demo/tokenizer $(doc)/examples $(at)/lib/sysusers.d $(at)/lib/tmpfiles.d
	install -m 755 $(B)/kread $(B)/kreactl $(B)/kread-http $(at)/bin/
	install -m 644 demo/demo.ini demo/*.safetensors $(at)/share/kread/demo/
	install -m 644 demo/tokenizer/*.json demo/tokenizer/merges.txt $(at)/share/kread/demo/tokenizer/
	install -m 644 README.md CHANGELOG.md LICENSE NOTICE docs/*.md etc/kread.ini systemd/kread.service.d/cuda.conf $(doc)/
	install -m 644 $(B)/man/client.py $(doc)/examples/
	for s in 1 5 7 8; do install -d $(at)/share/man/man$$s && \
	    install -m 644 $(B)/man/*.$$s $(at)/share/man/man$$s/ || exit 1; done
	for p in kread kreactl kread-http; do \
	    install -D -m 644 $(B)/completions/bash/$$p $(at)/share/bash-completion/completions/$$p && \
	    install -D -m 644 $(B)/completions/zsh/$$p $(at)/share/zsh/$(zsh_dir)/_$$p && \
	    install -D -m 644 $(B)/completions/fish/$$p $(at)/share/fish/vendor_completions.d/$$p.fish || exit 1; done
	for p in kread kread-http; do install -m 644 systemd/$$p.sysusers $(at)/lib/sysusers.d/$$p.conf; done
	install -m 644 systemd/kread.tmpfiles $(at)/lib/tmpfiles.d/kread.conf
	$(call install_units,systemd/*.service systemd/*.socket,$(unitdir))
	$(call install_units,systemd/user/*,$(userunitdir))
ifneq ($(cuda_module),)
	install -D -m 644 $(cuda_module) $(at)/lib/kread/kread-cuda.so
	$(call install_units,systemd/kread.service.d/cuda.conf,$(unitdir)/kread.service.d)
endif

# What an installation into an empty folder brings is what is removed, so that there is one list.
uninstall:
	@set -e; list=$$(mktemp -d); trap 'rm -rf "$$list"' EXIT; \
	$(MAKE) install-files DESTDIR=$$list >/dev/null; \
	cd $$list; find . ! -type d | while read -r f; do rm -f "$(DESTDIR)/$$f"; done; \
	find . -depth -type d -path '*kread*' | while read -r d; do \
	    [ ! -d "$(DESTDIR)/$$d" ] || rmdir --ignore-fail-on-non-empty "$(DESTDIR)/$$d"; done

## deb: the Debian packages kread, kread-http, kread-demo and, where the CUDA device is built, kread-cuda, into build/deb/
.PHONY: deb
deb_version ?= $(VERSION)
deb_tree    := $(B)/deb/kread-$(VERSION)
deb: $(if $(nvcc),$(B)/kread-cuda.so)
	@command -v dh >/dev/null || { \
	    echo "make deb: Debian's packaging tools are missing: apt-get install build-essential debhelper" >&2; exit 1; }
	rm -rf $(B)/deb && mkdir -p $(deb_tree)/build/package
	git ls-files -z -co --exclude-standard | while IFS= read -rd "" f; do \
	    [ ! -e "$$f" ] || cp --parents -t $(deb_tree) "$$f" || exit 1; done
	cp -r etc/debian $(deb_tree)/debian && rm $(deb_tree)/debian/README
	sed 's/@VERSION@/$(deb_version)/; s/@DATE@/'"$$(LC_ALL=C date -R)"'/' etc/debian/changelog.in >$(deb_tree)/debian/changelog
	rm $(deb_tree)/debian/changelog.in
	$(if $(cuda_module),cp $(cuda_module) $(deb_tree)/build/package/,@echo "kread-cuda is left out: $(B)/kread-cuda.so is not built")
	cd $(deb_tree) && dpkg-buildpackage -b -us -uc
	@ls $(B)/deb/*.deb

## check-deb: the packages in a fresh Debian 12: install, use, upgrade, purge (as root; downloads Debian)
.PHONY: check-deb
check-deb:
	@tests/e2e/check_deb $(B)

## clean: remove build/
.PHONY: clean
clean:
	rm -rf $(B)

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' Makefile

-include $(shell find $(B) -path '$(B)/deb*' -prune -o -name '*.d' -type f -print 2>/dev/null)
