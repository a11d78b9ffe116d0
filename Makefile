# The front door: what is missing is installed, what is out of date is built, then it runs. `make help` lists it.
# Standard output belongs to the program; everything else goes to standard error.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.SILENT:
.PHONY: help run build wheel test test-torch test-wheel docs bootstrap format clean

# The CUDA backend where there is a GPU to run it.
PRESET ?= $(if $(wildcard /dev/nvidiactl),cuda,cpu)
# The main job: a layer at its real size on 4 ranks, verified against the fp64 reference.
RUN_ARGS ?= run --preset qwen3-30b-a3b --ranks 4 --tokens 256 --verify-tokens 1024
ARGS ?= $(RUN_ARGS)

help: ## this list
	sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	echo 'Variables: ARGS="verify --preset thesis --ranks 2 --tokens 32" (for run), PRESET=$(PRESET), PRESETS="cpu cuda" (for test)'

run: bootstrap ## run the main job, or the program with ARGS="..."
	tools/build.sh $(PRESET) flashmoe_cli
	build/$(PRESET)/cli/flashmoe $(ARGS)

build: bootstrap ## build library and program
	tools/build.sh $(PRESET) flashmoe flashmoe_cli

wheel: ## build the Python package's wheel into build/dist
	tools/build_wheel.sh

test: bootstrap ## build and run every test: CPU, sanitizers, GPU code
	tools/bootstrap.sh python
	tools/bootstrap.sh plot
	tools/test.sh $(PRESETS)

test-torch: ## test the Python package, and compare with the transformers library, live (needs 1 GB for torch)
	tools/bootstrap.sh torch
	tools/build.sh $(PRESET) flashmoe flashmoe_cli
	FLASHMOE_PROGRAM=build/$(PRESET)/cli/flashmoe FLASHMOE_LIBRARY=build/$(PRESET)/src/libflashmoe.so tools/test_torch.sh

test-wheel: wheel ## install the wheel into an environment of its own and run it there
	tools/test_wheel.sh build/dist/*.whl

docs: ## reference of the Python package, from its docstrings, into build/docs (needs torch)
	tools/bootstrap.sh torch
	tools/bootstrap.sh python
	tools/build.sh $(PRESET) flashmoe
	FLASHMOE_LIBRARY=build/$(PRESET)/src/libflashmoe.so tools/python_reference.sh build/docs

bootstrap: ## install what is missing on this machine
	tools/bootstrap.sh

format: ## format all sources with the pinned clang-format
	tools/bootstrap.sh format
	git ls-files '*.cpp' '*.hpp' '*.c' '*.h' '*.cu' '*.cuh' | xargs .venv/format/bin/clang-format -i

clean: ## remove what was built (not what was installed)
	rm -rf build
