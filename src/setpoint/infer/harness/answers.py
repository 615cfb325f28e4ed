"""The three questions that lm-evaluation-harness asks a language model.

Nothing here needs the harness, so that the answers can be tested without it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.data.sources.messages import Conversation
from setpoint.data.sources.token_rows import RowError
from setpoint.data.tokenizers.chat import ALIAS, Piece
from setpoint.data.tokenizers.tokenizer import ChatTokenizer
from setpoint.infer.load import Loaded
from setpoint.infer.prompts import Prompt, chat_template
from setpoint.infer.tasks import Chat, Generation
from setpoint.infer.text import continue_prompts
from setpoint.model.layers import evaluating

MAX_TOKENS = 256
_MARKED = re.compile(ALIAS.format("(.*?)"), re.DOTALL)
IGNORED = ("do_sample",)
"""Settings of a task that say nothing beyond the temperature."""


class Likelihood(NamedTuple):
    """How likely a continuation is.

    Arguments:
        log_probability: the sum over its tokens, in nats.
    """

    log_probability: float
    is_greedy: bool


class Answers:
    """Answers of one model.

    Arguments:
        chat: how conversations are written out; None: contexts are text.
    """

    def __init__(
        self, loaded: Loaded, micro_size: int, seed: int, chat: Chat | None = None
    ) -> None:
        self.loaded = loaded
        self.micro_size = micro_size
        self.seed = seed
        self.template = None
        if chat is not None:
            self.template = chat_template(chat, loaded.facts, loaded.place.directory)

    def written(self, messages: Sequence[Mapping[str, Any]], is_open: bool = False) -> str:
        """A conversation as a context, in which control tokens are marked.

        Arguments:
            is_open: whether the last message is an answer to go on with.

        Raises:
            SetpointError: the chat template refuses the messages.
        """
        assert self.template is not None
        asked = [*map(dict, messages)]
        begun = asked.pop()["content"] if is_open else ""
        try:
            pieces = self.template.prompt(Conversation(asked, ()))
        except RowError as error:
            raise SetpointError(f"harness: {error}") from error
        marked = (ALIAS.format(text) if control else text for text, control in pieces)
        return "".join(marked) + begun

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """How likely each continuation is after its context."""
        return self._likelihoods([self._split(*pair) for pair in pairs])

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """How likely each text is as a document, every token predicted once.

        A text longer than the context is read in windows, each predicting what the one before it
        has not; the last one is as long as the others, as for the harness's own models
        (`get_rolling_token_windows`).

        Returns:
            the sum over the tokens of each, in nats.
        """
        windows: list[tuple[list[int], list[int]]] = []
        owner: list[int] = []
        for number, text in enumerate(texts):
            opening = self._opening()
            tokens = [*opening, *self._encoded(text)]
            context, start = self.loaded.context, len(opening)
            end = min(len(tokens), context + 1)
            while start < len(tokens):
                # A window sees the last token of the one before it, the last one more.
                windows.append((tokens[max(0, end - context - 1) : start], tokens[start:end]))
                owner.append(number)
                start, end = end, min(len(tokens), end + context)
        sums = [0.0] * len(texts)
        for number, found in zip(owner, self._likelihoods(windows), strict=True):
            sums[number] += found.log_probability
        return sums

    def generate_until(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Continue each context until one of its stop texts.

        Arguments:
            requests: the context, and the settings as tasks write them: `until`, `max_gen_toks`,
                `temperature`, `do_sample`, `top_k`, `top_p`, `min_p`, `repetition_penalty`.

        Raises:
            SetpointError: a setting that is not known here.
        """
        groups: dict[Generation, list[int]] = {}
        for number, (_, settings) in enumerate(requests):
            groups.setdefault(section_of(settings), []).append(number)
        found: dict[int, str] = {}
        for section, numbers in groups.items():
            asked = [self._prompt(requests[number][0]) for number in numbers]
            try:
                texts = continue_prompts(
                    self.loaded, section, asked, seed=self.seed, micro_size=self.micro_size
                )
            except ConfigError as error:
                reasons = "; ".join(problem.message for problem in error.problems)
                raise SetpointError(f"a task of the harness sets until: {reasons}") from error
            found.update(zip(numbers, (text.text for text in texts), strict=True))
        return [found[number] for number in range(len(requests))]

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The tokens of a context and of what follows it.

        Spaces at the end of the context belong to the continuation, as most tokenizers join them
        with the next word. What follows is what the whole has beyond the context.
        """
        bare = context.rstrip()
        before = len(self._encoded(bare))
        whole = self._encoded(context + continuation)
        if before >= len(whole):
            raise SetpointError(f"the continuation {continuation!r} adds no token to its context")
        opening = () if self._prompt(context).is_whole else self.loaded.opening
        seen = [*opening, *whole[:before]] or list(self._opening())
        return seen, whole[before:]

    def _prompt(self, context: str) -> Prompt:
        if self.template is None:
            return Prompt((Piece(context),), is_whole=False)
        parts = _MARKED.split(context)
        return Prompt(tuple(Piece(part, at % 2 == 1) for at, part in enumerate(parts) if part))

    def _opening(self) -> tuple[int, ...]:
        return self.loaded.opening or (self.loaded.tokenizer.separator,)

    def _encoded(self, text: str) -> list[int]:
        prompt = self._prompt(text)
        if not prompt.is_whole:
            return self.loaded.tokenizer.encode(text.encode()).tolist()
        return (
            cast(ChatTokenizer, self.loaded.tokenizer).encode_pieces(prompt.pieces).tokens.tolist()
        )

    def _likelihoods(
        self, parts: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[Likelihood]:
        """How likely tokens are after tokens; texts of like length go side by side.

        Copies of the model divide them among them, and all ranks get all answers.
        """
        order = sorted(range(len(parts)), key=lambda number: -sum(map(len, parts[number])))
        found: dict[int, Likelihood] = {}
        runner = self.loaded.runner
        together = self.micro_size * runner.world.data_size
        with evaluating(self.loaded.model), torch.no_grad():
            for first in range(0, len(order), together):
                own = runner.own_of(range(first, min(first + together, len(order))))
                group = [order[place] for place in own]
                if not group:
                    runner.idle(1)
                    continue
                found.update(zip(group, self._group([parts[n] for n in group]), strict=False))
        return runner.gather(found)

    def _group(self, parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterable[Likelihood]:
        """One forward pass; padding on the right is masked before it.

        Returns:
            nothing on ranks without the last layers.
        """
        context = self.loaded.context
        rows: list[list[int]] = []
        for before, after in parts:
            if len(after) > context:
                raise SetpointError(
                    f"a continuation of {len(after)} tokens does not fit a model that takes "
                    f"{context}"
                )
            rows.append([*before, *after][-context - 1 :])
        longest = max(len(row) for row in rows) - 1
        inputs = torch.zeros(len(rows), longest, dtype=torch.int64)
        for place, row in enumerate(rows):
            inputs[place, : len(row) - 1] = torch.tensor(row[:-1])
        with self.loaded.computing():
            logits = self.loaded.runner.logits(inputs.to(self.loaded.device))
        if logits is None:
            return
        logits = logits[..., : self.loaded.tokenizer.vocab_size]
        for place, ((_, after), row) in enumerate(zip(parts, rows, strict=True)):
            end = len(row) - 1
            own = logits[place, end - len(after) : end].float().log_softmax(dim=-1).cpu()
            wanted = torch.tensor(list(after))
            chosen = own.gather(-1, wanted[:, None]).double().sum()
            yield Likelihood(float(chosen), bool((own.argmax(dim=-1) == wanted).all()))


def section_of(settings: Mapping[str, Any]) -> Generation:
    """The settings of a task as a section of ours, with its prompts left open.

    Raises:
        SetpointError: a setting that is not known here.
    """
    names = {"max_gen_toks": "max_tokens", "max_new_tokens": "max_tokens", "until": "stop"}
    taken = ("max_tokens", "stop", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    found: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
    for name, value in settings.items():
        own = names.get(name, name)
        if own not in taken:
            if name not in IGNORED:
                raise SetpointError(
                    f"a task of the harness sets {name} = {value!r}, which is not known here. "
                    f"Known: {', '.join([*taken, *names, *IGNORED])}"
                )
        elif own == "stop":
            stops = [value] if isinstance(value, str) else value or []
            found[own] = tuple(stop for stop in stops if stop)
        elif value is not None:
            found[own] = value
    if settings.get("do_sample") is False or not found["temperature"]:
        # The likeliest token each time: what a draw would be limited to has no effect.
        found["temperature"] = 0.0
        found = {k: v for k, v in found.items() if k not in ("top_k", "top_p", "min_p")}
    return resolve(Generation(prompts=("-",), **found))
