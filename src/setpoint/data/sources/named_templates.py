"""The chat templates that are known by name, and which template a source has.

Nothing here imports numpy, Jinja or torch: `setpoint check` reads this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from setpoint.config import SetpointError
from setpoint.data.sources.chat_template import compile_template
from setpoint.data.tokenizers.vocabulary import ChatFacts

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
    {{- headings[message.role] + (message.content or '') }}
    {{- eos_token if message.role == 'assistant' else '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '### Response:\\n' }}
{%- endif %}"""

NAMED: Mapping[str, str] = {"plain": PLAIN, "alpaca": ALPACA, "chatml": CHATML, "llama3": LLAMA3}

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_CONTROL = re.compile(r"<[|\uff5c][^\s<>|\uff5c'\"]{1,40}[|\uff5c]>")


class Template(NamedTuple):
    """A template and what messages call it."""

    source: str
    title: str


def fitting_template(wanted: str | None, where: str, facts: ChatFacts) -> Template:
    """The chat template that a source names, or that of the tokenizer, which has its tokens.

    Arguments:
        wanted: a name, or a file; None for the tokenizer's own.
        where: the path of the field, for messages.

    Raises:
        SetpointError: there is no template, or a token of it is missing.
    """
    template = _find(wanted, where, facts)
    code = _CODE.findall(_COMMENT.sub("", template.source))
    if not any(re.search(r"\bmessages\b", each) for each in code):
        raise SetpointError(
            f"{where}: {template.title} never writes `messages`, so it is no chat template.\n"
            "Valid: a Jinja template with a loop over messages, each with role and content: "
            "{% for message in messages %}...{% endfor %}."
        )
    missing = missing_tokens(template.source, facts.tokens, facts.variables)
    if missing:
        have = [each for each in facts.controls if _CONTROL.fullmatch(each)][:8]
        raise SetpointError(
            f"{where}: {template.title} writes {', '.join(missing)}, and {facts.title} has "
            f"{', '.join(have) or 'no such token'}.\nValid: a template that writes tokens of this "
            "tokenizer, such as plain; a tokenizer that has these, as `setpoint tokenizer train "
            "--template` makes it."
        )
    return template


def _find(wanted: str | None, where: str, facts: ChatFacts) -> Template:
    own, valid = facts.templates, f"{', '.join(NAMED)}, or a file that ends in .jinja"
    if wanted is None:
        if "default" in own:
            return Template(own["default"], f"the chat template of {facts.title}")
        more = f"; it has {', '.join(own)}" if own else ""
        raise SetpointError(
            f"{where}: {facts.title} has no chat template of its own{more}.\nValid: {valid}."
        )
    if wanted in NAMED:
        return Template(NAMED[wanted], f"the chat template {wanted!r}")
    if wanted in own:
        return Template(own[wanted], f"the chat template {wanted!r} of {facts.title}")
    try:
        with open(os.path.expanduser(wanted), encoding="utf-8") as file:
            template = Template(file.read(), f"the chat template {wanted}")
    except FileNotFoundError:
        more = f"; of {facts.title}: {', '.join(own)}" if own else ""
        raise SetpointError(
            f"{where}: {wanted!r} is the name of no chat template, and no file.\n"
            f"Valid: {valid}{more}."
        ) from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SetpointError(
            f"{where}: {wanted} cannot be read: {reason}.\nValid: {valid}."
        ) from None
    try:
        compile_template(*template)
    except SetpointError as error:
        raise SetpointError(f"{where}: {error}.\nValid: {valid}.") from None
    return template


def missing_tokens(source: str, tokens: Collection[str], variables: Collection[str]) -> list[str]:
    """What a template writes that a tokenizer does not have.

    Arguments:
        tokens: all tokens of the tokenizer.
        variables: those that its settings give names to, such as `bos_token`.

    Returns:
        control tokens such as <|im_end|>, and names of tokens such as `bos_token`.
    """
    missing = [each for each in template_tokens(source) if each not in tokens]
    return [*missing, *_unnamed(_COMMENT.sub("", source), variables)]


def template_tokens(source: str) -> list[str]:
    """The control tokens that a template spells."""
    return list(dict.fromkeys(_CONTROL.findall(_COMMENT.sub("", source))))


def _unnamed(code: str, variables: Collection[str]) -> Iterator[str]:
    for name in ("bos_token", "eos_token"):
        asks = re.search(rf"\b{name}\s*(is\s+(not\s+)?(defined|none)|\|\s*default)", code)
        if name not in variables and re.search(rf"\b{name}\b", code) and not asks:
            yield name
