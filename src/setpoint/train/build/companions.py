"""What a checkpoint keeps beside its weights, so that they can be used without other files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from setpoint.config import SetpointError
from setpoint.data.sources.config import Conversations, SourceConfig
from setpoint.data.sources.conversations import ConversationsSource
from setpoint.data.tokenizers.huggingface import HuggingFaceTokenizer
from setpoint.data.tokenizers.tokenizer import ChatTokenizer
from setpoint.data.tokenizers.vocabulary import TEMPLATE, TOKENIZER, find_tokenizer
from setpoint.model.config import HuggingFaceModel
from setpoint.model.huggingface.architecture import config_keys
from setpoint.model.pretrained.hub import GENERATION, TOKENIZER_FILES
from setpoint.model.pretrained.locate import CONFIG
from setpoint.model.pretrained.run import DESCRIPTION
from setpoint.model.pretrained.save import as_eos, declared_ends, fitting_ends

if TYPE_CHECKING:
    from setpoint.data.sources.chat_template import ChatTemplate
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.model.config import ModelConfig

Companions = dict[str, bytes]
"""File name to content."""

NAMES = (*TOKENIZER_FILES, GENERATION, DESCRIPTION)


def companions_of(
    model: ModelConfig,
    tokenizer: Tokenizer,
    pretrained: Mapping[str, Any] | None,
    keys: Mapping[str, Any] | None = None,
    sources: Sequence[SourceConfig] = (),
) -> Companions:
    """Read the files that the model and the tokenizer of a new run come from.

    Arguments:
        pretrained: what `start_from` returned; None for random weights.
        keys: of the config.json of a model of transformers; None: of the one that it names.
        sources: what is trained on.

    Returns:
        the files of a Hugging Face tokenizer; of a Hugging Face model that the run starts from or
        trains, its settings for generation and its config.json, as `DESCRIPTION`; and of a run on
        conversations the chat template of the first source that has one. The settings for
        generation name all tokens that end a text.

    Raises:
        SetpointError: if a file cannot be read.
    """
    found: Companions = {}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        file = find_tokenizer(tokenizer.path)
        found = _read({n: file if n == TOKENIZER else file.with_name(n) for n in TOKENIZER_FILES})
        if tokenizer.added:
            found[TOKENIZER] = tokenizer.document.encode()
    same_tokenizer = False
    if pretrained is not None:
        start = Path(pretrained["directory"])
        config = CONFIG if pretrained["kind"] == "huggingface" else DESCRIPTION
        beside = _read({TOKENIZER: start / TOKENIZER})
        same_tokenizer = bool(beside) and beside.items() <= found.items()
        found |= _read({GENERATION: start / GENERATION, DESCRIPTION: start / config})
    if isinstance(model, HuggingFaceModel):
        # Without what the section overrides, which is in its record.
        keys = config_keys(model) if keys is None else keys
        found[DESCRIPTION] = json.dumps(keys, indent=2).encode()
    settings, config_json = (
        json.loads(found.get(name, b"{}")) for name in (GENERATION, DESCRIPTION)
    )
    ends = declared_ends(settings, config_json)
    if not same_tokenizer:
        ends = fitting_ends(ends, tokenizer.token_bytes.tolist())
    templates = [*_templates(sources, tokenizer)]
    if templates:
        found[TEMPLATE] = templates[0].source.encode()
        ids = cast(ChatTokenizer, tokenizer).chat.tokens
        turns = [ids[each.turn_end] for each in templates if each.turn_end is not None]
        ends = [*dict.fromkeys([*ends, tokenizer.separator, *turns])]
    if ends:
        settings["eos_token_id"] = as_eos(ends)
        found[GENERATION] = json.dumps(settings, indent=2).encode()
    return found


def _templates(sources: Sequence[SourceConfig], tokenizer: Tokenizer) -> Iterator[ChatTemplate]:
    for source in sources:
        if isinstance(source, Conversations):
            # Rows of tokens need none; where others do, reading them has said so.
            with suppress(SetpointError):
                yield ConversationsSource(source).template(tokenizer)


def companions_in(checkpoint: Path) -> Companions:
    """Read what a checkpoint keeps.

    Returns:
        its files.

    Raises:
        SetpointError: if a file cannot be read.
    """
    return _read({name: checkpoint / name for name in NAMES})


def _read(files: Mapping[str, Path]) -> Companions:
    found: Companions = {}
    for name, file in files.items():
        try:
            found[name] = file.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SetpointError(f"{file} cannot be read: {error.strerror}") from error
    return found
