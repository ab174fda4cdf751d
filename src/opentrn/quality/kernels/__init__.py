"""Public kernel suites, run from a checkout with their own tests: which there are, the run, the results."""
