"""What the sections of all models share."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import Config, Problem, check, derived, field


class ModelConfig(Config):
    """What all models share."""

    max_sequence_length: int = derived(
        ge=1, also_called=("max_position_embeddings", "n_positions", "n_ctx")
    )
    """Maximum sequence length (context length) in tokens; generation drops what lies further back.
    Set by the training job to its sequence length unless given."""

    pretrained: str | None = field(
        default=None,
        before=None,
        also_called=(
            "source_checkpoint",
            "model_path",
            "model_name_or_path",
            "load_path",
            "init_from",
            "initial_load_path",
        ),
    )
    """Weights to start from: the directory of a run, a checkpoint or a Hugging Face model, or the
    id of one on the hub; null: random."""

    @check(needs="files")
    def _check_pretrained(self) -> Iterator[Problem]:
        """Whether the weights to start from are there and fit the model."""
        if self.pretrained is not None:
            from setpoint.model.pretrained.check import check_directory

            yield from check_directory(self)
