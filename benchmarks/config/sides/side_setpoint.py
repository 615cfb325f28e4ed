"""Setpoint's kernel; the tree is the module that all other trees are written from."""

import sys
from typing import Any

import tree_setpoint as tree

SHOW: list[Any] = [lambda config: print("read")]


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    from setpoint.config.draft.walk import to_plain

    return to_plain(config)


def main() -> int:
    """Load, print the manual with all fields, or complete the name of a field."""
    file, *words = sys.argv[1:]
    if words[:1] == ["--complete"]:
        from setpoint.config.schema.class_info import all_fields

        paths = dict.fromkeys(f"--{path}" for path, _ in all_fields(tree.Tree))
        print("\n".join(path for path in paths if path.startswith(words[1])))
        return 0
    from setpoint.cli.script import run

    run(tree.Tree, SHOW[0], [file, *words])
