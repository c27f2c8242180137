# `make` lists what can be done. `make demo` and `make test` need nothing done before them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PREFIX ?= /usr/local
# rustup puts cargo where a shell without a login does not look.
export PATH := $(PATH):$(HOME)/.cargo/bin

heading = @printf '\n==> %s\n' "$(1)"

# The stages of `make test` build on each other.
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-15s %s\n", $$1, $$2 }'

.PHONY: setup
setup: ## install system packages and build the images, as far as they are missing
	$(call heading,set-up)
	@images/setup.sh base science

.PHONY: build
build: ## compile the release binary
	cargo build --release

.PHONY: demo
demo: ## show what Belljar does
	$(call heading,set-up)
	@images/setup.sh base
	$(call heading,build)
	cargo build --release
	$(call heading,demo)
	@examples/demo.sh target/release/belljar

.PHONY: test
test: setup lint ## run everything that has to pass (BELLJAR_TEST_NO_DOCKER=1 leaves out the containers)
	$(call heading,kernel tests)
	python3 -m unittest discover -s tests/kernel
	$(call heading,Rust and container tests)
	@if [ "$${BELLJAR_TEST_NO_DOCKER:-}" = 1 ]; then \
		echo 'warning: BELLJAR_TEST_NO_DOCKER=1: NOTHING THAT NEEDS A CONTAINER IS TESTED' >&2; fi
	@if cargo nextest --version >/dev/null 2>&1; then set -x; cargo nextest run; else set -x; cargo test; fi

.PHONY: test-long
test-long: setup ## kill the daemon at random moments under mixed load for two minutes
	BELLJAR_LONG_TESTS=1 cargo test --test it however_often_the_daemon_dies

.PHONY: lint
lint: ## check format and lints
	$(call heading,lint)
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

.PHONY: fmt
fmt: ## format the code
	cargo fmt

.PHONY: image
image: image-base image-science ## build both images anew

.PHONY: image-base
image-base: ## build belljar/base: Python and its standard library
	images/build.sh base

.PHONY: image-science
image-science: ## build belljar/science: numpy, pandas, matplotlib and their like on top
	images/build.sh science

.PHONY: bench
bench: ## measure cells, sessions, checkpoints and recovery
	cargo bench --bench round_trip --bench recovery

.PHONY: schemas
schemas: ## write config/openapi.json and config/schemas anew from the types
	UPDATE_SCHEMAS=1 cargo test --quiet --lib schemas

.PHONY: install
install: build ## install the binary below $(DESTDIR)$(PREFIX)
	install -D -m 755 target/release/belljar "$(DESTDIR)$(PREFIX)/bin/belljar"

.PHONY: clean
clean: ## remove what was compiled; images stay
	cargo clean
