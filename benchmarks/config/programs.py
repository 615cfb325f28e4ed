"""Each side as a program of its own: its tree, its file of sixty values, its ten flags."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import (
    schema,
    write_chz,
    write_dataclasses,
    write_msgspec,
    write_pydantic,
)

from . import tree, write_files

SIDES = Path(__file__).parent / "sides"
OURS = "setpoint"
# Two small files to start: one as people start a program, one that prints all that was read.
START = "import sys\n\nfrom side_{side} import main\n\nsys.exit(main())\n"
VERIFY = """\
import json
import sys

import side_{side} as side

side.SHOW[0] = lambda config: print("READ", json.dumps(side.plain(config), default=str))
sys.exit(side.main())
"""


@dataclass(frozen=True)
class Side:
    """One contestant.

    Arguments:
        name: as the tables show it.
        side: the end of `side_*`, its program in `sides/`.
        tree: writes the module with its classes.
        suffix: of its file of values.
        file: writes that file.
        flag: writes one flag.
        mistake: writes a flag with a mistake; the same if None.
        manual, completion: whether it has a manual of all fields, and answers a shell's question.
    """

    name: str
    side: str
    tree: Callable[[list[schema.Section], int], str]
    suffix: str
    file: Callable[[int], str]
    flag: Callable[[str, Any], str]
    manual: bool = True
    completion: bool = False


def _equals(path: str, value: Any) -> str:
    return f"--{path}={write_files.text(value)}"


def _bare(path: str, value: Any) -> str:
    return f"{path}={write_files.text(value)}"


def _fiddle(path: str, value: Any) -> str:
    return f"set:{path}={value!r}"


def _ml(path: str, value: Any) -> str:
    return f"--config.{path}={value}"


def _dataclasses(head: str, **options: Any) -> Callable[[list[schema.Section], int], str]:
    def write(sections: list[schema.Section], groups: int) -> str:
        classes = write_dataclasses.classes(sections, **options)
        return write_dataclasses.HEAD + head + classes

    return write


def _omegaconf(sections: list[schema.Section], groups: int) -> str:
    head = "from omegaconf import MISSING\n"
    options = {"frozen": False, "tagged": True, "literals": False}
    classes = write_dataclasses.classes(sections, **options)
    rows = [
        f"    {tree.union_path(group, number, groups)!r}: {{"
        + ", ".join(
            f"{tag!r}: {tree.variant_name(tag, group, number, groups)}" for tag, _ in tree.VARIANTS
        )
        + "},"
        for group in range(groups)
        for number in tree.WITH_UNION
    ]
    return "\n".join([write_dataclasses.HEAD + head + classes, "", "UNIONS = {", *rows, "}", ""])


def _setpoint(sections: list[schema.Section], groups: int) -> str:
    return tree.setpoint_module(groups)


DRACCUS = "import draccus\n"
ALL = (
    Side(OURS, OURS, _setpoint, ".toml", write_files.toml, _equals, completion=True),
    Side(
        "pydantic-settings",
        "pydantic",
        lambda sections, _: write_pydantic.HEAD + write_pydantic.classes(sections),
        ".toml",
        write_files.toml,
        _equals,
    ),
    Side(
        "tyro + msgspec",
        "tyro",
        lambda sections, _: write_msgspec.HEAD + write_msgspec.classes(sections),
        ".toml",
        write_files.toml,
        _equals,
        completion=True,
    ),
    Side(
        "Hydra + OmegaConf",
        "hydra",
        _omegaconf,
        ".yaml",
        write_files.hydra,
        _bare,
        completion=True,
    ),
    Side(
        "jsonargparse",
        "jsonargparse",
        _dataclasses("", registry="object"),
        ".yaml",
        write_files.jsonargparse,
        _equals,
        completion=True,
    ),
    Side(
        "draccus",
        "draccus",
        _dataclasses(DRACCUS, registry="draccus.ChoiceRegistry"),
        ".yaml",
        write_files.yaml,
        _equals,
    ),
    Side(
        "chz",
        "chz",
        lambda sections, _: write_chz.HEAD + write_chz.classes(sections),
        ".toml",
        write_files.toml,
        _bare,
    ),
    Side(
        "Fiddle",
        "fiddle",
        _dataclasses("", frozen=False),
        ".py",
        write_files.fiddle,
        _fiddle,
        False,
    ),
    Side(
        "ml_collections",
        "ml_collections",
        lambda sections, groups: "",
        ".py",
        write_files.ml_collections,
        _ml,
        False,
    ),
    Side(
        "msgspec",
        "msgspec",
        lambda sections, _: write_msgspec.HEAD + write_msgspec.classes(sections),
        ".toml",
        write_files.toml,
        _equals,
        False,
    ),
)


@dataclass(frozen=True)
class Program:
    """A side as it lies in a folder, ready to be started.

    Arguments:
        side: whose it is.
        command: what starts it; its arguments follow.
        verify: the same, but it prints all that was read.
        flags: the ten flags.
        groups: the size of the tree; see `tree.setpoint_module`.
    """

    side: Side
    command: list[str]
    verify: list[str]
    flags: list[str]
    groups: int

    def mistake(self, path: str, value: Any) -> list[str]:
        """A flag with a mistake.

        Arguments:
            path, value: as in `tree.MISTAKES`.

        Returns:
            arguments.
        """
        return [self.side.flag(tree.prefixed(path, self.groups), value)]


def write_programs(folder: Path, groups: int) -> list[Program]:
    """Write the trees, the files and the programs of all sides.

    Arguments:
        folder: where to; made if need be, and put on Python's path.
        groups: the size of the tree; see `tree.setpoint_module`.

    Returns:
        the programs, Setpoint's first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tree_setpoint.py").write_text(tree.setpoint_module(groups), encoding="utf-8")
    sys.path.insert(0, str(folder))
    sys.modules.pop("tree_setpoint", None)
    sections = schema.sections(importlib.import_module("tree_setpoint").Tree)
    return [_write(folder, side, sections, groups) for side in ALL]


def _write(folder: Path, side: Side, sections: list[schema.Section], groups: int) -> Program:
    name = "omegaconf" if side.side == "hydra" else side.side
    name = "msgspec" if side.side == "tyro" else name
    (folder / f"tree_{name}.py").write_text(side.tree(sections, groups), encoding="utf-8")
    shutil.copy(SIDES / f"side_{side.side}.py", folder)
    # Hydra looks through the whole folder of its file for config groups.
    (folder / "values").mkdir(exist_ok=True)
    file = folder / "values" / f"values_{side.side}{side.suffix}"
    file.write_text(side.file(groups), encoding="utf-8")
    commands: list[list[str]] = []
    for kind, text in (("start", START), ("verify", VERIFY)):
        program = folder / f"{kind}_{side.side}.py"
        program.write_text(text.format(side=side.side), encoding="utf-8")
        commands.append([sys.executable, str(program), str(file)])
    flags = [side.flag(path, value) for path, value in tree.flag_values(groups)]
    return Program(side, commands[0], commands[1], flags, groups)
