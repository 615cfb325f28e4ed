import pytest

from setpoint.config import Config, Invalid, Secret, resolve
from setpoint.config.draft.walk import to_plain
from setpoint.config.types.base import ScalarType
from setpoint.config.types.compound import AnyType, FreeType
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar
from setpoint.units import Duration, Period

ORIGIN = Origin(PROGRAM)


class Fraction:
    __setpoint_scalar__ = "a fraction such as 1/3"

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def read(cls, value: object) -> "Fraction":
        """Read `a/b`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or value.count("/") != 1:
            raise Invalid("is not a fraction")
        return cls(str(value))

    def dump(self) -> str:
        """The text."""
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fraction) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def test_value_classes_read_and_write_themselves() -> None:
    for cls, text in ((Period, "3 steps"), (Duration, "1 h"), (Secret, "env:X"), (Fraction, "1/3")):
        kind = ScalarType(cls)
        value = kind.read(PlainScalar(text), ORIGIN)
        assert isinstance(value, cls)
        assert kind.read(kind.dump(value), ORIGIN) == value
        assert kind.describe() == cls.__setpoint_scalar__
        assert kind.is_secret() == (cls is Secret)


def test_a_users_own_value_class_is_a_field() -> None:
    class Root(Config):
        share: Fraction = Fraction("1/2")

    assert to_plain(resolve(Root(share="1/3"))) == {"share": "1/3"}
    assert hash(resolve(Root())) == hash(resolve(Root(share="1/2")))


def test_plain_data_and_free_areas() -> None:
    assert AnyType().read(PlainScalar("3"), ORIGIN) == 3
    assert AnyType().describe() == "plain data"
    with pytest.raises(Invalid, match="is not plain data"):
        AnyType().read(object(), ORIGIN)
    area = FreeType().read({"a": 1}, ORIGIN)
    assert FreeType().dump(area) == {"a": 1}
    assert FreeType().replace_sections(area, lambda section: section) == area
    assert FreeType().describe() == "any keys with plain values"
