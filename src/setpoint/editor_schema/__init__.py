"""The JSON Schema of a root class, by which editors complete and check files."""
