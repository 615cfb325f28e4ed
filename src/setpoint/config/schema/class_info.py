"""The class statement: annotations become fields, marked methods derivations and checks.

Also the tree of config classes: the classes at a path, all fields, tags and added sections.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, dataclass_transform

from ..types.base import FieldType, StrType
from ..types.compound import SequenceType, section_classes
from ..values.node import Node
from ..words.errors import UNKNOWN_KEY, DeclarationError, Invalid
from ..words.names import nearest
from ..words.plain_data import MISSING
from ..words.text import for_error
from .field import (
    IDENTITY,
    DeadMark,
    Derivation,
    FieldInfo,
    Role,
    Rule,
    component,
    field,
    mark_of,
    methods_of,
)

# The variables that fields declare; see `field(environment=...)`.
environmental: set[str] = set()
RESERVED = frozenset(
    {"type", "extends", "setpoint", "build", "evolve", "set_field", "store", "to_dict"}
)
PLAIN_DATA = (bool, int, float, str, tuple, list, dict, set)
SHORT_NAME = 6  # letters; in shorter names one wrong letter leaves little similarity


class ClassInfo:
    """The fields, methods and options of one config class.

    Arguments:
        above: the infos of the bases, whose declarations the class inherits.
        owner: `module:name` of the object that `build` constructs, or None.
        options: the options of the class statement for the role and the root; see `ConfigMeta`.
    """

    role: Role = IDENTITY
    schema: int = 1
    migrations: str | None = None
    presets: str | None = None
    other_names: str | None = None
    environment_prefix: str = "SETPOINT"

    def __init__(
        self,
        cls: type[Any],
        above: Sequence[ClassInfo],
        tag: str | None,
        owner: str | None,
        options: Mapping[str, object],
    ) -> None:
        self.cls = cls
        self.tag = tag
        self.owner = owner or next((base.owner for base in above if base.owner), None)
        for name, value in options.items():
            if value is not None or above:
                setattr(self, name, getattr(above[0], name) if value is None else value)
        # For a root: the words typed before a command, such as `python train.py`, if known.
        self.program = "setpoint" if cls.__module__.startswith("setpoint.") else ""
        self.fields: dict[str, FieldInfo] = {}
        # For a root: the sections that packages have added.
        self.added: dict[str, Any] = {}
        self.variants: dict[str, type] = {}
        self.derives: dict[str, str] = {}
        # Modules with more checks, not imported yet.
        self.rules: list[str] = []
        self._checks: list[str] = []
        self._deads: list[str] = []
        for base in reversed(above):
            self.fields.update(base.fields)
            self.added.update(base.added)
            self.derives.update(base.derives)
            for name in ("rules", "_checks", "_deads"):
                names: list[str] = getattr(self, name)
                names.extend(method for method in getattr(base, name) if method not in names)

    def declare(self, fields: Mapping[str, FieldInfo], names: Mapping[str, object] | None) -> None:
        """Add the fields that the class itself declares.

        Arguments:
            names: local names that the annotations may use.

        Raises:
            DeclarationError: the options allow no value.
        """
        self.fields.update(fields)
        for key, info in fields.items():
            info.owner, info.namespace = self.cls, names
            info.role = info.role or self.role
            if not info.derived:
                self.derives.pop(key, None)  # a default replaces the computation
            if info.environment is not None:
                environmental.add(info.environment)
            for fault in _faults_of_field(info):
                raise DeclarationError(f"{self.cls.__name__}.{key}: {fault}")

    @property
    def checks(self) -> list[str]:
        """The names of the methods marked `@rule`."""
        self._import_rules()
        return self._checks

    @property
    def deads(self) -> list[str]:
        """The names of the methods marked `@dead`."""
        self._import_rules()
        return self._deads

    def _import_rules(self) -> None:
        for module in self.rules:
            methods = dict(methods_of(import_module(module)))
            for name, method in methods.items():
                setattr(self.cls, name, method)
            self.collect_methods(methods)
        self.rules = []

    def collect_methods(self, namespace: Mapping[str, Any]) -> None:
        """Register the marked methods among some names.

        Raises:
            DeclarationError: a mark names no field, or two methods compute the same field.
        """
        for name, method in namespace.items():
            mark = mark_of(method)
            if isinstance(mark, Derivation):
                self._need_field(name, "derive", mark.path)
                other = self.derives.get(mark.path, name)
                if other != name and other in namespace:
                    raise DeclarationError(
                        f"{self.cls.__name__}.{mark.path} is derived twice: by {other} and by "
                        f"{name}"
                    )
                self.derives[mark.path] = name
            elif mark is not None:
                for field_name in mark.names if isinstance(mark, DeadMark) else ():
                    self._need_field(name, "dead", field_name)
                group = self._deads if isinstance(mark, DeadMark) else self._checks
                if name not in group:
                    group.append(name)

    def _need_field(self, method: str, mark: str, path: str) -> None:
        """Refuse a mark that names no field; paths into sections are checked by `resolve`."""
        first, _, below = path.partition(".")
        info = self.fields.get(first)
        if info is None or (mark == "derive" and not (below or info.derived)):
            kind = "derived field" if mark == "derive" else "field"
            raise DeclarationError(
                f"{self.cls.__name__}.{method}: @{mark}({path!r}) names no {kind} of the class"
            )

    def command(self, text: str) -> str:
        """Format a command for this root, for errors."""
        return f"`{self.program} {text}`" if self.program else f"the command `{text}`"

    def find(self, key: str) -> FieldInfo | None:
        """The field set by a key; hyphens and underscores are equivalent.

        Raises:
            Invalid: an imported component cannot have an argument of this name.
        """
        info = self.fields.get(key) or self.fields.get(key.replace("-", "_"))
        argument = getattr(self.cls, "__setpoint_open__", None)
        return argument(key) if info is None and argument is not None else info

    def unknown(self, key: str) -> Invalid:
        """The error for a key that no field has, with the nearest field."""
        matches = self.near(key)
        title = f"{self.cls.__name__} (type = {self.tag})" if self.tag else self.cls.__name__
        # A value under a misspelt key may be the secret that the right key refers to.
        secret = bool(matches) and self.fields[matches[0]].type.is_secret()
        hint = f"Did you mean {matches[0]}?" if matches else ""
        message = f"unknown key: {title} has no field {for_error(key)}"
        valid = tuple(sorted(self.fields))
        return Invalid(message, valid, hint=hint, secret=secret, kind=UNKNOWN_KEY)

    def near(self, key: str) -> list[str]:
        """The field whose name is nearest to a key, if close: `training` is not `tracking`."""
        return nearest(key, self.fields, 1, 0.7 if len(key) < SHORT_NAME else 0.78)


if TYPE_CHECKING:
    from abc import ABCMeta as _Meta
else:
    _Meta = type(Protocol)  # so that abstract classes and protocols can be bases


# `derived` is not a specifier: type checkers treat its call as a default, so constructors do not
# require values that will be computed.
@dataclass_transform(kw_only_default=True, field_specifiers=(field, component))
class ConfigMeta(_Meta):
    """Metaclass that turns annotations into slots and field descriptions; the rest is lazy."""

    __setpoint__: ClassInfo
    # As for any class: `register` is for classes without fields.
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__

    def __new__(
        mcls,
        name: str,
        bases: tuple[builtins.type, ...],
        namespace: dict[str, Any],
        *,
        type: str | None = None,
        role: Role | None = None,
        owner: str | None = None,
        schema: int | None = None,
        migrations: str | None = None,
        presets: str | None = None,
        other_names: str | None = None,
        environment_prefix: str | None = None,
        rules: Sequence[Rule | str] = (),
    ) -> Any:
        """Make a config class.

        Arguments:
            role: the role of fields that declare none; inherited.
            owner: `"module:name"` of the object that `build` constructs; not needed for a class
                nested in its owner as `Config`.
            schema: the version of a root and of its sections; inherited.
            migrations: the module with the migrations from older versions; inherited.
            presets: the module that registers the presets and modifiers of a root, imported when
                a configuration of it is composed; inherited.
            other_names: the module with the table `OTHER_NAMES`, see that module; inherited.
            environment_prefix: the prefix of the variables of a root, such as `"MYAPP"` for
                `MYAPP__SEED`; SETPOINT by default; inherited.
            rules: checks in their own modules, run in this order; inherited: names of modules with
                functions marked `@rule` or `@dead`, which take the config and are imported when one
                is checked; or rows of one function each.

        Raises:
            TypeError: the declaration is invalid, with the class and the field named.
        """
        above = [base.__setpoint__ for base in bases if isinstance(base, ConfigMeta)]
        if "__module__" not in namespace:  # `type(name, bases, namespace)`
            namespace["__module__"] = _caller()
        qualified: str = namespace.setdefault("__qualname__", name)
        # Values are in the instance's dictionary, so that any two classes can be combined.
        namespace.setdefault("__slots__", ())
        namespace.update(rule.method() for rule in rules if isinstance(rule, Rule))
        fields = _declared_fields(name, namespace, above)
        cls: Any = super().__new__(mcls, name, bases, namespace)
        parent = qualified.rpartition(".")[0]
        if name == "Config" and above and parent and not parent.endswith("<locals>"):
            owner = owner or f"{namespace['__module__']}:{parent}"
        options = {
            "role": role,
            "schema": schema,
            "migrations": migrations,
            "presets": presets,
            "other_names": other_names,
            "environment_prefix": environment_prefix and environment_prefix.rstrip("_").upper(),
        }
        cls.__setpoint__ = info = ClassInfo(cls, above, type, owner, options)
        info.declare(fields, _enclosing_locals(qualified))
        info.rules.extend(rule for rule in rules if isinstance(rule, str))
        info.collect_methods(namespace)
        if above:
            for fault in _faults_of_class(cls, namespace):
                raise DeclarationError(f"{name}{fault}")
        if type is not None:
            _register_variant(cls, type)
        return cls

    def __init__(cls, *args: Any, **keywords: Any) -> None:
        super().__init__(*args)  # the keywords are for `__new__`


def _caller() -> str:
    """The module whose code creates a class by a call."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("types", "dataclasses"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _enclosing_locals(qualified: str) -> Mapping[str, object] | None:
    # A class made inside a function may use other local classes in its annotations.
    if "<locals>" not in qualified:
        return None
    return dict(sys._getframe(2).f_locals)  # pyright: ignore[reportPrivateUsage]


def _annotations(namespace: Mapping[str, Any]) -> Mapping[str, object]:
    annotations = namespace.get("__annotations__")
    if annotations is None and sys.version_info >= (3, 14):
        import annotationlib  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        lib: Any = annotationlib
        function = lib.get_annotate_from_class_namespace(namespace)
        if function is not None:
            annotations = lib.call_annotate_function(function, lib.Format.STRING)
    return annotations or {}


def _declared_fields(
    name: str, namespace: dict[str, Any], above: Sequence[ClassInfo]
) -> dict[str, FieldInfo]:
    """Remove the fields and their defaults from a class body.

    Raises:
        DeclarationError: an attribute is not a valid field, or has a name that files cannot use.
    """
    inherited = {key: info for base in reversed(above) for key, info in base.fields.items()}
    fields: dict[str, FieldInfo] = {}
    annotations = _annotations(namespace)
    for key, annotation in annotations.items():
        if key.startswith("__") or str(annotation).partition("[")[0].endswith("ClassVar"):
            continue
        if key in RESERVED or key.startswith("_"):
            raise DeclarationError(
                f"{name}.{key}: {key!r} is a reserved word or begins with an underscore; choose "
                f"another name, or write ClassVar[...] if it is not a field"
            )
        default = namespace.pop(key, MISSING)
        info = default if isinstance(default, FieldInfo) else FieldInfo(default)
        if key in inherited:
            info.inherit(inherited[key], declared=info is default)
        info.name, info.annotation = key, annotation
        fields[key] = info
    for key, value in namespace.items():
        if isinstance(value, FieldInfo):
            raise DeclarationError(f"{name}.{key}: a field needs a type annotation")
        if key in inherited:
            raise DeclarationError(f"{name}.{key}: repeat the type to change an inherited field")
    return fields


def _faults_of_field(info: FieldInfo) -> Iterator[str]:
    """Find invalid field options that type checkers accept."""
    if info.factory is not None and info.written is not MISSING:
        yield "has both a default and a factory; give one of them"
    for bounds in (info.bounds, info.item_bounds):
        if bounds is not None and bounds.empty:
            yield f"no value satisfies the range {bounds.describe()}"


def _faults_of_class(cls: Any, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Find mistakes in a class body that Python accepts."""
    info: ClassInfo = cls.__setpoint__
    mro: tuple[type, ...] = cls.__mro__
    for key in ("__init__", "__post_init__", "__slots__"):
        if namespace.get(key):
            yield f".{key} has no effect in a config class; write fields, @derive and @rule"
    known = set(_annotations(namespace)).union(
        *((*vars(base), *_annotations(vars(base))) for base in mro[1:])
    )
    for key, value in namespace.items():
        if type(value).__name__ == "cached_property":
            yield f".{key}: a cached_property would keep a stale value of a draft; write property"
        if key not in known and key.islower() and key[0] != "_" and isinstance(value, PLAIN_DATA):
            yield f".{key}: without a type it is not a field; annotate it, or as ClassVar[...]"
    tag = info.tag
    if tag is not None and (tag == "null" or not f"_{tag}".replace("-", "_").isidentifier()):
        yield f": type={tag!r} is not a word of letters, digits, - and _"
    lower = [key.lower() for key in info.fields]
    if len({*lower}) < len(lower):  # environment variables ignore case
        yield f": two fields differ in case only: {', '.join(info.fields)}"
    for base in mro:
        for key in info.fields.keys() & vars(base).keys():
            yield f".{key} is a field and an attribute of {base.__name__}; rename one of them"


def _register_variant(cls: Any, tag: str) -> None:
    for base in cls.__mro__:
        # Tags are unique within a family; the common base of all configs is none.
        if not any(isinstance(above, ConfigMeta) for above in base.__bases__):
            continue
        # Imported components are no family either: each family has its own variant for them.
        if "__setpoint_open__" in base.__dict__:
            continue
        other = base.__setpoint__.variants.get(tag)
        if other is not None and full_name(other) != full_name(cls):
            raise DeclarationError(
                f"{full_name(cls)}: {base.__name__} already has a variant {tag!r}: "
                f"{full_name(other)}"
            )
        base.__setpoint__.variants[tag] = cls


def full_name(cls: type) -> str:
    """The name of a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def refuse_root_word(root: Any, info: FieldInfo) -> None:
    """Refuse a root's field `tag`, `sweep` or `silence`, which means something else in files.

    Raises:
        DeclarationError: unless it is `silence` as a list of codes.
    """
    kind = info.type
    if info.name == "silence" and isinstance(kind, SequenceType) and isinstance(kind.item, StrType):
        return
    uses = {
        "tag": "--tag.NAME sets the fields that carry a tag; choose another name",
        "sweep": "the table [sweep] of a file describes many points; choose another name",
        "silence": "it lists the codes of cautions; declare it as tuple[str, ...]",
    }
    raise DeclarationError(
        f"{root.__name__}.{info.name}: {info.name!r} is reserved at the root of a configuration: "
        f"{uses[info.name]}"
    )


def classes_at(root: type[Node], path: tuple[str | int, ...]) -> list[type[Any]]:
    """The config classes possible at a path, in any of the variants along it."""
    classes: list[type[Any]] = [root]
    item = False  # whether the next part is an index or a key, with the same classes
    for part in path:
        if item:
            item = False
            continue
        fields = _fields_of(classes, str(part))
        classes = [cls for info in fields for cls in section_classes(info.type)]
        item = any(info.type.is_container() for info in fields)
    return list(dict.fromkeys(classes))


def fields_at(root: type[Node], path: tuple[str | int, ...]) -> list[FieldInfo]:
    """The fields to which a path can lead, in any of the variants along it."""
    return _fields_of(classes_at(root, path[:-1]), str(path[-1]))


def _fields_of(classes: list[type[Any]], key: str) -> list[FieldInfo]:
    return [info for cls in classes if (info := field_of(cls, key)) is not None]


def field_of(cls: type[Node], key: str) -> FieldInfo | None:
    """The field named by a key; hyphens and underscores are equivalent."""
    fields = cls.__setpoint__.fields
    return fields.get(key) or fields.get(key.replace("-", "_"))


def classes_below(root: type[Node]) -> list[type[Node]]:
    """The classes of all sections of a tree, including those of all variants, the root first."""
    classes = [root]
    for cls in classes:
        for info in cls.__setpoint__.fields.values():
            classes += [below for below in section_classes(info.type) if below not in classes]
    return classes


def all_fields(
    cls: type[Node], prefix: str = "", above: tuple[type[Any], ...] = ()
) -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a tree of classes, in all variants; a recursive class is entered once."""
    for name, info in cls.__setpoint__.fields.items():
        path = f"{prefix}{name}"
        yield path, info
        for section in section_classes(info.type):
            if section not in above:
                yield from all_fields(section, f"{path}.", (*above, section))


def holds_secret(kind: FieldType) -> bool:
    """True if values of a type may contain a secret, including in inner sections.

    Such a value must not be repeated, even if it cannot be read.
    """
    inside = (info for cls in section_classes(kind) for _, info in all_fields(cls))
    return kind.is_secret() or any(info.type.is_secret() for info in inside)


def known_tags(root: type[Node]) -> dict[str, list[str]]:
    """All tags of a tree of classes, each with the dotted paths of its fields in any variant."""
    tags: dict[str, dict[str, None]] = {}
    for path, info in all_fields(root):
        for tag in info.tags:
            tags.setdefault(tag, {})[path] = None
    return {tag: [*paths] for tag, paths in tags.items()}


def unknown_tag(root: type[Node], tag: str) -> Invalid:
    """The error for a tag that no field has."""
    known = known_tags(root)
    if tag in known:
        paths = ", ".join(known[tag])
        return Invalid(
            f"matches no field of this configuration; the fields with this tag are {paths}"
        )
    tags = [t for t, paths in known.items() if any(p.rpartition(".")[2] == tag for p in paths)]
    matches = tags or nearest(tag, known, 1)
    hint = f"Did you mean tag.{matches[0]}?" if matches else ""
    return Invalid(f"there is no tag {tag!r}", tuple(known), hint=hint)


def add_section(
    root: type[Node], name: str, section: type[Node], *, role: Role | None = None
) -> None:
    """Add a section to a root and its subclasses, null until a layer sets a field in it.

    While null, it is not part of the fingerprint, so other runs keep theirs.

    Raises:
        TypeError: the name is taken or not an identifier, or the section is not a config class.
    """
    if not isinstance(section, ConfigMeta):
        raise DeclarationError(
            f"{root.__name__}.{name}: {section!r} is not a section; give a class derived from "
            f"Config"
        )
    if not name.isidentifier() or name.startswith("_") or name in RESERVED:
        raise DeclarationError(f"{root.__name__}: {name!r} cannot be the name of a section")
    before = root.__setpoint__.added.get(name)
    is_same = before is not None and full_name(before) == full_name(section)
    if not is_same and (name in root.__setpoint__.fields or hasattr(root, name)):
        raise DeclarationError(f"{root.__name__} already has {name!r}; choose another name")
    info = FieldInfo(default=None, role=role or root.__setpoint__.role)
    info.name, info.owner, info.annotation = name, root, section | None
    for cls in with_subclasses(root):
        cls.__setpoint__.fields[name] = info
        cls.__setpoint__.added[name] = section


def added_sections(config: Node) -> dict[str, Any]:
    """The added sections that are not null."""
    values = {name: getattr(config, name) for name in type(config).__setpoint__.added}
    return {name: value for name, value in values.items() if value is not None}


def with_subclasses(root: type[Node]) -> list[type[Node]]:
    """A class and all classes derived from it."""
    return [root, *(cls for below in root.__subclasses__() for cls in with_subclasses(below))]
