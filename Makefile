# Everything here works on a machine with only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ZOO := $(VENV)-zoo

.PHONY: demo test endurance lint bench zoo docs clean

demo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m examples.digits

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# What `make test` does in short: 1,000 random plans, 50 patterns of delays, 2,000 steps.
endurance: $(READY)
	OMP_NUM_THREADS=1 RAVNEST_DELAY_PATTERNS=50 RAVNEST_STEPS=2000 $(BIN)/python -m pytest --timeout 3600 \
		--hypothesis-profile endurance tests/node/test_random_plans.py tests/node/test_repeated_runs.py \
		tests/node/test_tied_order.py tests/stage/test_schedule.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.pipeline

# Every model of the zoo and an 8-billion-parameter Llama, with torchvision and transformers beside torch.
zoo: $(ZOO)/.ready
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m benchmarks.zoo
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m benchmarks.large

docs: $(READY)
	$(BIN)/python -m docs.check

# A virtual environment of exact versions; made again when the pins or the build change.
$(READY): constraints/development.txt pyproject.toml setup.py $(wildcard protos/ravnest/*/pb/*.proto)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/development.txt setuptools grpcio-tools
	$(BIN)/python -m pip install --quiet --constraint constraints/development.txt \
		--no-build-isolation --editable '.[development,examples]'
	touch $(READY)

$(ZOO)/.ready: constraints/zoo.txt pyproject.toml setup.py $(wildcard protos/ravnest/*/pb/*.proto)
	test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --constraint constraints/zoo.txt setuptools grpcio-tools
	$(ZOO)/bin/python -m pip install --quiet --constraint constraints/zoo.txt \
		--no-build-isolation --editable . torchvision transformers
	touch $(ZOO)/.ready

clean:
	rm -rf $(VENV) $(ZOO) build dist *.egg-info
