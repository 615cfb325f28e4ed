"""Declarations in a config class: fields, and marks of the methods that resolve calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from ..values.scalar import Struct
from ..words.errors import DeclarationError, Problem
from ..words.plain_data import MISSING
from .field import FieldInfo, Role

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Unpack

    from .field import Options

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
        gt, ge, lt, le: limits of the value, exclusive and inclusive. `lt=float("inf")` makes
            it finite.
        pattern: a regular expression that a text must match as a whole.
        item_gt, item_ge, item_lt, item_le: limits of the items of a list or mapping.
        environment: a variable such as `"WANDB_PROJECT"` that may give the value, above files and
            below the variables of Setpoint's own; an empty one counts as none. Not for secrets,
            which name their variable themselves.
        per_variant: True where the value depends on the variant, as a learning rate on the
            optimizer: one that a preset gave for a variant is dropped, and named as such, by a
            change to a variant whose default is another one.

    Returns:
        a marker that the config class replaces; typed as the field's value for type checkers.
    """
    return FieldInfo(default, factory, **options)


def derived(**options: Unpack[Options]) -> Any:
    """Declare a field that is computed once all layers are merged, unless it is set.

    A method marked `@derive("name")`, of this class or of a section above it, computes it. Limits
    hold for a given and a computed value; the options are those of `field`.

    Raises:
        DeclarationError: for a default, which would stand in the way of the computation.
    """
    if "default" in options or "factory" in options:
        raise DeclarationError("derived() has no default: a method marked @derive computes it")
    return FieldInfo(derived=True, **options)


def component(
    *, factory: Callable[[], Any], role: Role | None = None, tags: Sequence[str] = ()
) -> Any:
    """Declare a field that takes `setpoint.partial` as well as its family's configs.

    It goes with the annotation `Component[Family, Result]`, where `Result` is what the callable
    makes: type checkers then take both when the field is set, and see the family when it is read.

        optimizer: Component[OptimizerConfig, Optimizer] = component(factory=AdamWConfig)
    """
    return FieldInfo(factory=factory, role=role, tags=tags)


DERIVE = "__setpoint_derive__"
CHECK = "__setpoint_check__"
DEAD = "__setpoint_dead__"
HOLDS = "__setpoint_holds__"
RULE = "__setpoint_rule__"
"""The attributes by which a config class finds its marked methods."""

Need = Literal["files", "network", "import", "torch"]
NEEDS: tuple[Need, ...] = get_args(Need)
Needs = Need | tuple[Need, ...] | Callable[[Any], tuple[Need, ...]]

F = TypeVar("F", bound=Callable[..., Any])
Check = TypeVar("Check", bound=Callable[..., Iterable[Problem]])


def _marking(attribute: str, value: object) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, attribute, value)
        return function

    return mark


def derive(path: str) -> Callable[[F], F]:
    """Mark the method that computes a derived field, such as `"ffn_dim"` or `"model.vocab_size"`.

    What it reads is recorded, so that `why` can name it and a cycle can be shown.
    """
    return _marking(DERIVE, path)


class RuleMark(Struct):
    """The options of a rule, as `rule` takes them."""

    needs: tuple[Need, ...] | Callable[[Any], tuple[Need, ...]]
    cautions: Mapping[str, str]
    when: Callable[[Any], bool] | None = None


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
        function: a method without arguments that yields a `Problem` for each finding, with
            paths relative to its own section; or a `Caution` for what is legal but suspicious.
            The first line of its docstring says what a check with needs verifies.
        needs: `"files"`, `"network"`, `"import"` (of what the configuration names) or `"torch"`;
            such a check runs where that is at hand, and is named as skipped elsewhere. A function
            takes the config and returns a tuple of them, for a check that needs something of
            some configs only.
        cautions: the codes of the cautions it may yield, each with a sentence that says what it
            means, so that they can be listed and silenced by name.
        when: true for a config in which there is something to look at; elsewhere the check is
            neither run nor named as skipped.

    Raises:
        TypeError: if a check with needs has no docstring.
    """
    needed = needs if callable(needs) or isinstance(needs, tuple) else (needs,)
    mark = RuleMark(needed, cautions or {}, when)

    def decorate(function: Any) -> Any:
        if mark.needs and not function.__doc__:
            raise TypeError(f"{function.__qualname__}: its docstring must say what it verifies")
        return _marking(CHECK, mark)(function)

    return decorate if function is None else decorate(function)


def dead(*names: str, holds: tuple[object, ...] = ()) -> Callable[[F], F]:
    """Mark a method that says when fields have no effect, so that setting them is an error.

    A field may always say what holds anyway: its default, what would be derived, or null.

    Arguments:
        holds: further values that say what holds anyway where the method returns a reason.

    Returns:
        a decorator for a method that returns a reason, or None while the fields are read.
    """

    def mark(function: F) -> F:
        setattr(function, DEAD, names)
        setattr(function, HOLDS, holds)
        return function

    return mark


def methods_of(module: ModuleType) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The functions of a module marked as methods are, by names that no attribute can have."""
    for name, function in vars(module).items():
        marked = callable(function) and (hasattr(function, CHECK) or hasattr(function, DEAD))
        if marked and function.__module__ == module.__name__:  # not what it imports
            yield f"{module.__name__}:{name}", function


class Rule(Struct):
    """A row of the table `rules` of a class: a check that is imported when it is needed.

    The class runs the function `target`, `"module:function"` of the config, as it runs its methods
    marked `@rule`, or `@dead` for the fields in `dead`. `what` says in a line what it verifies or
    refuses; the others are as for `check`.
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

        run.__doc__ = self.what
        setattr(run, RULE, target)
        if self.dead:
            return f"{target} {self.what}", dead(*self.dead)(run)
        mark = rule(needs=self.needs, cautions=self.cautions, when=when)
        return f"{target} {self.what}", mark(run)
