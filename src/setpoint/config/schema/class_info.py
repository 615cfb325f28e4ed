"""How a class statement becomes a config class."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, dataclass_transform

from ..types.compiler import WRAPPERS, wrapper_of
from ..words.errors import DeclarationError, Invalid
from ..words.names import nearest
from ..words.shown import MISSING, shown
from .bounds import IDENTITY, Role
from .declaration_errors import (
    DECORATORS,
    class_fault,
    field_fault,
    is_variable,
    mark_fault,
    method_fault,
    refuse_clashes,
    refuse_class_words,
    refuse_plain_fields,
)
from .declare import CHECK, DEAD, DERIVE, Rule, component, field, methods_of
from .field import SCALARS, FieldInfo, is_mutable, stored_default

# The roots that have migrations, which may know a key that no field has.
versioned: list[Any] = []
# The variables that some field declares; see `field(environment=...)`.
environmental: set[str] = set()
RESERVED = frozenset(
    {"type", "extends", "setpoint", "build", "evolve", "set_field", "store", "to_dict"}
)
# What looks like the default of a field.
PLAIN_DATA = (bool, int, float, str, tuple, list, dict, set)
LONG = 6  # letters from which on one wrong letter leaves much alike
NAME = 60  # a longer name than this is shortened in errors


class Plan:
    """What is done with every instance of a class, worked out once from its fields."""

    __slots__ = (
        "_constants",
        "factories",
        "fields",
        "lacking",
        "made",
        "order",
        "ranged",
    )

    def __init__(self, fields: Mapping[str, FieldInfo]) -> None:
        self.fields = fields
        self.made = FieldInfo.changes
        # The fields whose default each instance makes for itself.
        self.factories = tuple(name for name, info in fields.items() if info.factory is not None)
        # Those that have none: required, or derived.
        self.lacking = tuple(
            name for name, info in fields.items() if not info.constant and info.factory is None
        )
        # Those whose items have limits.
        self.ranged = tuple(n for n, info in fields.items() if info.item_bounds is not None)
        self.order = {name: index for index, name in enumerate(fields)}
        self._constants: dict[str, Any] | None = None

    @property
    def constants(self) -> dict[str, Any]:
        """The defaults that all instances share, by field; not to be changed."""
        if self._constants is None:
            self._constants = {n: info.default for n, info in self.fields.items() if info.constant}
        return self._constants


class ClassInfo:
    """What the engine knows of one config class.

    Arguments:
        owner: `module:name` of what `build` constructs, or None.
    """

    __slots__ = (
        "_checks",
        "_deads",
        "added",
        "cls",
        "derives",
        "environment_prefix",
        "fields",
        "migrations",
        "other_names",
        "owner",
        "plan_made",
        "presets",
        "program",
        "role",
        "rules",
        "schema",
        "tag",
        "variants",
    )

    def __init__(self, cls: type[Any], tag: str | None, owner: str | None, role: Role) -> None:
        self.cls = cls
        self.tag = tag
        self.owner = owner
        self.role = role
        # Of a root: the version of its whole tree, which records carry, and the module that says
        # how configs of older versions become ones of today.
        self.schema = 1
        self.migrations: str | None = None
        # The module that registers the presets and modifiers that come with it.
        self.presets: str | None = None
        # What the environment variables of a root begin with, before two underscores.
        self.environment_prefix = "SETPOINT"
        # Of a root: what is typed before a command, such as `python train.py`, where that is known.
        self.program = "setpoint" if cls.__module__.startswith("setpoint.") else ""
        # The module with what the root answers to names of other systems.
        self.other_names: str | None = None
        self.fields: dict[str, FieldInfo] = {}
        self.plan_made: Plan | None = None
        # Of a root: the sections that packages have added to it.
        self.added: dict[str, Any] = {}
        self.variants: dict[str, type] = {}
        self.derives: dict[str, str] = {}
        # Modules with more checks, which are not imported yet.
        self.rules: list[str] = []
        self._checks: list[str] = []
        self._deads: list[str] = []

    @property
    def checks(self) -> list[str]:
        """The names of the methods marked `@check`."""
        self._import_rules()
        return self._checks

    @property
    def deads(self) -> list[str]:
        """The names of the methods marked `@dead`."""
        self._import_rules()
        return self._deads

    def inherit_checks(self, base: ClassInfo) -> None:
        """Take the checks of a base class, and the modules that it has not imported yet."""
        self.rules.extend(name for name in base.rules if name not in self.rules)
        self._checks.extend(name for name in base._checks if name not in self._checks)
        self._deads.extend(name for name in base._deads if name not in self._deads)

    def collect_checks(self, namespace: Mapping[str, Any]) -> None:
        """Add marked methods to the checks."""
        for name, marked in namespace.items():
            for path in getattr(marked, DEAD, ()):
                _refuse_unknown(self, "dead", name, path)
            for mark, group in ((CHECK, self._checks), (DEAD, self._deads)):
                if callable(marked) and hasattr(marked, mark) and name not in group:
                    group.append(name)

    def _import_rules(self) -> None:
        for module in self.rules:
            methods = dict(methods_of(import_module(module)))
            for name, method in methods.items():
                setattr(self.cls, name, method)
            self.collect_checks(methods)
        self.rules = []

    def command(self, text: str) -> str:
        """A command for this root as an error names it."""
        return f"`{self.program} {text}`" if self.program else f"the command `{text}`"

    @property
    def plan(self) -> Plan:
        """What is done with every instance; made anew where a field or default has changed."""
        plan = self.plan_made
        if plan is None or plan.made != FieldInfo.changes:
            plan = self.plan_made = Plan(self.fields)
        return plan

    def find(self, key: str) -> FieldInfo | None:
        """The field that a key sets, hyphens and underscores being the same.

        Raises:
            Invalid: if an imported component cannot have an argument of this name.
        """
        found = self.fields.get(key) or self.fields.get(key.replace("-", "_"))
        opened = getattr(self.cls, "__setpoint_open__", None)
        return opened(key) if found is None and opened is not None else found

    def unknown(self, key: str) -> Invalid:
        """The error for a key that no field has, with the nearest field."""
        close = self.near(key)
        title = f"{self.cls.__name__} (type = {self.tag})" if self.tag else self.cls.__name__
        # What was written under a misspelt key may be the secret that the right key refers to.
        secret = bool(close) and self.fields[close[0]].type.is_secret()
        word = key if len(key) <= NAME else f"{key[:NAME]}..."
        message = f"unknown key: {title} has no field {word!r}"
        hint = f"Did you mean {close[0]}?" if close else ""
        return Invalid(message, tuple(sorted(self.fields)), hint=hint, secret=secret)

    def near(self, key: str) -> list[str]:
        """The field whose name is nearest to a key, or none: `training` is not `tracking`."""
        return nearest(key, self.fields, 1, 0.7 if len(key) < LONG else 0.78)


def _annotations(namespace: Mapping[str, Any]) -> Mapping[str, object]:
    found = namespace.get("__annotations__")
    if found is None and sys.version_info >= (3, 14):
        import annotationlib  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        lib: Any = annotationlib
        function = lib.get_annotate_from_class_namespace(namespace)
        if function is not None:
            found = lib.call_annotate_function(function, lib.Format.STRING)
    return found or {}


if TYPE_CHECKING:
    from abc import ABCMeta as _Meta
else:
    _Meta = type(Protocol)  # so that abstract classes and protocols can be bases


# `derived` is no specifier: type checkers take its call for a default, so that constructors do not
# ask for what is going to be computed.
@dataclass_transform(kw_only_default=True, field_specifiers=(field, component))
class ConfigMeta(_Meta):
    """Turns annotations into slots and field descriptions; the rest happens when it is needed."""

    __setpoint__: ClassInfo
    # As of any class: `register` is for classes without fields.
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
        **words: object,
    ) -> Any:
        """Make a config class.

        Arguments:
            role: the role of fields that declare none; inherited.
            owner: `"module:name"` of what `build` constructs; a class nested in its owner as
                `Config` needs none.
            schema: the version of a root and of all that is below it; inherited.
            migrations: the module with the migrations from older versions; inherited.
            presets: the module that registers the presets and modifiers of a root, imported when
                a configuration of it is composed; inherited.
            other_names: the module with the table `OTHER_NAMES`, see that module; inherited.
            environment_prefix: what the variables of a root begin with: `"MYAPP"` for
                `MYAPP__SEED`; SETPOINT if not given; inherited.
            rules: checks that stand in modules of their own, run in this order; inherited: names
                of modules with functions marked `@check` or `@dead`, which take the config, and
                are imported when one is checked; or rows, each of one function.

        Raises:
            TypeError: for a declaration that cannot work, with the class and the field named.
        """
        inherited = [base for base in bases if isinstance(base, ConfigMeta)]
        refuse_class_words(name, words)
        if "__module__" not in namespace:  # `type(name, bases, namespace)`
            namespace["__module__"] = _caller()
        namespace.setdefault("__qualname__", name)
        fields = _own_fields(name, namespace, bases)
        fault = class_fault(namespace, type, role, owner) if inherited else ""
        if fault:
            raise DeclarationError(f"{name}{fault}")
        # Values stand in the dictionary of the instance, so that any two classes can be mixed.
        namespace.setdefault("__slots__", ())
        namespace.update(rule.method() for rule in rules if isinstance(rule, Rule))
        try:
            cls: Any = super().__new__(mcls, name, bases, namespace)
        except (TypeError, ValueError) as error:  # whatever Python has against the bases
            raise DeclarationError(f"{name}: {error}") from None
        qualified: str = namespace["__qualname__"]
        if owner is None and name == "Config" and "." in qualified and inherited:
            parent = qualified.rpartition(".")[0]
            if not parent.endswith("<locals>"):
                owner = f"{namespace['__module__']}:{parent}"
        if role is None:
            role = inherited[0].__setpoint__.role if inherited else IDENTITY
        if owner is None:
            owner = next((o for base in inherited if (o := base.__setpoint__.owner)), None)
        info = ClassInfo(cls, type, owner, role)
        if environment_prefix is not None:
            if not is_variable(environment_prefix) or not environment_prefix.strip("_"):
                raise DeclarationError(
                    f"{name}: environment_prefix={environment_prefix!r} is not the beginning of an "
                    f"environment variable; "
                    f"give a name such as 'MYAPP', for MYAPP__SEED"
                )
            environment_prefix = environment_prefix.rstrip("_").upper()
        of_root = {
            "schema": schema,
            "migrations": migrations,
            "presets": presets,
            "other_names": other_names,
            "environment_prefix": environment_prefix,
        }
        for word, given in of_root.items():
            if given is not None:
                setattr(info, word, given)
            elif inherited:
                setattr(info, word, getattr(inherited[0].__setpoint__, word))
        if migrations is not None:
            versioned.append(cls)
        cls.__setpoint__ = info
        for base in reversed(inherited):
            info.fields.update(base.__setpoint__.fields)
            info.added.update(base.__setpoint__.added)
            info.derives.update(base.__setpoint__.derives)
            info.inherit_checks(base.__setpoint__)
        info.rules.extend(rule for rule in rules if isinstance(rule, str))
        local_names = _enclosing_locals(qualified)
        info.fields.update(fields)
        for key, declared in fields.items():
            declared.owner, declared.namespace = cls, local_names
            if declared.role is None:
                declared.role = role
            if not declared.derived:
                info.derives.pop(key, None)  # a default in place of the computation
            if declared.environment is not None:
                environmental.add(declared.environment)
        _collect_hooks(info, namespace)
        # What one base declares may be an attribute of another.
        shown = fields if len(bases) == 1 else info.fields
        mro: tuple[builtins.type, ...] = cls.__mro__
        hidden = any(not vars(base).keys().isdisjoint(shown) for base in mro)
        if hidden or (info.fields and not "".join(info.fields).islower()):
            refuse_clashes(cls)
        if len(inherited) < len(bases) and inherited:
            refuse_plain_fields(cls, _annotations)
        if type is not None:
            abstract = ", ".join(sorted(cls.__abstractmethods__))
            if abstract:
                raise DeclarationError(
                    f"{name}: a variant can be chosen, and this one is abstract; define "
                    f"{abstract}, or leave out type={type!r}"
                )
            _register_variant(cls, type)
        return cls

    def __setattr__(cls, name: str, value: object) -> None:
        if name in DECORATORS:  # a decorator, which would replace the constructor
            raise DeclarationError(f"{cls.__name__}{class_fault({name: value}, None, None, None)}")
        super().__setattr__(name, value)

    def __init__(cls, *args: Any, **keywords: Any) -> None:
        super().__init__(*args)  # the keywords are for `__new__`


def _own_fields(
    name: str, namespace: dict[str, Any], bases: tuple[builtins.type, ...]
) -> dict[str, FieldInfo]:
    inherited = [base for base in bases if isinstance(base, ConfigMeta)]
    fields: dict[str, FieldInfo] = {}
    annotations = _annotations(namespace)
    for key, annotation in annotations.items():
        if key[:2] == "__" or (annotation.__class__ is not type and _is_class_var(annotation)):
            continue
        if key in RESERVED or key[0] == "_":
            reason = "begins with an underscore" if key[0] == "_" else "is a reserved word"
            hint = "; write ClassVar[...] if it is no field" if key[0] == "_" else ""
            raise DeclarationError(
                f"{name}.{key}: {key!r} {reason}, which no field can be named; choose another "
                f"name{hint}"
            )
        if annotation.__class__ is not type and (wrapper := wrapper_of(annotation)):
            raise DeclarationError(f"{name}.{key}: {wrapper}[...]: {WRAPPERS[wrapper]}")
        default = namespace.pop(key, MISSING)
        if fault := method_fault(namespace["__qualname__"], key, default):
            raise DeclarationError(f"{name}.{fault}")
        above = next((i for base in inherited if (i := base.__setpoint__.fields.get(key))), None)
        if isinstance(default, FieldInfo):
            info = default
            if above is not None:
                info.inherit(above, declared=True)
            fault = field_fault(info)
            if fault:
                raise DeclarationError(f"{name}.{key}: {fault}")
            default = info.written
        else:
            info = FieldInfo(default)
            if above is not None:
                info.inherit(above, declared=False)
                default = info.written
        if default.__class__ not in SCALARS:
            if is_mutable(default):
                kind = default.__class__.__name__
                raise DeclarationError(
                    f"{name}.{key}: a {kind} as default would be shared by all configs; write "
                    f"field(factory=...)"
                )
            info.written = stored_default(default, f"{name}.{key}")
        info.name, info.annotation = key, annotation
        fields[key] = info
    known = {f for base in inherited for f in base.__setpoint__.fields}
    for key, value in namespace.items():
        if isinstance(value, FieldInfo):
            raise DeclarationError(f"{name}.{key}: a field needs a type annotation")
        if value.__class__.__name__ == "cached_property":
            raise DeclarationError(
                f"{name}.{key}: a cached_property would keep a stale value of a draft, which "
                f"changes; write property"
            )
        if key in known and (fault := method_fault(namespace["__qualname__"], key, value)):
            raise DeclarationError(f"{name}.{fault}")
        if key in known:
            raise DeclarationError(
                f"{name}.{key}: repeat the type to change an inherited field, as in "
                f"{key}: int = {shown(value)}"
            )
        plain = key[0] != "_" and key.islower() and isinstance(value, PLAIN_DATA)
        if inherited and plain and key not in annotations:
            above_all = (one for base in bases for one in base.__mro__)
            if not any(key in vars(one) or key in _annotations(vars(one)) for one in above_all):
                kind, text = type(cast(object, value)).__name__, shown(cast(object, value))
                raise DeclarationError(
                    f"{name}.{key}: without a type it is no field; write {key}: {kind} = "
                    f"{text}, or {key}: ClassVar[{kind}] for a constant of the class"
                )
    return fields


def _is_class_var(annotation: Any) -> bool:
    if annotation.__class__ is str:
        return annotation.partition("[")[0].endswith("ClassVar")
    return getattr(annotation, "__origin__", annotation) is ClassVar


def _caller() -> str:
    """The module that makes a class by a call."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("types", "dataclasses"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _enclosing_locals(qualified: str) -> Mapping[str, object] | None:
    # A class made inside a function may name other local classes in its annotations.
    if "<locals>" not in qualified:
        return None
    return dict(sys._getframe(2).f_locals)  # pyright: ignore[reportPrivateUsage]


def _collect_hooks(info: ClassInfo, namespace: Mapping[str, Any]) -> None:
    own: dict[str, str] = {}
    for name, value in namespace.items():
        if not callable(value):
            continue
        marked: Callable[..., Any] = value
        path = getattr(marked, DERIVE, None)
        if path is not None:
            if path in own:
                raise DeclarationError(
                    f"{info.cls.__name__}.{path} is derived twice: by {own[path]} and by {name}"
                )
            _refuse_unknown(info, "derive", name, path)
            info.derives[path] = own[path] = name
    info.collect_checks(namespace)


def _refuse_unknown(info: ClassInfo, mark: str, method: str, path: object) -> None:
    """Refuse a mark that names no field; what lies below a section is looked for at resolve."""
    first, _, below = path.partition(".") if isinstance(path, str) else ("", "", "")
    known = info.fields.get(first)
    if known is None or not (below or mark == "dead" or known.derived):
        raise DeclarationError(f"{info.cls.__name__}.{method}: {mark_fault(info, mark, path)}")


def _register_variant(cls: Any, tag: str) -> None:
    for base in cls.__mro__:
        # Tags are unique within a family; what all configs share is none.
        if not any(isinstance(above, ConfigMeta) for above in base.__bases__):
            continue
        # Nor do foreign components: each family has its own variant for them.
        if "__setpoint_open__" in base.__dict__:
            continue
        variants = base.__setpoint__.variants
        other = variants.get(tag)
        if other is not None and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise DeclarationError(
                f"{cls.__module__}.{cls.__qualname__}: {base.__name__} has a variant {tag!r} "
                f"already: {other.__module__}.{other.__qualname__}"
            )
        variants[tag] = cls
