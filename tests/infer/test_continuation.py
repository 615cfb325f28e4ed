"""Texts from the checkpoints of a run."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.infer.continuation import GeneratedText, StopTexts, continue_prompts
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.loaded_model import LoadedModel
from setpoint.infer.prompts import Prompt, prompts_of
from setpoint.infer.tasks import Generation

from ..support.snapshots import refused

GREEDY = {"temperature": 0.0, "max_tokens": 24}


def texts(
    loaded: LoadedModel, *prompts: str, seed: int = 0, size: int = 8, **fields: Any
) -> list[GeneratedText]:
    section = resolve(Generation(prompts=prompts, **{**GREEDY, **fields}))
    return continue_prompts(loaded, section, asked(loaded, section), seed=seed, micro_size=size)


def asked(loaded: LoadedModel, section: Generation) -> list[Prompt]:
    return prompts_of(section, None, loaded.facts, loaded.place.directory)


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_equals_a_loop_over_the_model(loaded: LoadedModel, cache: bool) -> None:
    tokens = [256, *b'!"#']
    with torch.no_grad():
        for _ in range(24):
            following = int(loaded.model(torch.tensor([tokens[-loaded.context :]]))[0, -1].argmax())
            if following == 256:
                break
            tokens.append(following)
    (found,) = texts(loaded, '!"#', cache=cache)
    assert found.text == bytes(tokens[4:]).decode()


def test_a_prompt_gives_the_same_text_alone_and_in_any_company(loaded: LoadedModel) -> None:
    prompts = ["!", "abc", " !\"#$%&'" * 5, "#$"]
    settings: dict[str, Any] = {"temperature": 1.2, "samples": 2, "max_tokens": 40}
    together = texts(loaded, *prompts, **settings)
    assert texts(loaded, *prompts, size=3, **settings) == together
    assert texts(loaded, *prompts, cache=False, **settings) == together
    alone = [text for prompt in prompts for text in texts(loaded, prompt, size=1, **settings)]
    assert alone == together
    assert [(text.prompt, text.sample) for text in together] == [
        (prompt, sample) for prompt in prompts for sample in (0, 1)
    ]
    assert len({text.text for text in together}) == 8


def test_stop_texts(loaded: LoadedModel) -> None:
    (whole,) = texts(loaded, '!"#')
    assert whole.text.startswith("$%&' !")
    for stop, expected in (("'", "$%&"), ("& ", None), ("' !", "$%&"), ("$", "")):
        (found,) = texts(loaded, '!"#', stop=(stop,))
        if expected is None:
            assert found == whole
        else:
            assert (found.text, found.finish, found.stopped_by) == (expected, "stop text", stop)
    (found,) = texts(loaded, '!"#', stop=("'", "%&"))
    assert (found.text, found.tokens) == ("$", 3)


def test_stop_tokens(loaded: LoadedModel) -> None:
    (found,) = texts(loaded, '!"#', stop_tokens=(ord("'"),))
    assert (found.text, found.finish, found.tokens) == ("$%&", "stop token", 3)
    assert found.stopped_by == "'"
    (found,) = texts(loaded, '!"#', max_tokens=2)
    assert (found.text, found.finish, found.tokens) == ("$%", "length", 2)
    with refused():
        texts(loaded, "!", stop_tokens=(257,))


def test_text_is_shown_as_it_comes(loaded: LoadedModel) -> None:
    shown: dict[int, list[str]] = {0: [], 1: [], 2: []}
    section = resolve(Generation(prompts=("!", "#", "%"), stop=("' !",), **GREEDY))
    found = continue_prompts(
        loaded,
        section,
        asked(loaded, section),
        seed=0,
        micro_size=2,
        on_text=lambda row, text: shown[row].append(text),
    )
    assert [text.text for text in found] == ["".join(pieces) for pieces in shown.values()]
    assert shown[0] == ['"', "#", "$", "%", "&"]


def test_a_sign_that_is_cut_in_two_is_marked(loaded: LoadedModel) -> None:
    class Euro(torch.nn.Module):
        """Says nothing but the bytes of the euro sign, over and over."""

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            sign = "€".encode()
            following = {256: sign[0], **dict(pairwise(sign)), sign[2]: sign[0]}
            wanted = [[following.get(int(token), 0) for token in row] for row in tokens]
            return torch.nn.functional.one_hot(torch.tensor(wanted), 257).float()

    euro = replace(loaded, runner=ModelRunner(Euro()))
    assert texts(euro, "", max_tokens=6)[0].text == "€€"
    assert texts(euro, "", max_tokens=5)[0].text == "€�"


def test_prompts_of_a_file_come_after_the_others(loaded: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("#\n%\n")
    found = texts(loaded, "!", prompts_file=file, max_tokens=1)
    assert [text.prompt for text in found] == ["!", "#", "%"]


def fed(stops: list[str], pieces: list[bytes]) -> tuple[bytes, str | None]:
    """What is shown of pieces that come one after the other, and what ended it."""
    texts = StopTexts(stops)
    shown = b""
    for piece in pieces:
        shown += texts.feed(piece)
        if texts.found is not None:
            return shown, texts.found
    return shown + texts.finish(), None


def test_the_first_of_several_counts() -> None:
    assert fed(["b", "abc"], [b"abc"]) == (b"", "abc")
    assert fed(["c", "b"], [b"abc"]) == (b"a", "b")
    # One that is complete ends the text, though a longer one may have begun before it.
    assert fed(["abcd", "b"], [b"ab", b"cd"]) == (b"a", "b")


def test_what_is_certain_is_shown_at_once() -> None:
    texts = StopTexts(["END"])
    assert texts.feed(b"one E") == b"one "
    assert texts.feed(b"x") == b"Ex"
    assert StopTexts([]).feed(b"EN") == b"EN"


@given(
    text=st.text("ab", max_size=12),
    stop=st.text("ab", min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 12)),
)
def test_stop_texts_are_found_where_a_search_of_the_whole_text_finds_them(
    text: str, stop: str, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b].encode() for a, b in pairwise(edges)]
    shown, found = fed([stop], pieces)
    assert shown.decode() == text.partition(stop)[0]
    assert found == (stop if stop in text else None)
