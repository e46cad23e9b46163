# Each target runs the script of its name under scripts/, which also works without make.
.DEFAULT_GOAL := help
.PHONY: help demo demo-remote test test-long suites loaders fuzz bench quality pictures site gpu build dist install uninstall fmt lint setup clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Install what is missing, build, mount a small real model and read it exactly and quantized
	@scripts/demo.sh

demo-remote: ## Push a small real model to an object storage on this machine and mount it from there
	@scripts/demo-remote.sh

test: ## Run everything that CI runs. About 40 processor minutes from a fresh clone
	@scripts/test.sh

test-long: ## Run longer random tests, the fuzz targets, the suites, the loaders, a release, as root. Over an hour
	@scripts/test-long.sh

suites: ## Run fsx, pjdfstest, fio, stress-ng and SQLite on a real mount, as root
	@scripts/suites.sh

loaders: ## Run model loaders, vector indexes and backup programs on a real mount, as root
	@scripts/loaders.sh

fuzz: ## Run each fuzz target for a minute
	@scripts/fuzz.sh

bench: ## Measure against files, an empty daemon and peers, as root; writes tests/bench/results. 15 minutes
	@scripts/bench.sh

quality: ## Measure the precision of each tier on real models, as root; writes docs/TIERS.md. 10 minutes
	@scripts/quality.sh

pictures: ## Make the pictures of tierfs top and tierfs report in docs/plots, as root
	@scripts/pictures.sh

site: ## Build a static site of the documents with a search, target/site
	@scripts/site.sh

gpu: ## Read tensors into GPU memory, compare them there and measure, on a machine with a GPU
	@scripts/gpu.sh

build: ## Build the release binary, target/release/tierfs
	cargo build --release --locked

dist: ## Build what a release holds, target/dist: static programs, wheels, Debian packages, images
	@scripts/dist.sh

install: ## Install program, manual, documents, completions; as root also mount.tierfs and a unit. PREFIX (/usr/local)
	@scripts/install.sh

uninstall: ## Remove the files that install wrote
	@scripts/install.sh --remove

fmt: ## Format the Rust sources
	cargo fmt

lint: ## Check formatting, clippy and rustdoc as CI does
	@scripts/test.sh format clippy rustdoc

setup: ## Install missing packages, nextest, Python environment and models
	@scripts/setup.sh

clean: ## Remove target/ with the models and the Python environment
	cargo clean
