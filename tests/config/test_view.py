from setpoint.config import Config, derive, derived, field, resolve

from .sample import Batch


class Sizes(Config):
    """Derives by a property and a method from what is derived itself, and from references."""

    batch: Batch = field(factory=Batch)
    batches: tuple[Batch, ...] = field(factory=lambda: (Batch(size=2), Batch(size=3)))
    extra: dict[str, int] = field(factory=dict)
    widths: list[int] = field(factory=list)
    total: int = derived()
    twice: int = derived()

    @property
    def sizes(self) -> list[int]:
        """Of all batches."""
        assert all(isinstance(batch, Batch) for batch in self.batches)
        return [self.batch.size, *(batch.size for batch in self.batches)]

    def summed(self, *more: int) -> int:
        """All there is."""
        return sum((*self.sizes, *more))

    @derive("total")
    def _derive_total(self) -> int:
        return self.summed(*self.extra.values(), *self.widths)

    @derive("twice")
    def _derive_twice(self) -> int:
        return 2 * self.total


def test_what_a_deriving_method_sees() -> None:
    config = resolve(Sizes(extra={"a": "${batch.size}", "b": 1}, widths=["${extra.b + 1}"]))
    assert config.total == 32 + 2 + 3 + 32 + 1 + 2
    assert config.twice == 2 * config.total
