"""Values from environment variables such as `SETPOINT__OPTIMIZER__LR`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..edit import Editor
from ..errors import Invalid
from ..files.plain import PlainScalar
from ..origin import ENVIRONMENT, Origin
from ..tags import TAG

if TYPE_CHECKING:
    from ..base import Config

PREFIX = "SETPOINT__"
NEARLY = "SETPOINT_"


def apply_environment(editor: Editor, environ: Mapping[str, str]) -> None:
    """Put the values of all variables with the prefix onto a draft.

    Arguments:
        editor: the draft; a variable that names no field becomes a problem, and so does one that
            names a field but for its underscores, or names one that another variable names.
        environ: usually `os.environ`; files such as `.env` are not read.
    """
    first: dict[tuple[str, ...], str] = {}
    later: list[tuple[str, tuple[str, ...]]] = []
    for name, path in variables(environ):
        origin, value = Origin(ENVIRONMENT, name), PlainScalar(environ[name])
        # Upper and lower case are the same, so that two variables may mean one field.
        other = first.setdefault(path, name)
        if other != name:
            error = Invalid(f"is set by the variable {other} as well", secret=True)
            editor.report(path, value, origin, error)
        elif path[0] == TAG and TAG not in type(editor.root).__setpoint__.fields and len(path) == 2:
            later.append((name, path))
        else:
            _set(editor, name, path, value, origin)
    for name, path in later:
        # Variables have no order; one that names a field says more than one that names a tag.
        value, origin = PlainScalar(environ[name]), Origin(ENVIRONMENT, name)
        editor.set_tag(path[1], value, origin, unless=lambda other: other.layer == ENVIRONMENT)
    for name in environ:
        if name.upper().startswith(NEARLY) and not name.upper().startswith(PREFIX):
            _refuse_single_underscores(editor, name)


def _set(editor: Editor, name: str, path: tuple[str, ...], value: object, origin: Origin) -> None:
    found = len(editor.problems)
    editor.set(path, value, origin)
    for problem in editor.problems[found:]:
        if problem.message.startswith("unknown key"):
            meant = _meant(type(editor.root), "_".join(path).split("_"))
            if meant is not None and meant != path:
                problem.hint = f"Did you mean {PREFIX}{'__'.join(meant).upper()}?"


def _refuse_single_underscores(editor: Editor, name: str) -> None:
    """A variable that would set a field with the right underscores must not pass unseen."""
    path = _meant(type(editor.root), name[len(NEARLY) :].lower().split("_"))
    if path is not None:
        right = PREFIX + "__".join(path).upper()
        error = Invalid(
            f"two underscores stand before each name: {name} sets nothing",
            hint=f"Did you mean {right}? If {name} is for another program, unset it here.",
            secret=True,
        )
        editor.report(path, None, Origin(ENVIRONMENT, name), error)


def _meant(cls: type[Config], words: Sequence[str]) -> tuple[str, ...] | None:
    """The field that words would name if the underscores between them were right."""
    from ..suggest import section_classes

    words = [word for word in words if word]
    for count in range(len(words), 0, -1):
        info = cls.__setpoint__.fields.get("_".join(words[:count]))
        if info is None:
            continue
        if count == len(words):
            return (info.name,)
        for section in section_classes(info.type):
            rest = _meant(section, words[count:])
            if rest is not None:
                return (info.name, *rest)
    return None


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The variables that are meant for the configuration, shallow paths first.

    Arguments:
        environ: usually `os.environ`.

    Returns:
        pairs of the variable's name and the path it stands for.
    """
    names = [name for name in environ if name.upper().startswith(PREFIX)]
    paths = {name: tuple(name[len(PREFIX) :].lower().split("__")) for name in names}

    def depth(name: str) -> tuple[int, str]:
        # A variable that chooses a variant must come before those that set its fields.
        path = paths[name]
        return len(path) - (path[-1] == "type"), name

    for name in sorted(names, key=depth):
        yield name, paths[name]
