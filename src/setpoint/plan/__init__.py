"""The plan of a job on paper: memory, traffic, time and the search; and the dry run."""
