"""Rows of the shapes that conversations come in, read as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from setpoint.data.sources.token_rows import RowError, TokenizedRow, kind_of, read_tokens

SHAPES = (
    "messages",
    "conversations",
    "input_ids (and labels)",
    "prompt and completion",
    "instruction (and input) and output",
)
PREFERENCES = ("chosen", "rejected")

# Names of roles in ShareGPT's format, and what they are called in messages.
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
REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as chat templates take them.

    Arguments:
        messages: mappings with `role` and `content`, and what else the row has of them.
        answers: numbers of the messages that the model is to learn to write.
        tools: descriptions of functions that may be called; None: the row has none.
    """

    messages: list[dict[str, Any]]
    answers: tuple[int, ...]
    tools: list[Any] | None = None

    def texts(self) -> list[str]:
        """What the messages say, without roles."""
        return [text for message in self.messages for text in _texts(message)]


def read_row(
    row: Mapping[str, Any], filled: bool = False, shifted: bool = False
) -> Conversation | TokenizedRow:
    """Read a row; of several shapes in one row the first of `SHAPES` counts.

    Arguments:
        filled: whether it is from a table, which has null in each field that another row has.
        shifted: see `read_tokens`.

    Raises:
        RowError: it has none of the shapes, or a field in it is wrong.
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
        prompt = _either(row["prompt"], "prompt", "user")
        whole = prompt + _either(row["completion"], "completion", "assistant")
        return _conversation(whole, row, first=len(prompt))
    if row.get("instruction") is not None and row.get("output") is not None:
        return _conversation(_instruction(row), row)
    if any(name in row for name in PREFERENCES):
        raise RowError("holds preferences (chosen, rejected), and no conversation to learn from")
    found = ", ".join(map(repr, row)) or "none"
    raise RowError(f"has the fields {found}; one of these is needed: {'; '.join(SHAPES)}")


def _conversation(
    messages: list[dict[str, Any]], row: Mapping[str, Any], first: int = 0
) -> Conversation:
    if not messages:
        raise RowError("holds no message")
    answers = (i for i, each in enumerate(messages) if each["role"] == "assistant" and i >= first)
    return Conversation(messages, tuple(answers), _tools(row.get("tools")))


def _parsed(found: Any, field: str) -> Any:
    """A value that may be written as JSON, as in the cells of a CSV file."""
    if not isinstance(found, str) or not found.strip():
        return found
    try:
        return json.loads(found)
    except ValueError as error:
        raise RowError(f"field {field!r}: is a str, and not JSON: {error}") from None


def _tools(found: Any) -> list[Any] | None:
    found = _parsed(found, "tools")
    if not found:
        return None
    if not isinstance(found, list):
        raise RowError(f"field 'tools': a list of functions is needed, and it is {kind_of(found)}")
    return found


def _without_nulls(value: Any) -> Any:
    """Without fields that are null, which tables fill in where other rows have a value."""
    if isinstance(value, Mapping):
        return {str(k): _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _messages(found: Any, field: str) -> list[dict[str, Any]]:
    found = _parsed(found, field)
    if not isinstance(found, list):
        raise RowError(f"field {field!r}: a list of messages is needed, and it is {kind_of(found)}")
    return [_message(each, f"{field}.{at}") for at, each in enumerate(found)]


def _message(found: Any, field: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise RowError(
            f"field '{field}': a mapping with role and content is needed, and it is "
            f"{kind_of(found)}"
        )
    message = {str(name): value for name, value in found.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RowError(f"field '{field}.role': a str is needed, and it is {kind_of(role)}")
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = _calls(calls, f"{field}.tool_calls")
    if "content" in message:
        message["content"] = _content(message["content"], f"{field}.content")
    elif not calls:
        raise RowError(f"field '{field}.content': is missing, and there are no tool_calls")
    thought = next((message[name] for name in REASONING if name in message), None)
    if thought is not None:  # which templates know by either name
        message |= {"reasoning_content": thought, "thinking": message.get("thinking", thought)}
    return message


def _content(found: Any, field: str) -> str:
    """A text, or texts in parts, as it is written by templates: without anything between."""
    if isinstance(found, str):
        return found
    parts = found if isinstance(found, list) else [found]
    for at, part in enumerate(parts):
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            what = part.get("type", "part") if isinstance(part, Mapping) else kind_of(part)
            raise RowError(
                f"field '{field}.{at}': text is needed, as a str or a part with 'text', and it is "
                f"{what!r}"
            )
    return "".join(part["text"] for part in parts)


def _calls(found: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        raise RowError(f"field '{field}': a list is needed, and it is {kind_of(found)}")
    calls: list[dict[str, Any]] = []
    for at, each in enumerate(found):
        call = dict(each) if isinstance(each, Mapping) else {}
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError(
                f"field '{field}.{at}': a call is needed, with the name of a function and its "
                f"arguments, and it is {kind_of(each)}"
            )
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):  # as the OpenAI format has them; templates write JSON
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                raise RowError(f"field '{field}.{at}': arguments are not JSON: {error}") from None
        function = {**function, "arguments": arguments}
        calls.append({**call, "function": function} if "function" in call else function)
    return calls


def _share_gpt(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = _parsed(row["conversations"], "conversations")
    if not isinstance(found, list):
        raise RowError(f"field 'conversations': a list is needed, and it is {kind_of(found)}")
    messages: list[dict[str, Any]] = []
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.append({"role": "system", "content": system})
    for at, each in enumerate(found):
        field = f"conversations.{at}"
        if not isinstance(each, Mapping) or each.get("from") is None:
            messages.append(_message(each, field))
            continue
        role, value = each["from"], each.get("value")
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise RowError(f"field '{field}.from': {role!r} is none of {known}")
        if not isinstance(value, str):
            raise RowError(f"field '{field}.value': a str is needed, and it is {kind_of(value)}")
        messages.append({"role": ROLES[role], "content": value})
    return messages


def _either(found: Any, field: str, role: str) -> list[dict[str, Any]]:
    """Messages, or one text of a role."""
    if isinstance(found, str):
        return [{"role": role, "content": found}]
    return _messages(found, field)


def _instruction(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name in ("instruction", "input", "output", "system"):
        if not isinstance(row.get(name) or "", str):
            raise RowError(f"field {name!r}: a str is needed, and it is {kind_of(row[name])}")
    system, given = row.get("system"), row.get("input")
    messages = [{"role": "system", "content": system}] if system else []
    question = f"{row['instruction']}\n\n{given}" if given else row["instruction"]
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": row["output"]})
    return messages


def _texts(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls", ())
    written = [json.dumps(call.get("function", call), ensure_ascii=False) for call in calls]
    return [text for text in (message.get("content", ""), *written) if text]
