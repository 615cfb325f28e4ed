"""Chat templates: conversations rendered as text, with the spans of the answers.

Templates are Jinja programs that come with tokenizers, so they run in a sandbox, as in
`transformers`. Messages are plain text: a control token spelled in a message, such as <|im_end|>,
is distinguished from those that the template writes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from setpoint.config import MissingPathError, SetpointError
from setpoint.data.sources.records import RowError
from setpoint.data.vocabulary import ChatFacts, TextPiece

# Unicode noncharacters, for internal use. MARK: end of the text of a message; CONTROL: control
# token spelled in a message; GENERATION: {% generation %} and its end.
RESERVED = re.compile("[\ufdd0-\ufdef]")
MARK, CONTROL = "\ufdd2{}\ufdd3", "\ufdd4{}\ufdd5"
GENERATION, END = "\ufdd6", "\ufdd7"
_MARKS = re.compile("\ufdd2(\\d+)\ufdd3|(\ufdd6)|\ufdd7")

CACHED = 4096
"""Number of layouts of conversations (sequences of roles) whose frames are cached."""
PROBE = [{"role": "user", "content": "x"}]
REASONING = ("reasoning_content", "thinking", "reasoning")

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_CONTROL = re.compile(r"<[|\uff5c][^\s<>|\uff5c'\"]{1,40}[|\uff5c]>")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as input of chat templates.

    Arguments:
        messages: mappings with `role`, `content` and other fields of the row.
        answers: indices of the messages that are targets.
        tools: descriptions of callable functions; None: none.
        prompt: number of messages in front of the completion; 0: the row has none.
    """

    messages: list[dict[str, Any]]
    answers: tuple[int, ...]
    tools: list[Any] | None = None
    prompt: int = 0

    def texts(self) -> list[str]:
        """Contents and tool calls of the messages, without roles."""
        texts: list[str] = []
        for message in self.messages:
            calls = (call.get("function", call) for call in message.get("tool_calls", ()))
            texts.append(message.get("content", ""))
            texts += (json.dumps(call, ensure_ascii=False) for call in calls)
        return [text for text in texts if text]

    @property
    def layout(self) -> tuple[Any, ...]:
        """Roles in order, and other fields that templates may use."""
        return tuple(
            (message["role"], *sorted(message.keys() - {"role"}), bool(self.tools))
            for message in self.messages
        )


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text.

    Arguments:
        pieces: consecutive pieces of the text.
        answers: (start, stop) characters of each requested answer with its end of turn.
        end: control token to append if the text ends in an answer without an end of turn; None:
            nothing to append.
    """

    pieces: tuple[TextPiece, ...]
    answers: tuple[tuple[int, int], ...]
    end: str | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)


class _Marked(NamedTuple):
    """A text after removal of its marks, with their positions and the spans of generations."""

    text: str
    marks: dict[int, int]
    generations: list[tuple[int, int]]


class ChatTemplate:
    """A chat template for a tokenizer.

    Arguments:
        source: the Jinja program.
        title: its name in messages.
        variables: other variables of the template, such as `eos_token`.
        controls: texts of the tokenizer's control tokens.
        as_text: control tokens in the template that the tokenizer does not have, which are thus
            encoded as text.

    Raises:
        SetpointError: Jinja is not installed, or cannot parse the template.
    """

    def __init__(
        self,
        source: str,
        title: str,
        variables: Mapping[str, str],
        controls: Sequence[str],
        as_text: Sequence[str] = (),
    ) -> None:
        self.title = title
        self.as_text = as_text
        self.variables = dict(variables)
        self.controls = sorted(controls, key=len, reverse=True)
        self.source = source
        self.template = _compiled(source, title)
        self.has_tools = bool(re.search(r"\btools\b", source))
        self.has_reasoning = any(re.search(rf"\b{name}\b", source) for name in REASONING)
        self.has_generation = bool(re.search(r"\{%-?\+?\s*generation\b", source))
        alternatives = "|".join(map(re.escape, self.controls)) or r"(?!)"
        self._control = re.compile(alternatives)
        self._parts = re.compile(f"\ufdd4(?P<spelled>\\d+)\ufdd5|{alternatives}")
        self._frames: dict[Any, str] = {}
        self._distinct: set[Any] = set()

    def render(self, conversation: Conversation, answers: Sequence[int]) -> RenderedChat:
        """Render a conversation.

        Arguments:
            answers: indices of the messages to locate.

        Raises:
            RowError: the template raises an error; loses, reorders or confuses messages; or the
                answers cannot be located.
        """
        for number, message in enumerate(conversation.messages):
            if not self.has_reasoning and any(message.get(name) for name in REASONING):
                raise RowError(
                    f"{self.title} does not write the reasoning of the message {number}: put it "
                    "into the content, as <think>...</think>, or remove the field"
                )
        safe = self._safe(conversation)
        text, _, generations = self._render(safe.messages, safe.tools)
        messages, owners = _with_marks(safe.messages)
        marked = self._render(messages, safe.tools)
        if marked.text != text:
            raise RowError(
                f"{self.title} renders messages differently when their ends are marked, so the "
                "tokens of answers cannot be located"
            )
        ends = self._ends(conversation, marked, owners)
        self._require_roles(safe, text)
        spans: set[tuple[int, int]] = set()
        for number in answers:
            if number not in ends:
                continue
            end = ends[number]
            if self.has_generation:
                span = self._generation(generations, number, end)
            else:
                span = self._span(safe, text, ends, number)
            limit = min((e for k, e in ends.items() if k > number), default=len(text))
            spans.add(self._with_end(text, span, end, limit))
        last = len(conversation.messages) - 1
        open_end = last in conversation.answers and not self._ends_last_turn
        rendered = self._rendered(text, sorted(spans))
        return replace(rendered, end=self.turn_end if open_end else None)

    def prompt(self, conversation: Conversation) -> tuple[TextPiece, ...]:
        """Render a conversation up to the answer to generate.

        A template that raises an error, or loses or reorders messages, is reported as an error of
        the row.
        """
        safe = self._safe(conversation)
        text = self._render(safe.messages, safe.tools, prompt=True).text
        messages, owners = _with_marks(safe.messages)
        marked = self._render(messages, safe.tools, prompt=True)
        if marked.text == text:  # else it cannot be seen
            self._ends(conversation, marked, owners)
        return self._rendered(text, ()).pieces

    @cached_property
    def turn_end(self) -> str | None:
        """Control token that ends an answer; None if the template writes none.

        It is the first control token between an answer and the user's next text: <|im_end|> in
        ChatML; in templates without an end of turn, the marker of the next role.
        """
        return self._control_behind_answer(PROBE)

    @cached_property
    def _ends_last_turn(self) -> bool:
        """True if a control token ends the last answer."""
        return self._control_behind_answer([]) is not None

    def _control_behind_answer(self, following: list[dict[str, str]]) -> str | None:
        messages, _ = _with_marks([*PROBE, {"role": "assistant", "content": "x"}, *following])
        try:
            text, marks, _ = self._render(messages, None)
        except RowError:
            return None
        if 1 not in marks:
            return None
        match = self._control.search(text, marks[1], marks.get(2, len(text)))
        return match[0] if match else None

    def _with_end(self, text: str, span: tuple[int, int], end: int, limit: int) -> tuple[int, int]:
        """Span of an answer, extended by the control token that ends it.

        Arguments:
            end: end of the text of the message.
            limit: end of the text of the next message.
        """
        has_control = self._control.search(text, end, span[1]) is not None
        if has_control if self.has_generation else self._ends_last_turn:
            return span
        match = self._control.search(text, max(span[1], end), limit)
        return (span[0], match.end()) if match else span

    def _safe(self, conversation: Conversation) -> Conversation:
        """The conversation with spelled-out control tokens replaced by placeholders."""
        if conversation.tools and not self.has_tools:
            raise RowError(
                f"field 'tools': {self.title} does not write tools, and the conversation has "
                f"{len(conversation.tools)}; chatml and llama3 do, or remove the field"
            )
        numbers = {control: number for number, control in enumerate(self.controls)}

        def clean(value: Any) -> Any:
            if isinstance(value, str):
                if match := RESERVED.search(value):
                    raise RowError(
                        f"holds U+{ord(match[0]):04X}, which is not a character in Unicode"
                    )
                return self._control.sub(lambda match: CONTROL.format(numbers[match[0]]), value)
            if isinstance(value, Mapping):
                return {clean(name): clean(item) for name, item in value.items()}
            return [clean(item) for item in value] if isinstance(value, list) else value

        messages = [clean(message) for message in conversation.messages]
        return Conversation(messages, conversation.answers, clean(conversation.tools))

    def _render(self, messages: list[Any], tools: Any, prompt: bool = False) -> _Marked:
        try:
            text: str = self.template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self.variables,
            )
        except Exception as error:  # a template can raise whatever Python can
            reason = str(error).rstrip(".") or type(error).__name__
            raise RowError(f"{self.title} raises: {reason}") from error
        return _without_marks(text)

    def _ends(
        self, conversation: Conversation, marked: _Marked, owners: list[int]
    ) -> dict[int, int]:
        """End of each message's last text; all must be present and in order."""
        ends: dict[int, int] = {}
        before = -1
        for number, owner in enumerate(owners):
            role = conversation.messages[owner]["role"]
            if number not in marked.marks:
                raise RowError(
                    f"{self.title} loses the message {owner} of the role {role!r}, or its tool "
                    "calls: its text is not written"
                )
            place = marked.marks[number]
            if owner not in ends:
                before = max(ends.values(), default=-1)
            if place < before:
                raise RowError(
                    f"{self.title} reorders messages: the message {owner} of the role {role!r} is "
                    "written before one that it follows"
                )
            ends[owner] = max(ends.get(owner, -1), place)
        return ends

    def _require_roles(self, conversation: Conversation, text: str) -> None:
        """Refuse a template that renders another role like an answer or like the user."""
        layout = conversation.layout
        if layout in self._distinct:
            return
        roles = {message["role"] for message in conversation.messages} - {"assistant"}
        for role in sorted(roles):
            for other in ("assistant",) if role in ("user", "system") else ("assistant", "user"):
                messages = conversation.messages
                changed = [
                    {**message, "role": other} if message["role"] == role else message
                    for message in messages
                ]
                # Llama 3.1 writes the first message, whatever its role, with the tools as the
                # user's; only another place shows that it distinguishes roles.
                ends = [[*messages, {"role": name, "content": "x"}] for name in (role, other)]
                try:
                    same = self._render(changed, conversation.tools).text == text
                    if same:
                        first, second = (self._render(end, conversation.tools) for end in ends)
                        same = first.text == second.text
                except RowError:
                    continue  # a template that refuses the change knows the roles apart
                if same:
                    raise RowError(
                        f"{self.title} loses roles: it writes messages of the role {role!r} as if "
                        f"they had the role {other!r}"
                    )
        if len(self._distinct) < CACHED:
            self._distinct.add(layout)

    def _generation(
        self, generations: list[tuple[int, int]], number: int, end: int
    ) -> tuple[int, int]:
        for span in generations:
            if span[0] <= end <= span[1]:
                return span
        raise RowError(
            f"{self.title} writes the answer in message {number} outside of "
            "{% generation %}, so it would not be trained on"
        )

    def _span(
        self, safe: Conversation, text: str, ends: Mapping[int, int], number: int
    ) -> tuple[int, int]:
        """Span from the start of the answer to the end of its turn."""
        layout, end = safe.layout, ends[number]
        before = max((place for owner, place in ends.items() if owner < number), default=0)

        def ending() -> str | None:
            last = number == len(safe.messages) - 1
            frame = text[end:] if last else self._tail(safe, number + 1, prompt=False)
            return frame and frame[: self._last_control(frame) or len(frame)]

        opens = self._fitting(
            text[before:end],
            ("opening", *layout[:number], number),
            lambda: self._opening(safe, number),
            lambda common: max(self._last_control(common), common.rfind("\n") + 1),
        )
        closes = self._fitting(
            text[end:], ("ending", *layout[: number + 1]), ending, self._last_control
        )
        if opens is None or closes is None:
            place = "beginning" if opens is None else "end"
            raise RowError(
                f"{self.title} does not let the {place} of the answer in message {number} be "
                "found: it is written differently when other messages follow. A template with "
                "{% generation %} around answers marks where they are"
            )
        return before + opens, end + closes

    def _fitting(
        self, text: str, key: Any, make: Callable[[], str | None], cut: Callable[[str], int]
    ) -> int | None:
        """Length of a frame at the start of a text; frames are cached by roles.

        Arguments:
            cut: returns the length if only the beginning of the frame matches.
        """
        frame = self._frames.get(key)
        if frame and text.startswith(frame):
            return len(frame)
        frame = make()
        if frame is None:
            return None
        if not text.startswith(frame):
            common = os.path.commonprefix([frame, text])  # noqa: RUF071 - of characters
            return cut(common) or None
        if len(self._frames) < 2 * CACHED and self._last_control(frame):
            self._frames[key] = frame
        return len(frame)

    def _opening(self, safe: Conversation, number: int) -> str | None:
        """Text between the previous message and the answer."""
        if number:
            return self._tail(safe, number, prompt=True)
        try:  # nothing is before it: what is put behind any message
            text = self._render(PROBE, safe.tools, prompt=True).text
            return text.removeprefix(self._render(PROBE, safe.tools).text)
        except RowError:
            return None

    def _tail(self, safe: Conversation, count: int, prompt: bool) -> str | None:
        """Rendered text after the last of the first `count` messages."""
        messages, owners = _with_marks(safe.messages[:count])
        try:
            marked = self._render(messages, safe.tools, prompt)
        except RowError:
            return None
        places = (marked.marks.get(number, 0) for number in range(len(owners)))
        return marked.text[max(places, default=0) :]

    def _last_control(self, text: str) -> int:
        """End of the last control token in a text; 0 if there is none."""
        return max((match.end() for match in self._control.finditer(text)), default=0)

    def _rendered(self, text: str, spans: Sequence[tuple[int, int]]) -> RenderedChat:
        """Split a text into pieces, with spelled-out control tokens in place of placeholders."""
        pieces: list[TextPiece] = []
        shifts: list[tuple[int, int]] = []  # (end of a sign, by how much what follows moves)
        start = 0
        for match in self._parts.finditer(text):
            number = match["spelled"]
            spelled = match[0] if number is None else self.controls[int(number)]
            pieces += [TextPiece(text[start : match.start()]), TextPiece(spelled, number is None)]
            start = match.end()
            if number is not None:
                shifts.append((start, len(spelled) - len(match[0])))
        pieces.append(TextPiece(text[start:]))

        def moved(place: int) -> int:
            return place + sum(shift for end, shift in shifts if end <= place)

        answers = tuple((moved(first), moved(last)) for first, last in spans)
        return RenderedChat(tuple(piece for piece in pieces if piece.text), answers)


def _compiled(source: str, title: str) -> Any:
    """Compile a template in Jinja's sandbox, with the functions that `transformers` provides.

    `strftime_now` is not provided, because a run would depend on the date. Templates that test for
    it, such as Llama's, use a fixed date.
    """
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"{title} needs the package {error.name!r}: pip install 'setpoint[data]'"
        ) from None

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}, around answers."""

        tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{GENERATION}{caller()}{END}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    environment.globals["dict"] = lambda *pairs, **values: dict(*pairs, **values)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f", line {line}" if line else ""
        raise SetpointError(f"{title}{place}: {error}") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Serialize without HTML escapes, unlike Jinja's filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _without_marks(text: str) -> _Marked:
    marks: dict[int, int] = {}
    generations: list[tuple[int, int]] = []
    kept: list[str] = []
    end, length, depth, start = 0, 0, 0, 0
    for match in _MARKS.finditer(text):
        kept.append(text[end : match.start()])
        length += match.start() - end
        end = match.end()
        if match[1] is not None:
            marks[int(match[1])] = length
        elif match[2]:
            start = length if not depth else start
            depth += 1
        else:
            depth -= 1
            if not depth and length > start:
                generations.append((start, length))
    kept.append(text[end:])
    return _Marked("".join(kept), marks, generations)


def _with_marks(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Append a mark to each text, and return the message of each mark.

    A mark precedes trailing white space, which templates may strip.
    """
    owners: list[int] = []

    def marked(text: str, owner: int) -> str:
        end = len(text.rstrip())
        owners.append(owner)
        return f"{text[:end]}{MARK.format(len(owners) - 1)}{text[end:]}"

    changed: list[dict[str, Any]] = []
    for owner, message in enumerate(messages):
        new = dict(message)
        content = message.get("content", "")
        if content.strip():
            new["content"] = marked(content, owner)
        calls: list[Any] = []
        for call in message.get("tool_calls", ()):
            function = call.get("function", call)
            named = {**function, "name": marked(function["name"], owner)}
            calls.append({**call, "function": named} if "function" in call else named)
        if calls:
            new["tool_calls"] = calls
        changed.append(new)
    return changed, owners


PLAIN = """\
{%- for message in messages %}
    {{- message.content }}
    {%- if message.role == 'assistant' %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + (call.function or call) | tojson + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|start_header_id|>tools<|end_header_id|>\\n\\n' + tools | tojson + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.content %}
        {{- message.content | trim }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- (call.function or call) | tojson }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

ALPACA = """\
{%- set headings = {'user': '### Instruction:\\n', 'assistant': '### Response:\\n',
    'system': ''} %}
{%- for message in messages %}
    {%- if message.role not in headings %}
        {{- raise_exception('alpaca has the roles system, user and assistant, and no '
            + message.role) }}
    {%- endif %}
    {%- if loop.first and message.role == 'user' %}
        {{- 'Below is an instruction that describes a task' }}
        {{- ', paired with an input that provides further context' if message.input else '' }}
        {{- '. Write a response that appropriately completes the request.\\n\\n' }}
    {%- endif %}
    {%- set content = message.content or '' %}
    {%- if message.input %}
        {%- set content = content.replace('\\n\\n' + message.input,
            '\\n\\n### Input:\\n' + message.input, 1) %}
    {%- endif %}
    {{- headings[message.role] + content }}
    {{- eos_token if message.role == 'assistant' else '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '### Response:\\n' }}
{%- endif %}"""

NAMED: Mapping[str, str] = {"plain": PLAIN, "alpaca": ALPACA, "chatml": CHATML, "llama3": LLAMA3}


def fitting_template(choice: str | None, where: str, facts: ChatFacts) -> ChatTemplate:
    """Chat template of a source, checked against the tokenizer's tokens.

    Arguments:
        choice: name or file of a template; None: the tokenizer's own template.
        where: path of the field, for messages.

    Raises:
        SetpointError: there is no template, Jinja cannot parse it, or one of its tokens is missing.
    """
    templates, valid = facts.templates, f"{', '.join(NAMED)}, or a file that ends in .jinja"
    names = ", ".join(templates)
    if choice is None and "default" in templates:
        source, title = templates["default"], f"the chat template of {facts.title}"
    elif choice is None:
        more = f"; it has {names}" if templates else ""
        raise SetpointError(f"{where}: {facts.title} has no chat template{more}.\nValid: {valid}.")
    elif choice in NAMED:
        source, title = NAMED[choice], f"the chat template {choice!r}"
    elif choice in templates:
        source, title = templates[choice], f"the chat template {choice!r} of {facts.title}"
    else:
        try:
            with open(os.path.expanduser(choice), encoding="utf-8") as file:
                source, title = file.read(), f"the chat template {choice}"
        except FileNotFoundError:
            more = f"; of {facts.title}: {names}" if templates else ""
            raise MissingPathError(
                f"{where}: {choice!r} is neither the name of a chat template nor a file.\n"
                f"Valid: {valid}{more}."
            ) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SetpointError(
                f"{where}: {choice} cannot be read: {reason}.\nValid: {valid}."
            ) from None
    code = _COMMENT.sub("", source)
    if not any(re.search(r"\bmessages\b", part) for part in _CODE.findall(code)):
        raise SetpointError(
            f"{where}: {title} never writes `messages`, so it is not a chat template.\n"
            "Valid: a Jinja template with a loop over messages, each with role and content: "
            "{% for message in messages %}...{% endfor %}."
        )
    as_text = [token for token in template_tokens(source) if token not in facts.tokens]
    # Zephyr and TinyLlama write <|user|> as text. A template of ours needs its control tokens.
    missing = as_text if choice in NAMED else []
    for name in ("bos_token", "eos_token"):
        asks = re.search(rf"\b{name}\s*(is\s+(not\s+)?(defined|none)|\|\s*default)", code)
        if name not in facts.variables and re.search(rf"\b{name}\b", code) and not asks:
            missing.append(name)
    if missing:
        known = [control for control in facts.controls if _CONTROL.fullmatch(control)][:8]
        raise SetpointError(
            f"{where}: {title} writes {', '.join(missing)}, and {facts.title} has "
            f"{', '.join(known) or 'no such tokens'}.\nValid: a template that writes tokens of "
            "this tokenizer, such as plain; tokenizer.added with these, for pretrained weights; "
            "a tokenizer that has them, as `setpoint tokenizer train --template` makes it."
        )
    try:
        return ChatTemplate(source, title, facts.variables, facts.controls, as_text)
    except SetpointError as error:
        raise SetpointError(f"{where}: {error}.\nValid: {valid}.") from None


def with_controls(text: str, controls: Sequence[str]) -> tuple[TextPiece, ...]:
    """Split a text into pieces at the control tokens spelled in it."""
    pattern = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    return tuple(TextPiece(part, index % 2 == 1) for index, part in enumerate(parts) if part)


def template_tokens(source: str) -> list[str]:
    """Control tokens in the text of a template."""
    return list(dict.fromkeys(_CONTROL.findall(_COMMENT.sub("", source))))
