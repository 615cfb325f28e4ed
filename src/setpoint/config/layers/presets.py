"""Presets, modifiers and plugins by name, and sections from a preset by `@name`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..draft.config import Config
from ..draft.copying import draft_of
from ..draft.walk import dropped_leaves, leaves
from ..types.compiler import compile_annotation
from ..values.node import Node, state_of, value_or_missing
from ..values.origin import (
    COMMAND_LINE,
    ENVIRONMENT,
    FILE,
    MODIFIER,
    PRESET,
    SWEEP,
    Origin,
    Recorded,
    running,
)
from ..values.user_code import call_user_function, find_user_function, import_user_module
from ..words.errors import (
    ConfigError,
    Invalid,
    SetpointError,
    UserCodeError,
    hide_secrets,
    printable,
    several,
)
from ..words.names import FORGOTTEN, Path, did_you_mean, dotted, not_of
from ..words.plain_data import MISSING, PlainScalar
from ..words.text import parse_flow

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

P = TypeVar("P", bound=Callable[..., Node])
M = TypeVar("M", bound=Callable[..., Node])


V = TypeVar("V")
modifiers: dict[str, Callable[..., Node]] = {}
ENTRY_POINTS = "setpoint.plugins"
_loaded: set[str] = set()
PRESET_PREFIX = "@"
WRITTEN_LAYERS = (FILE, ENVIRONMENT, COMMAND_LINE, SWEEP)


class Catalogue(MutableMapping[str, V]):
    """A mapping whose values are imported on first use.

    Iterating yields all names; neither that nor `in` imports anything. Reading a value imports the
    module that registers it.
    """

    def __init__(self) -> None:
        # The values, or the modules that register them.
        self._values: dict[str, V | str] = {}

    def expect(self, module: str, *names: str) -> None:
        """Register names without importing their modules."""
        for name in names:
            self._values.setdefault(name, module)

    def __getitem__(self, name: str) -> V:
        value = self._values[name]
        if isinstance(value, str):
            # Other threads wait here. A module that looks up its own names during its import does
            # not wait, and does not find them.
            import_module(value)
            value = self._values[name]
        if isinstance(value, str):
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: V) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values])  # an import may register others

    def __len__(self) -> int:
        return len(self._values)


presets: Catalogue[Callable[..., Node]] = Catalogue()


def preset(function: P) -> P:
    """Register a function that returns a fresh config, under its own name.

    Parameters must have defaults; `list` shows the first line of the docstring.

    Raises:
        TypeError: another function already has the name; reloading a module is allowed.
    """
    return _register(presets, function, "preset")


def modifier(function: M) -> M:
    """Register a function from config to config, under its own name.

    Raises:
        TypeError: another function already has the name; reloading a module is allowed.
    """
    return _register(modifiers, function, "modifier")


def _register(table: MutableMapping[str, Any], function: Any, kind: str) -> Any:
    name = function.__name__.replace("_", "-")
    other = table.get(name)
    if other is not None and other.__module__ != function.__module__:
        raise TypeError(f"there is already a {kind} {name!r}, in {other.__module__}")
    # A module that is reloaded, or a cell that is run again, no longer has the code of the other.
    code, own = (getattr(each, "__code__", None) for each in (other, function))
    scope = sys._getframe(2).f_code.co_consts  # pyright: ignore[reportPrivateUsage]
    if code is not None and code != own and code in scope:
        raise TypeError(f"{function.__module__} defines two {kind}s {name!r}")
    table[name] = function
    return function


def preset_summary(function: Callable[..., object]) -> str:
    """The first line of a function's docstring."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def preset_parameters(function: Callable[..., object], skip: int = 0) -> list[dict[str, Any]]:
    """The parameters of a preset or modifier: for each its `name` and its `default`, if any."""
    import inspect

    parameters = list(inspect.signature(function).parameters.values())[skip:]
    return [
        {"name": p.name} | ({} if p.default is p.empty else {"default": p.default})
        for p in parameters
    ]


def preset_named(text: str) -> str | None:
    """The registered preset that a text names, with or without parameters: `tiny(width=64)`."""
    name = text.partition("(")[0].strip().replace("_", "-")
    return name if name in presets else None


def call_preset(text: str) -> Node:
    """Make the config of a preset, given with its parameters; the preset is its values' origin.

    Raises:
        SetpointError: the preset does not exist or does not accept the parameters.
    """
    name = text.partition("(")[0]
    function = presets.get(name.strip().replace("_", "-"))
    if function is None:
        raise UnknownPreset("preset", name, presets)
    return call_source(function, text, f"the preset {text!r}")


def call_source(function: Callable[..., object], text: str, title: str) -> Any:
    """Call a function that makes a config, with the parameters after its name.

    Raises:
        SetpointError: the function does not accept the parameters, or fails.
    """
    arguments = _read_arguments(function, text, title, 0)

    with running(PRESET, text):
        return call_user_function(function, title, **arguments)


def call_modifier(text: str, draft: Node) -> Node:
    """Apply a modifier such as `smoke`, `smoke(steps=5)` or `module:function`.

    Raises:
        SetpointError: the modifier does not exist or does not accept the parameters.
    """
    name = text.partition("(")[0].strip()
    if ":" in name:
        function = find_user_function(name)
    elif (known := modifiers.get(name.replace("_", "-"))) is not None:
        function = known
    else:
        raise UnknownPreset("modifier", name, modifiers)
    title = f"the modifier {text!r}"
    arguments = _read_arguments(function, text, title, 1)

    with running(MODIFIER, text):
        result: object = call_user_function(function, title, draft, **arguments)
    if not isinstance(result, type(draft)):
        returned = not_of(result, type(draft)) if isinstance(result, Config) else f"{result!r}"
        raise SetpointError(f"the modifier {name!r} must return the config, got {returned}")
    return result


def _read_arguments(
    function: Callable[..., object], text: str, title: str, skip: int
) -> dict[str, Any]:
    """Read the text between parentheses, for a function's parameters after the first `skip`."""
    name, opened, inside = text.partition("(")
    try:
        return _arguments(function, inside if opened else ")", skip)
    except Invalid as error:
        if any(part.secret for part in error.parts):  # the parameters may contain a secret
            title = title.replace(repr(text), repr(name.strip())).replace(text, name.strip())
        reasons = "; ".join(part.message for part in error.parts)
        raise SetpointError(f"{title}: {reasons}") from None


def _arguments(function: Callable[..., object], inside: str, skip: int) -> dict[str, Any]:
    if not inside.rstrip().endswith(")"):
        raise Invalid("missing closing parenthesis")
    code = getattr(function, "__code__", None)
    if not inside.strip(" )") and code and not (code.co_argcount + code.co_kwonlyargcount - skip):
        return {}  # as for most presets; importing `inspect` takes time
    import inspect

    try:
        given: Any = parse_flow(PlainScalar("{" + inside.rstrip()[:-1] + "}"))
    except Invalid as error:
        raise Invalid(f"{error.message}; parameters are given as NAME=VALUE") from None
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[skip:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {param.name: param for param in parameters if param.kind in named}
    result: dict[str, Any] = {}
    errors: list[Invalid] = []
    for key, value in cast(Mapping[str, object], given).items():
        if key not in known:
            names = ", ".join(known) or "none"
            errors.append(Invalid(f"unknown parameter {key!r}; it accepts: {names}"))
            continue
        annotation = known[key].annotation
        free = annotation is inspect.Parameter.empty
        kind = compile_annotation(Any if free else annotation, f"{function.__name__}({key})")
        try:
            result[key] = kind.read(value, Origin(MODIFIER, function.__name__))
        except Invalid as error:
            errors.append(Invalid(f"parameter {key!r} {error.sentence}", secret=error.secret))
    missing = [name for name, p in known.items() if p.default is p.empty and name not in given]
    if missing:
        errors.append(Invalid(f"needs a value for {', '.join(missing)}"))
    if errors:
        raise several(errors)
    return result


class UnknownPreset(SetpointError):
    """The error for a name that is not a preset or not a modifier, nor anything `elsewhere`."""

    def __init__(self, kind: str, name: str, known: Iterable[str], elsewhere: str = "") -> None:
        self.kind, self.name, self.known, self.elsewhere = kind, name, tuple(known), elsewhere
        super().__init__(kind, name, self.known, elsewhere)

    @property
    def meant(self) -> str:
        """Hint about the intended name, after a space; empty if none is close."""
        name, kind = self.name, self.kind
        if "," in name:
            parts = [part.strip() for part in name.split(",")]
            if all(part.replace("_", "-") in self.known for part in parts):
                options = " ".join(f"--with {part}" for part in parts)
                return f" Repeat the option: {options}." if kind == "modifier" else ""
        return did_you_mean(name, self.known, " ")

    def __str__(self) -> str:
        hint = self.meant
        if not hint and self.name.strip().replace("-", "_").isidentifier():
            hint = f" {FORGOTTEN}."
        listed = ", ".join(sorted(self.known)) or "none"
        start = f"there is no {self.kind} {self.name!r}{self.elsewhere}"
        return printable(hide_secrets(f"{start}.{hint} Known: {listed}"))


@functools.cache
def _installed() -> tuple[EntryPoint, ...]:
    # Installed packages are searched once in a process, however many errors occur.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINTS))


def load_plugins(failures: list[SetpointError] | None = None) -> bool:
    """Import the modules that installed packages register as plugins, each once.

    Searching for them takes longer than all of `setpoint check`, so they are loaded only to find an
    unknown name or to list all names. `failures` collects the errors of plugins that cannot be
    imported; without it, the first error is raised.

    Raises:
        SetpointError: a plugin cannot be imported; names its package.
    """
    loaded = False
    for entry in _installed():
        if entry.value in _loaded:
            continue
        package = entry.dist.name if entry.dist else "a package"
        try:
            import_user_module(entry.module, f"the plugin {entry.name!r} of {package}")
        except SetpointError as error:
            failure = SetpointError(f"{error}; uninstall {package} or repair it")
            if failures is None:
                raise failure from None
            failures.append(failure)
            continue
        _loaded.add(entry.value)
        loaded = True
    return loaded


def section_of_preset(root: type[Node], text: str, path: Path) -> Node | None:
    """Return a draft of a section of a preset, `@name`; None if the section is null.

    Raises:
        Invalid: the preset does not exist or has no such section.
        ConfigError, UserCodeError: the preset itself is faulty.
    """
    name = text.removeprefix(PRESET_PREFIX)
    if preset_named(name) is None:
        stem = name.partition("(")[0]
        hint = did_you_mean(stem, presets) or f"{FORGOTTEN}."
        raise Invalid("is not the name of a preset", tuple(sorted(presets)), hint=hint)
    try:
        config: Any = call_preset(name)
    except (ConfigError, UserCodeError):
        raise
    except SetpointError as error:
        raise Invalid(str(error)) from None
    if not isinstance(config, root):
        raise Invalid(f"the preset {name!r} returns {not_of(config, root)}")
    node: Any = config
    for part in path:
        known = isinstance(node, Node) and part in type(node).__setpoint__.fields
        node = value_or_missing(node, str(part)) if known else MISSING
        if node is MISSING:
            raise Invalid(f"the preset {name!r} has no section {dotted(path)}")
    return draft_of(node) if isinstance(node, Node) else None


def remember_replaced(root: Node, before: Node, path: Path, origin: Origin, text: str) -> None:
    """Record values of files and flags as dropped if another value replaces their section."""
    because = f"{dotted(path)} = {text} ({origin.describe(path)}) replaces the section"
    values = [(leaf, because) for leaf in leaves(before, path) if leaf.path[-1] != "type"]
    for leaf, reason in [*values, *dropped_leaves(before, path)]:
        if leaf.origin.layer in WRITTEN_LAYERS and leaf.origin is not origin:
            place = Recorded(leaf.origin.layer, leaf.describe_origin())
            state_of(root).dropped += ((leaf.key, leaf.value, place, reason),)


def forget_restored(root: Node, section: Node, path: Path) -> None:
    """Remove dropped values that a restored section contains, or lists as dropped itself."""
    state = state_of(root)
    if not state.dropped:
        return
    known = [*leaves(section, path), *(leaf for leaf, _ in dropped_leaves(section, path))]
    given = {(leaf.key, origin.describe(leaf.path)) for leaf in known for origin, _ in leaf.chain}
    state.dropped = tuple(
        entry
        for entry in state.dropped
        if not isinstance(entry[2], Recorded) or (entry[0], entry[2].text) not in given
    )
