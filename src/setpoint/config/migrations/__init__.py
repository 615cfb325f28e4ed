"""What became of older schemas: chains of migrations, and files of older schemas written anew.

It works on plain data and on config classes; it uses `schema`, `files` and what is below them.
"""
