"""What a config class declares about each of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .errors import Invalid, SetpointError, UserCodeError, several
from .reference import Reference
from .role import Role

if TYPE_CHECKING:
    from .origin import Origin
    from .types.base import FieldType

T = TypeVar("T")
Formerly = Callable[[Any], Mapping[str, object] | None]


class Missing:
    """The type of `MISSING`, which stands for "no value", since None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


INFINITIES = (float("inf"), float("-inf"))


LIMITS = (type(None), int, float)


class Bounds:
    """A range, and the sentence that says it.

    Arguments:
        gt, ge, lt, le: exclusive and inclusive limits; None where there is none.
        pattern: a regular expression that a text must match as a whole.
    """

    __slots__ = ("ge", "gt", "le", "lt", "pattern")

    def __init__(
        self,
        gt: float | None = None,
        ge: float | None = None,
        lt: float | None = None,
        le: float | None = None,
        pattern: str | None = None,
    ) -> None:
        self.gt = gt
        self.ge = ge
        self.lt = lt
        self.le = le
        self.pattern = pattern

    def __bool__(self) -> bool:
        return self.pattern is not None or self.limited

    @property
    def possible(self) -> bool:
        """Whether the limits are numbers that leave room for a value."""
        gt, ge, lt, le = self.gt, self.ge, self.lt, self.le
        for limit in (gt, ge, lt, le):
            if limit.__class__ not in LIMITS and int not in limit.__class__.__mro__:
                return False
        if lt is not None and ((gt is not None and gt >= lt) or (ge is not None and ge >= lt)):
            return False
        if le is not None and ((gt is not None and gt >= le) or (ge is not None and ge > le)):
            return False
        return self.pattern is None or self.pattern.__class__ is str

    @property
    def limited(self) -> bool:
        """Whether there is a limit for numbers."""
        return any(limit is not None for limit in (self.gt, self.ge, self.lt, self.le))

    def takes(self, value: float) -> bool:
        """Whether a number lies inside.

        Arguments:
            value: any number.

        Returns:
            True if it does.
        """
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def describe(self) -> str:
        """The range in signs, for help texts and errors.

        Returns:
            for instance `> 0, < 1`.
        """
        signs = ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
        parts = [f"{sign} {limit:g}" for sign, limit in signs if limit not in (None, *INFINITIES)]
        if self.lt == float("inf") or self.gt == float("-inf"):
            parts.append("finite")
        if self.pattern is not None:
            parts.append(f"a text like {self.pattern}")
        return ", ".join(parts)

    def check(self, value: Any) -> None:
        """Refuse a value outside the range.

        Arguments:
            value: a number, or a text where there is a pattern; the limits say nothing about
                values of other types, such as the word in `int | Literal["auto"]`.

        Raises:
            Invalid: if the value lies outside.
        """
        if isinstance(value, int | float) and not self.takes(value):
            raise Invalid(f"is out of range: it must be {self.describe()}")
        if self.pattern is not None and isinstance(value, str):
            import re

            if re.fullmatch(self.pattern, value) is None:
                example = re.sub(r"[^A-Za-z0-9_.\-]+", "-", value).strip("-")
                such = f", such as {example}" if re.fullmatch(self.pattern, example) else ""
                raise Invalid(f"has the wrong form: it must be a text like {self.pattern}{such}")


class FieldInfo:
    """One field of one config class.

    Arguments:
        default: the default value, or MISSING.
        factory: makes the default; for sections, lists and mappings.
        derived: whether an unset value is computed at resolve.
        bounds: the range of the value.
        item_bounds: the range of each item of a tuple, list or mapping.
        role: identity, budget or runtime; None takes the class's.
        tags: marks by which fields of several sections are set or swept together.
        also_called: what other systems call this field; answered with its name, never taken for it.
        values_also_called: what other systems call its values, by value; answered likewise.
        before: what a run had before this field existed, in plain data; MISSING for the first ones.
        environment: the variable that may give the value.
        formerly: the names and values that the fingerprint has in place of this field's.
    """

    __slots__ = (
        "_type",
        "also_called",
        "annotation",
        "before",
        "bounds",
        "constant",
        "derived",
        "environment",
        "factory",
        "formerly",
        "item_bounds",
        "name",
        "namespace",
        "owner",
        "role",
        "settled",
        "tags",
        "values_also_called",
        "written",
    )

    def __init__(
        self,
        default: object = MISSING,
        factory: Callable[[], object] | None = None,
        derived: bool = False,
        bounds: Bounds | None = None,
        item_bounds: Bounds | None = None,
        role: Role | None = None,
        tags: Sequence[str] = (),
        also_called: Sequence[str] = (),
        before: object = MISSING,
        values_also_called: Mapping[str, Sequence[str]] | None = None,
        environment: str | None = None,
        formerly: Formerly | None = None,
    ) -> None:
        # The default as it stands in the class, and whether that, or what the factory makes, is
        # known to be what the field would have read.
        self.written = default
        self.settled = False
        # Whether every instance begins with the same object, which can hold no section.
        self.constant = default is not MISSING and factory is None
        self.factory = factory
        self.derived = derived
        self.bounds = bounds
        self.item_bounds = item_bounds
        self.role = role
        # What is no list of texts is left as it is, for the class to refuse with the field's name.
        self.tags = tuple(tags) if isinstance(tags, list | tuple) else tags
        self.also_called = (
            tuple(also_called) if isinstance(also_called, list | tuple) else also_called
        )
        self.before = before
        self.values_also_called = values_also_called or {}
        self.environment = environment
        self.formerly = formerly
        self.name = ""
        self.annotation: object = None
        self.owner: type = object
        self.namespace: Mapping[str, object] | None = None
        self._type: FieldType | None = None

    @property
    def default(self) -> Any:
        """The default as the field stores it, read by its type when first asked for."""
        if not self.settled and self.constant:
            from .types.default import settle

            settle(self)
        return self.written

    @default.setter
    def default(self, value: object) -> None:
        self.written, self.settled = value, False

    @property
    def required(self) -> bool:
        """Whether a value must be given: there is no default, and nothing derives one."""
        return self.written is MISSING and self.factory is None and not self.derived

    @property
    def full_name(self) -> str:
        """The field with its class and module, for errors about the declaration."""
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def type(self) -> FieldType:
        """The field's type, worked out from its annotation when first asked for."""
        if self._type is None:
            from .types.compiler import compile_field

            self._type = compile_field(self)
            if self.environment is not None:
                from .misdeclared import refuse_environment

                refuse_environment(self, self._type)
        return self._type

    def initial(self) -> Any:
        """A default value of the field's own, never shared between two configs.

        Returns:
            the default, or MISSING for required and derived fields.
        """
        if self.factory is None:
            return self.default
        if self.settled and isinstance(self.factory, type):
            return self.type.adopt(self.factory())  # always of one kind, which has been read once
        from .copying import draft_of
        from .origin import DEFAULT, running
        from .types.default import made

        # What the factory sets is a default, whoever asks for it first; and it may hand out the
        # same object each time, so that a copy is taken.
        with running(DEFAULT, ""):
            value = made(self, self._call_factory(self.factory))
        return self.type.map(value, draft_of, False)

    def _call_factory(self, factory: Callable[[], Any]) -> Any:
        try:
            return factory()
        except SetpointError:
            raise
        except Exception as error:
            from .user_code import in_words, traceback_of

            said = f"the factory of {self.owner.__qualname__}.{self.name} failed: {in_words(error)}"
            raise UserCodeError(said, traceback_of(error)) from error

    def read(self, value: object, origin: Origin) -> Any:
        """Read a value as this field's type and check its range.

        Arguments:
            value: a Python value, a value of a file, or a text to be read (`PlainScalar`).
            origin: where it comes from, for the sections inside it.

        Returns:
            the value as the field stores it; a `Reference` stays one until resolve.

        Raises:
            Invalid: if the field cannot take it.
        """
        if isinstance(value, Reference) or (isinstance(value, str) and "${" in value):
            from .types.item import read_item

            result = read_item(self.type, value, origin)
            if isinstance(result, Reference):
                return result
        else:
            result = self.type.read(value, origin)
        self.check(result)
        return result

    def check(self, value: Any) -> None:
        """Check a value of the right type against the field's range.

        Arguments:
            value: what `read` or a derivation returned.

        Raises:
            Invalid: if it is out of range.
        """
        if value is None:
            return
        if self.bounds is not None:
            self.bounds.check(value)
        if self.item_bounds is not None and isinstance(value, Mapping | list | tuple):
            named = isinstance(value, Mapping)
            pairs = (
                cast(Mapping[Any, Any], value).items()
                if named
                else enumerate(cast(Sequence[Any], value))
            )
            errors: list[Invalid] = []
            for key, item in pairs:
                try:  # a reference is no number, so the limits say nothing about it yet
                    self.item_bounds.check(item)
                except Invalid as error:
                    errors.append(error.inside(key))
            if errors:
                raise several(errors)


@overload
def field(
    *,
    default: T,
    role: Role | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    item_gt: float | None = None,
    item_ge: float | None = None,
    item_lt: float | None = None,
    item_le: float | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
    before: object = MISSING,
    values_also_called: Mapping[str, Sequence[str]] | None = None,
    environment: str | None = None,
    formerly: Formerly | None = None,
) -> T: ...
@overload
def field(
    *,
    factory: Callable[[], T],
    role: Role | None = None,
    item_gt: float | None = None,
    item_ge: float | None = None,
    item_lt: float | None = None,
    item_le: float | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
    before: object = MISSING,
    values_also_called: Mapping[str, Sequence[str]] | None = None,
    environment: str | None = None,
    formerly: Formerly | None = None,
) -> T: ...
@overload
def field(
    *,
    role: Role | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    item_gt: float | None = None,
    item_ge: float | None = None,
    item_lt: float | None = None,
    item_le: float | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
    before: object = MISSING,
    values_also_called: Mapping[str, Sequence[str]] | None = None,
    environment: str | None = None,
    formerly: Formerly | None = None,
) -> Any: ...
def field(
    *,
    default: Any = MISSING,
    factory: Callable[[], Any] | None = None,
    role: Role | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    item_gt: float | None = None,
    item_ge: float | None = None,
    item_lt: float | None = None,
    item_le: float | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
    before: object = MISSING,
    values_also_called: Mapping[str, Sequence[str]] | None = None,
    environment: str | None = None,
    formerly: Formerly | None = None,
    **elsewhere: object,
) -> Any:
    """Declare a field with a range, a role or a factory; without a default it is required.

    Arguments:
        default: the default value; for sections, lists and mappings give `factory` instead.
        factory: called for each new config, so that no two configs share the value.
        role: `IDENTITY`, `BUDGET` or `RUNTIME`; the class's `role=` if not given.
        gt, ge, lt, le: limits of the value, exclusive and inclusive. `lt=float("inf")` makes
            it finite.
        pattern: a regular expression that a text must match as a whole.
        item_gt, item_ge, item_lt, item_le: limits of each item of a tuple, list or mapping.
        tags: marks such as `"learning_rate"`; `tag.learning_rate` sets all fields that carry it.
        also_called: names of this field in other systems; who types one is told ours.
        before: for a field that is added later: what runs effectively had before it existed, in
            plain data. While it has this value it is not in the fingerprint, so that older runs
            keep theirs.
        values_also_called: the same for its values, as in `{"cuda": ("gpu",)}`.
        environment: a variable such as `"WANDB_PROJECT"` that may give the value, above files and
            below the variables of Setpoint's own; an empty one counts as none. Not for secrets,
            which name their variable themselves.
        formerly: for a field that was renamed or changed its type: from a plain value to the old
            names and values of the same section, which take its place in the fingerprint, so that
            older runs keep theirs; None for a value that could not be said before.

        elsewhere: arguments that other libraries' `field` has and this one has not.

    Returns:
        a marker that the config class replaces; typed as the field's value for type checkers.

    Raises:
        DeclarationError: for an argument that it does not have, with what is written instead.
    """
    if elsewhere:
        from .misdeclared import refuse_arguments

        refuse_arguments(field, elsewhere)
    bounds = Bounds(gt, ge, lt, le, pattern)
    items = Bounds(item_gt, item_ge, item_lt, item_le)
    return FieldInfo(
        default,
        factory,
        False,
        bounds or None,
        items or None,
        role,
        tags,
        also_called,
        before,
        values_also_called,
        environment,
        formerly,
    )


def derived(
    *,
    role: Role | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
    before: object = MISSING,
    values_also_called: Mapping[str, Sequence[str]] | None = None,
    formerly: Formerly | None = None,
) -> Any:
    """Declare a field that is computed once all layers are merged, unless it is set.

    A method marked `@derive("name")`, of this class or of a section above it, computes it.

    Arguments:
        role: as for `field`.
        gt, ge, lt, le: limits that a given and a computed value must keep.
        tags, also_called, before, values_also_called, formerly: as for `field`.

    Returns:
        a marker that the config class replaces.
    """
    bounds = Bounds(gt, ge, lt, le) or None
    return FieldInfo(
        derived=True,
        bounds=bounds,
        role=role,
        tags=tags,
        also_called=also_called,
        before=before,
        values_also_called=values_also_called,
        formerly=formerly,
    )
