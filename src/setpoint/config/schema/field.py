"""Fields of a config class: declaration, type, default, range and role; marks of methods."""

from __future__ import annotations

import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, get_args, overload

from ..types.base import FloatType, IntType, LiteralType, ScalarType, StrType, read_item
from ..types.compiler import compile_annotation
from ..types.compound import AnyType, ContainerType, each, name_containers, section_classes
from ..values.containers import Free
from ..values.node import Node
from ..values.origin import DEFAULT, Origin, running
from ..values.reference import Reference, may_refer
from ..values.scalar import Struct
from ..values.user_code import error_in_words, traceback_of
from ..words.errors import DeclarationError, Invalid, Problem, SetpointError, UserCodeError
from ..words.plain_data import INFINITIES, MISSING, children

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Unpack

    from ..types.base import FieldType


SCALARS: dict[type[FieldType], type] = {IntType: int, FloatType: float, StrType: str}
MUTABLE = (list, dict, set, Free, Node)
LIMITS = ("gt", "ge", "lt", "le", "pattern")


class Options(TypedDict, total=False):
    """The options of a field other than its default; see `field`."""

    role: Role | None
    tags: Sequence[str]
    gt: float | None
    ge: float | None
    lt: float | None
    le: float | None
    pattern: str | None
    item_gt: float | None
    item_ge: float | None
    item_lt: float | None
    item_le: float | None
    environment: str | None
    per_variant: bool


class FieldInfo:
    """One field of one config class.

    Arguments:
        factory: makes the default; for sections, lists and mappings.
        derived: a method marked `@derive` computes the value unless it is set.
        options: see `field`.
    """

    __slots__ = (
        "_type", "annotation", "bounds", "derived", "environment", "factory",
        "item_bounds", "name", "namespace", "owner", "per_variant", "role", "settled",
        "tags", "written",
    )  # fmt: skip

    def __init__(
        self,
        default: object = MISSING,
        factory: Callable[[], object] | None = None,
        derived: bool = False,
        **options: Unpack[Options],
    ) -> None:
        given = cast(dict[str, Any], options)
        # The default as declared; once `settled`, as read by the field.
        self.written = default
        self.settled = False
        self.factory = factory
        self.derived = derived
        self.bounds = _bounds(given, "")
        self.item_bounds = _bounds(given, "item_")
        if not isinstance(given.get("role"), Role | None):
            raise DeclarationError(f"role={given['role']!r} is not a Role, such as setpoint.BUDGET")
        self.role: Role | None = given.pop("role", None)
        tags = given.pop("tags", ())
        self.tags: tuple[str, ...] = (tags,) if isinstance(tags, str) else tuple(tags)
        self.environment: str | None = given.pop("environment", None)
        self.per_variant: bool = given.pop("per_variant", False)
        if given:
            raise DeclarationError(
                f"field() has no argument {', '.join(given)}; it accepts default, factory, "
                f"{', '.join(Options.__annotations__)}"
            )
        self.name = ""
        self.annotation: object = None
        self.owner: type = object
        self.namespace: Mapping[str, object] | None = None
        self._type: FieldType | None = None

    def inherit(self, base: FieldInfo, declared: bool) -> None:
        """Inherit options that this declaration lacks from the same field of a base class.

        Arguments:
            declared: True if there is a `field(...)`, which states itself whether it has a default.
        """
        for bounds in ("bounds", "item_bounds"):
            current, inherited = getattr(self, bounds), getattr(base, bounds)
            if inherited is not None:
                setattr(self, bounds, inherited if current is None else current.over(inherited))
        for option in ("role", "tags", "environment", "per_variant"):
            setattr(self, option, getattr(self, option) or getattr(base, option))
        if not declared and self.written is MISSING:
            self.written, self.factory, self.derived = base.written, base.factory, base.derived

    @property
    def constant(self) -> bool:
        """True if all instances share the default, which contains no section."""
        return self.written is not MISSING and self.factory is None

    @property
    def required(self) -> bool:
        """True if a value must be given, since there is no default and nothing derives one."""
        return self.written is MISSING and self.factory is None and not self.derived

    @property
    def full_name(self) -> str:
        """The field with its class and module, for errors about the declaration."""
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def type(self) -> FieldType:
        """The field's type, compiled from its annotation on first use."""
        if self._type is None:
            self._type = _compile(self)
        return self._type

    @property
    def default(self) -> Any:
        """The default as stored by the field, read by its type on first use.

        Raises:
            DeclarationError: the field cannot accept it, or all configs would share it.
        """
        if not self.settled and self.constant:
            value = self._read_default(self.written)
            if is_mutable(value):
                kind = type(self.written).__name__
                raise DeclarationError(
                    f"{self.full_name}: a {kind} as default would be shared by all configs; write "
                    f"field(factory=...)"
                )
            self.written, self.settled = value, True
        return self.written

    def initial(self) -> Any:
        """Create a default value that no two configs share.

        Raises:
            UserCodeError: the factory fails.
        """
        if self.factory is None:
            return self.default
        # Values set by the factory are defaults, wherever they are first read.
        with running(DEFAULT, ""):
            try:
                default = self.factory()
            except SetpointError:
                raise
            except Exception as error:
                name = f"{self.owner.__qualname__}.{self.name}"
                raise UserCodeError(
                    f"the factory of {name} failed: {error_in_words(error)}", traceback_of(error)
                ) from error
            value = self._read_default(default)
        if isinstance(self.factory, type):
            return value
        # A factory may return the same object each time.
        return self.type.replace_sections(value, lambda section: section.__setpoint_draft__())

    def _read_default(self, value: object) -> Any:
        """Read a default in the same way as a value that is set.

        Raises:
            DeclarationError: the field cannot accept it.
        """
        if may_refer(value) and not self.type.is_secret():
            raise DeclarationError(
                f"{self.full_name}: a reference cannot be a default; declare the field as "
                f"derived() and compute it in a method marked @derive({self.name!r})"
            )
        try:
            return self.read(value, Origin(DEFAULT))
        except Invalid as error:
            lines = [
                f"{self.full_name}{''.join(f'.{key}' for key in part.at)}: the default "
                f"{part.sentence}"
                for part in error.parts
            ]
            raise DeclarationError("\n".join(lines)) from None

    def read(self, value: object, origin: Origin) -> Any:
        """Read a value as this field's type, and check its range; a `Reference` is kept.

        Raises:
            Invalid: the field cannot accept it.
        """
        result = read_item(self.type, value, origin)
        if not isinstance(result, Reference):
            self.check(result)
        return result

    def check(self, value: Any) -> None:
        """Check a value of the right type against the field's range.

        Raises:
            Invalid: the value is out of range.
        """
        if value is None:
            return
        if self.bounds is not None:
            self.bounds.check(value)
        bounds = self.item_bounds
        if bounds is not None:
            # A reference is not a number yet, so the limits do not apply.
            each(children(value), lambda _, item: bounds.check(item))


def _compile(info: FieldInfo) -> FieldType:
    """The type of a field, checked against the options of the field.

    Raises:
        DeclarationError: a config cannot have the annotation, or an option does not apply; names
            class and field.
    """
    annotation = info.annotation
    try:
        if isinstance(annotation, str):
            annotation = _evaluated(info, annotation)
        kind = compile_annotation(annotation, info.full_name)
    except RecursionError:
        raise DeclarationError(
            f"{info.full_name}: its type refers to itself; write Any, or a config class"
        ) from None
    name_containers(kind, f"{info.owner.__name__}.{info.name}")
    for fault in _misplaced_options(info, kind):
        raise DeclarationError(f"{info.full_name}: {fault}; the field is {kind.describe()}")
    return kind


def _evaluated(info: FieldInfo, annotation: str) -> Any:
    module = vars(sys.modules[info.owner.__module__])
    names = {**(info.namespace or {}), **vars(info.owner), info.owner.__name__: info.owner}
    if annotation.startswith(("Component[", "sp.Component[", "setpoint.Component[")):
        # The result type is for type checkers, and may be imported for them only.
        names = defaultdict(lambda: Any, {**vars(builtins), **module, **names})
    try:
        return eval(annotation, dict(module), names)
    except Exception as error:  # any error of Python in the expression
        raise DeclarationError(
            f"{info.full_name}: the annotation {annotation!r} cannot be read: {error}"
        ) from None


def _misplaced_options(info: FieldInfo, kind: FieldType) -> list[str]:
    """Find options that do not apply to the type."""
    bounds, numbers, faults = info.bounds, (int, float), list[str]()
    if bounds is not None and bounds.limited and not _may_be(kind, numbers):
        faults.append("gt, ge, lt and le apply to numbers (item_gt, item_ge, ... to items)")
    if bounds is not None and bounds.pattern is not None:
        if not _may_be(kind, (str,)):
            faults.append("a pattern applies to str")
        try:
            re.compile(bounds.pattern)
        except re.error as error:
            faults.append(f"the pattern {bounds.pattern!r} is not a regular expression: {error}")
    if info.item_bounds is not None and not any(_may_be(item, numbers) for item in _items(kind)):
        faults.append("item_gt, item_ge, ... apply to lists and mappings of numbers")
    if info.environment is not None and (kind.is_secret() or section_classes(kind)):
        faults.append(f"environment={info.environment!r} gives one value that is not a secret")
    return faults


def _may_be(kind: FieldType, classes: tuple[type, ...]) -> bool:
    """True if a value, apart from its items, may be an instance of one of the classes."""
    if type(kind) in SCALARS:
        return SCALARS[type(kind)] in classes
    if isinstance(kind, LiteralType):
        return any(isinstance(choice, classes) for choice in kind.choices)
    if isinstance(kind, ScalarType):
        return issubclass(kind.cls, classes)
    parts = () if isinstance(kind, ContainerType) else kind.parts
    return isinstance(kind, AnyType) or any(_may_be(part, classes) for part in parts)


def _items(kind: FieldType) -> tuple[FieldType, ...]:
    """The types of items, including those inside options and alternatives."""
    if isinstance(kind, ContainerType):
        return kind.parts
    return tuple(item for part in kind.parts for item in _items(part))


def is_mutable(value: object) -> bool:
    """True if values are mutable, so that configs cannot share one."""
    if isinstance(value, tuple):
        return any(map(is_mutable, cast(tuple[object, ...], value)))
    return isinstance(value, MUTABLE)


class Bounds(Struct):
    """A range of numbers, with exclusive and inclusive limits, and a pattern for a whole text."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    pattern: str | None = None

    def over(self, base: Bounds) -> Bounds:
        """Merge limits with another range, which applies on sides without a limit."""
        low = self if not (self.gt is self.ge is None) else base
        high = self if not (self.lt is self.le is None) else base
        pattern = base.pattern if self.pattern is None else self.pattern
        return Bounds(low.gt, low.ge, high.lt, high.le, pattern)

    @property
    def limited(self) -> bool:
        """True if there is a limit for numbers."""
        return not (self.gt is self.ge is self.lt is self.le is None)

    @property
    def empty(self) -> bool:
        """True if no number satisfies the limits."""
        lows = [limit for limit in (self.gt, self.ge) if limit is not None]
        highs = [limit for limit in (self.lt, self.le) if limit is not None]
        if not lows or not highs or max(lows) < min(highs):
            return False
        return max(lows) > min(highs) or self.gt == max(lows) or self.lt == min(highs)

    def takes(self, value: float) -> bool:
        """True if a number is within the range."""
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def describe(self) -> str:
        """Format the range for help texts and errors, for example `> 0, < 1`."""
        signs = ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
        parts = [
            f"{sign} {limit:g}"
            for sign, limit in signs
            if limit is not None and limit not in INFINITIES
        ]
        if self.lt == float("inf") or self.gt == float("-inf"):
            parts.append("finite")
        if self.pattern is not None:
            parts.append(f"matching {self.pattern}")
        return ", ".join(parts)

    def check(self, value: Any) -> None:
        """Refuse a number outside the range, or a text that does not match the pattern.

        Raises:
            Invalid: the value is out of range; its callers add the path and the origin.
        """
        if isinstance(value, int | float) and not self.takes(value):
            raise Invalid(f"is out of range: it must be {self.describe()}")
        if self.pattern is None or not isinstance(value, str):
            return
        if re.fullmatch(self.pattern, value) is None:
            example = re.sub(r"[^A-Za-z0-9_.\-]+", "-", value).strip("-")
            hint = f", such as {example}" if re.fullmatch(self.pattern, example) else ""
            raise Invalid(f"does not match the pattern {self.pattern}{hint}")


def _bounds(options: dict[str, Any], prefix: str) -> Bounds | None:
    """Remove the limits from the options of a field; None without a limit."""
    limits = [options.pop(f"{prefix}{name}", None) for name in LIMITS]
    return None if all(limit is None for limit in limits) else Bounds(*limits)


class Role(Struct):
    """The role of a field in the fingerprint and in the resume contract."""

    name: str
    meaning: str

    def __repr__(self) -> str:
        return self.name.upper()

    def __reduce__(self) -> str:
        return self.name.upper()  # a copy is the same object: roles are compared by identity


IDENTITY = Role("identity", "affects the result: in the fingerprint, must match on resume")
BUDGET = Role("budget", "how long: outside the fingerprint, may grow on resume and is recorded")
RUNTIME = Role("runtime", "where and how: never in the fingerprint, free to change")


T = TypeVar("T")


@overload
def field(*, default: T, **options: Unpack[Options]) -> T: ...
@overload
def field(*, factory: Callable[[], T], **options: Unpack[Options]) -> T: ...
@overload
def field(**options: Unpack[Options]) -> Any: ...
def field(
    *, default: Any = MISSING, factory: Callable[[], Any] | None = None, **options: Unpack[Options]
) -> Any:
    """Declare a field with a range, a role or a factory; without a default it is required.

    Arguments:
        default: the default value; for sections, lists and mappings give `factory` instead.
        role: `IDENTITY`, `BUDGET` or `RUNTIME`; the class's `role=` if not given.
        tags: marks such as `"learning_rate"`; `tag.learning_rate` sets all fields that carry it.
        gt, ge, lt, le: limits of the value, exclusive and inclusive. `lt=float("inf")` requires a
            finite value.
        pattern: a regular expression that a text must match as a whole.
        item_gt, item_ge, item_lt, item_le: limits of the items of a list or mapping.
        environment: a variable such as `"WANDB_PROJECT"` that may set the value, above files and
            below Setpoint's own variables; an empty one is ignored. Not for secrets, which name
            their variable themselves.
        per_variant: True if the value depends on the variant, like a learning rate on the
            optimizer: a value that a preset set for one variant is dropped, and reported as
            dropped, on a change to a variant with another default.

    Returns:
        a marker that the config class replaces; for type checkers it has the type of the field.
    """
    return FieldInfo(default, factory, **options)


def derived(**options: Unpack[Options]) -> Any:
    """Declare a field that is computed once all layers are merged, unless it is set.

    A method marked `@derive("name")`, of this class or of a section above it, computes it. Limits
    apply to given and computed values; the options are those of `field`.

    Raises:
        DeclarationError: for a default, which would prevent the computation.
    """
    if "default" in options or "factory" in options:
        raise DeclarationError("derived() has no default: a method marked @derive computes it")
    return FieldInfo(derived=True, **options)


def component(
    *, factory: Callable[[], Any], role: Role | None = None, tags: Sequence[str] = ()
) -> Any:
    """Declare a field that accepts `setpoint.partial` as well as its family's configs.

    Use it with the annotation `Component[Family, Result]`, where `Result` is the type that the
    callable makes: type checkers then accept both when the field is set, and read the family.

        optimizer: Component[OptimizerConfig, Optimizer] = component(factory=AdamWConfig)
    """
    return FieldInfo(factory=factory, role=role, tags=tags)


MARK = "__setpoint_mark__"
"""The attribute by which a config class finds its marked methods."""

Need = Literal["files", "network", "import", "torch"]
NEEDS: tuple[Need, ...] = get_args(Need)
Needs = Need | tuple[Need, ...] | Callable[[Any], tuple[Need, ...]]

F = TypeVar("F", bound=Callable[..., Any])
Check = TypeVar("Check", bound=Callable[..., Iterable[Problem]])


class Derivation(Struct):
    """Mark of a method that computes the derived field at a path."""

    path: str


class RuleMark(Struct):
    """Mark of a rule, with the options of `rule`."""

    needs: tuple[Need, ...] | Callable[[Any], tuple[Need, ...]]
    cautions: Mapping[str, str]
    when: Callable[[Any], bool] | None = None


class DeadMark(Struct):
    """Mark of a method that returns why fields have no effect, with the options of `dead`."""

    names: tuple[str, ...]
    holds: tuple[object, ...] = ()


def mark_of(method: object) -> Derivation | RuleMark | DeadMark | None:
    """The mark of a method of a config class."""
    mark = getattr(method, MARK, None)
    return mark if isinstance(mark, Derivation | RuleMark | DeadMark) else None


def _marking(mark: Derivation | RuleMark | DeadMark) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        setattr(function, MARK, mark)
        return function

    return decorate


def derive(path: str) -> Callable[[F], F]:
    """Mark the method that computes a derived field, such as `"ffn_dim"` or `"model.vocab_size"`.

    Its reads are recorded, so that `why` can name them and a cycle can be shown.
    """
    return _marking(Derivation(path))


@overload
def rule(function: Check, /) -> Check: ...
@overload
def rule(
    *,
    needs: Needs = (),
    cautions: Mapping[str, str] | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Callable[[Check], Check]: ...
def rule(
    function: Any = None,
    /,
    *,
    needs: Needs = (),
    cautions: Mapping[str, str] | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Any:
    """Mark a method that yields the problems of a config whose values are all known.

    Arguments:
        function: a method without arguments that yields a `Problem` for each finding, with paths
            relative to its own section; or a `Caution` for what is legal but suspicious. The first
            line of its docstring says what a check with needs verifies.
        needs: `"files"`, `"network"`, `"import"` (of objects named in the configuration) or
            `"torch"`; the check runs where all are available, and is listed as skipped elsewhere. A
            function takes the config and returns a tuple of needs, for a check that has them for
            some configs only.
        cautions: the codes of the cautions it may yield, each with a sentence that explains it, so
            that they can be listed and silenced by name.
        when: true for a config to which the check applies; otherwise the check is neither run nor
            listed as skipped.

    Raises:
        TypeError: a check with needs has no docstring.
    """
    needed = needs if callable(needs) or isinstance(needs, tuple) else (needs,)
    mark = RuleMark(needed, cautions or {}, when)

    def decorate(function: Any) -> Any:
        if mark.needs and not function.__doc__:
            raise TypeError(f"{function.__qualname__}: its docstring must state what it verifies")
        return _marking(mark)(function)

    return decorate if function is None else decorate(function)


def dead(*names: str, holds: tuple[object, ...] = ()) -> Callable[[F], F]:
    """Mark a method that returns why fields have no effect, so that setting them is an error.

    Values that change nothing are always allowed: the default, the derived value, or null.

    Arguments:
        holds: further values that change nothing if the method returns a reason.

    Returns:
        a decorator for a method that returns a reason, or None while the fields have an effect.
    """
    return _marking(DeadMark(names, holds))


def methods_of(module: ModuleType) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Rules of a class in other modules, under names that no attribute can have."""
    for name, function in vars(module).items():
        marked = isinstance(mark_of(function), RuleMark | DeadMark)
        if marked and function.__module__ == module.__name__:  # not imported functions
            yield f"{module.__name__}:{name}", function


class Rule(Struct):
    """A row of the table `rules` of a class: a check that is imported when needed.

    The class runs the function `target`, `"module:function"` of the config, like its methods marked
    `@rule`, or `@dead` for the fields in `dead`. `what` says in one line what it verifies or
    refuses; the other fields are as for `check`.
    """

    target: str
    what: str
    when: Callable[[Any], bool] | None = None
    needs: Needs = ()
    cautions: Mapping[str, str] | None = None
    dead: tuple[str, ...] = ()

    def method(self) -> tuple[str, Callable[[Any], Any]]:
        """The rule as a marked method, with a name that no attribute can have."""
        target, when = self.target, self.when

        def run(config: Any) -> Any:
            if self.dead and when is not None and not when(config):
                return None
            module, _, name = target.partition(":")
            return getattr(import_module(module), name)(config)

        run.__doc__, run.__qualname__ = self.what, target
        if self.dead:
            return f"{target} {self.what}", dead(*self.dead)(run)
        mark = rule(needs=self.needs, cautions=self.cautions, when=when)
        return f"{target} {self.what}", mark(run)
