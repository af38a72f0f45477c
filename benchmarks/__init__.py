"""The full benchmark: `python -m benchmarks`, or `make bench`. It is not part of the installed package."""
