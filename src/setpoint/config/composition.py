"""One configuration from all its layers: defaults, preset, files, environment, modifiers, flags."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .draft.config import Config
from .draft.copying import draft_of
from .draft.walk import Leaf, dropped_leaves, leaves, need_class, need_config
from .files.file_document import FORMATS, names_file
from .files.read import similar_file
from .layers.editor import Editor
from .layers.environment_variables import apply_declared, apply_environment
from .layers.extends import HEADERS, ExtendingFiles, file_beside, is_applied
from .layers.presets import call_modifier, call_preset, call_source, load_plugins, preset_named
from .resolving.resolve import resolve
from .schema.class_info import refuse_root_word
from .values.node import state_of
from .values.origin import ENVIRONMENT, FILE, Origin, Recorded, outside_origin
from .values.scalar import Struct
from .values.user_code import find_user_function, import_user_module
from .words.errors import UNKNOWN_KEY, ConfigError, Invalid, Problem, SetpointError
from .words.names import can_be_named, nearest, not_of, plural

if TYPE_CHECKING:
    from .files.file_document import FileDocument

C = TypeVar("C", bound=Config)
OpenForeign = Callable[[str], "FileDocument | None"]
ROOT_WORDS = ("tag", "sweep", "silence")
"""Reserved names of a root; its sections may have fields of these names."""
SWEEP_KEY = "sweep"
"""The table of a file that `setpoint sweep` reads."""
FILE_NAME = r"\w\.[A-Za-z][A-Za-z0-9]{0,9}$"
"""Pattern of a source that names a file; names of presets have no dots."""


class Composition(Struct, Generic[C]):
    """A draft with its layers merged, and the problems found in them.

    Arguments:
        problems: problems found in the layers; `resolve` reports them with its own.
        notes: schema changes since an older file was written, as sentences.
        sweep: the file whose table `[sweep]` describes many points; None if there is none.
        files: all files in order, including the files they extend.
    """

    draft: C
    label: str
    problems: list[Problem]
    notes: list[str]
    sweep: FileDocument | None = None
    files: Sequence[FileDocument] = ()

    def __repr__(self) -> str:
        state = f", {plural(len(self.problems), 'problem')}" if self.problems else ""
        return f"Composition({self.label!r}, {self.draft!r}{state})"

    def resolve(self) -> C:
        """Compute all derived values and run all checks.

        Raises:
            ConfigError: lists every problem of the layers and of the resolution.
        """
        problems = list(self.problems)
        if self.sweep is not None:
            place = self.sweep.where((SWEEP_KEY,))
            reason = "describes the points of a sweep, and this command accepts one configuration"
            hint = f"Run the file with {type(self.draft).__setpoint__.command('sweep')}."
            problems.append(Problem(SWEEP_KEY, reason, hint=hint, origin=place))
        return resolve(self.draft, problems=problems)


def compose(
    root: type[C],
    source: str | os.PathLike[str] | C | None = None,
    *,
    modifiers: Sequence[str] = (),
    files: Sequence[str | os.PathLike[str] | FileDocument] = (),
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    program: Mapping[str, object] | None = None,
    open_foreign: OpenForeign = lambda _: None,
) -> Composition[C]:
    """Merge layers into a draft; later layers override earlier ones.

    Arguments:
        source: a preset's name, a file, a folder with a record, `module:function`, a config, or
            None for the defaults.
        modifiers: modifiers by name, applied in order after the environment and before the flags.
        files: further files, as names or documents, in order, applied after the source.
        environ: environment variables; None reads none.
        open_foreign: reads and converts a file of another system, named `DIALECT:FILE`, wherever a
            file name is accepted; returns None for any other name.

    Raises:
        SetpointError: a layer cannot be read at all, such as a missing file or an unknown preset;
            or an argument has the wrong type.
    """
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    need_class(root, "compose")
    if source is not None and not isinstance(source, str):
        need_config(source, "compose: a SOURCE that is not text")
    for name, values in (("modifiers", modifiers), ("files", files), ("flags", flags)):
        if isinstance(values, str):
            raise SetpointError(f"compose: {name} accepts a list, got {values!r}")
    import_presets(root)
    merge = partial(
        _merge, root, source, modifiers, files, environ, flags, program or {}, open_foreign
    )
    failures: list[SetpointError] = []
    try:
        composition = merge()
        if not composition.problems:
            return composition
    except ConfigError:
        raise
    except SetpointError as error:
        if load_plugins(failures):
            return merge()
        if not failures:
            raise
        raise SetpointError("\n".join(map(str, [error, *failures]))) from None
    # An unknown name may come from an installed package.
    if load_plugins(failures):
        composition = merge()
    composition.problems.extend(Problem("", str(error)) for error in failures)
    return composition


def import_presets(root: type[Config]) -> None:
    """Register the presets and modifiers of a root, if it names their module.

    Raises:
        SetpointError: the module cannot be imported.
    """
    module = root.__setpoint__.presets
    if module is not None and module not in sys.modules:
        try:
            import_module(module)
        except Exception:  # imported again from the working folder, which reports its errors
            import_user_module(module, f"the presets of {root.__name__}", trusted=False)


def _merge(
    root: type[C],
    source: str | C | None,
    modifiers: Sequence[str],
    files: Sequence[str | os.PathLike[str] | FileDocument],
    environ: Mapping[str, str] | None,
    flags: Sequence[str],
    program: Mapping[str, object],
    open_foreign: OpenForeign,
) -> Composition[C]:
    """Merge the layers into a draft, each over the previous ones.

    The order is base (config, preset, function), files, environment, modifiers, command line,
    program: typed values override written ones.
    """
    for word, info in root.__setpoint__.fields.items():
        if word in ROOT_WORDS and (word, info.annotation) != ("silence", "tuple[str, ...]"):
            refuse_root_word(root, info)
    sources = _Sources(root, open_foreign)
    base, documents = sources.open_all(source, files)
    editor = Editor(base if base is not None else root())
    editor.files = sources.files
    sweep = _apply_files(editor, documents)
    declared = None
    if environ is not None:
        declared = apply_declared(editor, environ)
        apply_environment(editor, environ)
    apply_modifiers(editor, modifiers)
    if flags:
        from .layers.flags import put_flags, read_flags

        put_flags(editor, read_flags(root, flags))
    origin = outside_origin(f"{__name__.partition('.')[0]}.")
    for path, value in program.items():
        editor.set(path.split("."), value, origin)
    if editor.unknown or editor.wrong_kind:
        from .other_names import explain_foreign_keys

        explain_foreign_keys(editor)
    if environ is not None:
        apply_declared(editor, environ, declared)
    label = source if isinstance(source, str) else root.__name__
    notes = [*sources.files.notes, *(note for document in documents for note in document.notes)]
    draft = cast(C, editor.root)
    return Composition(draft, label, editor.problems, notes, sweep, documents)


def _apply_files(editor: Editor, documents: Sequence[FileDocument]) -> FileDocument | None:
    """Merge files into a draft; return the last file that describes a sweep."""
    sweep = None
    for document in documents:
        values = {key: value for key, value in document.data.items() if key not in HEADERS}
        if SWEEP_KEY in values:
            del values[SWEEP_KEY]
            sweep = document
        editor.merge(values, Origin(FILE, document.name, document.where))
        editor.problems.extend(document.problems)
    for problem in editor.problems:
        # These keys are not fields, so the field search cannot match them.
        headers = nearest(problem.path, HEADERS, 1, likeness=0.8)
        if headers and problem.kind == UNKNOWN_KEY:
            problem.hint = f"Did you mean {headers[0]}?"
    return sweep


class _Sources(Generic[C]):
    """The sources and files of one composition, in the order of application, and their preset."""

    def __init__(self, root: type[C], open_foreign: OpenForeign) -> None:
        self.root = root
        self.open_foreign = open_foreign
        self.files = ExtendingFiles(root)
        self.applied: list[str] = []
        self.preset: str | None = None

    def open_all(
        self, source: str | C | None, files: Sequence[str | os.PathLike[str] | FileDocument]
    ) -> tuple[C | None, list[FileDocument]]:
        """The initial draft, and all files to apply to it, in order."""
        base, documents = self.open(source)
        for given in files:
            file = os.fspath(given) if isinstance(given, os.PathLike) else given
            file = (self.open_foreign(file) if isinstance(file, str) else None) or file
            preset, parents = self.open_file(file)
            if preset is not None and (base is not None or documents):
                name = file if isinstance(file, str) else file.name
                raise SetpointError(
                    f"{name}: extends a preset, which is a whole configuration and would replace "
                    f"what comes before it; give this file as the source, or extend files only"
                )
            base = base if preset is None else preset
            documents.extend(parents)
        return base, documents

    def open(self, source: str | C | None) -> tuple[C | None, list[FileDocument]]:
        """The initial draft, and the files to apply to it."""
        if source is None:
            return None, []
        if not isinstance(source, str):
            return draft_of(source), []
        _refuse_name(source)
        if preset_named(source):  # even if a file has the same name
            return self._preset(source), []
        foreign = self.open_foreign(source)
        if foreign is not None or names_file(source) or os.path.isfile(source):
            return self.open_file(foreign or source)
        if ":" in source and not os.path.exists(source):
            function = find_user_function(source.partition("(")[0])
            return self._checked(call_source(function, source, source), source), []
        if os.sep in source and not os.path.exists(source):
            raise SetpointError(f"there is no file or folder {source}{similar_file(source)}")
        if os.path.isdir(source):
            from .record.record import is_record, read_record

            if is_record(source):
                draft, header = read_record(self.root, source)
                self.files.notes.extend(header["notes"])
                return draft, []
        if os.sep in source or os.path.isdir(source):
            raise SetpointError(
                f"{source} is not a file of a known kind ({', '.join(FORMATS)}), nor a preset"
            )
        if re.search(FILE_NAME, source) and not preset_named(source.replace(".", "-")):
            meant = similar_file(source)
            raise SetpointError(f"there is no file {source}, and no preset of this name{meant}")
        return self._preset(source), []

    def open_file(self, file: str | FileDocument) -> tuple[C | None, list[FileDocument]]:
        """Open a file and all files that it extends, in order of application."""
        if isinstance(file, str):
            _refuse_name(file)
        name = file if isinstance(file, str) else file.name
        try:
            document = self.files.open(file)
        except Invalid as error:
            raise SetpointError(f"{name}: {error}") from None
        if not document.data and not document.problems:
            self.files.notes.append(f"{name} sets nothing")
        base: C | None = None
        documents: list[FileDocument] = []
        listed: list[str] = []
        for index, parent in enumerate(self._parents(document)):
            try:
                if names_file(parent):
                    path = file_beside(name, parent)
                    foreign = self.open_foreign(path)
                    if foreign is None and not os.path.exists(path):
                        raise Invalid(f"extends {parent!r}, but there is no {path}")
                    document_name = path if foreign is None else foreign.name
                    if is_applied(parent, document_name, listed, self.applied):
                        continue
                else:
                    if base is not None and parent == self.preset:
                        raise Invalid(f"extends {parent!r} twice; name it once")
                    _refuse_parent(
                        parent, base is not None or self.preset not in (None, parent), documents
                    )
                    base = self._preset(parent)
                    self.preset = parent
                    continue
            except ConfigError:
                raise
            except SetpointError as error:
                raise SetpointError(f"{_place(document, index)}: {error}") from None
            preset, parents = self.open_file(foreign or path)
            base = base if preset is None else preset
            documents.extend(parents)
        self.files.close()
        self.applied.append(os.path.realpath(name))
        return base, [*documents, document]

    def _parents(self, document: FileDocument) -> list[str]:
        parents = document.data.get("extends", [])
        names = cast(list[object], parents) if isinstance(parents, list) else [parents]
        if not all(isinstance(name, str) and name for name in names):
            place = document.where(("extends",))
            raise SetpointError(f"{place}: extends must be a preset, a file, or a list of them")
        for index, name in enumerate(cast(list[str], names)):
            if not can_be_named(name):
                _refuse_name(name, f"{_place(document, index)}: extends ")
        return [str(name) for name in names]

    def _preset(self, name: str) -> C:
        return self._checked(call_preset(name), f"the preset {name!r}")

    def _checked(self, config: object, title: str) -> C:
        if not isinstance(config, self.root):
            raise SetpointError(f"{title} returns {not_of(config, self.root)}")
        return draft_of(config)


def _refuse_name(name: str, title: str = "") -> None:
    if not name.strip():
        raise SetpointError(f"{title}the name of a file or preset is empty; is a variable unset?")
    if not can_be_named(name):
        raise SetpointError(f"{title}{name!r} is not a valid name of a file or preset")


def _place(document: FileDocument, index: int) -> str:
    """The position of a parent's name in a file."""
    several = isinstance(document.data["extends"], list)
    return document.where(("extends", index) if several else ("extends",))


def _refuse_parent(parent: str, after_preset: bool, after_file: object) -> None:
    """Refuse a name that a file cannot extend."""
    if ":" in parent:
        module, _, name = parent.partition(":")
        hint = ""
        if all(word.isidentifier() for word in (*module.split("."), name)):
            preset = name.replace("_", "-")
            hint = f" A function marked @preset is named {preset!r}, after `--import {module}`."
        raise Invalid(
            f"extends {parent!r}: a file extends files and a preset by its name, not a function "
            f"or a revision.{hint}"
        )
    reason = "a preset is a whole configuration and would replace"
    if after_preset:
        raise Invalid(
            f"extends a second preset, {parent!r}: {reason} the first one; give one, and files"
        )
    if after_file:
        raise Invalid(
            f"extends: the preset {parent!r} must come first, since {reason} what comes before it"
        )


def apply_modifiers(editor: Editor, texts: Sequence[str]) -> None:
    """Apply modifiers in order.

    A modifier may replace a whole section. Values from files and the environment in the old
    section, and values already dropped from it, are then listed as dropped, since no chain contains
    them.
    """
    for text in texts:
        draft = editor.root
        written = {leaf.path: leaf for leaf in leaves(draft) if _is_written(leaf)}
        dropped = [(leaf, reason) for leaf, reason in dropped_leaves(draft) if _is_written(leaf)]
        try:
            # The modifier may have inserted its own objects, and later layers change the draft.
            editor.root = draft = draft_of(call_modifier(text, draft))
        except ConfigError as error:
            editor.problems.extend(error.problems)
            continue
        for leaf in leaves(draft) if written else ():
            before = written.get(leaf.path)
            if before and (
                leaf.value == before.value
                or any(origin is before.origin for origin, _ in leaf.chain)
            ):
                del written[leaf.path]
        known = {leaf.key for leaf, _ in dropped_leaves(draft)} if dropped else ()
        replaced = [(leaf, f"--with {text} replaces its section") for leaf in written.values()]
        replaced += [(leaf, reason) for leaf, reason in dropped if leaf.key not in known]
        for leaf, reason in replaced:
            origin = Recorded(leaf.origin.layer, leaf.describe_origin())
            state_of(draft).dropped += ((leaf.key, leaf.value, origin, reason),)


def _is_written(leaf: Leaf) -> bool:
    return leaf.origin.layer in (FILE, ENVIRONMENT) and not any(
        isinstance(part, int) for part in leaf.path
    )
