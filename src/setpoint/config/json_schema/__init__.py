"""JSON Schema (draft 2020-12) of a config class, for editors and other programs."""
