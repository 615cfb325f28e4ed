"""What the sections of all models share."""

from __future__ import annotations

from typing import ClassVar

from setpoint.config import Config, Rule, derived

RULES = (
    Rule("setpoint.model.pretrained.check:check_directory",
         "Whether the weights to start from are there and fit the model",
         needs="files", when=lambda model: model.pretrained is not None),
)  # fmt: skip


class ModelConfig(Config, rules=RULES):
    """What all models share."""

    takes_documents: ClassVar[bool] = False
    """Whether attention can be kept inside the documents of a row."""

    @property
    def parameters_known(self) -> bool:
        """Whether the parameters are known without building the model."""
        return False

    max_sequence_length: int = derived(ge=1)
    """Maximum sequence length (context length) in tokens; generation drops earlier ones. Unless
    given batch.sequence_length."""

    pretrained: str | None = None
    """Pretrained weights to start from: a directory (run, checkpoint, Hugging Face model) or Hub
    id; null: random initialization."""
