"""Losses of logits of which each rank has a part of the vocabulary, against those of all."""

from collections.abc import Callable


def test_losses_and_gradients_of_a_divided_vocabulary(run_module: Callable[[str], None]):
    run_module("tests.loss.vocabulary_ranks")
