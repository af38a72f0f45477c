# Every target only calls dev.py, so that make itself is not needed: python3 dev.py --help
# Arguments: make test ARGS="tests/rules -k join"
PYTHON ?= python3

.PHONY: run check test setup lint docs bench soak lock
run check test setup lint docs bench soak lock:
	@$(PYTHON) dev.py $@ $(ARGS)
