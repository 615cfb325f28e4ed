"""Files as plain data with a place for each key: TOML, YAML and JSON, read and written.

It knows neither fields nor sections, and uses `values` and `words` only.
"""
