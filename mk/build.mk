# What is given to users: the operator library, the C library, the Python package.

# Panic messages hold the paths of sources. The paths of dependencies, and of the standard library where rustup has its
# sources, must not begin with the builder's home. In this variable flags, separated by the character 31, may contain
# spaces.
RELEASED := build install-capi wheel wheel-release
ifndef RUSTFLAGS
CARGO_HOME ?= $(HOME)/.cargo
RUST_SOURCES := $(shell rustc --print sysroot)/lib/rustlib/src/rust
SEPARATOR := $(shell printf '\037')
$(RELEASED): export CARGO_ENCODED_RUSTFLAGS ?= \
	--remap-path-prefix=$(CARGO_HOME)=cargo$(SEPARATOR)--remap-path-prefix=$(RUST_SOURCES)=rust
endif

# With the CUDA provider's operator; the library links nothing of CUDA and serves the CPU wherever there is none.
.PHONY: build
build:
	cargo build --release --locked -p kvcache-ort --features cuda

# The C library, to be linked by programs in C and C++.
PREFIX ?= /usr/local
.PHONY: install-capi
install-capi:
	cargo build --release --locked -p kvcache-capi
	install -d "$(DESTDIR)$(PREFIX)/lib/pkgconfig" "$(DESTDIR)$(PREFIX)/include"
	version=$$(cargo pkgid -p kvcache-capi | sed 's/.*[@#]//') && \
	soname=$$(objdump -p "$(TARGET)/release/libkvcache.so" | sed -n 's/.*SONAME *//p') && \
	cd "$(DESTDIR)$(PREFIX)/lib" && install "$(TARGET)/release/libkvcache.so" "libkvcache.so.$$version" && \
	ln -sf "libkvcache.so.$$version" "$$soname" && ln -sf "$$soname" libkvcache.so
	install -m 644 "$(TARGET)/release/libkvcache.a" "$(DESTDIR)$(PREFIX)/lib"
	install -m 644 capi/include/kvcache.h "$(DESTDIR)$(PREFIX)/include"
	version=$$(cargo pkgid -p kvcache-capi | sed 's/.*[@#]//'); \
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$version|" capi/kvcache.pc.in \
		> "$(DESTDIR)$(PREFIX)/lib/pkgconfig/kvcache.pc"

.PHONY: header
header:
	KVCACHE_WRITE_HEADER=1 cargo test --quiet --locked -p kvcache-capi --test capi the_header

# The package, whose file is the library of `build` and the extension module in one. Its own threads are rayon's, so
# kvcache-op is compiled again, with that feature.
WHEELS := $(TARGET)/wheels
.PHONY: wheel
wheel: .venv/ready
	rm -rf "$(WHEELS)"
	$(VENV) -m maturin build --quiet --release --locked --manifest-path python/Cargo.toml --out "$(WHEELS)"

# Installs it into an environment.
.venv/wheel .venv-oldest/wheel .venv-middle/wheel .venv-serving/wheel .venv-torch/wheel: %/wheel: %/ready wheel
	$*/bin/python $(INSTALL) --no-index --no-deps --force-reinstall "$(WHEELS)"/*.whl

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
