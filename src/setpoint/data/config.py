"""The section `data`: what text to train on, and how to split it.

Nothing here imports numpy or torch: `setpoint check` reads this file.
"""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import IDENTITY, Config, Problem, check, dead, field
from setpoint.data.sources.config import SourceConfig, Stdlib


class Data(Config, role=IDENTITY, owner="setpoint.data.corpus:build_corpora"):
    """Training and validation data."""

    sources: tuple[SourceConfig, ...] = field(
        factory=lambda: (Stdlib(),),
        also_called=("dataset", "dataset_name", "train_dataset"),
    )
    """Training data sources, one or several."""

    held_out: float = field(
        default=0.05,
        ge=0,
        lt=1,
        also_called=(
            "val_set_size",
            "val_size",
            "validation_split",
            "val_split",
            "val_split_fraction",
            "test_size",
            "eval_split_ratio",
        ),
    )
    """Validation split: fraction of documents held out; of a single document, the end of its text.
    0: none. A document's split depends on its name alone, so adding documents moves no other."""

    validation: tuple[SourceConfig, ...] = field(
        default=(),
        before=[],
        also_called=(
            "validation_file",
            "validation_files",
            "val_file",
            "val_files",
            "val_data_path",
            "eval_file",
            "eval_dataset",
            "eval_data_path",
            "validation_dataset",
        ),
    )
    """Validation data sources, used instead of a split of `sources`; all of their documents are
    held out."""

    @dead("held_out")
    def _held_out_is_dead(self) -> str | None:
        return "validation takes its place" if self.validation else None

    @check
    def _check_sources(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", "no source, so no text", valid=('[{type = "stdlib"}]',))
        for field_name, sources in (("sources", self.sources), ("validation", self.validation)):
            first: dict[str, int] = {}
            for index, source in enumerate(sources):
                if first.setdefault(source.name, index) != index:
                    yield Problem(
                        f"{field_name}.{index}.name",
                        f"is the name of {field_name}.{first[source.name]} already",
                        valid=(f"{source.name}-{index}",),
                        hint="Documents are named after their source, and names must differ.",
                    )
