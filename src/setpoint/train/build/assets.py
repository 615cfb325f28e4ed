"""Assets of checkpoints: tokenizer and model files, which can replace missing originals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from setpoint.checkpoint.places import newest_whole
from setpoint.config import SetpointError
from setpoint.data.config import HuggingFace
from setpoint.data.sources.config import Conversations, SourceConfig
from setpoint.data.vocabulary import TEMPLATE, TOKENIZER, find_tokenizer
from setpoint.model.config import HuggingFaceConfig
from setpoint.model.pretrained.locate import (
    CONFIG,
    DESCRIPTION,
    GENERATION,
    TOKENIZER_FILES,
    read_keys,
)

if TYPE_CHECKING:
    from setpoint.data.sources.chat import ChatTemplate
    from setpoint.data.tokenizer import ChatTokenizer, Tokenizer
    from setpoint.model.config import ModelConfig
    from setpoint.train.config import Job

Assets = dict[str, bytes]
"""File name to content."""

NAMES = (*TOKENIZER_FILES, GENERATION, DESCRIPTION)


def assets_of(
    model: ModelConfig,
    tokenizer: Tokenizer,
    pretrained: Mapping[str, Any] | None,
    keys: Mapping[str, Any] | None = None,
    sources: Sequence[SourceConfig] = (),
) -> Assets:
    """Read the source files of the model and the tokenizer of a new run.

    Arguments:
        pretrained: the result of `start_from`; None for random weights.
        keys: the config.json of a transformers model; None: as named by the model section.
        sources: the sources of the training data.

    Returns:
        the files of a Hugging Face tokenizer; for a Hugging Face model that the run starts from or
        trains, its generation settings and its config.json, as `DESCRIPTION`; and for a run on
        conversations the first chat template among the sources. The generation settings list all
        tokens that end a text.

    Raises:
        SetpointError: a file cannot be read.
    """
    from setpoint.data.tokenizer import HuggingFaceTokenizer

    files: Assets = {}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        file = find_tokenizer(tokenizer.path)
        files = _read({n: file if n == TOKENIZER else file.with_name(n) for n in TOKENIZER_FILES})
        if tokenizer.added:
            files[TOKENIZER] = tokenizer.document.encode()
    same_tokenizer = False
    if pretrained is not None:
        start = Path(pretrained["directory"])
        config = CONFIG if pretrained["kind"] == "huggingface" else DESCRIPTION
        tokenizer_file = _read({TOKENIZER: start / TOKENIZER})
        same_tokenizer = bool(tokenizer_file) and tokenizer_file.items() <= files.items()
        files |= _read({GENERATION: start / GENERATION, DESCRIPTION: start / config})
    if isinstance(model, HuggingFaceConfig):
        # Without the values that the section overrides, which are in its record.
        if keys is None:
            from setpoint.model.huggingface.architecture import config_keys

            keys = config_keys(model)
        files[DESCRIPTION] = json.dumps(keys, indent=2).encode()
    templates = [*_templates(sources, tokenizer)]
    if not files and not templates:
        return files
    from setpoint.model.pretrained.save_pretrained import as_eos, declared_ends, fitting_ends

    settings, config_json = (
        json.loads(files.get(name, b"{}")) for name in (GENERATION, DESCRIPTION)
    )
    ends = declared_ends(settings, config_json)
    if not same_tokenizer:
        ends = fitting_ends(ends, tokenizer.token_bytes.tolist())
    if templates:
        files[TEMPLATE] = templates[0].source.encode()
        ids = cast("ChatTokenizer", tokenizer).chat.tokens
        turns = [ids[template.turn_end] for template in templates if template.turn_end is not None]
        ends = [*dict.fromkeys([*ends, tokenizer.separator, *turns])]
    if ends:
        settings["eos_token_id"] = as_eos(ends)
        files[GENERATION] = json.dumps(settings, indent=2).encode()
    return files


def _templates(sources: Sequence[SourceConfig], tokenizer: Tokenizer) -> Iterator[ChatTemplate]:
    for source in sources:
        if isinstance(source, Conversations):
            from setpoint.data.sources.conversations import ConversationsSource

            # Rows of tokens need no template; if others lack one, reading them reports it.
            with suppress(SetpointError):
                yield ConversationsSource(source).template(tokenizer)


def assets_in(checkpoint: Path) -> Assets:
    """Read the assets of a checkpoint.

    Raises:
        SetpointError: a file cannot be read.
    """
    return _read({name: checkpoint / name for name in NAMES})


def _read(files: Mapping[str, Path]) -> Assets:
    contents: Assets = {}
    for name, file in files.items():
        try:
            contents[name] = file.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SetpointError(f"{file} cannot be read: {error.strerror}") from error
    return contents


class FallbackFiles(NamedTuple):
    """Checkpoints that replace missing original files; None: the original is read.

    Arguments:
        tokenizer: replaces `tokenizer.path`.
        model: replaces the config.json at `model.config`.
    """

    tokenizer: Path | None = None
    model: Path | None = None

    @property
    def fields(self) -> set[str]:
        """The fields that name the files that may be missing."""
        fields = {"tokenizer.path": self.tokenizer, "model.config": self.model}
        return {field for field, checkpoint in fields.items() if checkpoint is not None}


def fallback_files(job: Job, path: str | Path) -> FallbackFiles:
    """Find missing files that are contained in the newest valid checkpoint of a run.

    Arguments:
        path: the run directory.
    """
    tokenizer = isinstance(job.tokenizer, HuggingFace) and _is_missing(job.tokenizer.path)
    model = isinstance(job.model, HuggingFaceConfig) and _is_missing(job.model.config)
    if not tokenizer and not model:
        return FallbackFiles()
    _, checkpoint = newest_whole(Path(path) / "checkpoints")
    if checkpoint is None:
        return FallbackFiles()
    if model:  # which may keep only the name of a kind of models
        assert isinstance(job.model, HuggingFaceConfig)
        kind = {"model_type": job.model.config}
        model = (checkpoint / DESCRIPTION).is_file() and read_keys(checkpoint, DESCRIPTION) != kind
    tokenizer = tokenizer and (checkpoint / TOKENIZER).is_file()
    return FallbackFiles(checkpoint if tokenizer else None, checkpoint if model else None)


def _is_missing(place: str) -> bool:
    return not os.path.exists(os.path.expanduser(place))


def fallback_notes(job: Job, files: FallbackFiles) -> Iterator[str]:
    """List the files that are read from a checkpoint."""
    if files.tokenizer is not None:
        assert isinstance(job.tokenizer, HuggingFace)
        yield (
            f"tokenizer: {job.tokenizer.path} no longer exists; using the copy in {files.tokenizer}"
        )
    if files.model is not None:
        assert isinstance(job.model, HuggingFaceConfig)
        yield (
            f"model: there is no config.json in {job.model.config}; using the copy in {files.model}"
        )
