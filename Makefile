# Commands of the project; CMakePresets.json defines the build configurations. On a bare Debian 12,
# Debian 13 or Ubuntu 24.04, `make demo` installs and builds everything that it needs.
PYTHON ?= /usr/bin/python3
JOBS ?= $(shell nproc)
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_PROGRAMS ?= 100000
FUZZ_SECONDS ?= 300
FUZZ_CALLS ?= 1000000
HISTORIES ?= 100000
MUTANTS ?= 200
SEED ?= 1
MINUTES ?= 20
GPU_ARGS ?=
PYTHONS ?=
GPU_PYTHON ?= python3
# A fresh machine installs each package once, so pip's cache would only take 3 GB of its disk.
PIP_FLAGS := -q --disable-pip-version-check $(if $(CI),--no-cache-dir)
CLIENT_SOURCES := $(shell find clients engine/core engine/program engine/ops \
  engine/autograd engine/passes proto cmake VERSION -type f -not -name '*.pyc' 2>/dev/null)
REQUIREMENTS := deploy/requirements
# Continuous integration sets CI; only then are compiler warnings errors.
PRESET := $(if $(CI),ci,release)

.PHONY: help build everything daemon packages demo test test-peers lint format fuzz sim model mutate faults chaos soak sanitize bench \
  gpu-check gpu-folder cuda-all image-test sdist wheels nightly docs pictures site house clean
.DELETE_ON_ERROR:

help:
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/:/'

# pip downloads packages while the daemon compiles. The client is built afterwards, so that ccache
# provides the objects that it shares with the daemon.
build: ## build/release/bin/teletensord, and .venv with the client
	@$(MAKE) --no-print-directory -j 2 daemon .venv/.tools
	@$(MAKE) --no-print-directory .venv/.client

everything: build .venv/.tests ## build, the unit tests and benchmarks, and what the tests need in .venv
	cmake --build --preset $(PRESET) -j $(JOBS)

packages:
	@deploy/install-packages

daemon: | packages
	cmake --preset $(PRESET) --log-level=WARNING
	cmake --build --preset $(PRESET) -j $(JOBS) --target teletensord

.venv/.tools: $(addprefix $(REQUIREMENTS)/,build.txt demo.txt constraints.txt) | packages
	$(PYTHON) -m venv .venv
	.venv/bin/pip install $(PIP_FLAGS) -r $(REQUIREMENTS)/build.txt -r $(REQUIREMENTS)/demo.txt
	@touch $@

.venv/.tests: $(addprefix $(REQUIREMENTS)/,test.txt lint.txt docs.txt wheels.txt) .venv/.tools
	.venv/bin/pip install $(PIP_FLAGS) -r $(REQUIREMENTS)/test.txt -r $(REQUIREMENTS)/lint.txt \
	  -r $(REQUIREMENTS)/docs.txt -r $(REQUIREMENTS)/wheels.txt
	@touch $@

# All environments install one wheel, which is built from the checkout. Its flags and the name of its
# compiler are those of the daemon's build, so that ccache shares the objects.
build/wheels/.stamp: $(CLIENT_SOURCES) .venv/.tools
	rm -rf build/wheels && mkdir -p build/wheels
	CXX=$${CXX:-c++} CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv/bin/pip wheel \
	  $(PIP_FLAGS) --no-deps --no-build-isolation --config-settings=build-dir=$(CURDIR)/build/python \
	  --config-settings=cmake.define.TELETENSOR_TOGETHER_DIR=$(CURDIR)/build/together \
	  --config-settings=cmake.define.TELETENSOR_WERROR=$(if $(CI),ON,OFF) -w build/wheels ./clients/python
	@touch $@

.venv/.client: build/wheels/.stamp
	.venv/bin/pip install $(PIP_FLAGS) --no-deps --no-index --force-reinstall build/wheels/*.whl
	@touch $@

.venv-peers/.tools: $(REQUIREMENTS)/peers.txt $(REQUIREMENTS)/build.txt $(REQUIREMENTS)/constraints.txt | packages
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install $(PIP_FLAGS) -r $(REQUIREMENTS)/build.txt -r $(REQUIREMENTS)/peers.txt
	@touch $@

.venv-peers/.client: build/wheels/.stamp .venv-peers/.tools
	.venv-peers/bin/pip install $(PIP_FLAGS) --no-deps --no-index --force-reinstall build/wheels/*.whl
	@touch $@

demo: build ## trains two networks through an embedded daemon; writes build/demo.png
	TELETENSORD=$(CURDIR)/build/release/bin/teletensord .venv/bin/python \
	  clients/python/examples/demo.py $(DEMO_ARGS)

test: everything ## unit, policy, end-to-end and operator tests; the last line counts them
	@.venv/bin/python tests/run_all.py unit policy e2e ops

test-peers: everything .venv-peers/.client ## comparisons with PyTorch
	@.venv-peers/bin/python tests/run_all.py peers

fuzz: everything .venv-peers/.client ## random programs, hostile frames and calls: SEED=1, FUZZ_PROGRAMS=100000, FUZZ_CALLS=1000000, FUZZ_SECONDS=300
	@deploy/install-packages deploy/packages.txt deploy/packages-dev.txt
	@SEED=$(SEED) PROGRAMS=$(FUZZ_PROGRAMS) KERNEL_CALLS=$(FUZZ_CALLS) SECONDS_EACH=$(FUZZ_SECONDS) tests/fuzz.sh

sim: everything ## random histories of groups of daemons in virtual time: SEED=1, HISTORIES=100000
	SEED=$(SEED) HISTORIES=$(HISTORIES) build/release/tests/collective_test --gtest_filter='Simulator.Histories'

model: .venv/.tools ## the model of the protocol (docs/model) within large bounds
	.venv/bin/python docs/model/check.py --nightly

mutate: everything .venv/.client ## breaks the code at places drawn at random, one at a time: do the tests fail? SEED=1, MUTANTS=200
	.venv/bin/python tests/mutation/run.py --seed $(SEED) --count $(MUTANTS) --jobs $(JOBS)

faults: everything .venv/.client ## puts faults into the daemon's streams, one at a time: does the conformance kit find them?
	.venv/bin/python tests/conformance/faults.py --jobs $(JOBS)

chaos: everything ## kills connections, clients and the daemon in the middle of everything (tests/chaos)
	.venv/bin/python -m pytest -q -p no:cacheprovider -rP -n $(JOBS) --dist worksteal tests/chaos
	TELETENSOR_INTERRUPT_PLACES=1000000 .venv/bin/python -m pytest -q -p no:cacheprovider -n $(JOBS) --timeout 3600 \
	  tests/e2e/test_interrupts.py -k sweep

soak: everything ## a daemon under good, crashing, slow, malformed and idle clients for MINUTES=20: does it grow? Then three that train
	.venv/bin/python tests/chaos/soak.py --minutes $(MINUTES) --seed $(SEED)
	.venv/bin/python tests/chaos/distributed_soak.py --minutes $(MINUTES) --seed $(SEED)

lint: .venv/.tests ## clang-format, ruff, mypy --strict, clang-tidy
	@deploy/install-packages deploy/packages.txt deploy/packages-dev.txt
	@tests/lint.sh

house: .venv/.tests ## the measured table of the structure and of the English: sizes, classes, folders, comments
	@.venv/bin/python tests/policy/house.py

format: .venv/.tests ## rewrites the C++ and Python files in the project's style
	git ls-files '*.cc' '*.h' | xargs -r .venv/bin/clang-format -i
	.venv/bin/ruff check --fix .

sanitize: .venv/.client .venv/.tests ## unit and e2e tests under ASan and UBSan, stream and pool tests under TSan
	@tests/sanitize.sh

bench: everything .venv/.client .venv-peers/.client ## every figure beside its peer (build/bench.json), cost against size (build/sizes.json, docs)
	.venv-peers/bin/python tests/bench/run.py $(BENCH_ARGS)
	$(if $(BENCH_ARGS),,.venv/bin/python tests/bench/sizes.py --write-docs)

cuda-all: everything ## every kernel's text that the unit tests print, by NVRTC for sm_80, sm_90 and sm_100
	TELETENSOR_CUDA_ALL=1 build/release/tests/backend_cuda_test --gtest_filter='Loop*:Fold*:Copies*:Index*:Matmul*:Rows*:Random*:Cells*:Conv*:Attention*:Norms*:Losses*:Scatter*:Scan*:Select*:Search*:Sort*'

build/gpu-check/files.tar.xz:
	$(MAKE) gpu-folder

gpu-folder: .venv/.tests ## build/gpu-check: gpu-check for a machine with a GPU and no network, at most 64 MiB
	JOBS=$(JOBS) .venv/bin/python deploy/gpu/make_folder.py

gpu-check: build/gpu-check/files.tar.xz ## on a machine with a GPU, from that folder alone: all that it has to show; GPU_ARGS=--quick
	$(GPU_PYTHON) build/gpu-check/gpu-check --output build/gpu_check.json $(GPU_ARGS)

image-test: build ## builds the image, runs the daemon in it, reaches it over its UNIX socket
	@deploy/install-packages deploy/packages.txt deploy/packages-image.txt
	@deploy/image-test

sdist: .venv/.tools ## dist/teletensor-VERSION.tar.gz, which needs no checkout
	@.venv/bin/python deploy/make_sdist.py

wheels: build .venv/.tests ## dist/*.whl, which need no compiler: the client (for PYTHONS="python3.12 ..." too) and the daemon
	@.venv/bin/python deploy/make_wheels.py $(PYTHONS)

WHEEL_COMMAND := python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --find-links dist "teletensor[daemon]" && \
  cd / && /tmp/v/bin/python -c "import teletensor as tt; print(tt.ones(3).sum())"

# Bare systems first: both Debian versions run the wheels if there is a wheel for their Python, then
# build and test.
nightly: wheels ## demo and every test on a bare Debian 12 and 13, the wheels on Debian 12, then model, fuzz, chaos, sanitize and 40 mutants
	@deploy/install-packages deploy/packages.txt deploy/packages-image.txt
	deploy/in-debian bookworm 'echo python3-venv | deploy/install-packages /dev/stdin' '$(WHEEL_COMMAND)'
	deploy/in-debian bookworm 'make demo' 'make test'
	deploy/in-debian trixie 'make demo' 'make test'
	$(MAKE) model fuzz chaos sanitize
	$(MAKE) mutate MUTANTS=40 SEED=$(shell date +%j)

docs: .venv/.client .venv/.tests ## generated files: docs/ops.md, docs/ops.json, the type stubs, the README's picture
	.venv/bin/python docs/generate_ops.py && .venv/bin/python docs/generate_ops_json.py
	.venv/bin/python docs/generate_stubs.py
	.venv/bin/python docs/generate_overview.py

pictures: build .venv/.tests ## plots of the documentation, the outputs of its notebooks, pictures of the dashboard
	.venv/bin/python docs/make_pictures.py
	@deploy/install-packages deploy/packages.txt deploy/packages-browser.txt
	.venv/bin/python docs/dashboard_pictures.py

site: .venv/.client .venv/.tests ## build/site: the documentation as a site with a search, and an API of every public name
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@echo "to read it at http://localhost:8000: .venv/bin/python -m http.server --directory build/site"

clean:
	rm -rf build dist .venv .venv-peers
