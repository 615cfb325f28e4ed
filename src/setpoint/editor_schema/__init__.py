"""The JSON Schema and the help texts of a root class."""
