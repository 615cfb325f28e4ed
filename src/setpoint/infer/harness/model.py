"""Our model as lm-evaluation-harness wants one; importing this needs the harness."""

from __future__ import annotations

from typing import Any

from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

from setpoint.infer.harness.answers import Answers


class SetpointLM(LM):
    """Hands the harness's requests on."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """How likely continuations are."""
        pairs = [request.args for request in requests]
        return [(each[0], each[1]) for each in self.answers.loglikelihood(pairs)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """How likely whole texts are."""
        return self.answers.loglikelihood_rolling([request.args[0] for request in requests])

    @property
    def tokenizer_name(self) -> str:
        """What tells apart the requests that the harness keeps."""
        return self.answers.loaded.tokenizer.name

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template that conversations are written out by."""
        template = self.answers.template
        return "" if template is None else template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as a context; without a generation prompt its last message goes on."""
        return self.answers.written(chat_history, is_open=not add_generation_prompt)

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Continue contexts."""
        return self.answers.generate_until([request.args for request in requests])
