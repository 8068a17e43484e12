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
