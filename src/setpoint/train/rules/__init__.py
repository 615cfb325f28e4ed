"""The rules of a training job: checks across its sections, by theme.

A rule is a function of the job marked `@rule` or `@dead`; its docstring states what the rule
refuses, and becomes its line in the documentation.
"""
