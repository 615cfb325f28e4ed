"""Training byte-level BPE (GPT-2, Radford et al., 2019) on the texts that a job trains on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from setpoint.config import SetpointError
from setpoint.data.config import Data
from setpoint.data.document import Document
from setpoint.data.reading import DocumentFilter, documents_of, training_documents
from setpoint.data.sources.chat import NAMED, template_tokens
from setpoint.data.sources.config import Filter
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.data.vocabulary import EXTRA, SETTINGS, TEMPLATE, TOKENIZER
from setpoint.shapes.protocols import Work, no_work
from setpoint.version import VERSION

END, BEGIN = "<|endoftext|>", "<|begin_of_text|>"
ABOUT = "training.json"
SMALLEST = 256
"""Size of the byte alphabet, which encodes any text."""
ONCE = 2
"""Minimum occurrences of a pair to be merged."""

# Words with a leading space, up to three digits, punctuation, and white space: merges stay inside.
SPLIT = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GIVEN = 256  # documents per batch
SAMPLE = 1 << 20  # bytes of the sample for bytes_per_token


@dataclass(slots=True)
class TrainedTokenizer:
    """A trained tokenizer, with statistics of its training data.

    Arguments:
        tokenizer: object of the package `tokenizers`.
        files: contents of its folder, by name.
        bytes_per_token: mean over the first megabyte of text.
    """

    tokenizer: Any
    files: dict[str, str]
    documents: int
    bytes: int
    vocab_size: int
    bytes_per_token: float


class TrainingTexts:
    """Iterator over batches of training texts, with statistics."""

    def __init__(self, config: Data, show: Work) -> None:
        self.config = config
        self.show = show
        self.documents = self.bytes = 0
        self.digest = hashlib.sha256()
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[list[str]]:
        given: list[str] = []
        for document in training_side(self.config):
            try:
                given.append(document.data.decode())
            except UnicodeDecodeError as error:
                raise SetpointError(
                    f"data.sources: the document '{document.name}' is not UTF-8: byte "
                    f"{error.start} is {document.data[error.start]:#04x}.\nValid: text in UTF-8."
                ) from None
            if self.bytes < SAMPLE:
                self.sample.append(given[-1])
            self.documents += 1
            self.bytes += document.size
            self.digest.update(hashlib.sha256(document.data).digest())
            self.show("reading documents", self.documents, None)
            if len(given) == GIVEN:
                yield given
                given = []
        yield given


def training_side(config: Data) -> Iterator[Document]:
    """The training documents of a job as texts.

    Raises:
        SetpointError: a source cannot be read, or has token ids instead of text.
    """
    held_out = 0.0 if config.validation else config.held_out
    sources = range(len(config.sources))
    separate = config.is_mixture and held_out < 1
    for group in [[index] for index in sources] if separate else [sources]:

        def read(group: Sequence[int] = group) -> Iterator[Document]:
            return chain.from_iterable(_texts(config, index) for index in group)

        has_answers = any(config.sources[index].has_answers for index in group)
        yield from training_documents(read, held_out, not has_answers) if held_out else read()


def _texts(config: Data, index: int) -> Iterator[Document]:
    section, where = config.sources[index], f"data.sources.{index}"
    source: Any = section.build(where=where)
    if hasattr(source, "texts"):
        # Limits on length are in tokens, and there is no tokenizer yet.
        part = section.filter and Filter(shards=section.filter.shards, shard=section.filter.shard)
        yield from (
            DocumentFilter(part, where=where).apply(source.texts()) if part else source.texts()
        )
    elif hasattr(source, "tokenized"):
        raise SetpointError(
            f"{where}: has token ids, but a tokenizer is trained on text.\n"
            f"Valid: --{where}.delete, or sources of text."
        )
    else:
        yield from documents_of(section, where, ByteTokenizer())


def train_bpe(
    config: Data,
    vocab_size: int,
    *,
    special: Sequence[str] = (),
    template: str | None = None,
    show: Work = no_work,
) -> TrainedTokenizer:
    """Train a tokenizer on the training data, deterministically.

    Arguments:
        special: control tokens in addition to the end of text.
        template: one of `NAMED`; it is added to the tokenizer together with its control tokens.

    Raises:
        SetpointError: the package is missing, the vocabulary is too small, or there is no text.
    """
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"training a tokenizer needs the package {error.name!r}: install {EXTRA}"
        ) from None
    source = NAMED[template] if template is not None else ""
    controls = [END, *special, *[BEGIN] * ("bos_token" in source), *template_tokens(source)]
    controls = list(dict.fromkeys(controls))
    least = SMALLEST + len(controls)
    if vocab_size < least:
        raise SetpointError(
            f"--vocab-size: {vocab_size} is less than {least}: 256 bytes and "
            f"{', '.join(controls)}.\nValid: {least} or more; 4096 is small, 32768 is usual."
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=ONCE,
        special_tokens=controls,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = TrainingTexts(config, show)
    bpe.train_from_iterator(texts, trainer)
    if not texts.bytes:
        raise SetpointError("data.sources: there is no training text.\nValid: a source with text.")
    settings = {
        "eos_token": END,
        **({"bos_token": BEGIN} if BEGIN in controls else {}),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    about = {
        "made_by": f"setpoint tokenizer train, version {VERSION}",
        "vocab_size": vocab_size,
        "control_tokens": controls,
        "documents": texts.documents,
        "bytes": texts.bytes,
        "digest": texts.digest.hexdigest(),
        "data": config.to_dict(),
    }
    files = {
        TOKENIZER: bpe.to_str(pretty=True) + "\n",
        SETTINGS: json.dumps(settings, indent=2) + "\n",
        ABOUT: json.dumps(about, indent=2) + "\n",
    }
    if template is not None:
        files[TEMPLATE] = source
    sample = [len(text.encode()) for text in texts.sample]
    tokens = sum(len(encoding.ids) for encoding in bpe.encode_batch(texts.sample))
    return TrainedTokenizer(
        bpe, files, texts.documents, texts.bytes, bpe.get_vocab_size(), sum(sample) / tokens
    )
