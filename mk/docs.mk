# What is generated and committed, and the book.

.PHONY: golden
golden: .venv/wheel
	$(VENV) golden/generate.py
	$(VENV) python/selftest/write_models.py

# Writes the embedded PTX.
.PHONY: ptx
ptx: .venv-cuda/ready
	.venv-cuda/bin/python kernels/src/cuda/generate.py $(CUDA_FOLDERS)

.PHONY: docs
docs: .venv/ready package
	$(ON_PACKAGE) $(VENV) docs/operator_pages.py
	$(MAKE) book

# The book, in target/book. With REPOSITORY, the address of this repository's files, links to them lead there, else to
# this checkout. mdBook takes minutes to compile, so `make test` does without.
MDBOOK := $(TOOLS)/bin/mdbook
$(MDBOOK):
	cargo install --quiet --locked --version 0.5.4 --root "$(TOOLS)" mdbook
.PHONY: book
book: .venv/ready $(MDBOOK)
	$(VENV) docs/check.py
	$(VENV) docs/book.py "$(MDBOOK)" "$(TARGET)/book" $(if $(REPOSITORY),--repository "$(REPOSITORY)")
