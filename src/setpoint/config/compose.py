"""One configuration from all its layers: defaults, preset, modifiers, files, environment, flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .base import Config
from .copying import draft_of
from .edit import Editor
from .errors import Invalid, SetpointError
from .origin import FILE, PROGRAM, Origin, Path, short_name
from .problem import ConfigError, Problem
from .registry import call_modifier, call_preset, presets
from .resolve import resolve
from .suggest import nearest

if TYPE_CHECKING:
    from .files.document import Document

C = TypeVar("C", bound=Config)
SUFFIXES = (".toml", ".yaml", ".yml", ".json")


class Composition(Generic[C]):
    """A draft with its layers merged, and what was wrong with them.

    Arguments:
        draft: the merged draft.
        label: the source by name.
        problems: findings of the layers; `resolve` reports them with its own.
        failed: paths whose values could not be set.
    """

    def __init__(self, draft: C, label: str, problems: list[Problem], failed: set[str]) -> None:
        self.draft = draft
        self.label = label
        self.problems = problems
        self.failed = failed

    def resolve(self) -> C:
        """Determine and check everything.

        Returns:
            the frozen config.

        Raises:
            ConfigError: with every problem of the layers and of the resolution.
        """
        failed = sorted(self.failed)
        return resolve(self.draft, problems=self.problems, failed=failed)


def compose(
    root: type[C],
    source: str | C | None = None,
    *,
    modifiers: Sequence[str] = (),
    files: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    program: Mapping[str, object] | None = None,
) -> Composition[C]:
    """Merge layers onto a draft; later layers beat earlier ones.

    Arguments:
        root: the class of the configuration.
        source: a preset's name, a file, `module:function`, a config, or None for the defaults.
        modifiers: modifiers by name, applied in order after the preset and before the files.
        files: further files, in order, after the source.
        environ: environment variables; None reads none.
        flags: overrides as on the command line.
        program: dotted paths with values, set last.

    Returns:
        the merged draft; what is wrong is reported when it is resolved.

    Raises:
        SetpointError: if a layer cannot be read at all: a missing file, an unknown preset.
    """
    sources = _Sources(root)
    base, documents = sources.open(source)
    for name in files:
        more_base, more = sources.open_file(name)
        if more_base is not None and (base is not None or documents):
            raise SetpointError(
                f"{name}: extends a preset, which is a whole configuration and would replace what "
                f"comes before it; give this file as the source, or extend files alone"
            )
        base = base if more_base is None else more_base
        documents.extend(more)
    draft = base if base is not None else root()
    problems: list[Problem] = []
    for text in modifiers:
        try:
            # What the modifier put in may be its own, and later layers change the draft.
            draft = draft_of(cast(C, call_modifier(text, draft)))
        except ConfigError as error:
            problems.extend(error.problems)
    editor = Editor(draft)
    editor.problems = problems
    for document in documents:
        values = {key: value for key, value in document.data.items() if key not in HEADERS}
        editor.merge(values, Origin(FILE, document.name, _finder(document)))
    for problem in editor.problems:
        # These keys are no fields, so the search among the fields cannot find them.
        close = nearest(problem.path, HEADERS, 1)
        if close and problem.message.startswith("unknown key"):
            problem.hint = f"Did you mean {close[0]}?"
    if environ is not None:
        from .layers.environment import apply_environment

        apply_environment(editor, environ)
    if flags:
        from .layers.flags import apply_flags

        apply_flags(editor, flags)
    for path, value in (program or {}).items():
        editor.set(path.split("."), value, Origin(PROGRAM))
    label = source if isinstance(source, str) else root.__name__
    return Composition(draft, label, editor.problems, editor.failed)


# Keys of a file that speak of the file, not of the configuration.
HEADERS = ("extends", "$schema", "setpoint")


class _Sources(Generic[C]):
    def __init__(self, root: type[C]) -> None:
        self.root = root
        self.seen: set[str] = set()

    def open(self, source: str | C | None) -> tuple[C | None, list[Document]]:
        """The draft to start from, and the files to put onto it."""
        if source is None:
            return None, []
        if not isinstance(source, str):
            return draft_of(source), []
        if source.replace("_", "-") in presets:  # whatever lies about under the same name
            return self._preset(source), []
        if source.endswith(SUFFIXES) or os.path.isfile(source):
            return self.open_file(source)
        if ":" in source and not os.path.exists(source):
            return self._function(source), []
        if os.sep in source or os.path.isdir(source):
            raise SetpointError(
                f"{source} is not a file of a known kind ({', '.join(SUFFIXES)}), nor a preset"
            )
        return self._preset(source), []

    def open_file(self, name: str, above: tuple[str, ...] = ()) -> tuple[C | None, list[Document]]:
        """A file with all that it extends, in the order in which they apply."""
        from .files.read import read

        document = read(name)
        real = os.path.realpath(name)
        if real in above:
            chain = " -> ".join(short_name(file) for file in (*above, real))
            raise SetpointError(f"{name}: extends itself: {chain}")
        base: C | None = None
        documents: list[Document] = []
        self.seen.add(real)
        for parent in self._parents(document):
            if parent.endswith(SUFFIXES):
                beside = os.path.join(os.path.dirname(name), os.path.expanduser(parent))
                if not os.path.exists(beside):
                    place = _place(document, ("extends",))
                    raise SetpointError(f"{place}: extends {parent!r}, but there is no {beside}")
                whole = os.path.realpath(beside)
                if whole in self.seen and whole not in (*above, real):
                    # Two files that extend a third: applied again, it would undo the first.
                    continue
                more_base, more = self.open_file(beside, (*above, real))
                base = more_base if more_base is not None else base
                documents.extend(more)
            elif base is not None or documents:
                raise SetpointError(
                    f"{name}: extends: the preset {parent!r} must come first, since a preset is "
                    f"a whole configuration and would replace what comes before it"
                )
            else:
                try:
                    base = self._preset(parent)
                except ConfigError:
                    raise
                except SetpointError as error:
                    raise SetpointError(f"{_place(document, ('extends',))}: {error}") from None
        return base, [*documents, document]

    def _parents(self, document: Document) -> list[str]:
        parents = document.data.get("extends", [])
        names = cast(list[object], parents) if isinstance(parents, list) else [parents]
        if not all(isinstance(name, str) and name for name in names):
            place = _place(document, ("extends",))
            raise SetpointError(f"{place}: extends must be a preset, a file, or a list of them")
        return [str(name) for name in names]

    def _preset(self, name: str) -> C:
        return self._checked(call_preset(name), f"the preset {name!r}")

    def _checked(self, config: object, title: str) -> C:
        if not isinstance(config, self.root):
            raise SetpointError(
                f"{title} gives a {type(config).__name__}, not a {self.root.__name__}"
            )
        return draft_of(config)

    def _function(self, source: str) -> C:
        import inspect

        from .user_code import call_user_function, import_user_module

        module_name, _, name = source.partition(":")
        module = import_user_module(module_name, source)
        function = getattr(module, name, None)
        if not callable(function):
            close = nearest(name, [key for key in vars(module) if not key.startswith("_")])
            meant = f" Did you mean {close[0]}?" if close else ""
            raise SetpointError(f"{source}: {module_name} has no function {name!r}.{meant}")
        from .origin import PRESET, running

        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise SetpointError(f"{source}: cannot be called without arguments: {error}") from None
        with running(PRESET, source):
            return self._checked(call_user_function(function, source), source)


def _finder(document: Document) -> Callable[[Path], str]:
    def find(path: Path) -> str:
        return _place(document, path)

    return find


def _place(document: Document, path: Path) -> str:
    place = document.locate(path)
    return f"{document.name}:{place[0]}:{place[1]}" if place else document.name


__all__ = ["Composition", "Invalid", "compose"]
