"""The preset `tiny` for each peer, as a program of its own."""

from __future__ import annotations

from pathlib import Path

import setpoint.presets  # noqa: F401 - registers the preset
from setpoint.config.composition import compose
from setpoint.config.values.node import chain_of
from setpoint.train.config import Job

from . import write_pydantic, write_tyro
from .schema import expression, sections

START = "import sys\n\nfrom {module} import main\n\nsys.exit(main())\n"


def write_programs(folder: Path, shown: tuple[str, ...]) -> dict[str, Path]:
    """Write the peers' programs.

    Each is a module that Python keeps compiled, and a few lines that start it, as an installed
    command is.

    Arguments:
        folder: where to.
        shown: dotted paths of the values that the programs print, as JSON.

    Returns:
        what to start, by the peer's name.
    """
    draft = compose(Job, "tiny").draft
    tree = sections(Job)
    values = {name: expression(getattr(draft, name)) for name in _set(draft)}
    texts = {
        "tyro": write_tyro.module(tree, expression(draft), _chosen(shown)),
        "pydantic-settings": write_pydantic.module(tree, values, _chosen(shown)),
    }
    programs: dict[str, Path] = {}
    for name, text in texts.items():
        module = f"tiny_{name.partition('-')[0]}"
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
        programs[name] = folder / f"start_{module}.py"
        programs[name].write_text(START.format(module=module), encoding="utf-8")
    return programs


def _set(draft: Job) -> list[str]:
    return [name for name in Job.__setpoint__.fields if chain_of(draft, name)]


def _chosen(paths: tuple[str, ...]) -> str:
    inside = ", ".join(f"{path!r}: job.{path}" for path in paths)
    return f"__import__('json').dumps({{{inside}}})"
