"""Fiddle with its absl flags: a Python function makes the graph, another sets what a file would."""

import sys
from typing import Any

import fiddle as fdl
import tree_fiddle as tree
from absl import app
from fiddle import absl_flags

SHOW: list[Any] = [lambda config: print("read")]


def base() -> Any:
    """The whole graph."""
    return graph(tree.Tree())


def graph(value: Any) -> Any:
    """A config of a dataclass and of all that is in it."""
    from dataclasses import fields, is_dataclass

    if not is_dataclass(value):
        return value
    inside = {one.name: graph(getattr(value, one.name)) for one in fields(value)}
    return fdl.Config(type(value), **inside)


def main() -> int:
    """Load."""
    file, *words = sys.argv[1:]
    sys.path.insert(0, file.rpartition("/")[0])
    import values_fiddle  # the file: a function that sets sixty values

    module = sys.modules[__name__]
    setattr(module, "file", values_fiddle.file)  # noqa: B010 - flags look names up in one module
    holder = absl_flags.DEFINE_fiddle_config("config", default_module=module, help_string="")

    def run(_: list[str]) -> None:
        SHOW[0](fdl.build(holder.value))

    sys.argv = ["start", "--config", "config:base", "--config", "fiddler:file"]
    sys.argv += [part for word in words for part in ("--config", word)]
    app.run(run)
    return 0


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data; a variant's tag is the beginning of its class's name."""
    from dataclasses import fields, is_dataclass

    found: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        found[one.name] = plain(value) if is_dataclass(value) else value
        if one.name == "item":
            title = type(value).__name__.lower()
            tags = ("plain", "scaled", "random")
            found[one.name]["type"] = next(tag for tag in tags if tag in title)
    return found
