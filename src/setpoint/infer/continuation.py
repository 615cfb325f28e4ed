"""Text generation: from prompts to continuations as text."""

import codecs
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from setpoint.infer.generation import Sampling, generate
from setpoint.infer.loaded_model import LoadedModel
from setpoint.infer.prompts import Prompt, stop_ids
from setpoint.infer.tasks import Generation
from setpoint.shapes.protocols import Work, no_work

OnText = Callable[[int, str], None]
"""Callback for streamed text: the row, and the next certain part of its continuation."""

GENERATING = "generating, texts"
FINISH = {"stop": "stop token", "ended": "stop text", "length": "length"}


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The continuation of one prompt, as text.

    Arguments:
        prompt: the whole preceding text, as written by a chat template.
        text: the generated text, cut at a stop string.
        tokens: number of generated tokens, without a stop token.
        finish: `"stop token"`, `"stop text"` or `"length"`.
        stopped_by: the stop token or stop string.
        messages, tools: messages and tools of a conversation; None for a text.
    """

    prompt: str
    sample: int
    text: str
    tokens: int
    finish: str
    stopped_by: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None


def continue_prompts(
    loaded: LoadedModel,
    section: Generation,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    micro_size: int,
    on_text: OnText | None = None,
    show: Work = no_work,
) -> list[GeneratedText]:
    """Continue prompts.

    Samples depend only on the seed, the prompt and the sample number. Model replicas divide the
    prompts among themselves; all ranks get all texts.

    Arguments:
        section: sampling settings, and stop conditions.
        micro_size: rows per forward pass of a replica.
        on_text: receives the text of this replica's rows as it is generated; rows are numbered in
            the order of the result.

    Returns:
        the continuations: all samples for the first prompt, then for the second, and so on.

    Raises:
        SetpointError: a prompt cannot be encoded, or a stop token is not in the vocabulary.
    """
    rows = [(prompt, sample) for prompt in prompts for sample in range(section.samples)]
    stops = {*loaded.stops, *stop_ids(section, loaded.facts, loaded.tokenizer.vocab_size)}
    runner, texts = loaded.runner, list[GeneratedText]()
    together = micro_size * runner.world.data_size
    for first in range(0, len(rows), together):
        show(GENERATING, first, len(rows))
        numbers = runner.own_of(range(first, min(first + together, len(rows))))
        group = [rows[number] for number in numbers]
        group_texts = _continue_group(loaded, section, group, stops, seed, numbers, on_text)
        texts += runner.gather(dict(zip(numbers, group_texts, strict=True)))
    show(GENERATING, len(rows), len(rows))
    return texts


def long_prompts(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[str]:
    """Caution about prompts whose beginning the model does not see."""
    lengths = [len(loaded.tokens_of(prompt)) for prompt in prompts]
    count = sum(length > loaded.context for length in lengths)
    if not count:
        return []
    cut = "the prompt has"
    if len(prompts) > 1:
        cut = f"{count} of {len(prompts)} prompts {'has' if count == 1 else 'have up to'}"
    return [
        f"{cut} {max(lengths):,} tokens, but the model sees only the last {loaded.context:,} "
        "(model.max_sequence_length), without the beginning"
    ]


def _continue_group(
    loaded: LoadedModel,
    section: Generation,
    rows: Sequence[tuple[Prompt, int]],
    stops: Collection[int],
    seed: int,
    numbers: Sequence[int],
    on_text: OnText | None,
) -> list[GeneratedText]:
    prompts = [loaded.tokens_of(prompt) for prompt, _ in rows]
    generators = [
        torch.Generator().manual_seed(seed_of(seed, sample, tokens))
        for tokens, (_, sample) in zip(prompts, rows, strict=True)
    ]
    streams = [_Stream(section.stop) for _ in rows]

    def on_token(row: int, token: int) -> bool:
        piece = streams[row].feed(loaded.tokenizer.decode([token]))
        if on_text is not None and piece:
            on_text(numbers[row], piece)
        return streams[row].found is not None

    with loaded.computing():
        continuations = generate(
            loaded.runner,
            prompts,
            max_tokens=section.max_tokens,
            sampling=Sampling(
                repetition_penalty=section.repetition_penalty,
                temperature=section.temperature,
                top_k=section.top_k,
                top_p=section.top_p,
                min_p=section.min_p,
            ),
            generators=generators,
            context=loaded.context,
            vocab_size=loaded.tokenizer.vocab_size,
            stop=stops,
            cache=section.cache,
            on_token=on_token,
        )
    texts: list[GeneratedText] = []
    for place, ((prompt, sample), continuation) in enumerate(zip(rows, continuations, strict=True)):
        tail = streams[place].finish()
        if on_text is not None and tail:
            on_text(numbers[place], tail)
        by = (
            streams[place].found
            if continuation.stop is None
            else _spelled(loaded, continuation.stop)
        )
        made_text, finish = streams[place].text, FINISH[continuation.finish]
        texts.append(
            GeneratedText(
                prompt.text,
                sample,
                made_text,
                len(continuation.tokens),
                finish,
                by,
                prompt.messages,
                prompt.tools,
            )
        )
    return texts


def _spelled(loaded: LoadedModel, token: int) -> str:
    """Text of a token, or the name of a control token."""
    text = loaded.tokenizer.decode([token]).decode(errors="replace")
    names = loaded.facts.tokens if loaded.facts and not text else {}
    return text or next((name for name, number in names.items() if number == token), str(token))


def seed_of(seed: int, sample: int, tokens: Sequence[int]) -> int:
    """Seed of one row."""
    text = f"{seed} {sample} {' '.join(map(str, tokens))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class _Stream:
    """Decoded text of one continuation, up to a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = StopTexts(stops)
        # If max_tokens cuts a character in two, a replacement character represents its part.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""

    @property
    def found(self) -> str | None:
        return self._stops.found

    def feed(self, data: bytes) -> str:
        return self._add(self._decoder.decode(self._stops.feed(data)))

    def finish(self) -> str:
        tail = b"" if self.found is not None else self._stops.finish()
        return self._add(self._decoder.decode(tail, final=True))

    def _add(self, piece: str) -> str:
        self.text += piece
        return piece


class StopTexts:
    """Detects the first stop string in a stream.

    A token may contain the end of a stop string and more, and a stop string may span several
    tokens, so bytes that may still become part of a stop string are held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._held = b""
        self.found: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Add the bytes of a token.

        Arguments:
            data: next bytes; must not be called again after a stop string.

        Returns:
            bytes that are certain to precede any stop string. `found` is the stop string once one
            is complete.
        """
        data = self._held + data
        places = [(data.find(stop), -len(stop), stop) for stop in self._stops if stop in data]
        if places:
            place, _, stop = min(places)
            self._held, self.found = b"", stop.decode()
            return data[:place]
        pending = max((_overlap(data, stop) for stop in self._stops), default=0)
        self._held = data[len(data) - pending :]
        return data[: len(data) - pending]

    def finish(self) -> bytes:
        """End the text."""
        pending, self._held = self._held, b""
        return pending


def _overlap(text: bytes, stop: bytes) -> int:
    """Length of the longest suffix of a text that is a prefix of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
