"""Long suites, each with a target of the Makefile and a small form that `make test` runs."""
