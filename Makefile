# Every target is a script of its own name under scripts/, so that it also runs without make.
.DEFAULT_GOAL := help
.PHONY: help demo test test-long suites loaders fuzz bench gpu build install uninstall fmt lint setup clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Mount a small real model and read it, exactly and quantized
	@scripts/demo.sh

test: ## Everything that CI runs
	@scripts/test.sh

test-long: ## What takes an hour: the random tests for longer, the fuzz targets, the suites, the loaders; as root
	@scripts/test-long.sh

suites: ## Test suites of others on a real mount, as root: fsx, pjdfstest, fio, stress-ng, SQLite
	@scripts/suites.sh

loaders: ## Programs that load models, map indexes and take backups, on a real mount, as root
	@scripts/loaders.sh

fuzz: ## Each fuzz target for a minute
	@scripts/fuzz.sh

bench: ## Measure against files, an empty daemon and peers; docs/BENCHMARKS.md. 15 minutes, as root
	@scripts/bench.sh

gpu: ## On a machine with a GPU: read tensors into its memory, compare them there, measure
	@scripts/gpu.sh

build: ## The release binary, target/release/tierfs
	cargo build --release --locked

install: ## The program, manual pages, completions, mount.tierfs and a systemd unit, below PREFIX (/usr/local)
	@scripts/install.sh

uninstall: ## Take away what install has put there
	@scripts/install.sh --remove

fmt: ## Format the Rust sources
	cargo fmt

lint: ## Formatting and clippy, as CI runs them
	@scripts/test.sh format clippy rustdoc

setup: ## Install what is missing: packages, nextest, Python environment, models
	@scripts/setup.sh

clean: ## Remove target/, the models and the Python environment with it
	cargo clean
