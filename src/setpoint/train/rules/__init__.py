"""The rules of a training job: checks that span its sections, by theme.

A rule is a function of the job marked `@rule` or `@dead`; its docstring says what it refuses, and
is its line in the documentation.
"""
