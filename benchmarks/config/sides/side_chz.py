"""chz: a blueprint with the file's values by dotted path, then arguments `path=value`."""

import sys
import tomllib
from typing import Any

import chz
import tree_chz as tree

SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """Chz reads no files: the values are applied as it asks for them, by dotted path."""
    with open(file, "rb") as stream:
        data = tomllib.load(stream)
    blueprint = chz.Blueprint(tree.Tree).apply(flat(data), layer_name=file)
    return blueprint.make_from_argv(words, allow_hyphens=True)


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted path, a variant by its class."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        if not isinstance(value, dict):
            found[path] = tuple(value) if isinstance(value, list) else value
            continue
        rest = dict(value)
        tag = rest.pop("type", None)
        if tag is not None:
            number = prefix.rstrip(".").rpartition(".")[2].removeprefix("s")
            group = "G0" if prefix.startswith("g0.") else ""
            found[path] = getattr(tree, f"{group}{tag.capitalize()}{number}")
        found.update(flat(rest, f"{path}."))
    return found


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data; a variant's tag is the beginning of its class's name."""
    found: dict[str, Any] = {}
    for name in chz.chz_fields(config):
        value = getattr(config, name)
        if chz.is_chz(value):
            found[name] = plain(value)
            if name == "item":
                title = type(value).__name__.lower()
                tags = ("plain", "scaled", "random")
                found[name]["type"] = next(tag for tag in tags if tag in title)
        else:
            found[name] = value
    return found


def main() -> int:
    """Load, or print the help."""
    file, *words = sys.argv[1:]
    try:
        SHOW[0](load(file, words))
    except chz.blueprint.EntrypointHelpException as manual:
        print(manual)
    return 0
