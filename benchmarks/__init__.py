"""Speed, memory and what it costs in accuracy: `python -m benchmarks PART`."""
