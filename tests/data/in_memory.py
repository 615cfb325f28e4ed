"""Both sides of data as they are built in memory, whatever is prepared."""

from typing import Any

from setpoint.data.config import Data
from setpoint.data.corpus import Corpus
from setpoint.data.reading import requests_of
from setpoint.data.sides import Sides, build_corpora


def in_memory(config: Data, tokenizer: Any) -> Sides:
    train: list[Corpus] = []
    held_out = None
    for request in requests_of(config):
        for corpus in build_corpora(request, tokenizer):
            if corpus.side == "held_out":
                held_out = corpus
            else:
                train.append(corpus)
    return Sides(tuple(train), held_out)
