"""Configuration files: readers with exact positions, and writers; TOML, YAML 1.2 and JSON."""
