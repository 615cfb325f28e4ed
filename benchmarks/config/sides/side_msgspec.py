"""msgspec alone: it has no flags, so that their texts are put into the data of the file."""

import sys
from typing import Any

import msgspec
import tree_msgspec as tree

SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """Read the file, lay the flags over it, convert once; not strict, since flags are texts."""
    with open(file, "rb") as stream:
        data: Any = msgspec.toml.decode(stream.read())
    for word in words:
        path, _, text = word.removeprefix("--").partition("=")
        *above, last = path.split(".")
        node = data
        for part in above:
            node = node.setdefault(part, {})
        node[last] = text
    return msgspec.convert(data, tree.Tree, strict=False)


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    return msgspec.to_builtins(config)


def main() -> int:
    """Load."""
    file, *words = sys.argv[1:]
    SHOW[0](load(file, words))
    return 0
