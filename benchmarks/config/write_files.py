"""The sixty values in the format that is natural for each side."""

from __future__ import annotations

import json
from typing import Any

from setpoint.config.files.write import write_toml as write_toml

from . import tree


def toml(groups: int) -> str:
    """As TOML.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the text.
    """
    return write_toml(tree.file_values(groups))


def yaml(groups: int) -> str:
    """As YAML of the plainest kind.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the text.
    """
    return "".join(_yaml(tree.file_values(groups), ""))


def _yaml(data: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:\n", *_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return lines


def jsonargparse(groups: int) -> str:
    """As YAML in which a variant is named by its class, as jsonargparse names subclasses.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the text.
    """
    data = tree.file_values(groups)
    section = (data if groups == 1 else data["g0"])["s1"]
    item = dict(section["item"])
    name = tree.variant_name(item.pop("type"), 0, 1, groups)
    section["item"] = {"class_path": f"tree_jsonargparse.{name}", "init_args": item}
    return "".join(_yaml(data, ""))


def hydra(groups: int) -> str:
    """As a primary config of Hydra: its defaults list chooses the variants.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the text.
    """
    lines = ["defaults:\n", "  - base\n"]
    for group in range(groups):
        for number in tree.WITH_UNION:
            path = tree.union_path(group, number, groups)
            chosen = "scaled" if (group, number) == (0, 1) else "plain"
            lines.append(f"  - {path.replace('.', '/')}: {chosen}\n")
    return "".join([*lines, "  - _self_\n", *_yaml(tree.file_values(groups), "")])


def fiddle(groups: int) -> str:
    """As a fiddler: a Python function that sets the values.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the source of a module.
    """
    lines = ["import fiddle as fdl\nimport tree_fiddle as tree\n\n\ndef file(config):\n"]
    for path, value in _paths(tree.file_values(groups)):
        if path.endswith(".type"):
            cls = f"{tree.variant_name(value, 0, 1, groups)}"
            lines.append(f"    config.{path.removesuffix('.type')} = fdl.Config(tree.{cls})\n")
        else:
            lines.append(f"    config.{path} = {_python(value)}\n")
    return "".join(lines)


def ml_collections(groups: int) -> str:
    """As a file of ml_collections: the whole tree as a `ConfigDict`, and the values set in it.

    Arguments:
        groups: see `tree.setpoint_module`.

    Returns:
        the source of a module.
    """
    lines = ["from ml_collections import ConfigDict, config_dict\n\n\ndef get_config():\n"]
    body = _config_dict(tree.default_values(groups), "        ")
    lines.append(f"    config = ConfigDict({body})\n")
    for path, value in _paths(tree.file_values(groups)):
        if path.endswith(".type"):
            data = tree.variant(value)
            text = _config_dict(data, "        ")
            lines.append(f"    config.{path.removesuffix('.type')} = ConfigDict({text})\n")
        else:
            lines.append(f"    config.{path} = {_python(value)}\n")
    return "".join([*lines, "    return config\n"])


def _config_dict(data: dict[str, Any], indent: str) -> str:
    kinds = {"limit": "float", "seed": "int"}
    rows: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict):
            text = _config_dict(value, indent + "    ")
        elif value is None:
            text = f"config_dict.placeholder({kinds[key]})"
        else:
            text = _python(value)
        rows.append(f"{indent}{key!r}: {text},\n")
    return "{\n" + "".join(rows) + indent[:-4] + "}"


def _paths(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            found += _paths(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _python(value: Any) -> str:
    return repr(tuple(value)) if isinstance(value, list) else repr(value)


def text(value: Any) -> str:
    """A value as a flag writes it.

    Arguments:
        value: a text, number or truth value.

    Returns:
        its text.
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
