"""`Foreign`: a section whose fields are the arguments of a callable that Setpoint does not know.

`{type = "import", target = "torch.optim.Adagrad", lr_decay = 0.1}` names the callable; what stands
beside `target` are its arguments. They are ordinary fields of the section: each has its own path,
origin and place in records. Since every callable has others, a section takes on a subclass of its
class that has a field for each argument that was given.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, cast

from ..draft.config import Config
from ..draft.copying import pack
from ..schema.class_info import ConfigMeta
from ..schema.declare import check, field
from ..schema.field import FieldInfo
from ..types.compiler import own_package
from ..types.sections import fill
from ..values.node import Chain, Node, chain_of, set_chain, state_of, value_or_missing
from ..values.origin import DEFAULT, FILE, Origin
from ..values.scalar import ImportPath
from ..words.errors import Invalid, Problem
from .arguments import COMPONENTS, ArgumentType, components_in, declared_class, kind_of, kinds_of
from .signature import call_component, mistakes

if TYPE_CHECKING:
    from weakref import WeakValueDictionary

_Key = tuple[type, tuple[tuple[str, str], ...]]
# Made with the first class; most configurations import nothing, and `weakref` is not free.
_made: WeakValueDictionary[_Key, type[Foreign]] | None = None


class Foreign(Config, owner="setpoint.config.components.signature:construct"):
    """What is common to all sections that call something by its import path.

    A family takes foreign components by having a variant with this base. Its typed fields are
    handed over as well, where the target takes them:

        class Imported(OptimizerConfig, Foreign, type="import", owner=...): ...
    """

    trusts: ClassVar[tuple[str, ...]] = ()
    """Modules that targets may be in without `allow_imports`."""

    handed: ClassVar[tuple[str, ...] | None] = None
    """The parameters that the builder hands over at run time; `"*"` stands for the first. Others
    without a default must be given. None: not known before it is built."""

    target: ImportPath = field()
    """Import path of the callable. The keys beside it are its arguments, by its own names."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def store(self, name: str, value: object, origin: Origin) -> None:
        """See `Node.store`; an argument becomes a field of this section."""
        declared = declared_class(type(self))
        if name == "target" and isinstance(value, ImportPath):
            value = value.trusting(self._trusted())
            self._start_afresh(value, origin)
        elif name not in declared.__setpoint__.fields:
            kinds = {**kinds_of(type(self)), name: kind_of(value)}
            object.__setattr__(self, "__class__", _class_with(declared, kinds))
            for inner in components_in(value):
                path = value_or_missing(inner, "target")
                if isinstance(path, ImportPath):
                    object.__setattr__(inner, "target", path.trusting(self._trusted()))
        super().store(name, value, origin)

    def _trusted(self) -> tuple[str, ...]:
        """What this class trusts: what it says, and the package that declares it."""
        return (*self.trusts, *own_package(type(self).__module__))

    def _start_afresh(self, target: ImportPath, origin: Origin) -> None:
        """Drop the arguments that earlier layers gave: a target is named with its own."""
        state = state_of(self)
        kept = kinds_of(type(self))
        for name in list(kept):
            chain = chain_of(self, name)
            before = chain[-1][0] if chain else Origin(DEFAULT)
            if before.layer == origin.layer and (
                before.layer != FILE or before.label == origin.label
            ):
                continue
            lost = f"target = {target.text} was given after it, and has its own arguments"
            state.dropped += ((name, getattr(self, name), before, lost),)
            del kept[name]
            cast(dict[str, Any], self.__dict__).pop(name, None)
            set_chain(self, name, [])
        object.__setattr__(self, "__class__", _class_with(declared_class(type(self)), kept))

    def __setpoint_variant__(self, cls: type[Foreign]) -> Foreign:
        """The same component as a variant of a family, with its origins.

        Raises:
            Invalid: if one of the variant's typed fields cannot take its value.
        """
        fresh = cast(Any, cls)()
        for name in ("target", *kinds_of(type(self))):
            chain: Chain = chain_of(self, name)
            origin = chain[-1][0] if chain else Origin(DEFAULT)
            fill(fresh, {name: getattr(self, name)}, origin)
        return fresh

    @classmethod
    def __setpoint_open__(cls, key: str) -> FieldInfo:
        """The field that a key of no declared field stands for: an argument of the target."""
        name = key.replace("-", "_")
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise Invalid(f"{key!r} cannot be the name of an argument")
        if hasattr(cls, name):
            raise Invalid(
                f"{name!r} is a reserved word and cannot be given as an argument",
                hint="Wrap the target in a function of your own that names it differently.",
            )
        return _argument(name, "plain", cls)

    @check
    def _check_target(self) -> Iterator[Problem]:
        refused = self.target.refusal()
        if refused:
            yield Problem("target", refused)
        elif self.target.loaded() is not None:
            # Imported already, so that checking its signature imports nothing.
            yield from self._mistakes()

    @check(needs="import")
    def _check_signature(self) -> Iterator[Problem]:
        """Whether the target takes its arguments."""
        if not self.target.refusal():
            yield from self._mistakes()

    def _mistakes(self) -> Iterator[Problem]:
        yield from mistakes(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_component(self, args, kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return revive, (declared_class(type(self)), kinds_of(type(self))), pack(self)


class Partial(Foreign, type="import"):
    """Any callable with some of its arguments, as `functools.partial` would hold it.

    Made by `setpoint.partial`. A union takes foreign components by naming this class, with what
    they make in brackets: `Partial[Fraction]`, which for type checkers is `functools.partial` and
    at run time this class. Calling it calls the target.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, made: object) -> type:
            return cls


COMPONENTS["import"] = Partial


def revive(cls: type[Foreign], kinds: Mapping[str, str]) -> Foreign:
    """An empty section of a class with fields for some arguments, for unpickling."""
    return object.__new__(_class_with(cls, kinds))


def _argument(name: str, kind: str, owner: type[Node]) -> FieldInfo:
    info = FieldInfo()
    info.name, info.annotation, info.owner = name, kind, owner
    info.role = owner.__setpoint__.role
    info._type = ArgumentType.of(kind)  # pyright: ignore[reportPrivateUsage]
    return info


def _class_with(cls: type[Foreign], kinds: Mapping[str, str]) -> type[Foreign]:
    """The subclass of a foreign section's class that has fields for some arguments.

    Equal arguments give one class, so that equal sections are of one class, too.
    """
    if not kinds:
        return cls
    global _made
    if _made is None:
        from weakref import WeakValueDictionary

        _made = WeakValueDictionary()
    key = (cls, tuple(sorted(kinds.items())))
    made = _made.get(key)
    if made is None:
        namespace = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__slots__": (),
        }
        made = cast(type[Foreign], ConfigMeta(cls.__name__, (cls,), namespace))
        _made[key] = made
        info = made.__setpoint__
        info.cls, info.tag, info.owner = cls, cls.__setpoint__.tag, cls.__setpoint__.owner
        for name, kind in sorted(kinds.items()):
            info.fields[name] = _argument(name, kind, made)
    return made
