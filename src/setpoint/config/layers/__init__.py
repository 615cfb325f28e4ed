"""The sources of values above a preset: files, environment, command line."""
