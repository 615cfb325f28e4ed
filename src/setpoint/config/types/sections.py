"""Fields that hold another config: one class, or one of several told apart by `type`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import Invalid, several
from ..files.plain import PlainScalar
from .base import FieldType
from .scalars import refuse_choice

if TYPE_CHECKING:
    from ..base import Config
    from ..origin import Origin


class SectionType(FieldType):
    """A nested config of a fixed class, of a family, or of a union of tagged classes.

    Arguments:
        classes: the classes of the annotation; a family stands for all its tagged subclasses.
    """

    __slots__ = ("classes",)
    nested = True

    def __init__(self, classes: tuple[type[Config], ...]) -> None:
        self.classes = classes

    def variants(self) -> dict[str, type[Config]]:
        """The classes that can stand here, by tag; subclasses made later are included.

        Returns:
            the variants; empty for a fixed class without a tag.
        """
        found: dict[str, Any] = {}
        for cls in self.classes:
            found.update(cls.__setpoint__.variants)
        return found

    def describe(self) -> str:
        """See `FieldType.describe`."""
        tags = self.candidates()
        if tags:
            return "a section with type = " + " or ".join(tags)
        return f"a section ({self.classes[0].__name__})"

    def candidates(self) -> tuple[str, ...]:
        """See `FieldType.candidates`."""
        return tuple(self.variants())

    def find(self, tag: object) -> type[Config]:
        """The class that a tag selects.

        Arguments:
            tag: the value of `type`.

        Returns:
            the variant.

        Raises:
            Invalid: if there is no such variant.
        """
        variants = self.variants()
        if isinstance(tag, str) and str(tag) in variants:
            return variants[str(tag)]
        if not variants:
            raise Invalid(f"{self.classes[0].__name__} has no variants, so no type can be chosen")
        raise refuse_choice(tag, tuple(variants))

    def only(self) -> type[Config] | None:
        """The class of a field that needs no `type`.

        Returns:
            the class, or None where a type must be chosen.
        """
        if len(self.classes) != 1:
            return None
        cls = self.classes[0]
        alone = set(self.variants().values()) <= {cls}
        return cls if alone else None

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        if isinstance(value, self.classes):
            tagged = type(value).__setpoint__.tag
            if tagged is None and type(value) is not self.only():
                raise Invalid(
                    f"{type(value).__name__} is a family; choose one of its variants",
                    self.candidates(),
                )
            return value
        if isinstance(value, PlainScalar):
            if value.startswith("{"):
                from ..layers.flow import parse_flow

                value = parse_flow(value)
            elif self.variants():
                return self.find(value)()
        if isinstance(value, Mapping):
            return self._from_mapping(cast(Mapping[str, object], value), origin)
        if isinstance(value, str) and self.variants():
            return self.find(value)()
        raise self.refuse(value)

    def _from_mapping(self, values: Mapping[str, object], origin: Origin) -> Config:
        cls = self.only()
        tag = values.get("type")
        if tag is not None or cls is None:
            if tag is None:
                raise Invalid("needs a type", self.candidates()).inside("type")
            try:
                cls = self.find(tag)
            except Invalid as error:
                raise error.inside("type") from None
        section = cls()
        errors: list[Invalid] = []
        for key, item in values.items():
            if key == "type":
                continue
            try:
                read_into(section, key, item, origin)
            except Invalid as error:
                errors.append(error.inside(key))
        if errors:
            raise several(errors)
        return section

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        from ..plain import to_plain

        return to_plain(value)

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """See `FieldType.map`."""
        return function(value)

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """See `FieldType.sections`."""
        yield (), value


def read_into(section: Config, key: str, value: object, origin: Origin) -> None:
    """Set one field of a section that is being read from a mapping.

    Arguments:
        section: the draft.
        key: the field's name as written.
        value: the value as it came.
        origin: where it comes from.

    Raises:
        Invalid: if there is no such field, or it cannot take the value.
    """
    from ..suggest import field_of, unknown_key

    info = field_of(type(section), key)
    if info is None:
        raise unknown_key(type(section), key)
    section.store(info.name, info.read(value, origin), origin)
