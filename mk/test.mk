# `make test`: one build, and everything that runs on it. It ends at the first part that fails.

.PHONY: test
test:
	$(MAKE) --no-print-directory --jobs=2 .venv/ready test-build
	$(MAKE) --no-print-directory package test-rust test-cuda test-golden test-docs test-python

# Cargo has its own jobs, as many as there are cores. Its tests are built with the libraries that they link; the
# emulated driver, opened at run time, and the programs are not among these. With --examples they have tests' features.
.PHONY: test-build
test-build:
	env -u MAKEFLAGS cargo test $(WORKSPACE) --no-run
	env -u MAKEFLAGS cargo build $(WORKSPACE) --lib --bins --examples

# The Python package without a wheel: its sources, and the library of this build among them.
PACKAGE := $(TARGET)/package
.PHONY: package
package: test-build
	rm -rf "$(PACKAGE)" && mkdir -p "$(PACKAGE)/kvcache_ops"
	ln -s "$(CURDIR)"/python/kvcache_ops/* "$(PACKAGE)/kvcache_ops"
	ln -s "$(TARGET)/debug/lib_native.so" "$(PACKAGE)/kvcache_ops/_native.abi3.so"
ON_PACKAGE := PYTHONPATH="$(PACKAGE)"

# Tests for GPUs are built here and see none: test-cuda and test-gpu run them.
.PHONY: test-rust
test-rust: .venv/ready
	CUDA_VISIBLE_DEVICES= KVCACHE_ONNXRUNTIME_LIB="$(ONNXRUNTIME)" cargo test $(WORKSPACE)

# What a kernel's author runs: some seconds, without a Python.
.PHONY: test-kernels
test-kernels:
	cargo test $(WORKSPACE) --test kernels --test attention --test matmul --test op

# A driver that interprets the PTX, under the name that libcuda has in the system.
EMULATION := $(TARGET)/emulation
EMULATED := LD_LIBRARY_PATH="$(EMULATION)" KVCACHE_REQUIRE_GPU=emulated
.PHONY: emulation
emulation: test-build
	mkdir -p "$(EMULATION)"
	ln -sf ../debug/libkvcache_cuda_driver.so "$(EMULATION)/libcuda.so"

# The CUDA code on the CPU: everything that needs a GPU; last the CUDA provider's operator, in the place of the CPU's.
.PHONY: test-cuda
test-cuda: package emulation
	$(EMULATED) cargo test $(WORKSPACE) --test cuda
	$(ON_PACKAGE) $(EMULATED) KVCACHE_CUDA_EMULATED=1 KVCACHE_ORT_LIB="$(TARGET)/debug/libkvcache_ort.so" \
		$(VENV) -m pytest -q python_tests/test_cuda.py

# The cases are what the oracle says. (That the kernels give them is among the tests in Rust and in Python.)
.PHONY: test-golden
test-golden: .venv/ready
	$(VENV) golden/generate.py --check

# What is generated is up to date; contents, links and anchors of the book are right. Its code runs with the
# other tests: Rust as doctests, C with capi's tests, Python in test_book.py. None of this needs mdBook.
.PHONY: test-docs
test-docs: .venv/ready package
	$(ON_PACKAGE) $(VENV) docs/operator_pages.py --check
	$(VENV) docs/check.py

# The newest supported ONNX Runtime. What the tests build is not make's business.
.PHONY: test-python
test-python: .venv/ready package
	$(ON_PACKAGE) env -u MAKEFLAGS $(VENV) -m pytest -q --numprocesses 2 --dist loadfile python_tests
