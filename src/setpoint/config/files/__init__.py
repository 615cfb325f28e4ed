"""Reading and writing TOML, YAML and JSON as plain data, with the position of each key.

It knows neither fields nor sections, and uses `values` and `words` only.
"""
