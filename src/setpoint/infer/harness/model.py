"""Our model as lm-evaluation-harness wants one; importing this needs the harness."""

from __future__ import annotations

from typing import Any

from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

from setpoint.infer.harness.answers import Answers


class SetpointLM(LM):
    """Hands the harness's requests on.

    Arguments:
        answers: of the model.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """How likely continuations are.

        Arguments:
            requests: with a context and a continuation each.

        Returns:
            the log-probability of each, and whether it is the greedy one.
        """
        pairs = [request.args for request in requests]
        return [(each[0], each[1]) for each in self.answers.loglikelihood(pairs)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """How likely whole texts are.

        Arguments:
            requests: with a text each.

        Returns:
            the log-probabilities.
        """
        return self.answers.loglikelihood_rolling([request.args[0] for request in requests])

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Continue contexts.

        Arguments:
            requests: with a context and settings each.

        Returns:
            the continuations.
        """
        return self.answers.generate_until([request.args for request in requests])
