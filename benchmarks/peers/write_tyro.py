"""The Job's tree for tyro: a program that reads its command line."""

from __future__ import annotations

from . import write_dataclasses
from .schema import Section

TAIL = """

def main():
    job = tyro.cli(tyro.conf.AvoidSubcommands[Job], default=PRESET)
    print(chosen(job))
"""


def module(tree: list[Section], preset: str, chosen: str) -> str:
    """The source of a program that reads its command line.

    Arguments:
        tree: the classes.
        preset: the configuration to start from, as an expression.
        chosen: an expression over `job` for what the program prints.

    Returns:
        a module with `main`.
    """
    parts = [write_dataclasses.HEAD, "import tyro\n", write_dataclasses.classes(tree)]
    parts += [f"\n\nPRESET = {preset}\n", f"\n\ndef chosen(job):\n    return {chosen}\n"]
    return "".join([*parts, TAIL])
