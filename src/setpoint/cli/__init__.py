"""The command line: a file is a chapter of commands; each parses, calls down and prints.

Any function of it raises `SetpointError` for what the user got wrong; the message says what.
"""
