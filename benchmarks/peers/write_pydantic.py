"""The tree as pydantic models for pydantic-settings."""

from __future__ import annotations

from setpoint.config.schema.field import Bounds

from .schema import QUANTITY, Field, Section, annotation, is_quantity, number

UNION = "Annotated[{}, Field(discriminator='type')]"
HEAD = """\
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
"""
SETTINGS_HEAD = "from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict\n"
SETTINGS = """\
    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="PEER__", env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )
"""
MODEL = """\
    model_config = ConfigDict(extra="forbid", frozen=True)
"""
TAIL = """

def main():
    print(chosen(CliApp.run(Tiny)))
"""


def module(tree: list[Section], preset: dict[str, str], chosen: str) -> str:
    """The source of a program that reads its command line.

    Arguments:
        tree: the classes, the root last.
        preset: the values of the root that differ from its defaults, as expressions.
        chosen: an expression over `job` for what the program prints.

    Returns:
        a module with `main`.
    """
    parts = [HEAD, SETTINGS_HEAD, classes(tree[:-1])]
    # Settings read the command line for a class, so a preset is a class with other defaults.
    root = tree[-1]
    parts.append(_section(Section("Tiny", root.help, root.tag, root.family, root.fields), preset))
    parts.append(f"\n\ndef chosen(job):\n    return {chosen}\n")
    return "".join([*parts, TAIL])


def classes(tree: list[Section]) -> str:
    """The source of the models, without imports.

    Arguments:
        tree: the classes.

    Returns:
        the source.
    """
    return "".join(_section(section, {}) for section in tree)


def _section(section: Section, preset: dict[str, str]) -> str:
    is_root = section.name == "Tiny"
    lines = ["", "", f"class {section.name}({'BaseSettings' if is_root else 'BaseModel'}):"]
    lines += [f"    {section.help!r}", "", SETTINGS if is_root else MODEL]
    if section.tag is not None:
        lines.append(f"    type: Literal[{section.tag!r}] = {section.tag!r}")
    lines += [f"    {_field(field, preset.get(field.name))}" for field in section.fields]
    return "\n".join(lines) + "\n"


def _field(field: Field, preset: str | None) -> str:
    options = [f"description={field.help!r}"]
    default = preset if preset is not None else field.default
    if default is not None:
        # No factory: parts of a section can be overridden only over a default that is an instance.
        options.insert(0, f"default={default}")
    if field.bounds is not None:
        options += _limits(field.bounds)
    if is_quantity(field.kind):
        options.append(f"pattern={f'^({QUANTITY})$'!r}")
    item = "{}"
    if field.items is not None:
        item = f"Annotated[{{}}, Field({', '.join(_limits(field.items))})]"
    return f"{field.name}: {annotation(field.kind, UNION, item)} = Field({', '.join(options)})"


def _limits(bounds: Bounds) -> list[str]:
    named = (("gt", bounds.gt), ("ge", bounds.ge), ("lt", bounds.lt), ("le", bounds.le))
    found = [f"{name}={number(limit)}" for name, limit in named if limit is not None]
    if bounds.pattern is not None:
        found.append(f"pattern={f'^(?:{bounds.pattern})$'!r}")
    return found
