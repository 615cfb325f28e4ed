"""How a class statement becomes a config class."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast, dataclass_transform

from .field import MISSING, FieldInfo, field
from .hooks import CHECK, DEAD, DERIVE
from .role import IDENTITY, Role

RESERVED = frozenset({"type", "build", "evolve", "set_field", "store"})


class ClassInfo:
    """What the engine knows of one config class.

    Arguments:
        cls: the class.
        tag: the name that selects it in a union, or None.
        owner: `module:name` of what `build` constructs, or None.
        role: the role of fields that declare none.
    """

    __slots__ = (
        "checks",
        "cls",
        "deads",
        "derives",
        "fields",
        "owner",
        "role",
        "tag",
        "variants",
    )

    def __init__(self, cls: type, tag: str | None, owner: str | None, role: Role) -> None:
        self.cls = cls
        self.tag = tag
        self.owner = owner
        self.role = role
        self.fields: dict[str, FieldInfo] = {}
        self.variants: dict[str, type] = {}
        self.derives: dict[str, str] = {}
        self.checks: list[str] = []
        self.deads: list[str] = []


def _annotations(namespace: Mapping[str, Any]) -> Mapping[str, object]:
    found = namespace.get("__annotations__")
    if found is None and sys.version_info >= (3, 14):
        import annotationlib  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        lib: Any = annotationlib
        function = lib.get_annotate_from_class_namespace(namespace)
        if function is not None:
            found = lib.call_annotate_function(function, lib.Format.STRING)
    return found or {}


# `derived` is no specifier: type checkers take its call for a default, so that constructors do not
# ask for what is going to be computed.
@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class ConfigMeta(type):
    """Turns annotations into slots and field descriptions; the rest happens when it is needed."""

    __setpoint__: ClassInfo

    def __new__(
        mcls,
        name: str,
        bases: tuple[builtins.type, ...],
        namespace: dict[str, Any],
        *,
        type: str | None = None,
        role: Role | None = None,
        owner: str | None = None,
    ) -> Any:
        """Make a config class.

        Arguments:
            name, bases, namespace: as for every class.
            type: the tag that selects this class in a union.
            role: the role of fields that declare none; inherited.
            owner: `"module:name"` of what `build` constructs; a class nested in its owner as
                `Config` needs none.

        Returns:
            the class.

        Raises:
            TypeError: for a declaration that cannot work, with the class and the field named.
        """
        inherited = [base for base in bases if isinstance(base, ConfigMeta)]
        fields = _own_fields(name, namespace, inherited)
        known = {f for base in inherited for f in base.__setpoint__.fields}
        namespace.setdefault("__slots__", tuple(key for key in fields if key not in known))
        cls: Any = super().__new__(mcls, name, bases, namespace)
        qualified: str = namespace["__qualname__"]
        if owner is None and name == "Config" and "." in qualified and inherited:
            parent = qualified.rpartition(".")[0]
            if not parent.endswith("<locals>"):
                owner = f"{namespace['__module__']}:{parent}"
        if role is None:
            role = inherited[0].__setpoint__.role if inherited else IDENTITY
        if owner is None and inherited:
            owner = inherited[0].__setpoint__.owner
        info = ClassInfo(cls, type, owner, role)
        cls.__setpoint__ = info
        for base in reversed(inherited):
            info.fields.update(base.__setpoint__.fields)
            info.derives.update(base.__setpoint__.derives)
            for group in ("checks", "deads"):
                mine: list[str] = getattr(info, group)
                theirs: list[str] = getattr(base.__setpoint__, group)
                mine.extend(method for method in theirs if method not in mine)
        local_names = _enclosing_locals(qualified)
        for key, declared in fields.items():
            declared.name, declared.owner, declared.namespace = key, cls, local_names
            declared.role = declared.role or role
            info.fields[key] = declared
        _collect_hooks(info, namespace)
        if type is not None:
            _register_variant(cls, type)
        return cls

    def __init__(
        cls,
        name: str,
        bases: tuple[builtins.type, ...],
        namespace: dict[str, Any],
        *,
        type: str | None = None,
        role: Role | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(name, bases, namespace)


def _own_fields(
    name: str, namespace: dict[str, Any], inherited: list[ConfigMeta]
) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = {}
    for key, annotation in _annotations(namespace).items():
        text = annotation if isinstance(annotation, str) else repr(annotation)
        if key.startswith("_") or "ClassVar" in text:
            continue
        if key in RESERVED:
            raise TypeError(f"{name}.{key}: {key!r} is a word of the engine; choose another name")
        default = namespace.pop(key, MISSING)
        info = default if isinstance(default, FieldInfo) else FieldInfo(default)
        if _is_mutable(info.default):
            kind = info.default.__class__.__name__
            raise TypeError(
                f"{name}.{key}: a {kind} as default would be shared by all configs; write "
                f"field(factory=...)"
            )
        info.annotation = annotation
        fields[key] = info
    known = {f for base in inherited for f in base.__setpoint__.fields}
    for key, value in namespace.items():
        if isinstance(value, FieldInfo):
            raise TypeError(f"{name}.{key}: a field needs a type annotation")
        if key in known:
            raise TypeError(f"{name}.{key}: give the type again to change an inherited field")
    return fields


def _is_mutable(default: object) -> bool:
    from .free import Free

    if isinstance(default, tuple):
        return any(_is_mutable(item) for item in cast(tuple[object, ...], default))
    return isinstance(default, list | dict | set | Free) or isinstance(type(default), ConfigMeta)


def _enclosing_locals(qualified: str) -> Mapping[str, object] | None:
    # A class made inside a function may name other local classes in its annotations.
    if "<locals>" not in qualified:
        return None
    return dict(sys._getframe(2).f_locals)  # pyright: ignore[reportPrivateUsage]


def _collect_hooks(info: ClassInfo, namespace: Mapping[str, Any]) -> None:
    for name, value in namespace.items():
        if not callable(value):
            continue
        marked: Callable[..., Any] = value
        path = getattr(marked, DERIVE, None)
        if path is not None:
            info.derives[path] = name
        for mark, group in (
            (CHECK, info.checks),
            (DEAD, info.deads),
        ):
            if hasattr(marked, mark) and name not in group:
                group.append(name)


def _register_variant(cls: Any, tag: str) -> None:
    for base in cls.__mro__:
        # Tags are unique within a family; what all configs share is none.
        if not any(isinstance(above, ConfigMeta) for above in base.__bases__):
            continue
        variants = base.__setpoint__.variants
        other = variants.get(tag)
        if other is not None and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__}: {base.__name__} has a variant {tag!r} "
                f"already: {other.__module__}.{other.__qualname__}"
            )
        variants[tag] = cls
