"""Tasks of lm-evaluation-harness, an optional package: a model's answers to its request types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from setpoint.config import ConfigError, SetpointError, did_you_mean, resolve
from setpoint.data.sources.chat import Conversation
from setpoint.data.sources.records import RowError
from setpoint.data.tokenizer import ALIAS, ChatTokenizer
from setpoint.data.vocabulary import TextPiece
from setpoint.infer.config import Inference
from setpoint.infer.continuation import continue_prompts
from setpoint.infer.loaded_model import LoadedModel
from setpoint.infer.prompts import Prompt, chat_template
from setpoint.infer.tasks import Chat, Generation, Harness
from setpoint.model.build import evaluating

MAX_TOKENS = 256
_MARKED = re.compile(ALIAS.format("(.*?)"), re.DOTALL)
IGNORED = ("do_sample",)
"""Settings of a task that add nothing to the temperature."""


class Likelihood(NamedTuple):
    """Likelihood of a continuation.

    Arguments:
        log_probability: sum over its tokens, in nats.
    """

    log_probability: float
    is_greedy: bool


class Answers:
    """Answers of a model to the requests of the harness.

    Arguments:
        chat: format of conversations; None: contexts are text.
    """

    def __init__(
        self, loaded: LoadedModel, micro_size: int, seed: int, chat: Chat | None = None
    ) -> None:
        self.loaded = loaded
        self.micro_size = micro_size
        self.seed = seed
        self.template = None
        if chat is not None:
            self.template = chat_template(chat, loaded.facts, loaded.place.directory)

    def written(self, messages: Sequence[Mapping[str, Any]], is_open: bool = False) -> str:
        """A conversation as a context, with control tokens marked.

        Arguments:
            is_open: whether the last message is an answer to continue.

        Raises:
            SetpointError: the chat template refuses the messages.
        """
        assert self.template is not None
        turns = [*map(dict, messages)]
        begun = turns.pop()["content"] if is_open else ""
        try:
            pieces = self.template.prompt(Conversation(turns, ()))
        except RowError as error:
            raise SetpointError(f"harness: {error}") from error
        marked = (ALIAS.format(text) if control else text for text, control in pieces)
        return "".join(marked) + begun

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Compute the likelihood of each continuation after its context."""
        return self._likelihoods([self._split(*pair) for pair in pairs])

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Log-probability of each text as a document, with every token predicted once.

        A text longer than the context is read in windows, each of which predicts the tokens after
        the previous one; the last window has full length, as in the harness's own models
        (`get_rolling_token_windows`).

        Returns:
            the sum over each text's tokens, in nats.
        """
        windows: list[tuple[list[int], list[int]]] = []
        owner: list[int] = []
        for number, text in enumerate(texts):
            opening = self._opening()
            tokens = [*opening, *self._encoded(text)]
            context, start = self.loaded.context, len(opening)
            end = min(len(tokens), context + 1)
            while start < len(tokens):
                # A window begins with the last token of the previous one, the last window earlier.
                windows.append((tokens[max(0, end - context - 1) : start], tokens[start:end]))
                owner.append(number)
                start, end = end, min(len(tokens), end + context)
        sums = [0.0] * len(texts)
        for number, likelihood in zip(owner, self._likelihoods(windows), strict=True):
            sums[number] += likelihood.log_probability
        return sums

    def generate_until(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Continue each context until one of its stop strings.

        Arguments:
            requests: the context, and the task's settings: `until`, `max_gen_toks`, `temperature`,
                `do_sample`, `top_k`, `top_p`, `min_p`, `repetition_penalty`.

        Raises:
            SetpointError: a setting is not supported.
        """
        groups: dict[Generation, list[int]] = {}
        for number, (_, settings) in enumerate(requests):
            groups.setdefault(section_of(settings), []).append(number)
        answers: dict[int, str] = {}
        for section, numbers in groups.items():
            prompts = [self._prompt(requests[number][0]) for number in numbers]
            try:
                texts = continue_prompts(
                    self.loaded, section, prompts, seed=self.seed, micro_size=self.micro_size
                )
            except ConfigError as error:
                reasons = "; ".join(problem.message for problem in error.problems)
                raise SetpointError(f"a task of the harness sets until: {reasons}") from error
            answers.update(zip(numbers, (text.text for text in texts), strict=True))
        return [answers[number] for number in range(len(requests))]

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of a context and of its continuation.

        Trailing spaces of the context belong to the continuation, since most tokenizers join them
        with the next word. The continuation is the remainder after the context's tokens.
        """
        bare = context.rstrip()
        before = len(self._encoded(bare))
        tokens = self._encoded(context + continuation)
        if before >= len(tokens):
            raise SetpointError(f"the continuation {continuation!r} adds no token to its context")
        opening = () if self._prompt(context).is_whole else self.loaded.opening
        before_tokens = [*opening, *tokens[:before]] or list(self._opening())
        return before_tokens, tokens[before:]

    def _prompt(self, context: str) -> Prompt:
        if self.template is None:
            return Prompt((TextPiece(context),), is_whole=False)
        parts = _MARKED.split(context)
        return Prompt(
            tuple(TextPiece(part, index % 2 == 1) for index, part in enumerate(parts) if part)
        )

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
        """Likelihood of each continuation after its context, batched by length.

        Model replicas divide the requests, and all ranks get all answers.
        """
        order = sorted(range(len(parts)), key=lambda number: -sum(map(len, parts[number])))
        likelihoods: dict[int, Likelihood] = {}
        runner = self.loaded.runner
        together = self.micro_size * runner.world.data_size
        with evaluating(self.loaded.model), torch.no_grad():
            for first in range(0, len(order), together):
                rows = runner.own_of(range(first, min(first + together, len(order))))
                group = [order[place] for place in rows]
                if not group:
                    runner.idle(1)
                    continue
                likelihoods.update(zip(group, self._group([parts[n] for n in group]), strict=False))
        return runner.gather(likelihoods)

    def _group(self, parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterable[Likelihood]:
        """One forward pass; padding is on the right.

        Returns:
            nothing on ranks without the last layers.
        """
        context = self.loaded.context
        rows: list[list[int]] = []
        for before, after in parts:
            if len(after) > context:
                raise SetpointError(
                    f"a continuation of {len(after)} tokens does not fit a model with a context of "
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
            scores = logits[place, end - len(after) : end].float().log_softmax(dim=-1).cpu()
            labels = torch.tensor(list(after))
            chosen = scores.gather(-1, labels[:, None]).double().sum()
            yield Likelihood(float(chosen), bool((scores.argmax(dim=-1) == labels).all()))


def section_of(settings: Mapping[str, Any]) -> Generation:
    """Settings of a task as a generation section, without prompts.

    Raises:
        SetpointError: a setting is not supported.
    """
    names = {"max_gen_toks": "max_tokens", "max_new_tokens": "max_tokens", "until": "stop"}
    taken = ("max_tokens", "stop", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    fields: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
    for name, value in settings.items():
        field = names.get(name, name)
        if field not in taken:
            if name not in IGNORED:
                raise SetpointError(
                    f"a task of the harness sets {name} = {value!r}, which is not supported. "
                    f"Known: {', '.join([*taken, *names, *IGNORED])}"
                )
        elif field == "stop":
            stops = [value] if isinstance(value, str) else value or []
            fields[field] = tuple(stop for stop in stops if stop)
        elif value is not None:
            fields[field] = value
    if settings.get("do_sample") is False or not fields["temperature"]:
        # The likeliest token each time: limits of sampling have no effect.
        fields["temperature"] = 0.0
        fields = {k: v for k, v in fields.items() if k not in ("top_k", "top_p", "min_p")}
    return resolve(Generation(prompts=("-",), **fields))


Metrics = dict[str, dict[str, Any]]


def open_harness(section: Harness) -> Callable[[LoadedModel, Inference], Metrics]:
    """Import the harness and find its tasks, before any weights are read.

    Raises:
        SetpointError: the package is missing, or has no such task.
    """
    try:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise SetpointError(
            "harness: it needs the package lm_eval: install 'setpoint[harness]'"
        ) from None
    path = None if section.tasks_path is None else str(section.tasks_path)
    manager = TaskManager(include_path=path)
    unknown = [task for task in section.tasks if task not in manager.all_tasks]
    if unknown:
        meant = did_you_mean(unknown[0], manager.all_tasks, " ")
        raise SetpointError(
            f"harness.tasks: the harness has no task {unknown[0]!r}.{meant} "
            f"`lm_eval ls tasks` lists all"
        )

    def run(loaded: LoadedModel, job: Inference) -> Metrics:
        from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]

        as_chat: dict[str, Any] = {}
        if job.chat is not None:
            as_chat = {
                "apply_chat_template": True,
                "system_instruction": job.chat.system,
                "fewshot_as_multiturn": section.few_shot_turns,
            }
        results = simple_evaluate(
            model=_language_model(Answers(loaded, job.batch.micro_size, job.seed, job.chat)),
            tasks=list(section.tasks),
            num_fewshot=section.few_shot,
            limit=section.limit,
            task_manager=manager,
            bootstrap_iters=0,
            random_seed=job.seed % 2**32,
            numpy_random_seed=job.seed % 2**32,
            torch_random_seed=job.seed,
            fewshot_random_seed=job.seed,
            log_samples=False,
            verbosity="ERROR",
            **as_chat,
        )
        assert results is not None, "only other ranks of a group get nothing"
        return {task: _numbers(metrics) for task, metrics in results["results"].items()}

    return run


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Measured values by name, as JSON."""
    kept = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {name.removesuffix(",none"): value for name, value in kept.items()}


def _language_model(answers: Answers) -> Any:
    """Adapter of the model to lm-evaluation-harness."""
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class SetpointLM(LM):
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            pairs = [request.args for request in requests]
            return [(likelihood[0], likelihood[1]) for likelihood in answers.loglikelihood(pairs)]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            return answers.loglikelihood_rolling([request.args[0] for request in requests])

        @property
        def tokenizer_name(self) -> str:
            # It distinguishes requests cached by the harness.
            return answers.loaded.tokenizer.name

        def chat_template(self, chat_template: bool | str = False) -> str:
            return "" if answers.template is None else answers.template.source

        def apply_chat_template(
            self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
        ) -> str:
            # Without a generation prompt the last message is continued.
            return answers.written(chat_history, is_open=not add_generation_prompt)

        def generate_until(self, requests: list[Any]) -> list[str]:
            return answers.generate_until([request.args for request in requests])

    return SetpointLM()
