"""draccus: dataclasses, a choice registry for unions, a YAML file by `config_path`, then flags."""

import sys
from typing import Any

import draccus
import tree_draccus as tree

SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """A file below, a command line on top."""
    return draccus.parse(tree.Tree, config_path=file, args=words)


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    return draccus.encode(config)


def main() -> int:
    """Load, or print the help."""
    file, *words = sys.argv[1:]
    SHOW[0](load(file, words))
    return 0
