"""tyro on msgspec's structs, its fastest form: the file gives the default, tyro the flags."""

import sys
from typing import Any

import msgspec
import tree_msgspec as tree
import tyro

SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """Msgspec reads and checks the file; tyro calls constructors, so msgspec checks once more."""
    with open(file, "rb") as stream:
        default = msgspec.toml.decode(stream.read(), type=tree.Tree)
    config = tyro.cli(tyro.conf.AvoidSubcommands[tree.Tree], default=default, args=words)
    return msgspec.convert(msgspec.to_builtins(config), tree.Tree)


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    return msgspec.to_builtins(config)


def main() -> int:
    """Load, print the help, or print the script that completes."""
    file, *words = sys.argv[1:]
    if words[:1] == ["--complete"]:
        words = ["--tyro-print-completion", "bash"]
    SHOW[0](load(file, words))
    return 0
