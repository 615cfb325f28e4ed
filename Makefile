# make demo     train the preset `tiny` and let it write
# make test     the tests, in three processes: about five minutes on two cores
# make test-docs  what the documentation and the examples show, run as readers run it
# make quick    those of the configuration and of what needs no run: under a minute
# make lint     style, formatting and types
# make golden   show what has changed in the resolved presets and their losses, and write it down
# make coverage write docs/coverage, which says what Setpoint answers to other systems' keys, and the
#               lists of fields in the other pages
# make slow     the long forms of some tests, and twenty times the examples of properties
# make torture  disturb runs in every way and compare them with undisturbed ones; writes
#               docs/reference/tested-faults.md; TORTURE="--rounds 20 --seed 100" tries more
# make torchft  replica groups that die and come back, with torchft beside .venv
# make docs     build the documentation as a site into build/site
# make lock     write the versions of all packages in .venv to requirements-dev.lock
# make audit   look for known vulnerabilities of the packages in .venv; status 3 where the service
#               that knows of them could not be asked about all
# make planted  break one thing at a time in a copy, and say whether the tests catch it
# make fuzz     look for inputs that break a reader, 10,000 of each kind
# make fuzz-configs  look for whole configurations that break anything; FUZZ_CASES=100000
# make bench    measure against peers; `make bench-config` only what needs no torch,
#               `make bench-model` only models, `make bench-train` only training loops
# make bench-gpu  training on one GPU beside plain PyTorch, in under eight minutes, with the Python
#               that is there: .venv, or PYTHON where there is no .venv; it installs nothing
# make test-gpu   the tests that need a GPU, with the same Python, which has Setpoint's `train` and pytest
# make deepspeed  the tests of parallel.engine = "deepspeed", in an environment of their own
# make clean    remove what these targets made, but for runs/
#
# Each target makes what it needs: the virtual environment .venv with torch in it. pip is enough;
# uv is used where it is installed.
#
#   PYTHON=python3.12    the Python to make .venv with; 3.11 or newer
#   PROCESSES=4          that the tests are spread over, with one thread each; threads of `make lint`
#   TORCH_INDEX=URL      one more package index to take torch from, for instance that of PyTorch's
#                        builds for processors only, which are a tenth of the size

PYTHON ?= python3
FUZZ_CASES ?= 100000
FUZZ_SEED ?= 0
TORTURE ?=
TORCH_INDEX ?=
PROCESSES ?= 3
QUICK := $(addprefix tests/,config data loss plan report resilience sweep track \
  test_golden.py test_layers.py test_structure.py)
TORCH := 2.13.0

VENV := .venv
BENCH := .venv-bench
BENCH_TRAIN := .venv-bench-train
DEEPSPEED := .venv-deepspeed
TORCHFT := .torchft
BIN := $(VENV)/bin
# A machine with a GPU has a torch of its own, which nothing is installed over.
GPU_PYTHON := $(if $(wildcard $(BIN)/python),$(CURDIR)/$(BIN)/python,$(PYTHON))
UV := $(shell command -v uv 2>/dev/null)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: test-docs docs lock bench-config bench-gpu bench-model bench-train test-gpu demo test quick lint golden coverage slow torture audit planted fuzz fuzz-configs bench deepspeed torchft clean

# OpenMP's idle threads would otherwise spin and take the cores from those that work.
export OMP_WAIT_POLICY := PASSIVE
# Where Python is told to keep no compiled modules, each of many processes compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

demo: $(VENV)/.train
# CPUs without AVX-512 emulate bf16, about ten times as slow as fp32.
	@$(BIN)/setpoint train tiny --precision.compute fp32
	@printf "\nwhat it writes after \"def \":\n"
	@$(BIN)/setpoint generate "$$(ls -td runs/tiny-*/ | head -n 1)" --prompt "def "
	@printf '\nnext, with $(BIN) on the PATH or in front:\n'
	@printf '  %-62s %s\n' \
	  "$$(ls -t runs/tiny-*/report.html | head -n 1)" "curves, configuration and events, for a browser" \
	  "setpoint why optimizer.lr tiny" "where a value comes from" \
	  "setpoint train tiny --optimizer.lr 1e-3" "change one value" \
	  "setpoint train tiny --data.sources text --data.sources.0.paths FOLDER" "your own text" \
	  "docs/README.md" "all tasks, from fine-tuning a chat model to many GPUs"

test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal \
	  -m "not slow and not documentation"

test-docs: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal \
	  -m documentation tests/docs tests/test_examples.py tests/typing

quick: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal \
	  -m "not slow and not process" $(QUICK)

slow: $(VENV)/.dev
	@$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile thorough

torture: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.long.torture.table $(TORTURE)

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Without the local build tag of torch, which names the machine's kind of build.
lock: $(VENV)/.dev
	@{ sed '/^[^#]/,$$d' requirements-dev.lock; $(BIN)/python -m pip freeze --exclude-editable \
	  | sed 's/+cpu$$//' | grep -v ' @ '; } > requirements-dev.lock.new
	@mv requirements-dev.lock.new requirements-dev.lock

audit: $(VENV)/.audit
	@$(BIN)/python -m tests.audit

planted: $(VENV)/.dev
	@$(BIN)/python -m tests.planted

fuzz: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -m slow tests/long/fuzz/test_fuzz.py

fuzz-configs: $(VENV)/.dev
	@$(BIN)/python -m tests.long.fuzz.configurations $(FUZZ_CASES) $(FUZZ_SEED)

lint: $(VENV)/.dev
	@failed=0; \
	$(BIN)/ruff check || failed=1; \
	$(BIN)/ruff format --check || failed=1; \
	$(BIN)/pyright --threads $(PROCESSES) || failed=1; \
	exit $$failed

golden: $(VENV)/.dev
	@$(BIN)/python -m tests.goldens
	@$(BIN)/python -m tests.curves

coverage: $(VENV)/.dev
	@$(BIN)/python -m tests.coverage.make
	@$(BIN)/python -m tests.docs.make

bench: $(VENV)/.train bench-config bench-model bench-train
	@cd benchmarks && for name in checkpoint host_memory ranks; do \
	  ../$(BIN)/python -m train.$$name || exit 1; done

# Beside transformers, which is among what the tests need; on a GPU where there is one.
bench-model: $(VENV)/.dev
	@cd benchmarks && for name in blocks moe; do \
	  ../$(BIN)/python -m model.$$name || exit 1; done

bench-gpu:
	@cd benchmarks && PYTHONPATH=../src $(GPU_PYTHON) -m gpu.bench --json ../bench-gpu.json

# Drivers and kernels warn of what no machine without them has shown.
test-gpu:
	@PYTHONPATH=src $(GPU_PYTHON) -m pytest -m cuda -W default \
	  $$(grep -rl --include='test_*.py' 'mark\.cuda' tests)

# Beside other trainers, which live in an environment of their own, with the same torch.
bench-train: $(BENCH_TRAIN)/.peers
	@cd benchmarks && for name in loops memory; do \
	  ../$(BENCH_TRAIN)/bin/python -m train.$$name || exit 1; done

# The peers live in an environment of their own, in which nothing is installed for another reason.
bench-config: $(BENCH)/.peers
	@cd benchmarks && for name in cold warm; do \
	  ../$(BENCH)/bin/python -m config.$$name || exit 1; done

# DeepSpeed brings packages that nothing else needs, and lives in an environment of its own.
deepspeed: $(DEEPSPEED)/.dev
	@$(DEEPSPEED)/bin/python -m pytest -q tests/parallel/test_deepspeed.py

# What torchft needs lies in a folder of its own, beside the torch that is there.
torchft: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --upgrade --target $(TORCHFT) --no-deps "torchft>=0.2,<0.3"
	@$(BIN)/python -m pip install --quiet --upgrade --target $(TORCHFT) opentelemetry-exporter-otlp-proto-http
	@OMP_NUM_THREADS=1 PYTHONPATH=$(TORCHFT) $(BIN)/python -m pytest -m "" tests/parallel/test_torchft.py

clean:
	@rm -rf $(VENV) $(TORCHFT) $(BENCH) $(BENCH_TRAIN) $(DEEPSPEED) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- The virtual environment, in three steps, each with a stamp file. --------------------------

# torch comes first and by pip, which finds a build for this machine wherever pip is set up to
# look; uv reads none of pip's settings. What comes later names the same version again, so that
# nothing replaces it.
QUIET := $(if $(CI),--quiet)
INSTALL = $(if $(UV),$(UV) pip install $(QUIET) --python $(BIN)/python,$(BIN)/python -m pip install $(QUIET))
WANTED = "torch==$(TORCH)"

# $(call add,EXTRA): install Setpoint as it lies here with one of its extras, keeping torch.
define add
	@echo "Installing setpoint[$(1)] into $(VENV)"
	@$(INSTALL) --editable ".[$(1)]" $(WANTED)
	@$(BIN)/python -c 'import torch; v = torch.__version__; assert v.split("+")[0] == "$(TORCH)", v' \
	  || { echo "$(VENV) does not hold a working torch $(TORCH); see above" >&2; exit 1; }
	@touch $@
endef

$(VENV)/.train: $(VENV)/.torch-$(TORCH) pyproject.toml
	$(call add,train)

$(VENV)/.dev: $(VENV)/.train
	$(call add,dev)

$(VENV)/.audit: $(VENV)/.dev
	$(call add,audit)

$(BENCH)/.peers: benchmarks/config/requirements.txt pyproject.toml
	@$(PYTHON) -m venv $(BENCH)
	@echo "Installing the peers of the benchmarks into $(BENCH)"
	@$(BENCH)/bin/python -m pip install --quiet --requirement benchmarks/config/requirements.txt \
	  --editable .
	@touch $@

$(BENCH_TRAIN)/.peers: benchmarks/train/requirements.txt pyproject.toml
	@$(PYTHON) -m venv $(BENCH_TRAIN)
	@echo "Installing torch and other trainers into $(BENCH_TRAIN)"
	@$(BENCH_TRAIN)/bin/python -m pip install --quiet \
	  $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
	  --requirement benchmarks/train/requirements.txt --editable ".[train]"
	@touch $@

# DeepSpeed is built against the torch that is there, and without its kernels.
$(DEEPSPEED)/.dev: pyproject.toml
	@$(PYTHON) -m venv $(DEEPSPEED)
	@echo "Installing torch, DeepSpeed and what the tests need into $(DEEPSPEED)"
	@$(DEEPSPEED)/bin/python -m pip install --quiet \
	  $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") $(WANTED) numpy setuptools wheel
	@DS_BUILD_OPS=0 $(DEEPSPEED)/bin/python -m pip install --quiet --no-build-isolation \
	  "deepspeed>=0.19,<0.20" $(WANTED)
	@$(DEEPSPEED)/bin/python -m pip install --quiet --editable ".[train,dev,deepspeed]" $(WANTED)
	@touch $@

$(VENV)/.torch-$(TORCH): | $(VENV)/.made
	@echo "Installing torch $(TORCH) into $(VENV), once: 1 GB on disk for processors only, 6 GB with CUDA" \
	  $(if $(TORCH_INDEX),,"(make TORCH_INDEX=URL takes it from an index of smaller builds)")
	@$(BIN)/python -m pip install $(QUIET) $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
	  $(WANTED) numpy
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Setpoint needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(if $(UV),$(UV) venv --quiet --allow-existing --seed --python "$$(command -v $(PYTHON))" $(VENV), \
	  $(PYTHON) -m venv $(VENV))
	@touch $@
