"""jsonargparse over dataclasses: a YAML file by `--config`, then flags."""

import os
import sys
from typing import Any

import jsonargparse
import tree_jsonargparse as tree

SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """Parse, then make the instances, whose `__post_init__` checks ranges."""
    words = [f"--config={file}", *words]
    return jsonargparse.auto_cli(tree.Tree, as_positional=False, args=words)


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data; a variant's tag is the beginning of its class's name."""
    from dataclasses import fields, is_dataclass

    found: dict[str, Any] = {}
    names = [one.name for one in fields(config)] if is_dataclass(config) else list(vars(config))
    for name in names:
        value = getattr(config, name)
        found[name] = plain(value) if is_dataclass(value) else value
        if name == "item":
            title = type(value).__name__.lower()
            tags = ("plain", "scaled", "random")
            found[name]["type"] = next(tag for tag in tags if tag in title)
    return found


def main() -> int:
    """Load, print the help, or complete as argcomplete asks."""
    file, *words = sys.argv[1:]
    if words[:1] == ["--complete"]:
        line = f"start {words[1]}"
        os.environ.update(_ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=str(len(line)))
        os.environ.update(_ARGCOMPLETE_STDOUT_FILENAME="/dev/stdout", _ARGCOMPLETE_IFS="\n")
        # The parser hands over to argcomplete before it reads anything.
    SHOW[0](load(file, words))
    return 0
