# `make test-whole`: what takes long, or proves what few changes break. .ci/run chooses from WHOLE by what has changed.

WHOLE := lint test-sanitize test-fuzz test-mutants test-ptx test-capi test-float16 test-wheel test-oldest test-tiers
.PHONY: test-whole
test-whole: test $(WHOLE)

.PHONY: lint
lint: package
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	MYPYPATH=python $(ON_PACKAGE) $(VENV) -m mypy --strict python/kvcache_ops pmx/kvcache_pmx python_tests/static_types.py
	$(ON_PACKAGE) $(VENV) -m mypy.stubtest kvcache_ops --allowlist python/stubtest.txt
	cargo fmt --all --check
	! git grep -nE '^.{123,}' -- '*.rs' '*.cu' '*.cuh' # rustfmt reads neither macros nor documents
	cargo clippy --workspace --locked --features $(FEATURES) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --lib $(LIBRARIES:%=-p kvcache-%) --no-deps --quiet

# Kernels of the cache, attention and matrix products under AddressSanitizer: golden cases and random calls.
# Rust's own sanitizer comes with the stable toolchain, but not its flag. The packages are always the same, so that
# test-sanitize and test-fuzz share what they build. Memory that no machine has is refused, as without a sanitizer.
SYSTEM := x86_64-unknown-linux-gnu
ASAN_FLAGS := RUSTC_BOOTSTRAP=1 CARGO_ENCODED_RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=allocator_may_return_null=1
WITH_ASAN := $(ASAN_FLAGS) cargo test --profile sanitize --locked --target $(SYSTEM) \
	-p kvcache-op -p kvcache-attention -p kvcache-matmul -p kvcache-fuzz
.PHONY: test-sanitize
test-sanitize:
	$(WITH_ASAN) --test op --test attention --test matmul

# The CUDA kernels with one bug each, an edit of their PTX. A test that passes on one is no test of it.
.PHONY: test-mutants
test-mutants: emulation
	$(EMULATED) cargo test $(WORKSPACE) --test cuda -- --ignored mutants

# The fuzz targets without a fuzzer, and thus without its build: the kept inputs, and for FUZZ_SECONDS each others near
# them, under AddressSanitizer and with checks of overflow.
FUZZ_SECONDS ?= 10
.PHONY: test-fuzz
test-fuzz:
	KVCACHE_FUZZ_SECONDS=$(FUZZ_SECONDS) $(WITH_ASAN) --test corpus

# The embedded PTX is what the sources give, and no kernel spills on any generation of GPUs.
CUDA_FOLDERS := kernels/src/cuda attention/src/cuda proof/emulation/ptx/arithmetic
.PHONY: test-ptx
test-ptx: .venv-cuda/ready
	.venv-cuda/bin/python kernels/src/cuda/generate.py $(CUDA_FOLDERS) --check

# What is installed, found by pkg-config, serves a program.
.PHONY: test-capi
test-capi:
	$(MAKE) install-capi PREFIX="$(TARGET)/capi" DESTDIR=
	PKG_CONFIG_PATH="$(TARGET)/capi/lib/pkgconfig" sh -c '\
		cc -std=c11 -Wall -Wextra -Werror capi/tests/programs/calls.c -o "$(TARGET)/capi/calls" \
			$$(pkg-config --cflags --libs kvcache)'
	LD_LIBRARY_PATH="$(TARGET)/capi/lib" "$(TARGET)/capi/calls"

# Every float16 as a scale with every code, and every pair of float16 as a value and the largest of its group, on
# released kernels; test-rust samples them.
.PHONY: test-float16
test-float16:
	cargo test --release --locked -p kvcache-kernels --test kernels every_float16

# Installs the published wheel as a user would, with each of PYTHONS, and runs its page, its self-test and every golden
# case on the library as released.
PYTHONS ?= $(PYTHON)
.PHONY: test-wheel
test-wheel: wheel-release
	for python in $(PYTHONS); do \
		rm -rf "$(TARGET)/installed" && $$python -m venv "$(TARGET)/installed" && \
		"$(TARGET)/installed/bin/python" $(INSTALL) \
			"$(PUBLISHED)"/*.whl markdown-it-py onnx onnxruntime pytest PyYAML safetensors && \
		"$(TARGET)/installed/bin/python" -m kvcache_ops doctor && \
		PYTHONPATH=examples:golden "$(TARGET)/installed/bin/python" -m pytest --quiet \
			python_tests/test_package_page.py python_tests/test_int4.py python_tests/test_step_indices.py && \
		"$(TARGET)/installed/bin/python" -m kvcache_ops conformance --messages --ort-library \
			"$$("$(TARGET)/installed/bin/python" -c 'import kvcache_ops; print(kvcache_ops.library_path())')" || exit 1; \
	done

# What is between an operator and its runtime, on the oldest supported ONNX Runtime; cast insertion also on one that
# differs in it from both, beside the oldest packages that models are built with.
.PHONY: test-oldest
test-oldest: .venv-oldest/ready .venv-middle/ready package
	$(ON_PACKAGE) .venv-oldest/bin/python -m pytest -q -m runtime python_tests
	$(ON_PACKAGE) .venv-middle/bin/python -m pytest -q python_tests/test_cast_insertion.py \
		python_tests/test_models.py python_tests/test_model_sources.py python_tests/test_model_refusals.py \
		python_tests/test_model_exports.py python_tests/test_model_products.py \
		python_tests/test_wild_files.py python_tests/test_grammar.py

# Object stores and Redis: a server of each, which comes from PyPI, is started, stopped and killed.
TIERS := --features kvcache-tiers/object_store,kvcache-tiers/redis
.PHONY: test-tiers
test-tiers: .venv-tiers/ready
	KVCACHE_MOTO_SERVER="$(CURDIR)/.venv-tiers/bin/moto_server" \
		KVCACHE_REDIS_SERVER="$(CURDIR)/.venv-tiers/bin/redis-server" \
		cargo test $(WORKSPACE) $(TIERS) --test tiers servers::
	cargo clippy --locked --no-deps -p kvcache-tiers --all-features --all-targets -- -D warnings
