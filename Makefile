# `make` lists what can be done. `make demo` and `make test` need nothing done before them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Absolute, as an example runs in a folder of its own.
RELEASE := $(abspath $(or $(CARGO_TARGET_DIR),target))/release/belljar
# The binary to install; one that was built before can be named instead.
BINARY ?= $(RELEASE)
# A package of its own: pid 1 of every sandbox, which the build puts into the binary.
GUARDIAN := sandbox-bootstrap/guardian/Cargo.toml
GUARDIAN_TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))/guardian
# rustup puts cargo where a shell without a login does not look.
export PATH := $(PATH):$(HOME)/.cargo/bin

BASH_DIR := $(PREFIX)/share/bash-completion/completions
ZSH_DIR := $(PREFIX)/share/zsh/site-functions
FISH_DIR := $(PREFIX)/share/fish/vendor_completions.d
MAN_DIR := $(PREFIX)/share/man/man1

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

DIST := $(abspath $(or $(CARGO_TARGET_DIR),target))/dist/belljar
DIST_TOOLS := target/dist-tools
PACKAGES ?= target/packages
# Without BINARY=… on the command line, one is compiled to be handed out.
PACKED := $(if $(filter file,$(origin BINARY)),$(DIST),$(BINARY))

.PHONY: dist-tools
dist-tools: ## install what packages are made with: maturin, and zig as a linker for older systems
	$(call heading,packages that make packages)
	@tests/python-env.sh $(DIST_TOOLS) config/packaging/requirements.txt

.PHONY: dist
dist: dist-tools ## a wheel, a tarball, a Debian package and their checksums in target/packages; compiles for that, in twice the time (BINARY=PATH packs another)
ifeq ($(origin BINARY),file)
	$(call heading,binary)
	config/packaging/compile.sh $(abspath $(DIST_TOOLS))/bin/python
endif
	$(call heading,packages)
	config/packaging/pack.py $(PACKED) $(PACKAGES) --maturin $(abspath $(DIST_TOOLS))/bin/maturin

.PHONY: test-dist
test-dist: setup dist-tools $(BINARY) ## build the packages of a binary twice, install each on a system without Rust, and use it (root, a mirror of Debian; BINARY=PATH)
	BELLJAR=$(abspath $(BINARY)) MATURIN=$(abspath $(DIST_TOOLS))/bin/maturin tests/dist/run.py $(ARGS)

.PHONY: demo
demo: ## show what Belljar does
	$(call heading,set-up)
	@images/setup.sh --or-jail base
	$(call heading,build)
	cargo build --release
	$(call heading,cells)
	@examples/demo.sh $(RELEASE)
	$(call heading,an agent)
	@BELLJAR=$(RELEASE) examples/spec2/run.sh

# One target for each example: demo-outliers, demo-emergency-response, … Those that take any Python need no engine.
EXAMPLES := $(notdir $(patsubst %/,%,$(wildcard examples/*/)))
.PHONY: $(addprefix demo-,$(EXAMPLES))
$(addprefix demo-,$(EXAMPLES)): demo-%:
	@images/setup.sh $(if $(shell grep '^ *new_session .* any$$' examples/$*/run.sh),--or-jail base,base science)
	cargo build --release
	@BELLJAR=$(RELEASE) examples/$*/run.sh

.PHONY: demo-list
demo-list: ## list the examples; `make demo-NAME` runs one
	@printf '  demo-%s\n' $(EXAMPLES)

# What tests need from elsewhere. `make test` gets it while it compiles: the one waits for the network and the disk, the other
# for the processors.
.PHONY: test-needs
test-needs: setup openai-client job-packages property-packages sdk-core-packages

.PHONY: compile-tests
compile-tests: lint
	$(call heading,compiling the tests)
	cargo test --quiet --no-run

.PHONY: test
test: ## run everything that has to pass (BELLJAR_TEST_NO_DOCKER=1 leaves out the containers)
	@tests/second-tries.sh $(MAKE) --no-print-directory all-tests

# The suites of `make test`, which says behind them what needed a second try.
.PHONY: all-tests
all-tests:
	@images/setup.sh
	@mkdir -p target; $(MAKE) --no-print-directory test-needs >target/test-needs.log 2>&1 & needs=$$!; \
		code=0; $(MAKE) --no-print-directory compile-tests || code=$$?; \
		wait $$needs || code=$$?; cat target/test-needs.log; exit $$code
	$(call heading,guardian tests)
	cargo test --quiet --manifest-path $(GUARDIAN) --target-dir $(GUARDIAN_TARGET)
	$(call heading,kernel tests)
	tests/kernel/run.py
	$(call heading,documentation)
	python3 -m unittest discover -s tests/docs
	$(call heading,the report on second tries)
	python3 -m unittest discover -s tests
	$(call heading,packaging)
	python3 -m unittest discover -s tests/dist
	python3 -m unittest discover -s tests/cpython
	$(call heading,Rust and container tests)
	@if [ "$${BELLJAR_TEST_NO_DOCKER:-}" = 1 ]; then \
		echo 'warning: BELLJAR_TEST_NO_DOCKER=1: NOTHING THAT NEEDS A CONTAINER IS TESTED' >&2; fi
	@if cargo nextest --version >/dev/null 2>&1; \
		then set -x; cargo nextest run; else set -x; cargo test; fi
	$(call heading,the core of the Python package)
	cargo build
	cd $(SDK) && $(abspath target/sdk-core)/bin/python -m mypy src/belljar/__init__.py
	BELLJAR=$(DEBUG) target/sdk-core/bin/python $(SDK)/tests/run.py --core

.PHONY: openai-client
openai-client: ## install the Python client that the tests' model server is checked with
	$(call heading,openai client)
	@tests/python-env.sh target/openai tests/openai-requirements.txt || \
		echo 'warning: the `openai` package could not be installed; the test that needs it will fail' >&2

.PHONY: job-packages
job-packages: ## install the Python packages that jobs are tested with: HumanEval, a reader of JUnit and of YAML
	$(call heading,packages for jobs)
	@tests/python-env.sh target/jobs tests/job-requirements.txt || \
		echo 'warning: packages could not be installed; tests of jobs that need them will fail' >&2

PROPERTIES := target/properties/bin/python -m unittest discover -s tests/kernel/properties
.PHONY: property-packages
property-packages: ## install what the property tests of the kernel are made with, and polars, whose frames sleep in another one
	$(call heading,packages for tests of the kernel)
	@tests/python-env.sh target/properties tests/property-requirements.txt || \
		echo 'warning: packages could not be installed; property tests of the kernel and that of polars frames are left out' >&2

SDK := sdk/python
DEBUG := $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/belljar
.PHONY: sdk-core-packages
sdk-core-packages: ## install what the core of the Python package is checked with, without the frameworks
	$(call heading,packages for the core of the Python package)
	@tests/python-env.sh target/sdk-core $(SDK)/tests/core-requirements.txt || \
		echo 'warning: packages could not be installed; the tests of the Python package will fail' >&2

.PHONY: sdk-packages
sdk-packages: ## install what the Python package is checked with
	$(call heading,packages for the Python package)
	@tests/python-env.sh target/sdk $(SDK)/tests/requirements.txt

.PHONY: test-sdk
test-sdk: setup sdk-packages ## the Python package: types, and tests with daemons of its own in containers and jails (ARGS='OnBubblewrap test_tools', ARGS='--times 50 test_restart')
	cargo build
	cd $(SDK) && $(abspath target/sdk)/bin/python -m mypy
	BELLJAR=$(DEBUG) target/sdk/bin/python $(SDK)/tests/run.py $(ARGS)

DOCS_PAGES := target/docs-pages
.PHONY: docs
docs: ## render the documentation into target/docs
	$(call heading,documentation)
	@tests/python-env.sh target/mkdocs docs/requirements.txt
	rm -rf $(DOCS_PAGES)
	mkdir -p $(DOCS_PAGES)/{config,tests/abuse,sdk/python}
	cp -r README.md docs examples $(DOCS_PAGES)
	cp config/default.toml config/openapi.json $(DOCS_PAGES)/config
	cp tests/abuse/CATALOGUE.md $(DOCS_PAGES)/tests/abuse
	cp sdk/python/README.md $(DOCS_PAGES)/sdk/python
	cp sdk/openapi-python-client.yml $(DOCS_PAGES)/sdk
	target/mkdocs/bin/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

.PHONY: docs-reference
docs-reference: build ## write docs/reference anew, from the settings, the error codes, the routes and `belljar --help`
	docs/generate.py $(RELEASE)

.PHONY: test-docs
test-docs: setup build ## the documentation: links, references, and each block of it, typed as a reader would (a package index; ARGS='guide/files')
	python3 -m unittest discover -s tests/docs
	docs/generate.py $(RELEASE) --check
	tests/docs/run.py $(RELEASE) $(ARGS)
	tests/docs/run.py $(RELEASE) --jails $(ARGS)

.PHONY: test-long
test-long: setup job-packages ## kill the daemon at random moments for two minutes; let actors panic at every message, of sleep and of jobs too; 50 fork bombs on each ground; build folders for jails; HumanEval as jobs; a sleep of 1 GB arrays
	BELLJAR_LONG_TESTS=1 cargo test --test it -- however_often_the_daemon_dies a_folder_built_for_jails_serves_them \
		the_solutions_of_human_eval_pass abuse::actor_panics abuse::sleep_panics the_actor_that_keeps
	BELLJAR_BOMBS=50 cargo test --test it -- --test-threads=1 --nocapture abuse::fork_bombs
	BELLJAR_LONG=1 python3 -m unittest discover -v -s tests/kernel -k Gigabyte -k with_the_packages_of_the_science_image

.PHONY: mutate
mutate: setup ## switch off each security control in turn and see that a test notices (ARGS='--only NAME')
	tests/mutate/run.py $(ARGS)

# `make test` runs the default policy of checkpoints, and no pool where a test does not ask for one: with the default of one
# sandbox that waits, tests that make two sessions would find a third sandbox. Without checkpoints nothing that those of
# `abuse` lose comes back.
MATRIX := test(/::(bombs|cases|checkpoints|output|repl|restart|stops)::/)
MATRIX_ABUSE := test(/abuse::(checkpoints|fork_bombs|kernel_channel|reset)::/)
.PHONY: test-matrix
test-matrix: setup ## the tests of deaths, kills, output and undo, with and without a pool, for each policy of checkpoints
	@for pool in 0 2; do for policy in every idle off; do \
		echo "==> a pool of $$pool, checkpointing = $$policy"; \
		tests='$(MATRIX) | $(MATRIX_ABUSE)'; [ $$policy != off ] || tests='$(MATRIX) & !$(MATRIX_ABUSE)'; \
		BELLJAR_TEST_POOL=$$pool BELLJAR_TEST_CHECKPOINTING=$$policy tests/second-tries.sh cargo nextest run -E "$$tests"; \
	done; done

SECONDS ?= 60
.PHONY: fuzz
fuzz: property-packages ## change inputs at random for about so many SECONDS (60) for each parser that outsiders feed
	BELLJAR_FUZZ_SECONDS=$(SECONDS) cargo test --test it parsers:: -- --nocapture
	BELLJAR_FUZZ_SECONDS=$(SECONDS) cargo test --quiet --manifest-path $(GUARDIAN) --target-dir $(GUARDIAN_TARGET)
	BELLJAR_FUZZ_SECONDS=$(SECONDS) $(PROPERTIES)

MINUTES ?= 10
.PHONY: soak
soak: build ## several users, crashes, lost clients and kills of the daemon for so many MINUTES (10); says what grows (ARGS='--backend docker' for containers)
	tests/soak/run.py $(RELEASE) --minutes $(MINUTES) $(ARGS)

.PHONY: stress
stress: build ## every class of stress-ng for a minute each in one jail, beside a neighbour (root, needs `stress-ng`; a quarter of an hour; ARGS='--seconds 5' for each)
	tests/soak/run.py $(RELEASE) --stress $(ARGS)

.PHONY: test-vm
test-vm: build image-base dist-tools ## cgroup v2, systemd, a rootless engine, the Debian package and the wheel, in a virtual machine without Rust (root; up to half an hour)
	MATURIN=$(abspath $(DIST_TOOLS))/bin/maturin tests/vm/run.sh $(RELEASE)

.PHONY: test-cpython
test-cpython: build image-base ## CPython's own tests in sandboxes, against the same user outside: a table (root, a mirror of Debian; ARGS='--all --minutes 60', again until nothing is left)
	tests/cpython/run.py $(ARGS)

.PHONY: lint
lint: ## check format and lints
	$(call heading,lint)
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo fmt --check --manifest-path $(GUARDIAN)
	cargo clippy --all-targets --manifest-path $(GUARDIAN) --target-dir $(GUARDIAN_TARGET) -- -D warnings

.PHONY: fmt
fmt: ## format the code
	cargo fmt
	cargo fmt --manifest-path $(GUARDIAN)

.PHONY: image
image: image-base image-science ## build both images anew

.PHONY: image-base
image-base: ## build belljar/base: Python and its standard library
	images/build.sh base

.PHONY: image-science
image-science: ## build belljar/science: numpy, pandas, matplotlib and their like on top
	images/build.sh science

.PHONY: image-daemon
image-daemon: image-base $(BINARY) ## build belljar-daemon, the daemon itself in a container (docs/guide/install.md)
	images/daemon/build.sh "$(BINARY)"

.PHONY: bench
bench: setup build ## measure cells, sessions, jobs, packages, recovery, memory and neighbours; the report is target/bench/report.md
	benches/run.py $(RELEASE) $(ARGS)

.PHONY: bench-peers
bench-peers: setup build ## the same, and the same work in ipykernel, smolagents, llm-sandbox and pydantic-monty
	benches/run.py $(RELEASE) --peers $(ARGS)

.PHONY: bench-models
bench-models: build ## a model works on tasks with exact answers, in every dialect and in CodeAgent (ARGS='--url URL --model NAME'; ARGS=--scripted needs no model; --harder)
	benches/models.py $(RELEASE) $(ARGS)

.PHONY: bench-readme
bench-readme: ## put the table of the last report into the README
	benches/run.py --readme

.PHONY: schemas
schemas: ## write config/openapi.json and config/schemas anew from the types
	UPDATE_SCHEMAS=1 cargo test --quiet --lib schemas

.PHONY: install
install: $(BINARY) ## install binary, completions, manual pages, units and config below $(DESTDIR)$(PREFIX)
	install -D -m 755 "$(BINARY)" "$(DESTDIR)$(PREFIX)/bin/belljar"
	install -d -m 755 "$(DESTDIR)$(BASH_DIR)" "$(DESTDIR)$(ZSH_DIR)" "$(DESTDIR)$(FISH_DIR)" "$(DESTDIR)$(UNITDIR)"
	umask 022; "$(BINARY)" completions bash > "$(DESTDIR)$(BASH_DIR)/belljar"
	umask 022; "$(BINARY)" completions zsh > "$(DESTDIR)$(ZSH_DIR)/_belljar"
	umask 022; "$(BINARY)" completions fish > "$(DESTDIR)$(FISH_DIR)/belljar.fish"
	umask 022; "$(BINARY)" man "$(DESTDIR)$(MAN_DIR)"
	umask 022; sed 's|@BINDIR@|$(PREFIX)/bin|' config/systemd/belljar.service > "$(DESTDIR)$(UNITDIR)/belljar.service"
	install -m 644 config/systemd/belljar.socket "$(DESTDIR)$(UNITDIR)/belljar.socket"
	install -d -m 755 "$(DESTDIR)$(SYSCONFDIR)/belljar"
	@# An existing configuration stays; all lines of a new one are comments, so that the defaults apply.
	@umask 022; test -e "$(DESTDIR)$(SYSCONFDIR)/belljar/config.toml" || \
		sed 's/^[^#]/# &/' config/default.toml > "$(DESTDIR)$(SYSCONFDIR)/belljar/config.toml"

.PHONY: uninstall
uninstall: ## remove what `make install` has put there; configuration and state stay
	rm -f "$(DESTDIR)$(PREFIX)/bin/belljar" "$(DESTDIR)$(BASH_DIR)/belljar" "$(DESTDIR)$(ZSH_DIR)/_belljar" \
		"$(DESTDIR)$(FISH_DIR)/belljar.fish" "$(DESTDIR)$(UNITDIR)/belljar.service" \
		"$(DESTDIR)$(UNITDIR)/belljar.socket" "$(DESTDIR)$(MAN_DIR)"/belljar.1 "$(DESTDIR)$(MAN_DIR)"/belljar-*.1

$(RELEASE): build

.PHONY: clean
clean: ## remove what was compiled; images stay
	cargo clean
