"""Old schemas: declared changes, records and files brought up to date, hints for old keys.

It works on plain data and on config classes; it uses `schema`, `files` and what is below them.
"""
