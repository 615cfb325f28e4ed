"""The command line: each file is a chapter of commands that parse, call other packages and print.

Functions raise `SetpointError` for user errors, with the explanation in the message.
"""
