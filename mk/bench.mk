# Everything that measures, as ratios of one run whose answers were checked.

.PHONY: bench
bench: bench-operator bench-attention bench-matmul bench-manager

# The benchmark's native side, for a benchmark on it and on the released package.
.PHONY: bench-native
bench-native: .venv/wheel
	cargo build --release --locked -p kvcache-bench
ON_RELEASE = KVCACHE_BENCH_LIB="$(TARGET)/release/libkvcache_bench.so" PYTHONPATH=bench \
	LLAMA_CPP="$(LLAMA_CPP)" $(VENV)

.PHONY: bench-operator
bench-operator: bench-native
	$(ON_RELEASE) bench/bench_operator.py $(BENCH)

# The operators with instruction sets up to AVX2, on any x86-64.
.PHONY: bench-avx2
bench-avx2: export KVCACHE_INSTRUCTION_SET = avx2
bench-avx2: bench-operator bench-attention

.PHONY: bench-attention
bench-attention: bench-native llama-cpp
	$(ON_RELEASE) bench/bench_attention.py $(filter --quick,$(BENCH)) $(BENCH_ATTENTION)

.PHONY: bench-matmul
bench-matmul: bench-native
	$(ON_RELEASE) bench/bench_matmul.py $(filter --quick,$(BENCH)) $(BENCH_MATMUL)

.PHONY: bench-manager
bench-manager: bench-native
	OPENBLAS_NUM_THREADS=1 $(ON_RELEASE) bench/bench_manager.py $(filter --quick,$(BENCH)) $(BENCH_MANAGER)

# What the CUDA kernels cost in instructions and memory traffic, counted by the interpreter of their PTX; it fails where
# bench/results/cuda.md has other figures.
.PHONY: bench-cuda
bench-cuda: emulation
	$(EMULATED) cargo test $(WORKSPACE) --test cuda counts -- --nocapture

# Blocks of pages in host memory and files.
.PHONY: bench-tiers
bench-tiers: bench-native
	$(ON_RELEASE) bench/bench_tiers.py $(filter --quick,$(BENCH))

# llama.cpp's libraries come compiled in an npm package; without npm, benchmarks go without them.
LLAMA_CPP_PACKAGE := $(TARGET)/llama_cpp
LLAMA_CPP := $(LLAMA_CPP_PACKAGE)/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
.PHONY: llama-cpp
llama-cpp:
	mkdir -p "$(LLAMA_CPP_PACKAGE)" && cp bench/model/package.json bench/model/package-lock.json "$(LLAMA_CPP_PACKAGE)"
	cd "$(LLAMA_CPP_PACKAGE)" && npm ci --ignore-scripts --no-audit --no-fund || rm -rf node_modules

# A whole model, of 92 MB, against llama.cpp. Gemma 3 is measured by `make gemma3 bench-model BENCH=--quick
# BENCH_SOURCE=FILE`.
BENCH_SOURCE ?= $(SMOLLM2)
.PHONY: bench-model
bench-model: .venv/wheel llama-cpp smollm2
	$(ON_RELEASE) bench/model/bench_model.py "$(BENCH_SOURCE)" $(filter --quick,$(BENCH)) $(BENCH_MODEL)

# The engine against OpenVINO GenAI's, on that model as Q8_0, or as BENCH_OPENVINO="--weights Q4_0" says.
.PHONY: bench-openvino
bench-openvino: .venv/wheel .venv-peers/ready smollm2
	PEERS="$$(echo .venv-peers/lib/python*/site-packages)" \
		$(ON_RELEASE) bench/model/bench_openvino.py "$(SMOLLM2)" $(filter --quick,$(BENCH)) $(BENCH_OPENVINO)

# What a cache's format costs this model and Gemma 3, and llama.cpp's on the same tokens: perplexity, pass keys,
# repetition. All takes an hour or two; BENCH_QUALITY="--windows 8" takes less.
.PHONY: bench-quality
bench-quality: .venv/wheel llama-cpp smollm2 gemma3
	$(ON_RELEASE) bench/model/quality.py "$(SMOLLM2)" "$(GEMMA3)" $(BENCH_QUALITY)
