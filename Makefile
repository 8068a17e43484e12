# make run         the main job: the package in ONNX Runtime, decoding       make build  the operator library alone
# make wheel       the Python package kvcache_ops, in target/wheels and in the environments of examples and tests;
#                  wheel-release: as it is published, for old systems too; test-wheel: that one, with each of PYTHONS
# make test        everything that can be proven on this machine: lint, and test-rust, test-docs, test-capi, test-golden,
#                  test-layout, test-ptx, test-cuda, test-sanitize, test-fuzz, test-python. What takes long is sampled;
#                  called alone, each target is whole
# make test-whole  the same without samples, with the libraries as released, and test-float16: several times as long
# make bench       what is fast, and how fast, as ratios of one run: bench-operator against the limit of memory and peers,
#                  bench-attention against loops that only read, matrix products and peers, bench-manager against
#                  memcpy, itself at other sizes, and peers; BENCH="--quick" for a sample of all,
#                  make bench-operator BENCH="--table" for the table in docs/numbers.md
# make test-sanitize-borders    the C interface and the Python package under AddressSanitizer
# make test-threads     what threads share, under ThreadSanitizer; the standard library is compiled, too, whose sources
#                  come from rustup
# make test-gpu, make bench-gpu    what needs an NVIDIA GPU; without one they end with exit code 77 and say so.
#                  make build-gpu builds what they run
# make test-torch  kvcache_ops.torch, with an environment of 5.5 GB; where PMX_CHECKOUT names a checkout of the public PMX
#                  repository, also its implementation through the conformance kit
# make check-targets    the libraries compile for aarch64 (Linux, macOS) and for Windows; needs rustup and the network
# make test-aarch64     the CPU kernels and golden cases on aarch64, under qemu; needs a cross compiler, too
# make test-msrv   the crates compile with the oldest Rust that they declare; needs rustup and the network
# make deny        licenses and advisories of all dependencies; semver BASE=v0.1.0: interfaces broken since a release.
#                  Both install their tools from crates.io and need the network
# make soak        STEPS (a million) decode steps on threads and sessions, while memory is measured; a short form of it is
#                  part of test-python
# make fuzz        all fuzz targets with libFuzzer, for MINUTES (1) each; FUZZ_TARGETS=operator for one of them
# make golden      writes the golden cases anew, and those that the package carries
# make install-capi PREFIX=/usr/local    the C library: shared, static, headers and pkg-config file
# make test-executors    the examples for candle and tract; not part of make test, since their builds are long
# make header      writes the C header anew
# make docs        writes the operators' pages in docs/, the pictures and plots, and the package's schemas anew, and
#                  builds the book: make book alone does that, into target/book
# make ptx         compiles the embedded PTX anew
# make clean       removes all that was built or installed here

PYTHON ?= python3
VENV := .venv/bin/python
OLDEST := .venv-oldest/bin/python
MIDDLE := .venv-middle/bin/python
# What is imported is compiled then.
INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check
# Where cargo builds, unless the user has said so. (No functions of make on paths: they split at spaces.)
export CARGO_TARGET_DIR ?= $(CURDIR)/target
TARGET := $(shell realpath -m "$(CARGO_TARGET_DIR)")
# Panic messages hold the paths of sources: those of dependencies, and of the standard library where rustup has its
# sources, shall not begin with the builder's home. All calls of cargo get the flags, so that none rebuilds what another
# has built; in this variable they may contain spaces, for they are separated by the character 31.
ifndef RUSTFLAGS
CARGO_HOME ?= $(HOME)/.cargo
RUST_SOURCES := $(shell rustc --print sysroot)/lib/rustlib/src/rust
SEPARATOR := $(shell printf '\037')
export CARGO_ENCODED_RUSTFLAGS ?= \
	--remap-path-prefix=$(CARGO_HOME)=cargo$(SEPARATOR)--remap-path-prefix=$(RUST_SOURCES)=rust
endif
# The library of the onnxruntime wheel, for Rust tests that run sessions; known once .venv exists.
ONNXRUNTIME = $(CURDIR)/$(firstword $(wildcard .venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*))

CUDA_FEATURES := kvcache-ort/cuda,kvcache-op/cuda,kvcache-python/cuda,kvcache-bench-device/cuda
# What tests are built from. Cargo gives a crate the features that the selected packages want, those of tests only where
# a test or an example is selected: with these flags, and one of those, no command compiles what another has compiled.
WORKSPACE := --workspace --locked --features $(CUDA_FEATURES)

.PHONY: run
run: .venv/wheel
	$(VENV) examples/continuous_batching.py
	$(VENV) examples/forking.py
	$(VENV) examples/context_shift.py
	$(VENV) examples/preemption.py
	$(VENV) examples/resuming.py
	$(VENV) examples/writing.py

# With the CUDA provider's operator; the library links nothing of CUDA and serves the CPU wherever there is none.
.PHONY: build
build:
	cargo build --release --locked -p kvcache-ort --features cuda

# The C library, to be linked by programs in C and C++.
PREFIX ?= /usr/local
.PHONY: install-capi
install-capi:
	cargo build --release --locked -p kvcache-capi
	install -d "$(DESTDIR)$(PREFIX)/lib/pkgconfig" "$(DESTDIR)$(PREFIX)/include/dlpack"
	install "$(TARGET)/release/libkvcache.so" "$(DESTDIR)$(PREFIX)/lib"
	install -m 644 "$(TARGET)/release/libkvcache.a" "$(DESTDIR)$(PREFIX)/lib"
	install -m 644 capi/include/kvcache.h "$(DESTDIR)$(PREFIX)/include"
	install -m 644 capi/include/dlpack/dlpack.h capi/include/dlpack/LICENSE "$(DESTDIR)$(PREFIX)/include/dlpack"
	version=$$(cargo pkgid -p kvcache-capi | sed 's/.*[@#]//'); \
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$version|" capi/kvcache.pc.in \
		> "$(DESTDIR)$(PREFIX)/lib/pkgconfig/kvcache.pc"

# What is installed, found by pkg-config, serves a program.
.PHONY: test-capi
test-capi:
	$(MAKE) install-capi PREFIX="$(TARGET)/capi" DESTDIR=
	PKG_CONFIG_PATH="$(TARGET)/capi/lib/pkgconfig" sh -c '\
		cc -std=c11 -Wall -Wextra -Werror capi/tests/programs/calls.c -o "$(TARGET)/capi/calls" \
			$$(pkg-config --cflags --libs kvcache)'
	LD_LIBRARY_PATH="$(TARGET)/capi/lib" "$(TARGET)/capi/calls"

# The examples for executors in Rust: workspaces of their own, since those take many minutes to build.
.PHONY: test-executors
test-executors:
	cd examples/candle && cargo test --locked && cargo run --locked --example decode
	cd examples/tract && cargo test --locked

.PHONY: header
header:
	KVCACHE_WRITE_HEADER=1 cargo test --quiet --locked -p kvcache-capi --test header

# The package, whose file is the library of `build` and the extension module in one. Its own threads are rayon's, so
# kvcache-op is compiled anew, with that feature.
WHEELS := $(TARGET)/wheels
.PHONY: wheel
wheel: .venv/ready
	rm -rf "$(WHEELS)"
	$(VENV) -m maturin build --quiet --release --locked --manifest-path python/Cargo.toml --out "$(WHEELS)"

# The package as it is published: the source distribution, which has every golden case because the wheel, built from it,
# carries them, and a wheel for every system with glibc 2.17 or later. Zig's linker knows the symbols of that version;
# auditwheel checks what has come out.
PUBLISHED := $(TARGET)/published
RELEASE_PYTHON := $(CURDIR)/.venv-release/bin/python
.PHONY: wheel-release
wheel-release: .venv-release/ready
	rm -rf "$(PUBLISHED)"
	$(RELEASE_PYTHON) -m maturin sdist --manifest-path python/Cargo.toml --out "$(PUBLISHED)"
	test "$$(tar -tzf "$(PUBLISHED)"/*.tar.gz | grep -c 'cases/.*/tensors\.safetensors$$')" = \
		"$$(ls golden/*cases/*/tensors.safetensors | wc -l)"
	mkdir "$(PUBLISHED)/source"
	tar -xzf "$(PUBLISHED)"/*.tar.gz -C "$(PUBLISHED)/source" --strip-components 1
	cd "$(PUBLISHED)/source" && PATH="$(CURDIR)/.venv-release/bin:$$PATH" $(RELEASE_PYTHON) -m maturin build --quiet \
		--release --zig --compatibility manylinux_2_17 --out "$(PUBLISHED)"
	rm -rf "$(PUBLISHED)/source"
	$(RELEASE_PYTHON) -m auditwheel show "$(PUBLISHED)"/*.whl | grep 'manylinux_2_17_x86_64'

# Installs the published wheel as a user would, with each of PYTHONS, and runs its page and its self-test.
PYTHONS ?= $(PYTHON)
.PHONY: test-wheel
test-wheel: wheel-release
	for python in $(PYTHONS); do \
		rm -rf "$(TARGET)/installed" && $$python -m venv "$(TARGET)/installed" && \
		"$(TARGET)/installed/bin/python" $(INSTALL) \
			"$(PUBLISHED)"/*.whl markdown-it-py onnx onnxruntime pytest && \
		"$(TARGET)/installed/bin/python" -m kvcache_ops doctor && \
		"$(TARGET)/installed/bin/python" -m pytest --quiet --noconftest \
			python_tests/test_package_page.py python_tests/test_int4.py python_tests/test_step_indices.py || exit 1; \
	done

# Installs it into an environment.
.venv/wheel .venv-oldest/wheel .venv-middle/wheel .venv-torch/wheel: %/wheel: %/ready wheel
	$*/bin/python $(INSTALL) --no-index --no-deps --force-reinstall "$(WHEELS)"/*.whl

# Each half is on one thread for much of its time, so the second, which builds with profiles and folders of its own, runs
# beside the first. Its output comes at the end, in one piece. The libraries are built without optimization at link time,
# which takes minutes and moves no bit.
SAMPLED := KVCACHE_SAMPLE=1 CARGO_PROFILE_RELEASE_LTO=off
FIRST := lint test-rust test-docs test-golden test-cuda test-python
SECOND := test-sanitize test-fuzz test-layout test-capi test-ptx
SECOND_LOG := $(TARGET)/second-half.log
.PHONY: test
test: .venv/ready
	mkdir -p "$(TARGET)"
	@$(SAMPLED) $(MAKE) --no-print-directory $(SECOND) > "$(SECOND_LOG)" 2>&1 & second=$$!; \
	$(SAMPLED) $(MAKE) --no-print-directory $(FIRST); first=$$?; \
	wait $$second; second=$$?; \
	cat "$(SECOND_LOG)"; \
	test $$first = 0 || { echo "test: one of $(FIRST) failed, above the output of $(SECOND)" >&2; exit $$first; }; \
	exit $$second

.PHONY: test-whole
test-whole: $(FIRST) $(SECOND) test-float16

# The sample: clippy with all features alone, and the documentation of what others depend on.
DOCUMENTED = $(if $(KVCACHE_SAMPLE),--locked --lib $(LIBRARIES:%=-p kvcache-%),$(WORKSPACE))
.PHONY: lint
lint: .venv/wheel
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	$(VENV) -m mypy --strict python/kvcache_ops
	$(VENV) -m mypy.stubtest kvcache_ops --allowlist python/stubtest.txt
	cargo fmt --all --check
	$(if $(KVCACHE_SAMPLE),,cargo clippy --workspace --all-targets --locked -- -D warnings)
	cargo clippy $(WORKSPACE) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(DOCUMENTED) --no-deps --quiet

# Tests for GPUs are built here and see none: test-cuda and test-gpu run them. The operator library that they load is the
# CPU's, whose kernels are compiled for the package, too; for the whole that of `build`.
.PHONY: test-rust
test-rust: .venv/ready
	cargo build --release --locked -p kvcache-ort $(if $(KVCACHE_SAMPLE),,--features cuda)
	CUDA_VISIBLE_DEVICES= KVCACHE_ONNXRUNTIME_LIB="$(ONNXRUNTIME)" cargo test $(WORKSPACE)
	"$(TARGET)/debug/examples/serve" > /dev/null

# Every float16 as a scale, with every code, and every pair of float16 as a value and the largest of its group, on kernels
# as released. test-rust samples them.
.PHONY: test-float16
test-float16:
	cargo test --release --locked -p kvcache-kernels --test every_float16_quotient --test every_float16_product

# What is generated is up to date; contents, links, anchors and commands of the book are right. Its code runs with the
# other tests: Rust as doctests, C with those of capi, Python in test_book.py. None of this needs mdBook.
.PHONY: test-docs
test-docs: .venv/ready
	cargo build --quiet $(WORKSPACE) --example operator_page
	"$(TARGET)/debug/examples/operator_page" --check
	$(VENV) docs/pictures.py --check
	$(VENV) docs/quality.py --check
	$(VENV) docs/check.py

# The conformance kit as tests have it; the example is no part of it, and makes the features those of the tests.
KIT := $(TARGET)/debug/kvcache-conformance
.PHONY: kit
kit:
	cargo build --quiet $(WORKSPACE) --bin kvcache-conformance --example operator_page

.PHONY: test-golden
test-golden: .venv/ready kit
	$(VENV) golden/generate.py --check
	"$(KIT)" --backend all --messages

# A new layout takes what the README says and no more: proven with a fifth one in a copy of the repository. The sample
# is the oracle in that copy.
.PHONY: test-layout
test-layout: .venv/ready
	$(VENV) golden/add_layout.py $(if $(KVCACHE_SAMPLE),--sample)

CUDA_FOLDERS := kernels/src/cuda attention/src/cuda

# The embedded PTX is what the sources give, and no kernel spills on any generation of GPUs; the sample is one generation
# for each module.
.PHONY: test-ptx
test-ptx: .venv-cuda/ready
	.venv-cuda/bin/python kernels/src/cuda/generate.py $(CUDA_FOLDERS) --check $(if $(KVCACHE_SAMPLE),--sample)

# The CPU kernels, those of attention too, and the CUDA kernels on the CPU under AddressSanitizer, the latter also under
# UBSan: golden cases and random calls. Rust's own sanitizer comes with the stable toolchain, but not its flag. The
# packages are always the same, so that test-sanitize and test-fuzz share what they build. The sample of `make test` is
# the CPU kernels.
EMULATED := dynamic_agree static_agree golden_cases attention_cases attention_invariance arithmetic exponential device
SYSTEM := x86_64-unknown-linux-gnu
ASAN_FLAGS := RUSTC_BOOTSTRAP=1 CARGO_ENCODED_RUSTFLAGS=-Zsanitizer=address
WITH_ASAN := $(ASAN_FLAGS) cargo test --profile sanitize --locked --target $(SYSTEM) \
	-p kvcache-op -p kvcache-attention -p kvcache-fuzz
.PHONY: test-sanitize
test-sanitize: $(if $(KVCACHE_SAMPLE),,test-sanitize-cuda)
	$(WITH_ASAN) --test golden --test agree --test layers --test static_golden --test static_batching --test invariance

.PHONY: test-sanitize-cuda
test-sanitize-cuda:
	cargo test $(WORKSPACE) --features kvcache-emulation-kernels/sanitize $(EMULATED:%=--test %)

# The borders to C and to Python under AddressSanitizer: what another language gives and gets is read and written inside
# its own memory. For C: the tests of capi, whose programs are compiled with the sanitizer, too, and link the shared or
# the static library. For Python: the package in an interpreter where the sanitizer's runtime, GCC's, is loaded first
# and every object has memory of its own; python_tests/with_asan shows first that too short memory is found. Leaks are
# looked for in C alone: an interpreter frees not all at its end. The runtime takes the place of C++'s throw, which must
# be there when it begins, and the interpreter alone has no C++. Left out are the tests of other things than the border
# (the book, soak, model files) and test_large_cache.py, with its caches of gigabytes.
BORDERS := $(TARGET)/borders
ASAN_RUNTIME = $(foreach library,libasan.so libstdc++.so,$(shell gcc -print-file-name=$(library)))
PYTHON_BORDER := test_run test_run_golden test_int4 test_cache_spec test_step_indices test_memory test_inplace \
	test_bind test_golden test_static_batching test_attention_golden test_refusals test_random test_random_defects \
	test_threads test_conformance test_manager_golden test_manager_memory test_manager_refusals test_manager_scripts \
	test_manager_sessions test_manager_steps test_manager_threads
.PHONY: test-sanitize-borders
test-sanitize-borders: .venv/ready
	KVCACHE_CFLAGS=-fsanitize=address $(WITH_ASAN) -p kvcache-capi --test shared --test programs --test pages
	$(ASAN_FLAGS) cargo build --profile sanitize --locked --target $(SYSTEM) -p kvcache-python --lib
	rm -rf "$(BORDERS)" && mkdir -p "$(BORDERS)" && cp -r python/kvcache_ops "$(BORDERS)"
	cp "$(TARGET)/$(SYSTEM)/sanitize/lib_native.so" "$(BORDERS)/kvcache_ops/_native.abi3.so"
	PYTHONPATH="$(BORDERS):python_tests" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$(ASAN_RUNTIME)" $(VENV) -m pytest -rs -p no:cacheprovider \
		python_tests/with_asan $(PYTHON_BORDER:%=python_tests/%.py)

# What threads share, under ThreadSanitizer: the tasks of a call and the counters by which they are claimed, the memory
# that attention keeps from call to call, operators and pools that several threads use at once, in Rust and behind the C
# interface, and the pool of the Python package's process. The sanitizer must see the synchronization inside the standard
# library, so that is compiled anew. ONNX Runtime, whose own synchronization it would not see, has no part in this.
WITH_TSAN := RUSTC_BOOTSTRAP=1 CARGO_ENCODED_RUSTFLAGS=-Zsanitizer=thread cargo test -Zbuild-std --profile sanitize \
	--locked --target $(SYSTEM) --target-dir "$(TARGET)/threads"
.PHONY: test-threads
test-threads:
	@command -v rustup > /dev/null || { echo "test-threads: there is no rustup, which installs rust-src" >&2; exit 1; }
	rustup component add rust-src || { echo "test-threads: rustup has not got rust-src" >&2; exit 1; }
	$(WITH_TSAN) -p kvcache-kernels -p kvcache-attention -p kvcache-op -p kvcache-capi -p kvcache-python \
		--test cache_rows --test rotate_keys --test threads --test concurrent --test shared

# The libraries for other systems: what cargo check does, and no warning. The targets' standard libraries come from
# rustup over the network; a machine may have neither, so `make test` does without this.
CHECKED_TARGETS ?= aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-msvc
LIBRARIES := schema kernels attention op manager ort capi
.PHONY: add-targets check-targets
add-targets:
	@command -v rustup > /dev/null || { echo "check-targets: there is no rustup, which installs targets" >&2; exit 1; }
	rustup target add $(CHECKED_TARGETS) || { echo "check-targets: rustup has not got the targets" >&2; exit 1; }
check-targets: add-targets
	cargo clippy --locked $(LIBRARIES:%=-p kvcache-%) --lib $(CHECKED_TARGETS:%=--target %) -- -D warnings

# The oldest Rust that the crates declare compiles all of them, with their tests.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)
.PHONY: test-msrv
test-msrv:
	@command -v rustup > /dev/null || { echo "test-msrv: there is no rustup, which installs Rust $(MSRV)" >&2; exit 1; }
	rustup toolchain install $(MSRV).0 --profile minimal --no-self-update
	CARGO_TARGET_DIR="$(TARGET)/msrv" cargo +$(MSRV).0 check --workspace --all-targets --locked

# Tools, which are compiled once.
TOOLS := $(TARGET)/tools
CARGO_DENY := $(TOOLS)/bin/cargo-deny
$(CARGO_DENY):
	cargo install --quiet --locked --version 0.20.2 --root "$(TOOLS)" cargo-deny
CARGO_SEMVER_CHECKS := $(TOOLS)/bin/cargo-semver-checks
$(CARGO_SEMVER_CHECKS):
	cargo install --quiet --locked --version 0.51.0 --root "$(TOOLS)" cargo-semver-checks

# The licenses, sources and known vulnerabilities of every dependency; the advisories come from the network.
WORKSPACES := . examples/candle examples/tract
.PHONY: deny
deny: $(CARGO_DENY)
	for workspace in $(WORKSPACES); do \
		"$(CARGO_DENY)" --manifest-path $$workspace/Cargo.toml --locked --config "$(CURDIR)/deny.toml" check || exit 1; \
	done

# The public interfaces of the crates against those of a release, by semantic versioning. Before the first release there
# is nothing to compare with.
BASE ?= v0.1.0
.PHONY: semver semver-base
semver: semver-base $(CARGO_SEMVER_CHECKS)
	"$(CARGO_SEMVER_CHECKS)" semver-checks --baseline-rev $(BASE) $(LIBRARIES:%=-p kvcache-%)
semver-base:
	@git rev-parse --quiet --verify "$(BASE)^{commit}" > /dev/null || \
		{ echo "semver: there is no $(BASE) here: BASE is the tag or commit of a release to compare with" >&2; exit 1; }

# The CPU kernels, those of attention, and the operators on aarch64, by an emulator of its instructions: row functions
# for NEON, and those in plain Rust, must match the reference and the golden cases bit for bit. Nothing is learned about
# speed. Compiled as for release, but for the long link-time optimization of each test, and with the assertions with
# which the tests of all float16 take samples. Debian: qemu-user-static, gcc-aarch64-linux-gnu. Left out: a test whose
# processes start others, which the emulator does not follow.
QEMU_AARCH64 ?= qemu-aarch64-static
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_ROOT ?= /usr/aarch64-linux-gnu
.PHONY: test-aarch64
test-aarch64:
	@for program in rustup "$(QEMU_AARCH64)" "$(AARCH64_CC)"; do \
		command -v "$$program" > /dev/null || { echo "test-aarch64: there is no $$program" >&2; exit 1; }; \
	done
	rustup target add aarch64-unknown-linux-gnu || { echo "test-aarch64: rustup has not got the target" >&2; exit 1; }
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$(AARCH64_CC)" \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$(QEMU_AARCH64) -L $(AARCH64_ROOT)" \
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
		cargo test --release --locked --target aarch64-unknown-linux-gnu \
			-p kvcache-kernels -p kvcache-attention -p kvcache-op --tests \
			-- --skip random_calls_stay_inside_their_operands

# First the kept inputs, then for MINUTES new ones, which stay in the target directory; what fails is left in
# fuzz/artifacts. MINIMIZE=1 makes the kept inputs the fewest, of them and of what was new, that reach as much. The
# flags are those that cargo-fuzz gives; it has no choice of a profile.
MINUTES ?= 1
FUZZ_TARGETS ?= validation operator attention dlpack conformance_reader session_reader manager_script
FUZZ_BUILD := $(TARGET)/fuzz
COVERAGE := level=3 inline-8bit-counters pc-table
.PHONY: fuzz
fuzz:
	unset CARGO_ENCODED_RUSTFLAGS; RUSTC_BOOTSTRAP=1 \
	RUSTFLAGS="-Zsanitizer=address --cfg fuzzing -Cpasses=sancov-module $(COVERAGE:%=-Cllvm-args=-sanitizer-coverage-%)" \
		cargo build --profile sanitize --locked --target $(SYSTEM) --target-dir "$(FUZZ_BUILD)" \
		-p kvcache-fuzz --features libfuzzer $(FUZZ_TARGETS:%=--bin %)
	for target in $(FUZZ_TARGETS); do \
		program="$(FUZZ_BUILD)/$(SYSTEM)/sanitize/$$target"; \
		kept="fuzz/corpus/$$target" new="$(FUZZ_BUILD)/corpus/$$target" failed="fuzz/artifacts/$$target/"; \
		mkdir -p "$$new" "$$failed" && \
		case $$target in conformance_reader) len=16384 ;; *) len=2048 ;; esac && \
		"$$program" -runs=0 -artifact_prefix="$$failed" "$$kept" && \
		"$$program" -max_total_time=$$(($(MINUTES) * 60)) -max_len=$$len -len_control=0 -timeout=30 \
			-print_final_stats=1 -artifact_prefix="$$failed" "$$new" "$$kept" && \
		if [ -n "$(MINIMIZE)" ]; then \
			rm -rf "$$new.minimized" && mkdir "$$new.minimized" && \
			"$$program" -merge=1 -max_len=$$len "$$new.minimized" "$$kept" "$$new" && \
			rm -rf "$$kept" && mv "$$new.minimized" "$$kept"; \
		fi || exit 1; \
	done

# The same targets without a fuzzer, and thus without its build: the kept inputs, and for FUZZ_SECONDS each others
# near them, under AddressSanitizer and with checks of overflow.
FUZZ_SECONDS ?= 10
.PHONY: test-fuzz
test-fuzz:
	KVCACHE_FUZZ_SECONDS=$(FUZZ_SECONDS) $(WITH_ASAN) --test corpus

# The CUDA code on the CPU: what the host checks of a device's call, then everything that needs a GPU over a driver that
# runs the kernels on the CPU, under the name that libcuda has in the system; last the CUDA provider's operator, in the
# place of the CPU's.
.PHONY: test-cuda
test-cuda: .venv/wheel
	cargo build $(WORKSPACE) --features kvcache-ort/cuda-emulated \
		--lib --bin kvcache-bench-device --test device_checks --test cuda
	mkdir -p "$(TARGET)/emulation"
	ln -sf ../debug/libkvcache_cuda_driver.so "$(TARGET)/emulation/libcuda.so"
	cargo test $(WORKSPACE) --lib -- cuda
	cargo test $(WORKSPACE) --test device_checks
	LD_LIBRARY_PATH="$(TARGET)/emulation" KVCACHE_REQUIRE_GPU=emulated cargo test $(WORKSPACE) --test cuda
	LD_LIBRARY_PATH="$(TARGET)/emulation" KVCACHE_BENCH_QUICK=1 KVCACHE_BENCH_FILTER=decode-B1-kvlen1024 \
		"$(TARGET)/debug/kvcache-bench-device"
	LD_LIBRARY_PATH="$(TARGET)/emulation" KVCACHE_CUDA_EMULATED=1 \
		KVCACHE_ORT_LIB="$(TARGET)/debug/libkvcache_ort.so" $(VENV) -m pytest -q python_tests/test_cuda.py

# Everything that needs an NVIDIA GPU.
.PHONY: build-gpu
build-gpu:
	.ci/gpu build

.PHONY: test-gpu
test-gpu: build-gpu
	.ci/gpu test

.PHONY: bench-gpu
bench-gpu: build-gpu
	.ci/gpu bench

# The newest and the oldest supported ONNX Runtime, and, where versions between them differ from both, one of those.
# Both run the conformance suite as ONNX backend tests, too, which are written first. The sample is all tests with the
# newest, and with the oldest what is between an operator and its runtime.
export KVCACHE_BACKEND_TESTS := $(TARGET)/backend_tests
.PHONY: test-python
test-python: .venv/wheel .venv-oldest/wheel $(if $(KVCACHE_SAMPLE),,.venv-middle/wheel) kit
	rm -rf "$(KVCACHE_BACKEND_TESTS)"
	"$(KIT)" --export-onnx "$(KVCACHE_BACKEND_TESTS)"
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target pytest-oldest pytest-newest pytest-once
	$(if $(KVCACHE_SAMPLE),,$(MIDDLE) -m pytest python_tests/test_retyping.py)

# Most tests run on one thread: two runs at once take half the time. What they build is not make's business. Once, with
# the newest, runs what takes long and has nothing of a runtime in it: what the conformance kit says of implementations
# in numpy (test_conformance.py shows with both that it reads their arrays), and that the soak finds planted flaws.
ONCE := test_wrong_implementations.py test_wrong_attention.py test_book_conformance.py \
	test_soak.py::test_a_wrong_byte_is_found test_soak.py::test_kept_memory_is_found
IN_RUNTIME := attention attention_golden attention_invariance attention_retyping backend_tests bind golden graphs inplace \
	library_file make_node memory pmx_operators random refusals register retyping scan schema shapes static_batching threads
WITH_OLDEST := $(if $(KVCACHE_SAMPLE),$(IN_RUNTIME:%=python_tests/test_%.py),python_tests $(ONCE:%=--deselect %))
.PHONY: pytest-newest pytest-oldest pytest-once
pytest-newest:
	env -u MAKEFLAGS $(VENV) -m pytest python_tests $(ONCE:%=--deselect %)
pytest-oldest:
	env -u MAKEFLAGS $(OLDEST) -m pytest $(WITH_OLDEST)
pytest-once:
	env -u MAKEFLAGS KVCACHE_CONFORMANCE="$(KIT)" $(VENV) -m pytest $(ONCE:%=python_tests/%)

# Sequences that join and leave on many threads, sessions and managers, with answers that are checked bit for bit, while
# nothing may grow: resident memory, memory in use, threads, files.
STEPS ?= 1000000
.PHONY: soak
soak: .venv/wheel
	PYTHONPATH=python_tests:examples:golden $(VENV) -m soak --steps $(STEPS)

# What needs torch, gigabytes of it: kvcache_ops.torch, and that the committed graphs are what torch exports.
.PHONY: test-torch
test-torch: .venv-torch/wheel
	PYTHONPATH=examples/austen .venv-torch/bin/python -m pytest python_tests/with_torch

.PHONY: bench
bench: bench-operator bench-attention bench-manager

.PHONY: bench-operator
bench-operator: .venv/wheel build
	cargo build --release --locked -p kvcache-bench
	KVCACHE_ORT_LIB="$(TARGET)/release/libkvcache_ort.so" \
		KVCACHE_BENCH_LIB="$(TARGET)/release/libkvcache_bench.so" PYTHONPATH=examples \
		$(VENV) bench/cpu/bench.py $(BENCH)

.PHONY: bench-attention
bench-attention: .venv/wheel build
	cargo build --release --locked -p kvcache-bench
	KVCACHE_ORT_LIB="$(TARGET)/release/libkvcache_ort.so" \
		KVCACHE_BENCH_LIB="$(TARGET)/release/libkvcache_bench.so" PYTHONPATH=examples:bench/cpu \
		$(VENV) bench/attention/bench_attention.py $(filter --quick,$(BENCH)) $(BENCH_ATTENTION)

.PHONY: bench-manager
bench-manager: .venv/wheel
	cargo build --release --locked -p kvcache-bench
	KVCACHE_BENCH_LIB="$(TARGET)/release/libkvcache_bench.so" PYTHONPATH=examples:bench/cpu \
		$(VENV) bench/manager/bench_manager.py $(filter --quick,$(BENCH)) $(BENCH_MANAGER)

.PHONY: golden
golden: .venv/wheel
	$(VENV) golden/generate.py
	$(VENV) python/selftest/write_cases.py

# Writes the embedded PTX anew.
.PHONY: ptx
ptx: .venv-cuda/ready
	.venv-cuda/bin/python kernels/src/cuda/generate.py $(CUDA_FOLDERS)

.PHONY: docs
docs: .venv/ready
	cargo run --quiet --locked -p kvcache-schema --example operator_page
	$(VENV) docs/pictures.py
	$(VENV) docs/quality.py
	$(VENV) python/schemas.py
	$(MAKE) book

# The book, in target/book. With REPOSITORY, the address of this repository's files, links to them lead there, else to
# this checkout. mdBook takes minutes to compile, so `make test` does without.
MDBOOK := $(TOOLS)/bin/mdbook
$(MDBOOK):
	cargo install --quiet --locked --version 0.5.4 --root "$(TOOLS)" mdbook
.PHONY: book
book: .venv/ready $(MDBOOK)
	$(VENV) docs/check.py
	$(VENV) docs/book.py "$(MDBOOK)" "$(TARGET)/book" $(if $(REPOSITORY),--repository "$(REPOSITORY)")

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(VENV) $(INSTALL) -r requirements.txt
	touch $@

.venv-oldest/ready: requirements-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST) $(INSTALL) -r requirements-oldest.txt
	touch $@

.venv-middle/ready: requirements-middle.txt
	$(PYTHON) -m venv .venv-middle
	$(MIDDLE) $(INSTALL) -r requirements-middle.txt
	touch $@

.venv-torch/ready: requirements-torch.txt
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python $(INSTALL) -r requirements-torch.txt
	touch $@

.venv-cuda/ready: kernels/src/cuda/requirements.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python $(INSTALL) --no-deps -r kernels/src/cuda/requirements.txt
	touch $@

.venv-release/ready: requirements-release.txt
	$(PYTHON) -m venv .venv-release
	$(RELEASE_PYTHON) $(INSTALL) -r requirements-release.txt
	touch $@

# For test-gpu and bench-gpu, where it is wanted: the machine's own Python serves as well.
.venv-gpu/ready: requirements-gpu.txt
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python $(INSTALL) -r requirements-gpu.txt
	touch $@

.PHONY: clean
clean:
	rm -rf target .venv .venv-oldest .venv-middle .venv-cuda .venv-gpu .venv-release .venv-torch
