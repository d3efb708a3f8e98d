# The commands. README.md leads with `demo` and `test`.
# `make test STAGES="fmt clippy"` runs single stages; scripts/test has their table.

.PHONY: help demo test test-host bench setup

help:
	@echo "make demo       install what is missing, build, serve, call, print a table"
	@echo "make test       every check there is; scripts/test lists the stages"
	@echo "make test-host  every check that needs no RDMA device"
	@echo "make bench      this product and its peers in one run"
	@echo "make setup      install what the other commands need"

demo:
	@scripts/setup build
	cargo run --locked --release -p verbwire-examples --bin demo

test: test-host

test-host:
	@scripts/setup test
	@scripts/test $(STAGES)

bench:
	@scripts/setup bench
	bench/run

setup:
	@scripts/setup test
