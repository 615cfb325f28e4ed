"""Lists of many runs."""
