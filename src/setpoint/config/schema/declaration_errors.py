"""What is wrong with a class statement, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..types.containers import SequenceType
from ..types.scalars import StrType
from ..words.errors import DeclarationError
from ..words.names import did_you_mean
from ..words.shown import MISSING, shown
from .bounds import Bounds, Role
from .field import FieldInfo

Annotations = Callable[[Mapping[str, Any]], Mapping[str, object]]
ROLES = (type(None), Role)
WRITTEN_ROLES = "IDENTITY, BUDGET or RUNTIME, which setpoint.config exports"
HELP = "write the text as a docstring under the field"
LEAVE_OUT = "leave it out; every field is a keyword of the class, and is compared and shown"
ELSEWHERE = {
    **dict.fromkeys(("default_factory", "factory_function"), "write factory="),
    **dict.fromkeys(("description", "help", "doc", "title"), HELP),
    **dict.fromkeys(("min", "minimum", "min_value"), "write ge="),
    **dict.fromkeys(("max", "maximum", "max_value"), "write le="),
    **dict.fromkeys(("regex", "regexp"), "write pattern="),
    **dict.fromkeys(("alias", "aliases", "validation_alias"), "write also_called=(...,)"),
    **dict.fromkeys(("choices", "options"), "annotate the field with Literal[...]"),
    **dict.fromkeys(("validator", "validators", "converter"), "write a method marked @check"),
    **dict.fromkeys(("env", "envvar"), "write environment="),
    **dict.fromkeys(("init", "repr", "compare", "hash", "kw_only", "eq", "order"), LEAVE_OUT),
    "metadata": "leave it out; tags=(...,) are what can be attached to a field",
}
"""What is written here for arguments of dataclasses, attrs, pydantic and the like."""
DECORATORS = {"__dataclass_fields__": "@dataclass", "__attrs_attrs__": "attrs"}
"""What other libraries write into a class that they take for theirs."""
CLASS_WORDS = (
    "type", "role", "owner", "schema", "migrations", "presets", "other_names",
    "environment_prefix", "rules",
)  # fmt: skip


def refuse_arguments(function: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuse arguments that `field` does not have.

    Raises:
        DeclarationError: with what is written instead.
    """
    from inspect import signature

    known = [name for name in signature(function).parameters if name not in ("given", "elsewhere")]
    said: list[str] = []
    for name in given:
        instead = ELSEWHERE.get(name) or did_you_mean(name, known)
        said.append(f"{name}: {instead or 'it takes ' + ', '.join(known)}")
    raise DeclarationError(f"{function.__name__}() has no argument {'; nor '.join(said)}")


def refuse_positional(given: tuple[object, ...]) -> None:
    """Refuse a default that is given to `field` without its name.

    Raises:
        DeclarationError: with what is written instead.
    """
    kind: Any = given[0]
    example = f"factory={kind.__name__}" if isinstance(kind, type) else f"default={shown(kind)}"
    raise DeclarationError(f"field() takes keyword arguments only: field({example})")


def field_fault(info: FieldInfo) -> str:
    """Why a field cannot be declared like this, whatever its type; empty where nothing is wrong."""
    if info.role.__class__ not in ROLES:
        return f"role={info.role!r} is not a role; write {WRITTEN_ROLES}"
    if not (isinstance(info.tags, tuple) and isinstance(info.also_called, tuple)):
        word = "also_called" if isinstance(info.tags, tuple) else "tags"
        value: Any = getattr(info, word)
        example = value if isinstance(value, str) else "name"
        return f"{word}={value!r} is not a list of str; write {word}=({example!r},)"
    if info.factory is not None and info.written is not MISSING:
        return "has both a default and a factory; give one of them"
    if info.factory is not None and not callable(info.factory):
        kind = type(info.factory).__name__
        return f"the factory is a {kind}, which cannot be called; give the class or a function"
    if info.bounds is not None and not info.bounds.possible:
        return _empty_range(info.bounds, "")
    if info.item_bounds is not None and not info.item_bounds.possible:
        return _empty_range(info.item_bounds, "item_")
    if info.environment is not None and not is_variable(info.environment):
        return (
            f"environment={info.environment!r} is not the name of an environment variable, such as "
            f"'WANDB_PROJECT'"
        )
    return ""


def _empty_range(bounds: Bounds, prefix: str) -> str:
    words = ("gt", "ge", "lt", "le", "pattern")
    given = [
        f"{prefix}{word}={limit!r}"
        for word in words
        if (limit := getattr(bounds, word)) is not None
    ]
    return f"no value satisfies the range {', '.join(given)}"


def is_variable(name: object) -> bool:
    """Whether an environment variable can be called that."""
    return isinstance(name, str) and name.isascii() and name.isidentifier()


def class_fault(namespace: Mapping[str, Any], tag: object, role: object, owner: object) -> str:
    """Why a class cannot be declared like this; empty where nothing is wrong."""
    for word, decorator in DECORATORS.items():
        if word in namespace:
            return f": {decorator} has no use here; a config class has all of it. Take it off"
    if namespace.get("__slots__"):
        return (
            ".__slots__ would never be filled: the values of a config are its fields; annotate "
            "them as fields"
        )
    if role.__class__ not in ROLES:
        return f": role={role!r} is not a role; write {WRITTEN_ROLES}"
    if "__post_init__" in namespace:
        return (
            ".__post_init__ would never be called; compute values in methods marked "
            '@derive("field") and refuse wrong ones in methods marked @check'
        )
    if "__init__" in namespace:
        return (
            ".__init__ would not be called where files, records and copies make the config; give "
            'defaults to fields, and compute values in methods marked @derive("field")'
        )
    if not (owner is None or (isinstance(owner, str) and ":" in owner)):
        return f": owner={owner!r} is not what can be built; write owner='package.module:name'"
    if not (tag is None or (isinstance(tag, str) and _is_tag(tag))):
        return (
            f": type={tag!r} cannot be a tag; a tag is a str of letters, digits, - and _, and "
            f"not null"
        )
    return ""


def _is_tag(tag: str) -> bool:
    return tag not in ("", "null") and f"_{tag}".replace("-", "_").isidentifier()


def mark_fault(mark_of: Any, mark: str, path: object) -> str:
    """Why a method cannot have its mark."""
    fields: dict[str, FieldInfo] = mark_of.fields
    first = path.partition(".")[0] if isinstance(path, str) else path
    if first in fields:
        return f"@{mark}({path!r}) names a field that is not declared as derived()"
    known = [name for name, info in fields.items() if mark == "dead" or info.derived]
    return f"@{mark}({path!r}) names no field of the class; it has {', '.join(known) or 'none'}"


def refuse_clashes(cls: Any) -> None:
    """Refuse fields that nothing could tell apart, or that something else of the class hides.

    Raises:
        DeclarationError: for two fields that differ in capitals only, which are one variable of
            the environment, and for a field that is an attribute of another base.
    """
    seen: dict[str, str] = {}
    for key in cls.__setpoint__.fields:
        other = seen.setdefault(key.lower(), key)
        if other != key:
            raise DeclarationError(
                f"{cls.__name__}.{key}: {other} differs in case only, which "
                f"environment variables ignore; choose another name"
            )
    for base in cls.__mro__:
        for key in cls.__setpoint__.fields:
            if key in vars(base):
                raise DeclarationError(
                    f"{cls.__name__}.{key} is a field and an attribute of {base.__name__}; rename "
                    f"one of them"
                )


def refuse_class_words(name: str, words: Mapping[str, object]) -> None:
    """Refuse keywords of a class statement that a config class does not have.

    Raises:
        DeclarationError: with the nearest that it has.
    """
    for word in words:
        hint = did_you_mean(word, CLASS_WORDS) or f"It takes {', '.join(CLASS_WORDS)}."
        raise DeclarationError(f"{name}: unknown keyword {word!r} of the class. {hint}")


def method_fault(cls: str, key: str, value: object) -> str:
    """Why what stands under a field's name cannot be its default; empty where it can."""
    kind = type(value).__name__
    own = getattr(value, "__qualname__", "").rpartition(".")[0] == cls and bool(cls)
    if kind in ("property", "classmethod", "staticmethod", "cached_property"):
        what = f"a {kind}"
    elif kind == "function" and own:
        what = "a method"
    else:
        return ""
    return (
        f"{key} is a field and {what}; rename one of them, or declare the field as derived() and "
        f"mark a method of another name with @derive({key!r})"
    )


def refuse_plain_fields(cls: Any, annotations: Annotations) -> None:
    """Refuse annotations of a base that is no config class, which would be no fields.

    Arguments:
        annotations: takes the namespace of a class.

    Raises:
        DeclarationError: unless the class itself declares a field or an attribute of this name.
    """
    bases: tuple[type, ...] = cls.__mro__
    for base in bases:
        if hasattr(base, "__setpoint__") or base.__module__ in ("builtins", "typing", "abc"):
            continue
        for key, annotation in annotations(vars(base)).items():
            variable = "ClassVar" in str(annotation) or key.startswith("_")
            if variable or key in cls.__setpoint__.fields:
                continue
            if getattr(base, "_is_protocol", False) and hasattr(cls, key):
                continue
            raise DeclarationError(
                f"{cls.__name__}.{key}: {base.__name__} annotates it and is no config class, so "
                f"that it would be no field; derive {base.__name__} from setpoint.Config, declare "
                f"{key} in {cls.__name__}, or annotate it as ClassVar"
            )


def refuse_root_word(root: Any, info: FieldInfo) -> None:
    """Refuse a field of a root whose name means something else in files and on command lines.

    Arguments:
        info: its field `tag`, `sweep` or `silence`.

    Raises:
        DeclarationError: unless it is the list of codes that `silence` must be.
    """
    uses = {
        "tag": "--tag.NAME sets the fields that carry a tag; choose another name",
        "sweep": "the table [sweep] of a file describes many points; choose another name",
        "silence": "it lists the codes of cautions; declare it as tuple[str, ...]",
    }
    kind = info.type
    if info.name == "silence" and isinstance(kind, SequenceType) and isinstance(kind.item, StrType):
        return
    raise DeclarationError(
        f"{root.__name__}.{info.name}: {info.name!r} is reserved at the root of a configuration: "
        f"{uses[info.name]}"
    )
