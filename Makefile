# The commands. README.md leads with `demo` and `test`.
# `make test STAGES="fmt clippy"` runs single stages; scripts/test has their table.

.PHONY: help demo demo-device test test-host test-device memcheck soak lab-shell bench bench-device setup

help:
	@echo "make demo       install what is missing, build, serve, call, print a table"
	@echo "make demo-device  the same over RDMA devices, in an emulated guest"
	@echo "make test       every check there is; scripts/test lists the stages"
	@echo "make test-host  every check that needs no RDMA device"
	@echo "make test-device  the checks on RDMA devices, in an emulated guest (docs/lab.md)"
	@echo "make memcheck   the RDMA transport's tests under AddressSanitizer, on RDMA devices too"
	@echo "make soak SEEDS=20000  random load and faults over the software NIC; SEED=7 runs one again, step by step"
	@echo "make lab-shell  a guest with RDMA devices to work in"
	@echo "make bench      this product and its peers in one run"
	@echo "make bench-device  this product and raw verbs on RDMA devices, in an emulated guest (docs/performance.md)"
	@echo "make setup      install what the other commands need"

demo:
	@scripts/setup build
	cargo run --locked --release -p verbwire-examples --bin demo

demo-device:
	@scripts/setup build
	@scripts/setup device
	@examples/lab/demo

test:
	@scripts/setup test
	@$(if $(STAGES),,scripts/setup device)
	@scripts/test $(STAGES)

test-host:
	@scripts/setup test
	@scripts/test $(or $(STAGES),--host)

test-device:
	@scripts/setup device
	@scripts/test lab device

memcheck:
	@scripts/setup device
	@scripts/test memcheck

soak:
	@scripts/setup test
	SOAK_SEEDS=$(SEEDS) SOAK_SEED=$(SEED) cargo test --locked --release -p verbwire-rdma --features fabric --test soak -- --nocapture

lab-shell:
	@scripts/setup device
	@tests/lab/lab shell

bench:
	@scripts/setup bench
	bench/run

bench-device:
	@scripts/setup bench
	@scripts/setup device
	bench/run-device

setup:
	@scripts/setup test
	@scripts/setup device
