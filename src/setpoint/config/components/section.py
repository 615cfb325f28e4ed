"""`ImportedComponent`: a section whose fields are the arguments of a callable of any package.

`{type = "import", target = "torch.optim.Adagrad", lr_decay = 0.1}` names the callable; what stands
beside `target` are its arguments. They are ordinary fields of the section: each has its own path,
origin and place in records. Since every callable has others, a section takes on a subclass of its
class that has a field for each argument that was given.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, cast

from ..draft.config import Config
from ..draft.copying import pack
from ..schema.class_info import ConfigMeta
from ..schema.declare import field, rule
from ..schema.field import FieldInfo
from ..types.compiler import own_package
from ..types.compound import fill
from ..values.node import Chain, Node, chain_of, set_chain, state_of, value_or_missing
from ..values.origin import DEFAULT, FILE, Origin, python_origin
from ..values.scalar import ImportPath
from ..words.errors import ConfigError, Invalid, Problem
from ..words.text import problem_of
from .arguments import (
    COMPONENTS,
    ArgumentType,
    arguments_of,
    call_component,
    components_in,
    kind_of,
    kinds_of,
    mistakes,
    shared_fields,
    wrong_arguments,
)

Kinds = tuple[tuple[str, str], ...]
"""The names of arguments with the kind of value of each, as `kind_of` has it."""


class ImportedComponent(Config, owner="setpoint.config.components.arguments:construct"):
    """The base of all sections that call something by its import path.

    A family takes imported components by having a variant with this base. Its typed fields are
    handed over as well, where the target takes them:

        class Imported(OptimizerConfig, ImportedComponent, type="import", owner=...): ...
    """

    allowed_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that targets may be in without `allow_imports`."""

    runtime_arguments: ClassVar[tuple[str, ...] | None] = None
    """The parameters that the builder hands over at run time; `"*"` stands for the first. Others
    without a default must be given. None: not known before it is built."""

    target: ImportPath = field()
    """Import path of the callable. The keys beside it are its arguments, by its own names."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def store(self, name: str, value: object, origin: Origin) -> None:
        """See `Node.store`; an argument becomes a field of this section."""
        if name == "target" and isinstance(value, ImportPath):
            value = self._trusting(value)
            self._start_afresh(value, origin)
        elif name != "target" and name not in shared_fields(self):
            self._take_fields({**kinds_of(type(self)), name: kind_of(value)})
            for inner in components_in(value):
                path = value_or_missing(inner, "target")
                if isinstance(path, ImportPath):
                    object.__setattr__(inner, "target", self._trusting(path))
        super().store(name, value, origin)

    def _trusting(self, path: ImportPath) -> ImportPath:
        """A path that may be in the modules of this class, or in the package that declares it."""
        return path.trusting((*self.allowed_modules, *own_package(type(self).__module__)))

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
        self._take_fields(kept)

    def _take_fields(self, kinds: Mapping[str, str]) -> None:
        """Become a section of the class that has fields for some arguments."""
        cls = _class_with(type(self).__setpoint__.cls, tuple(sorted(kinds.items())))
        object.__setattr__(self, "__class__", cls)

    def __setpoint_variant__(self, cls: type[ImportedComponent]) -> ImportedComponent:
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

    @rule
    def _check_target(self) -> Iterator[Problem]:
        refused = self.target.refusal()
        if refused:
            yield Problem("target", refused)
        elif self.target.loaded() is not None:
            # Imported already, so that checking its signature imports nothing.
            yield from self._mistakes()

    @rule(needs="import")
    def _check_signature(self) -> Iterator[Problem]:
        """The target exists and takes its arguments."""
        if not self.target.refusal():
            yield from self._mistakes()

    def _mistakes(self) -> Iterator[Problem]:
        """Problems with the arguments, for families to add theirs."""
        yield from mistakes(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_component(self, args, kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        kinds = tuple(sorted(kinds_of(type(self)).items()))
        return revive, (type(self).__setpoint__.cls, kinds), pack(self)


def _argument(name: str, kind: str, owner: type[Node]) -> FieldInfo:
    info = FieldInfo()
    info.name, info.annotation, info.owner = name, kind, owner
    info.role = owner.__setpoint__.role
    info._type = ArgumentType.of(kind)  # pyright: ignore[reportPrivateUsage]
    return info


@cache
def _class_with(cls: type[ImportedComponent], kinds: Kinds) -> type[ImportedComponent]:
    """The subclass of a section's class that has fields for some arguments.

    Equal arguments give one class, so that equal sections are of one class, too.
    """
    if not kinds:
        return cls
    names = ("__module__", "__qualname__", "__doc__")
    namespace = {"__slots__": (), **{name: getattr(cls, name) for name in names}}
    made = cast(type[ImportedComponent], ConfigMeta(cls.__name__, (cls,), namespace))
    info = made.__setpoint__
    info.cls, info.tag, info.owner = cls, cls.__setpoint__.tag, cls.__setpoint__.owner
    for name, kind in kinds:
        info.fields[name] = _argument(name, kind, made)
    return made


def revive(cls: type[ImportedComponent], kinds: Kinds) -> ImportedComponent:
    """An empty section of a class with fields for some arguments, for unpickling."""
    return object.__new__(_class_with(cls, kinds))


if TYPE_CHECKING:
    # Type checkers know `functools.partial`: they check the names and types of the arguments, and
    # know the result of the call.
    from functools import partial as partial

    Partial = partial
else:

    class Partial(ImportedComponent, type="import"):
        """Any callable with some of its arguments, as `functools.partial` would hold it.

        Made by `setpoint.partial`. A union takes such components by naming this class, with their
        result in brackets: `Partial[Fraction]`, which for type checkers is `functools.partial`
        and at run time this class. Calling it calls the target.
        """

        def __class_getitem__(cls, made: object) -> type:
            return cls

    COMPONENTS["import"] = Partial

    def partial(target: Callable[..., Any] | str, /, *args: Any, **arguments: Any) -> Any:
        """A callable with some of its arguments, to be called when the configuration is built.

        Arguments:
            args: none; a record names its arguments.

        Returns:
            an imported component; a family's field makes it the family's own variant.

        Raises:
            ConfigError: for every argument that the target does not take.
        """
        origin = python_origin(1)
        section = Partial()
        values = {"target": target, **arguments}
        errors: list[Invalid] = []
        if args:
            values["(positions)"] = args
            errors.append(Invalid("must be given by keyword").inside("(positions)"))
        try:
            fill(section, {"target": target, **arguments}, origin)
        except Invalid as error:
            errors.extend(error.parts)
        if not errors:
            path: ImportPath = section.target
            found = path.loaded() if isinstance(target, str) else target
            if found is not None:
                errors = wrong_arguments(found, str(path), arguments_of(section))
        if errors:
            title = getattr(target, "__name__", target)
            raise ConfigError(
                [
                    problem_of(error, (f"partial({title})",), values, origin.describe(error.at))
                    for error in errors
                ]
            )
        return section
