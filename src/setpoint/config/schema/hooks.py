"""Decorators for the methods of a config class that the engine calls at resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Literal, TypeVar, cast, get_args, overload

from ..words.errors import Problem

# The attributes by which a config class finds its marked methods.
DERIVE = "__setpoint_derive__"
CHECK = "__setpoint_check__"
DEAD = "__setpoint_dead__"
RULE = "__setpoint_rule__"

Need = Literal["files", "network", "import", "torch"]
NEEDS: tuple[Need, ...] = get_args(Need)

F = TypeVar("F", bound=Callable[..., Any])
Check = TypeVar("Check", bound=Callable[..., Iterable[Problem]])


def derive(path: str) -> Callable[[F], F]:
    """Mark the method that computes a derived field from other fields.

    What the method reads is recorded, so that `why` can name it and a cycle can be shown.

    Arguments:
        path: the field, relative to the class: `"ffn_dim"`, or `"model.vocab_size"` for a field
            of a section below.
    """

    def mark(function: F) -> F:
        setattr(function, DERIVE, path)
        return function

    return mark


class CheckMark:
    """What a check says about itself.

    Arguments:
        needs: what it cannot be run without; `resolve` runs those that need nothing.
        cautions: the codes of the warnings that it may yield, each with what it means.
        when: whether there is anything to look at in a config; None: always.
    """

    __slots__ = ("cautions", "needs", "when")

    def __init__(
        self,
        needs: tuple[Need, ...],
        cautions: Mapping[str, str],
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        self.needs = needs
        self.cautions = cautions
        self.when = when


@overload
def check(function: Check, /) -> Check: ...
@overload
def check(
    *,
    needs: Need | tuple[Need, ...] = (),
    cautions: Mapping[str, str] | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Callable[[Check], Check]: ...
def check(
    function: Any = None,
    /,
    *,
    needs: Need | tuple[Need, ...] = (),
    cautions: Mapping[str, str] | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Any:
    """Mark a method that yields the problems of a config whose values are all known.

    Arguments:
        function: a method without arguments that yields a `Problem` for each finding, with
            paths relative to its own section; or a `Caution` for what is legal but suspicious.
            The first line of its docstring says what a check with needs verifies.
        needs: `"files"`, `"network"`, `"import"` (of what the configuration names) or `"torch"`;
            such a check runs where that is at hand, and is named as skipped elsewhere.
        cautions: the codes of the cautions it may yield, each with a sentence that says what it
            means, so that they can be listed and silenced by name.
        when: takes the config and tells whether there is anything to look at; where there is not,
            the check is neither run nor named as skipped.

    Raises:
        TypeError: if a need is none of these, or such a check does not say what it verifies.
    """
    mark = CheckMark((needs,) if isinstance(needs, str) else needs, _sentences(cautions), when)
    unknown = set(mark.needs) - set(NEEDS)
    if unknown:
        raise TypeError(f"a check needs one of {', '.join(NEEDS)}; got {sorted(unknown)}")

    def decorate(function: Any) -> Any:
        if mark.needs and not function.__doc__:
            raise TypeError(f"{function.__qualname__}: its docstring must say what it verifies")
        setattr(function, CHECK, mark)
        return function

    return decorate if function is None else decorate(function)


def _sentences(cautions: Any) -> Mapping[str, str]:
    given: Any = {} if cautions is None else cautions
    if not isinstance(given, Mapping):
        raise TypeError(
            f'cautions says what each code means, as in {{"code": "sentence"}}; got {given!r}'
        )
    return cast(Mapping[str, str], given)


def dead(*names: str) -> Callable[[F], F]:
    """Mark a method that says when fields have no effect, so that setting them is an error.

    Returns:
        a decorator for a method that returns a reason, or None while the fields are read.
    """

    def mark(function: F) -> F:
        setattr(function, DEAD, names)
        return function

    return mark


class Rule:
    """A row of the table `rules` of a class: a check that stands in a module of its own.

    The class runs it as it runs its methods marked `@check` or `@dead`. The module is imported when
    a config has something to look at.

    Arguments:
        target: `"module:function"`; the function takes the config, and yields and returns what a
            marked method does.
        sections: the fields that the function reads, for documentation; empty for all.
        when: whether there is anything to look at in a config; None: always.
        needs: see `check`.
        what: one sentence that says what it verifies.
        cautions: see `check`.
        dead: the fields, as for `dead`, that have no effect where the function returns a reason.
    """

    __slots__ = ("cautions", "dead", "needs", "sections", "target", "what", "when")

    def __init__(
        self,
        target: str,
        sections: tuple[str, ...],
        what: str,
        *,
        when: Callable[[Any], bool] | None = None,
        needs: Need | tuple[Need, ...] = (),
        cautions: Mapping[str, str] | None = None,
        dead: tuple[str, ...] = (),
    ) -> None:
        self.target = target
        self.sections = sections
        self.what = what
        self.when = when
        self.needs = (needs,) if isinstance(needs, str) else needs
        self.cautions = cautions
        self.dead = dead

    def method(self) -> tuple[str, Callable[[Any], Any]]:
        """The rule as a marked method.

        Returns:
            its name, which no attribute that is written down can have, and the method.
        """
        target, when = self.target, self.when

        def run(config: Any) -> Any:
            if self.dead and when is not None and not when(config):
                return None
            module, _, name = target.partition(":")
            return getattr(import_module(module), name)(config)

        run.__doc__ = self.what
        setattr(run, RULE, target)
        mark = (
            dead(*self.dead)
            if self.dead
            else check(needs=self.needs, cautions=self.cautions, when=when)
        )
        return f"{target} {' '.join(self.needs)}", mark(run)
