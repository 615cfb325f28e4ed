"""Prompts: texts to continue and conversations to answer, and stop tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, MissingPathError, Problem, SetpointError, nearest
from setpoint.data.sources.chat import ChatTemplate, Conversation, fitting_template, with_controls
from setpoint.data.sources.conversations import read_row
from setpoint.data.sources.records import RowError
from setpoint.data.vocabulary import TEMPLATE, ChatFacts, TextPiece

if TYPE_CHECKING:
    from setpoint.data.config import TokenIds
    from setpoint.infer.tasks import Chat, Generation

DIGITS = 19
"""More digits than a token id has."""
VALID_ROW = (
    'Valid: {"prompt": "def "}, or {"messages": [{"role": "user", "content": "Who are you?"}]}.'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: a text, a formatted conversation, or token ids.

    Arguments:
        pieces: the text, with its control tokens separate.
        messages, tools: messages and tools of a conversation; None for a text.
        is_whole: whether nothing is added before the prompt.
        ids: the tokens, if they are not made from text.
    """

    pieces: tuple[TextPiece, ...]
    messages: list[dict[str, Any]] | None = None
    is_whole: bool = True
    ids: tuple[int, ...] | None = None
    tools: list[Any] | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)


def prompts_of(
    section: Generation,
    chat: Chat | None,
    facts: ChatFacts | None,
    directory: Path,
    ids: TokenIds | None = None,
) -> list[Prompt]:
    """Prompts of a section, with those from its file last.

    Arguments:
        facts: the tokenizer's control tokens and chat format; None without.
        directory: directory of the weights, which may contain a chat template.
        ids: tokenizer section for prompts of token ids; None: texts.

    Raises:
        SetpointError: a file cannot be read, or no chat template is suitable; names the path of the
            field.
    """
    given: list[tuple[str, str | Conversation]] = [
        (f"generation.prompts.{index}", text) for index, text in enumerate(section.prompts)
    ]
    if section.prompts_file is not None:
        given += read_prompts(section.prompts_file)
    template: ChatTemplate | None = None
    prompts: list[Prompt] = []
    for place, prompt in given:
        if isinstance(prompt, str) and chat is None:
            if not section.control_tokens:
                prompts.append(
                    Prompt((TextPiece(prompt),), is_whole=False)
                    if ids is None
                    else id_prompt(prompt, ids, place)
                )
                continue
            if facts is None:
                raise SetpointError(
                    "generation.control_tokens: the tokenizer has no control tokens.\n"
                    "Valid: false; --tokenizer huggingface."
                )
            prompts.append(Prompt(with_controls(prompt, facts.controls)))
            continue
        if template is None:
            template = chat_template(chat, facts, directory)
        if isinstance(prompt, str):
            prompt = Conversation([{"role": "user", "content": prompt}], ())
        try:
            prompts.append(answer_prompt(prompt, template, chat))
        except RowError as error:
            raise SetpointError(f"{place}: {error}") from error
    return prompts


def id_prompt(text: str, ids: TokenIds, place: str) -> Prompt:
    """Parse a prompt of token ids.

    Arguments:
        place: place of the prompt, for messages.

    Raises:
        SetpointError: the prompt is invalid, or empty without a separator.
    """
    valid = f"Valid: ids from 0 to {ids.count - 1} with spaces between them: '5 9 12'"
    words = text.split()
    for word in words:
        is_id = word.isascii() and word.isdecimal() and len(word) < DIGITS
        if not is_id or int(word) >= ids.count:
            raise SetpointError(
                f"{place}: {word!r} is not a token id, and tokenizer.type = ids cannot tokenize "
                f"text\n{valid}"
            )
    if not words and ids.separator is None:
        raise SetpointError(
            f"{place}: there is no id to continue, and tokenizer.separator is null\n{valid}"
        )
    shown = "".join(f"{word} " for word in words)  # as IdTokenizer decodes
    return Prompt((TextPiece(shown),), is_whole=False, ids=tuple(map(int, words)))


def answer_prompt(conversation: Conversation, template: ChatTemplate, chat: Chat | None) -> Prompt:
    """Format a conversation, with the system message of `chat` if it has none.

    Raises:
        RowError: the template fails.
        SetpointError: it fails only with the system message of `chat`.
    """
    messages = conversation.messages
    if chat is None or not chat.system or messages[0]["role"] in ("system", "developer"):
        return Prompt(template.prompt(conversation), messages, tools=conversation.tools)
    messages = [{"role": "system", "content": chat.system}, *messages]
    try:
        pieces = template.prompt(Conversation(messages, (), conversation.tools))
        return Prompt(pieces, messages, tools=conversation.tools)
    except RowError as error:
        with suppress(RowError):
            template.prompt(conversation)
            raise SetpointError(f"chat.system: {error}\nValid: null") from error
        raise


def chat_template(chat: Chat | None, facts: ChatFacts | None, directory: Path) -> ChatTemplate:
    """Chat template of a job, or else of the tokenizer or the weights.

    Raises:
        SetpointError: there is no template, or it uses tokens that the tokenizer does not have.
    """
    if facts is None:
        raise SetpointError(
            "chat: conversations need a tokenizer with control tokens, with `chat` and "
            "`encode_pieces` as in setpoint.data.tokenizer.\n"
            "Valid: --tokenizer huggingface, bytes; null, which reads prompts as text."
        )
    template_file = directory / TEMPLATE
    if "default" not in facts.templates and template_file.is_file():
        templates = {"default": template_file.read_text(encoding="utf-8"), **facts.templates}
        facts = facts._replace(templates=templates, title=str(directory))
    return fitting_template(chat and chat.template, "chat.template", facts)


def stop_ids(
    section: Generation, facts: ChatFacts | None, size: int, where: str = "generation."
) -> list[int]:
    """Ids of `stop_tokens`, and of strings in `stop` that are control tokens.

    Arguments:
        size: size of the vocabulary.
        where: prefix of field names in messages.

    Raises:
        ConfigError: there is no such token, or a stop string cannot match because it contains a
            control token.
    """
    ids, controls = facts.tokens if facts else {}, facts.controls if facts else ()
    numbers: list[int] = []
    problems: list[Problem] = []
    for index, token in enumerate(section.stop_tokens):
        number = token if isinstance(token, int) else ids.get(token, size)
        if number < size:
            numbers.append(number)
            continue
        near = nearest(token, controls) if isinstance(token, str) else []
        problems.append(
            Problem(
                f"{where}stop_tokens.{index}",
                f"the tokenizer has no token {token}",
                valid=(*near, f"0 to {size - 1}"),
                hint=f"Its control tokens: {', '.join(controls[:8]) or 'none'}. Other text is for "
                "generation.stop.",
            )
        )
    for index, text in enumerate(section.stop):
        spelled = [piece.text for piece in with_controls(text, controls) if piece.control]
        if [text] == spelled:
            numbers.append(ids[text])
        elif spelled:
            remainder = text
            for token in spelled:
                remainder = remainder.replace(token, "")
            problems.append(
                Problem(
                    f"{where}stop.{index}",
                    f"{text!r} never matches: the control token {spelled[0]} is not text",
                    valid=(f"{spelled[0]}", repr(remainder)),
                )
            )
    if problems:
        raise ConfigError(problems)
    return numbers


def read_prompts(path: Path) -> list[tuple[str, str | Conversation]]:
    """Read prompts from a file.

    Arguments:
        path: `.jsonl` with a conversation per line, in the formats of training data, or a text
            under "prompt"; any other file has one prompt per line. Empty lines are skipped.

    Returns:
        pairs of location and prompt; conversations lack a final answer.

    Raises:
        SetpointError: the file cannot be read, is not UTF-8, contains no prompt, or a line is
            invalid; names the line.
    """
    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except OSError as error:
        kind = MissingPathError if isinstance(error, FileNotFoundError) else SetpointError
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SetpointError(f"{path} is not UTF-8: {error}") from None
    # Not `splitlines`, which also splits at characters that a text may contain.
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    rows = [(f"{path}:{number}", line) for number, line in lines if line.strip()]
    if not rows:
        raise SetpointError(f"{path} contains no prompts")
    if path.suffix == ".jsonl":
        return [(place, _prompt_in(line, place)) for place, line in rows]
    return [(place, line) for place, line in rows]


def _prompt_in(line: str, place: str) -> str | Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SetpointError(f"{place}: this is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise SetpointError(f"{place}: a JSON object is needed.\n{VALID_ROW}")
    prompt, chat_keys = row.get("prompt"), ("messages", "conversations", "tools", "completion")
    if isinstance(prompt, str) and prompt and not any(row.get(name) for name in chat_keys):
        return prompt
    # The answers of training rows are to be generated, and may be missing.
    answers = {"prompt": "completion", "instruction": "output"}
    try:
        if not any(row.get(name) for name in ("messages", "conversations", *answers)):
            raise RowError("a string under 'prompt' or a conversation under 'messages' is needed")
        conversation = read_row({**row, **{answers[name]: "" for name in answers if name in row}})
        if not isinstance(conversation, Conversation):
            raise RowError("contains tokens, not a conversation")
        messages = list(conversation.messages)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise RowError("contains no message to answer")
    except RowError as error:
        raise SetpointError(f"{place}: {error}.\n{VALID_ROW}") from error
    return Conversation(messages, (), conversation.tools)
