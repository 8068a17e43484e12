# make run    the main job: the built library in ONNX Runtime, decoding
# make test   everything that can be proven on this machine
# make bench  ratios to the copy limit and to peers; BENCH="--quick" for a sample of them
# make golden    writes the golden cases anew      make docs    writes docs/KeyValueCache.md anew

PYTHON ?= python3
VENV := .venv/bin/python
OLDEST := .venv-oldest/bin/python
# Where cargo builds, unless the user has said so, and the library that examples and tests take from there.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
export KVCACHE_ORT_LIB := $(abspath $(CARGO_TARGET_DIR))/release/libkvcache_ort.so
# The library of the onnxruntime wheel, for Rust tests that run sessions; known once .venv exists.
ONNXRUNTIME = $(abspath $(firstword $(wildcard .venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*)))

.PHONY: run build test lint test-rust test-golden test-python bench golden docs clean

run: .venv/ready build
	$(VENV) examples/continuous_batching.py

build:
	cargo build --release --locked -p kvcache-ort

test: lint test-rust test-golden test-python

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

test-rust: .venv/ready build
	KVCACHE_ONNXRUNTIME_LIB="$(ONNXRUNTIME)" cargo test --workspace --locked
	cargo test --release --locked -p kvcache-kernels --test every_float16_quotient
	cargo run --quiet --locked -p kvcache-schema --example operator_page -- --check

test-bench: .venv-bench/ready build
	cargo build --release --locked -p kvcache-bench
	KVCACHE_BENCH_LIB="$(abspath $(CARGO_TARGET_DIR))/release/libkvcache_bench.so" \
		.venv-bench/bin/python kernels/benches/bench.py $(BENCH)

golden: .venv/ready
	$(VENV) golden/generate.py --check
	cargo run --quiet --locked -p kvcache-op --example golden

# The newest and the oldest supported ONNX Runtime.
test-python: .venv/ready .venv-oldest/ready build
	$(VENV) -m pytest python_tests
	$(OLDEST) -m pytest python_tests

bench: .venv-bench/ready build
	cargo build --release --locked -p kvcache-bench
	KVCACHE_BENCH_LIB="$(abspath $(CARGO_TARGET_DIR))/release/libkvcache_bench.so" \
		.venv-bench/bin/python kernels/benches/bench.py $(BENCH)

golden: .venv/ready
	$(VENV) golden/generate.py

docs:
	cargo run --quiet --locked -p kvcache-schema --example operator_page

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(VENV) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv-oldest/ready: requirements-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST) -m pip install --quiet --disable-pip-version-check -r requirements-oldest.txt
	touch $@

.venv-bench/ready: requirements.txt kernels/benches/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r kernels/benches/requirements.txt
	touch $@

clean:
	rm -rf target .venv .venv-oldest .venv-bench
