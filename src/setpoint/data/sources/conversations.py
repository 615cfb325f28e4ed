"""Conversations in files of records, as tokens with a target mask for the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.document import BuiltSource, Document
from setpoint.data.sources.chat import (
    REASONING,
    ChatTemplate,
    Conversation,
    fitting_template,
    with_controls,
)
from setpoint.data.sources.config import MESSAGE_FIELDS, ROW_FIELDS, Conversations, Text
from setpoint.data.sources.files import ARROW, PARQUET, TEXT, inputs_of
from setpoint.data.sources.records import FileRow, RowError, read_rows, wrong_kind
from setpoint.data.sources.texts import format_in, text_files
from setpoint.data.sources.tokens import TokenizedRow, read_tokens
from setpoint.data.tokenizer import ChatTokenizer, Tokenizer
from setpoint.data.vocabulary import ChatFacts

SHAPES = (
    "messages",
    "conversations",
    "input_ids (and labels)",
    "prompt and completion",
    "instruction (and input) and output",
    "segments",
    "text",
)
PAIRS = (("prompt", "completion"), ("instruction", "output"))
PREFERENCES = ("chosen", "rejected")

# Roles of the ShareGPT format, and their names in messages.
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
# Fields of a message with 0 or false if it is not trained on: of OpenAI, and of Axolotl.
TRAINED = ("weight", "train", "training")


@dataclass(frozen=True, slots=True)
class Segments:
    """Text in segments, with control tokens as they are spelled: `input_output` of Axolotl.

    Arguments:
        texts: the segments.
        trained: which of them are targets.
        joined: True if they are one text, between the tokenizer's opening and a separator.
    """

    texts: tuple[str, ...]
    trained: tuple[bool, ...]
    joined: bool = False


def read_row(
    row: Mapping[str, Any], filled: bool = False, shifted: bool = False, joined: bool = False
) -> Conversation | TokenizedRow | Segments:
    """Read a row; if it matches several of `SHAPES`, the first one counts.

    Arguments:
        filled: whether the row is from a table, which has null for missing fields.
        shifted: see `read_tokens`.
        joined: whether a prompt and completion that are strings are one text.

    Raises:
        RowError: the row matches no shape, or a field is invalid.
    """
    if filled:
        row = _without_nulls(row)
    if row.get("messages") is not None:
        return _conversation(_messages(row["messages"], "messages"), row)
    if row.get("conversations") is not None:
        return _conversation(_share_gpt(row), row)
    if row.get("input_ids") is not None:
        return read_tokens(row, shifted)
    if row.get("prompt") is not None and row.get("completion") is not None:
        texts = (row["prompt"], row["completion"])
        if joined and isinstance(texts[0], str) and isinstance(texts[1], str):
            _check_unicode(texts)
            return Segments(texts, (False, True), joined=True)
        prompt = _either(row["prompt"], "prompt", "user")
        messages = prompt + _either(row["completion"], "completion", "assistant")
        return _conversation(messages, row, first=len(prompt))
    if row.get("instruction") is not None and row.get("output") is not None:
        return _conversation(_instruction(row), row)
    if row.get("segments") is not None:
        return _segments(row["segments"])
    if row.get("text") is not None:
        if not isinstance(row["text"], str):
            raise wrong_kind("text", "a str", row["text"])
        _check_unicode(row["text"])
        return Segments((row["text"],), (True,), joined=True)
    if any(name in row for name in PREFERENCES):
        raise RowError("has preferences (chosen, rejected), not a conversation")
    fields = ", ".join(map(repr, row)) or "none"
    raise RowError(
        f"has the fields {fields}, but one of these combinations is needed: {'; '.join(SHAPES)}; "
        f"`columns` renames columns"
    )


def _conversation(
    messages: list[dict[str, Any]], row: Mapping[str, Any], first: int = 0
) -> Conversation:
    if not messages:
        raise RowError("contains no messages")
    answers = [
        number
        for number, message in enumerate(messages)
        if _take_marks(message, number) and number >= first
    ]
    functions = _tools(row.get("functions"), "functions")
    tools = functions and [{"type": "function", "function": each} for each in functions]
    tools = _tools(row.get("tools"), "tools") or tools
    _check_unicode([messages, tools])
    return Conversation(messages, tuple(answers), tools, first)


def _take_marks(message: dict[str, Any], number: int) -> bool:
    """Remove the fields `TRAINED` from a message, and return whether it is a target."""
    is_answer = message["role"] == "assistant"
    marks: dict[str, Any] = {}
    for name in TRAINED:
        value = message.pop(name, None)
        if value is None:
            continue
        if value not in (0, 1):
            raise RowError(f"message {number}: {name} is {value!r}, not 0, 1, false or true")
        if value and not is_answer:
            raise RowError(
                f"message {number}: {name} is {value!r}, and only answers of the assistant can be "
                f"trained on, not the role {message['role']!r}"
            )
        marks[name] = value
    if len(set(map(bool, marks.values()))) > 1:
        given = " and ".join(f"{name} is {value!r}" for name, value in marks.items())
        raise RowError(f"message {number}: {given}; they contradict each other")
    return is_answer and all(marks.values())


def with_columns(row: Mapping[str, Any], columns: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Rename columns of a row to the fields that they hold.

    If a field of `ROW_FIELDS` is renamed, the row's own fields of other shapes are left out, so
    that the renamed one determines the shape.

    Arguments:
        columns: see `Conversations.columns`. Those of `ROW_OPTIONS` may be missing.

    Raises:
        RowError: the row lacks a column of `ROW_FIELDS`.
    """
    if columns is None:
        return row
    for name, column in columns.items():
        if name in ROW_FIELDS and column not in row:
            known = ", ".join(map(repr, row)) or "none"
            raise RowError(f"has no column {column!r} (columns.{name}); its columns are {known}")
    needed = _needed(columns)
    dropped = {*columns, *(name for name in ROW_FIELDS if needed and name not in needed)}
    kept = {name: value for name, value in row.items() if name not in dropped}
    given = {name: row[column] for name, column in _of_rows(columns).items() if column in row}
    fields = {name: columns[name] for name in MESSAGE_FIELDS if name in columns}
    return {
        name: [_renamed(item, fields) for item in value] if isinstance(value, list) else value
        for name, value in {**kept, **given}.items()
    }


def _of_rows(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: column for name, column in columns.items() if name not in MESSAGE_FIELDS}


def _renamed(message: Any, fields: Mapping[str, str]) -> Any:
    """A message with its fields under their usual names, and a usual role."""
    if not fields or not isinstance(message, Mapping):
        return message
    kept = {name: value for name, value in message.items() if name not in fields.values()}
    renamed = {name: message[field] for name, field in fields.items() if field in message}
    if isinstance(role := renamed.get("role"), str):
        renamed["role"] = ROLES.get(role, role)
    return {**kept, **renamed}


def _needed(columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of the fields of the renamed shapes, also of those under their own names."""
    pairs = [pair for pair in PAIRS if any(name in columns for name in pair)]
    names = [name for name in columns if name in ROW_FIELDS]
    return {
        name: columns.get(name, name) for name in (*names, *(n for pair in pairs for n in pair))
    }


def _segments(segments: Any) -> Segments:
    entries = _parsed(segments, "segments")
    if not isinstance(entries, list):
        raise wrong_kind("segments", "a list", entries)
    for i, entry in enumerate(entries):
        is_entry = isinstance(entry, Mapping) and isinstance(entry.get("text"), str)
        if not is_entry or not isinstance(entry.get("label"), bool):
            raise wrong_kind(f"segments.{i}", "a mapping with text and label (a bool)", entry)
    _check_unicode(entries)
    return Segments(
        tuple(entry["text"] for entry in entries), tuple(entry["label"] for entry in entries)
    )


def _check_unicode(content: Any) -> None:
    """Refuse halves of surrogate pairs, which JSON can escape and tokenizers do not take."""
    text = json.dumps(content, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - 20) : error.start]
        raise RowError(
            f"contains {text[error.start]!r} after {before!r}, half of a surrogate pair, which "
            f"UTF-8 cannot represent"
        ) from None


def _parsed(value: Any, field: str) -> Any:
    """A value, decoded if it is JSON, as in CSV files."""
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RowError(f"field {field!r} is a str, but not JSON: {error}") from None


def _tools(tools: Any, field: str) -> list[Any] | None:
    tools = _parsed(tools, field)
    if not tools:
        return None
    if not isinstance(tools, list):
        raise wrong_kind(field, "a list of functions", tools)
    return tools


def _without_nulls(value: Any) -> Any:
    """A value without null fields, which tables add for missing ones."""
    if isinstance(value, Mapping):
        return {str(k): _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _messages(messages: Any, field: str) -> list[dict[str, Any]]:
    messages = _parsed(messages, field)
    if not isinstance(messages, list):
        raise wrong_kind(field, "a list of messages", messages)
    return [_message(message, f"{field}.{i}") for i, message in enumerate(messages)]


def _message(mapping: Any, field: str) -> dict[str, Any]:
    if not isinstance(mapping, Mapping):
        raise wrong_kind(field, "a mapping with role and content", mapping)
    message = {str(name): value for name, value in mapping.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise wrong_kind(f"{field}.role", "a str", role)
    if role == "function":  # with function_call and functions, as OpenAI had tools at first
        message["role"] = "tool"
    calls = message.pop("tool_calls", None)
    if (call := message.pop("function_call", None)) is not None:
        calls = [{"type": "function", "function": call}]
    if calls:
        message["tool_calls"] = _calls(calls, f"{field}.tool_calls")
    if "content" in message:
        message["content"] = _content(message["content"], f"{field}.content")
    elif not calls:
        raise RowError(f"field '{field}.content' is missing, and there are no tool_calls")
    thought = next((message[name] for name in REASONING if name in message), None)
    if thought is not None:  # which templates know by either name
        message |= {"reasoning_content": thought, "thinking": message.get("thinking", thought)}
    return message


def _content(content: Any, field: str) -> str:
    """Text of a message content, which may consist of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    for i, part in enumerate(parts):
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise wrong_kind(f"{field}.{i}", "text", part)
    return "".join(part["text"] for part in parts)


def _calls(entries: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(entries, list):
        raise wrong_kind(f"{field}", "a list", entries)
    calls: list[dict[str, Any]] = []
    for i, entry in enumerate(entries):
        call = dict(entry) if isinstance(entry, Mapping) else {}
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            needed = "a call with the name and arguments of a function"
            raise wrong_kind(f"{field}.{i}", needed, entry)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):  # as the OpenAI format has them; templates write JSON
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                raise RowError(f"field '{field}.{i}': arguments are not JSON: {error}") from None
        function = {**function, "arguments": arguments}
        calls.append({**call, "function": function} if "function" in call else function)
    return calls


def _share_gpt(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = _parsed(row["conversations"], "conversations")
    if not isinstance(turns, list):
        raise wrong_kind("conversations", "a list", turns)
    messages: list[dict[str, Any]] = []
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.append({"role": "system", "content": system})
    for i, turn in enumerate(turns):
        field = f"conversations.{i}"
        if not isinstance(turn, Mapping) or turn.get("from") is None:
            messages.append(_message(turn, field))
            continue
        role, value = turn["from"], turn.get("value")
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise RowError(f"field '{field}.from': {role!r} is not one of {known}")
        if not isinstance(value, str):
            raise wrong_kind(f"{field}.value", "a str", value)
        marks = {name: turn[name] for name in TRAINED if turn.get(name) is not None}
        messages.append({"role": ROLES[role], "content": value, **marks})
    return messages


def _either(content: Any, field: str, role: str) -> list[dict[str, Any]]:
    """Messages, or one text as the message of a role."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    return _messages(content, field)


def _instruction(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name in ("instruction", "input", "output", "system"):
        if not isinstance(row.get(name) or "", str):
            raise wrong_kind(name, "a str", row[name])
    system, given = row.get("system"), row.get("input")
    messages = [{"role": "system", "content": system}] if system else []
    history = _parsed(row.get("history"), "history") or []
    for pair in history if isinstance(history, list) else [history]:
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise wrong_kind("history", "a list of pairs of a question and its answer", history)
        messages += [
            {"role": "user", "content": pair[0]},
            {"role": "assistant", "content": pair[1]},
        ]
    question: dict[str, Any] = {"role": "user", "content": row["instruction"]}
    if given:  # templates may write it in a place of its own
        question |= {"content": f"{row['instruction']}\n\n{given}", "input": given}
    messages.append(question)
    messages.append({"role": "assistant", "content": row["output"]})
    return messages


def first_row(config: Text) -> tuple[str, FileRow | None]:
    """The format of files, and their first row unless they are text.

    Raises:
        SetpointError: the files cannot be read.
    """
    name, file = next(iter(text_files(config, "paths").checked().items()))
    kind = format_in(config, file)
    return kind, None if kind == TEXT else next(read_rows(name, file, kind, where="text"))


def conversations_in(
    config: Text, columns: Mapping[str, str] | None = None
) -> Conversations | None:
    """Section that reads files as conversations, if their first row is one and has no text.

    Arguments:
        columns: see `Conversations.columns`; a row that has them may have a text, too.

    Returns:
        a section with the paths, and with shifted_labels if only shifted labels match; None if the
        files are something else, or cannot be read, which is reported when they are read.
    """
    try:
        kind, row = first_row(config)
        if row is None or (columns is None and config.field in row.values):
            return None
        filled, section = kind in (PARQUET, ARROW), Conversations(paths=config.paths)
        section.columns = None if columns is None else dict(columns)
        values = with_columns(row.values, columns)
        if "text" not in (columns or {}):  # which would be text without conversations
            values = {name: value for name, value in values.items() if name != "text"}
        try:
            read_row(values, filled)
        except RowError:
            read_row(values, filled, shifted=True)
            section.shifted_labels = True
        return section
    except (SetpointError, RowError):
        return None


class ConversationsSource(BuiltSource[Conversations]):
    """Conversations, one per document: `setpoint.data.document.TokenSource`."""

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Read the files, and encode each conversation with the chat template.

        Raises:
            SetpointError: a file cannot be read, a row is not a conversation, or the template or
                its tokens are missing; names file, row and field.
        """
        template: ChatTemplate | None = None
        rows = kept = 0
        for row, content in self._rows():
            rows += 1
            try:
                if isinstance(content, TokenizedRow):
                    documents = self._tokenized_documents(row.name, content)
                elif isinstance(content, Segments):
                    encoder = self._encoder(tokenizer)
                    documents = self._labelled(row.name, content, encoder)
                else:
                    if template is None:
                        template = self.template(tokenizer)
                    encoder = self._encoder(tokenizer)
                    documents = self._encoded(row.name, content, template, encoder)
                for document in documents:
                    kept += 1
                    yield document
            except RowError as error:
                raise SetpointError(f"{self.where}.paths: {row.place}: {error}.") from error
        if rows and not kept:
            raise SetpointError(
                f"{self.where}.untrained: drop would remove all {rows:,} rows: they have no "
                f"trained tokens with loss_on = {self.config.loss_on}.\n{VALID_ROW}"
            )

    def texts(self) -> Iterator[Document]:
        """Contents of the messages, for training a tokenizer."""
        for row, content in self._rows():
            if not isinstance(content, TokenizedRow):
                if isinstance(content, Segments):
                    text = "".join(content.texts)
                else:
                    text = "\n".join(content.texts())
                yield Document(row.name, text.encode())

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of(text_files(self.config, f"{self.where}.paths").checked())

    def starts_with_messages(self) -> bool:
        """True if the first row is a conversation, which, unlike token ids, needs a template."""
        _, first = next(self._rows(), (None, None))
        return isinstance(first, Conversation)

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """Chat template for a tokenizer.

        Raises:
            SetpointError: there is no template, or it writes tokens that the tokenizer does not
                have.
        """
        facts = self._encoder(tokenizer).chat
        return fitting_template(self.config.template, f"{self.where}.template", facts)

    def _encoder(self, tokenizer: Tokenizer) -> ChatTokenizer:
        if not isinstance(getattr(tokenizer, "chat", None), ChatFacts):
            raise SetpointError(
                f"{self.where}: conversations need a tokenizer that knows control tokens, with "
                f"`chat` and `encode_pieces` as in setpoint.data.tokenizer, and "
                f"{type(tokenizer).__name__} has none.\nValid: --tokenizer huggingface, bytes."
            )
        return cast(ChatTokenizer, tokenizer)

    def _labelled(self, name: str, row: Segments, tokenizer: ChatTokenizer) -> Iterator[Document]:
        """Encode each segment by itself, as Axolotl does, or all as one text, as TRL does."""
        texts = ["".join(row.texts)] if row.joined else row.texts
        encoded = [
            tokenizer.encode_pieces(with_controls(text, tokenizer.chat.controls)) for text in texts
        ]
        parts = [part.tokens for part in encoded]
        if row.joined:
            (tokens,), end, opening = parts, tokenizer.separator, [*tokenizer.opening]
            ending = [] if tokens[-1:].tolist() == [end] else [end]
            parts = [np.array(part, np.int64) for part in (opening, tokens, ending)]
            trained = np.ones(sum(map(len, parts)), np.bool_)
            if len(row.texts) > 1:
                mask = answer_mask(encoded[0].places, ((len(row.texts[0]), len(texts[0])),))
                trained[: len(opening) + len(tokens)] = [*[False] * len(opening), *mask]
        else:
            trained = np.repeat(np.array(row.trained, np.bool_), [len(part) for part in parts])
        if not trained.any():
            yield from self._untrained("no segment with label true has a token")
            return
        trained[:1] = False  # nothing is before it to predict it from
        if not trained.any():
            yield from self._untrained("only its first token has label true, and none is before it")
            return
        yield Document(name, "".join(row.texts).encode(), np.concatenate(parts), trained)

    def _encoded(
        self, name: str, chat: Conversation, template: ChatTemplate, tokenizer: ChatTokenizer
    ) -> Iterator[Document]:
        loss_on = self.config.loss_on
        if loss_on == "completion" and not chat.prompt:
            loss_on = "all"
        answers = chat.answers[-1:] if loss_on == "last_answer" else chat.answers
        try:
            is_whole = loss_on in ("all", "completion")
            rendered = template.render(chat, () if is_whole else answers)
            spans = rendered.answers
            if loss_on == "completion":
                before = Conversation(chat.messages[: chat.prompt], (), chat.tools)
                prompt = "".join(piece.text for piece in template.prompt(before))
                common = os.path.commonprefix([prompt, rendered.text])  # noqa: RUF071
                spans = ((len(common), len(rendered.text)),)
        except RowError as error:
            raise RowError(f"{error}.\nAnother template: {self.where}.template") from error
        tokens, places = tokenizer.encode_pieces(rendered.pieces)
        full = np.ones(len(tokens), np.bool_)
        trained = full if loss_on == "all" else answer_mask(places, spans)
        ended = is_whole or answers[-1:] == (len(chat.messages) - 1,)
        if rendered.end is not None and ended:
            tokens = np.append(tokens, tokenizer.chat.tokens[rendered.end])
            trained = np.append(trained, trained.any())
        trained[:1] = False  # nothing is before it to predict it from
        if not trained.any():
            roles = ", ".join(dict.fromkeys(str(message["role"]) for message in chat.messages))
            yield from self._untrained(
                f"no answer of the assistant is trained on and has a token (its roles: {roles})"
            )
            return
        yield Document(name, rendered.text.encode(), tokens, trained)

    def _tokenized_documents(self, name: str, tokenized: TokenizedRow) -> Iterator[Document]:
        trained = tokenized.trained
        if trained is None:
            trained = np.ones(len(tokenized.tokens), np.bool_)
        elif not trained.any():
            yield from self._untrained("all of its labels are -100")
            return
        trained[list(tokenized.starts)] = False
        if not trained.any():
            yield from self._untrained("its first token is the only one")
            return
        yield from replace(tokenized, trained=trained).documents(name)

    def _untrained(self, reason: str) -> Iterator[Document]:
        """Refuse or drop a row without targets."""
        if self.config.untrained == "error":
            raise RowError(
                f"it has no trained tokens: {reason}; set {self.where}.untrained = drop to skip "
                f"such rows"
            )
        yield from ()

    def _rows(self) -> Iterator[tuple[FileRow, Conversation | TokenizedRow | Segments]]:
        columns = self.config.columns
        unseen = set(_of_rows(columns or {}).values())
        fields = {column for name, column in (columns or {}).items() if name in MESSAGE_FIELDS}
        row = None
        for name, file in text_files(self.config, f"{self.where}.paths").checked().items():
            kind = format_in(self.config, file)
            for row in read_rows(name, file, kind, where=self.where):
                unseen.difference_update(row.values)
                lists = (
                    value for value in row.values.values() if fields and isinstance(value, list)
                )
                fields.difference_update(*(m for m in chain(*lists) if isinstance(m, Mapping)))
                try:
                    filled = kind in (PARQUET, ARROW)
                    values = with_columns(row.values, columns)
                    joined = self.config.loss_on == "completion"
                    content = read_row(values, filled, self.config.shifted_labels, joined)
                except RowError as error:
                    raise SetpointError(
                        f"{self.where}.paths: {row.place}: {error}.\n{_valid_row(columns)}"
                    ) from error
                yield row, content
        if row is not None and unseen:
            raise SetpointError(
                f"{self.where}.columns: no row has the column "
                f"{' or '.join(map(repr, sorted(unseen)))}; those of the last are "
                f"{', '.join(map(repr, row.values))}."
            )
        if row is not None and fields:
            raise SetpointError(
                f"{self.where}.columns: no message has the field "
                f"{' or '.join(map(repr, sorted(fields)))}."
            )


def answer_mask(
    places: npt.NDArray[np.int64], answers: tuple[tuple[int, int], ...]
) -> npt.NDArray[np.bool_]:
    """(T,) mask of the tokens that overlap an answer, even by a single byte."""
    mask = np.zeros(len(places), np.bool_)
    first, last = places[:, 0], places[:, 1]
    for start, end in answers:
        empty = (first == last) & (start <= first) & (first < end)
        mask |= ((last > start) & (first < end) & (first < last)) | empty
    return mask


VALID_ROW = (
    'Valid: a row such as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", '
    '"content": "..."}]}, or with the keys prompt and completion, instruction and output, '
    "input_ids and labels, segments, or text."
)


def _valid_row(columns: Mapping[str, str] | None) -> str:
    needed = _needed(columns or {})
    if not needed:
        return VALID_ROW
    keys = [
        repr(column) if column == name else f"{column!r} ({name})"
        for name, column in needed.items()
    ]
    return f"Valid: a row with {' and '.join(keys)}."
