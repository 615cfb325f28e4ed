"""Evaluations on several ranks: each has a part, and all have the score of one rank."""

from collections.abc import Callable


def test_two_ranks_divide_an_evaluation(run_module: Callable[[str], None]) -> None:
    run_module("tests.parallel.shared_evaluation")
