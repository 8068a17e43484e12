# What all parts share.

PYTHON ?= python3
VENV := .venv/bin/python
# What is imported is compiled then.
INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check
# Where cargo builds, unless the user has said so. (No functions of make on paths: they split at spaces.)
export CARGO_TARGET_DIR ?= $(CURDIR)/target
TARGET := $(shell realpath -m "$(CARGO_TARGET_DIR)")
# The library of the onnxruntime wheel, for Rust tests that run sessions; known once .venv exists.
ONNXRUNTIME = $(CURDIR)/$(firstword $(wildcard .venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*))

# What tests are built from. Cargo gives a crate the features that the selected packages want, and its tests' features
# where a test or an example is selected. With these flags no command compiles what another has compiled.
FEATURES := kvcache-ort/cuda,kvcache-op/cuda,kvcache-manager/cuda,kvcache-python/cuda
# Fuzz targets are built under sanitizers, what measures is built for release.
WORKSPACE := --workspace --exclude kvcache-fuzz --exclude kvcache-bench --locked --features $(FEATURES)
LIBRARIES := schema simd kernels attention matmul op manager tiers ort capi

# Environments, each of its own requirements: .venv for all that is ordinary.
REQUIREMENTS_OF_.venv := requirements/tests.txt
REQUIREMENTS_OF_.venv-oldest := requirements/oldest.txt
REQUIREMENTS_OF_.venv-middle := requirements/middle.txt
REQUIREMENTS_OF_.venv-tiers := requirements/tiers.txt
REQUIREMENTS_OF_.venv-serving := requirements/serving.txt
REQUIREMENTS_OF_.venv-torch := requirements/torch.txt
REQUIREMENTS_OF_.venv-peers := --no-deps requirements/peers.txt
REQUIREMENTS_OF_.venv-release := requirements/release.txt
REQUIREMENTS_OF_.venv-gpu := requirements/gpu.txt
REQUIREMENTS_OF_.venv-cuda := --no-deps kernels/src/cuda/requirements.txt
ENVIRONMENTS := .venv .venv-oldest .venv-middle .venv-tiers .venv-serving .venv-torch .venv-peers \
	.venv-release .venv-gpu .venv-cuda
.SECONDEXPANSION:
$(ENVIRONMENTS:%=%/ready): %/ready: $$(lastword $$(REQUIREMENTS_OF_$$*))
	$(PYTHON) -m venv $*
	$*/bin/python $(INSTALL) $(filter --%,$(REQUIREMENTS_OF_$*)) -r $<
	touch $@

.PHONY: clean
clean:
	rm -rf target $(ENVIRONMENTS)
