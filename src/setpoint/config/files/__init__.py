"""Reading and writing TOML, YAML and JSON as plain data, with the position of each key.

Independent of fields and sections; uses only `values` and `words`.
"""
