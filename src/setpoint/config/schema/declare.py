"""`field`, `derived` and `component`: how a class declares its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..words.errors import DeclarationError
from ..words.shown import MISSING
from .bounds import Bounds, Role
from .declaration_errors import refuse_arguments, refuse_positional
from .field import FieldInfo, Formerly

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class ItemOptions(TypedDict, total=False):
        """What every field takes; `field` says what each means."""

        role: Role | None
        item_gt: float | None
        item_ge: float | None
        item_lt: float | None
        item_le: float | None
        tags: Sequence[str]
        also_called: Sequence[str]
        before: object
        values_also_called: Mapping[str, Sequence[str]] | None
        environment: str | None
        formerly: Formerly | None

    class Options(ItemOptions, total=False):
        """What a field of a number or a text takes as well."""

        gt: float | None
        ge: float | None
        lt: float | None
        le: float | None
        pattern: str | None


T = TypeVar("T")


@overload
def field(*, default: T, **options: Unpack[Options]) -> T: ...


@overload
def field(*, factory: Callable[[], T], **options: Unpack[ItemOptions]) -> T: ...


@overload
def field(**options: Unpack[Options]) -> Any: ...


def field(
    *given: object,
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
        role: `IDENTITY`, `BUDGET` or `RUNTIME`; the class's `role=` if not given.
        gt, ge, lt, le: limits of the value, exclusive and inclusive. `lt=float("inf")` makes
            it finite.
        pattern: a regular expression that a text must match as a whole.
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
    if given:
        refuse_positional(given)
    if elsewhere:
        refuse_arguments(field, elsewhere)
    # Most fields have no limits, and need no object to say so.
    bounds = items = None
    if not (gt is ge is lt is le is pattern is None):
        bounds = Bounds(gt, ge, lt, le, pattern)
    if not (item_gt is item_ge is item_lt is item_le is None):
        items = Bounds(item_gt, item_ge, item_lt, item_le)
    return FieldInfo(
        default,
        factory,
        False,
        bounds,
        items,
        role,
        tags,
        also_called,
        before,
        values_also_called,
        environment,
        formerly,
    )


def derived(**options: Unpack[Options]) -> Any:
    """Declare a field that is computed once all layers are merged, unless it is set.

    A method marked `@derive("name")`, of this class or of a section above it, computes it. Limits
    hold for a given and a computed value; the options are those of `field`.

    Raises:
        DeclarationError: for a default, which would stand in the way of the computation.
    """
    if "default" in options or "factory" in options:
        raise DeclarationError("derived() has no default: a method marked @derive computes it")
    info: FieldInfo = field(**options)
    info.derived = True
    return info


def component(
    *,
    factory: Callable[[], Any],
    role: Role | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
) -> Any:
    """Declare a field that takes `setpoint.partial` as well as its family's configs.

    It goes with the annotation `Component[Family, Result]`, where `Result` is what the callable
    makes: type checkers then take both when the field is set, and see the family when it is read.

        optimizer: Component[OptimizerConfig, Optimizer] = component(factory=AdamW)
    """
    return field(factory=factory, role=role, tags=tags, also_called=also_called)
