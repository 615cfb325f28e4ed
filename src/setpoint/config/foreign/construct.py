"""Building foreign components: arguments first, then the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..base import Config, value_or_missing
from ..dtype import DType
from ..errors import SetpointError
from ..field import MISSING
from ..free import listed
from ..import_path import ImportPath
from ..user_code import in_words as error_in_words
from .section import Foreign, Named, arguments_of, components_in, shared_fields
from .signature import converted, in_words, missing, parameters_of, takes, wrong_arguments


def construct(config: Foreign, **runtime: Any) -> Any:
    """Call the target of a section; the owner of foreign sections that have no other.

    Arguments:
        config: the section.
        runtime: further arguments, which only exist at run time.

    Returns:
        what the target returns.

    Raises:
        SetpointError: if the target cannot be imported or does not take the arguments.
    """
    return call(config, (), runtime)


def named(config: Named) -> Any:
    """Import what a section names, without calling it.

    Arguments:
        config: the section.

    Returns:
        the callable.

    Raises:
        SetpointError: if it cannot be imported.
    """
    return config.target.load()


def call(
    config: Foreign, args: Sequence[Any], runtime: Mapping[str, Any], optional: Sequence[str] = ()
) -> Any:
    """Call the target of a section.

    Arguments:
        config: the section; components among its arguments are built first, shared ones once.
        args: positional arguments that only exist at run time.
        runtime: named ones.
        optional: those of `runtime` that are left out where the target does not take them.

    Returns:
        what the target returns.

    Raises:
        SetpointError: if the target cannot be imported, does not take the arguments, or raises.
    """
    target, title = config.target.load(), str(config.target)
    given = arguments_of(config)
    wrong = wrong_arguments(target, title, given, shared_fields(config))
    if wrong:
        reasons = "; ".join(in_words(config, part) for part in wrong)
        raise SetpointError(f"{title} cannot be called: {reasons}")
    parameters = parameters_of(target)
    keywords: dict[str, Any] = {}
    for name in shared_fields(config):
        value = value_or_missing(config, name)
        if takes(parameters, name) and value is not MISSING:
            keywords[name] = value
    for name, value in given.items():
        one = parameters.get(name) if parameters else None
        keywords[name] = _built(_plain(value) if one is None else converted(one, value))
    keywords.update(
        (name, value)
        for name, value in runtime.items()
        if name not in optional or takes(parameters, name)
    )
    if parameters is not None:
        # The first ones are given by position.
        rest = list(parameters)[len(args) :]
        lacking = missing({name: parameters[name] for name in rest}, keywords)
        if lacking:
            raise SetpointError(f"{title} cannot be called: it needs {', '.join(lacking)}")
    try:
        return target(*args, **keywords)
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(f"{title} failed: {error_in_words(error)}") from error


def _plain(value: Any) -> Any:
    return value if any(True for _ in components_in(value)) else listed(value)


def _built(value: Any) -> Any:
    """A value with the components inside it built, and names resolved."""
    if isinstance(value, Config):
        return value.build()
    if isinstance(value, ImportPath):
        return value.load()
    if isinstance(value, DType):
        return value.torch()
    if isinstance(value, tuple | list):
        items = [_built(item) for item in cast(Sequence[Any], value)]
        whole = isinstance(value, tuple) and not any(True for _ in components_in(cast(Any, value)))
        return tuple(items) if whole else items
    if isinstance(value, dict):
        return {key: _built(item) for key, item in cast(dict[str, Any], value).items()}
    return value
