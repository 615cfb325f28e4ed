"""The sections `data` and `tokenizer`: the text to train on, its split and its tokens.

This file imports neither numpy nor torch, because `setpoint check` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple

from setpoint.config import (
    IDENTITY,
    RUNTIME,
    Config,
    Invalid,
    Problem,
    Rule,
    dead,
    derive,
    derived,
    field,
    resolve,
    rule,
)
from setpoint.data.sources.config import (
    Random,
    SourceConfig,
    Stdlib,
    Text,
    unmixed_problems,
)
from setpoint.units import ByteSize, Length

PLAIN = (Text, Stdlib, Random)
# 256 bytes and the separator; the tokenizer itself needs numpy. A test compares the two.
BYTES_VOCABULARY = 257
NO_WORKERS = "with workers = 0 the main process makes batches on demand"


class WorkerOptions(NamedTuple):
    """Options of worker processes; see the fields of `Loader`."""

    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False
    timeout: float | None = None

    def on(self, device: str) -> WorkerOptions:
        """The options for a type of device; only batches for a GPU are pinned."""
        return self._replace(pin_memory=self.pin_memory and device == "cuda")


class EvaluationLoader(Config, role=RUNTIME):
    """Worker processes of evaluation, apart from those of training.

    They live from the first evaluation to the end of the run, and serve all validation sets.
    """

    workers: int | None = field(default=None, ge=0, le=1024)
    """Number of worker processes of each rank; null: as many as for training."""

    prefetch: int | None = field(default=None, ge=1)
    """Prefetch factor: batches that each worker makes ahead; null: as in training."""

    pin_memory: bool | None = None
    """Page-locked memory for batches that go to a GPU; null: as in training."""

    timeout: float | None = field(default=None, gt=0, lt=inf)
    """Seconds to wait for a worker before it counts as hanging; null: as in training."""


class Loader(Config, role=RUNTIME):
    """Worker processes that make batches ahead of their use, without changing them."""

    workers: int = field(default=0, ge=0, le=1024)
    """Number of worker processes of each rank; 0: batches are made in the main process."""

    prefetch: int = field(default=2, ge=1)
    """Prefetch factor: micro-batches that each worker makes ahead."""

    pin_memory: bool = True
    """Page-locked memory for batches, so that copying them to a GPU overlaps with computing; no
    effect on a CPU."""

    timeout: float | None = field(default=None, gt=0, lt=inf)
    """Seconds after which a worker counts as hanging, which ends the run and names what it was
    reading; null: never."""

    evaluation: EvaluationLoader = field(factory=EvaluationLoader)
    """Worker processes of evaluation."""

    @property
    def of_training(self) -> WorkerOptions:
        """Workers for training."""
        return WorkerOptions(self.workers, self.prefetch, self.pin_memory, self.timeout)

    @property
    def of_evaluation(self) -> WorkerOptions:
        """Workers for evaluations."""
        overrides = {name: getattr(self.evaluation, name) for name in WorkerOptions._fields}
        given = {name: value for name, value in overrides.items() if value is not None}
        return self.of_training._replace(**given)

    @dead("prefetch", "pin_memory", "timeout", holds=(False,))
    def _options_are_dead(self) -> str | None:
        return None if self.workers or self.of_evaluation.workers else NO_WORKERS

    @dead("evaluation.prefetch", "evaluation.pin_memory", "evaluation.timeout", holds=(False,))
    def _options_of_evaluation_are_dead(self) -> str | None:
        return None if self.of_evaluation.workers else NO_WORKERS


class Packing(Config, role=IDENTITY):
    """Packing of documents into the rows of training batches."""

    method: Literal["concatenate", "next_fit", "first_fit_decreasing", "none"] = derived()
    """Packing method. concatenate: one stream of documents, cut into rows; next_fit: whole
    documents until the next one does not fit; first_fit_decreasing: the longest documents first,
    each into the first row with room; none: one document per row. By default concatenate; with
    conversations or questions next_fit, or none where the model cannot isolate documents."""

    isolate: bool = derived()
    """Document isolation: tokens attend only to their own document, and position ids restart in
    each; also in evaluation. By default off for concatenate, and for none where the model cannot
    isolate documents; else on."""

    too_long: Literal["split", "truncate", "drop", "error"] = "split"
    """Documents longer than a row. split: text into parts of a row's length, conversations keep the
    start; truncate: keep the start; drop: leave out; error: refuse to train."""

    group_size: int = field(default=100_000, ge=1)
    """Number of documents, consecutive in the order of the epoch, that are packed together; for a
    streamed source at most `data.shuffle_buffer`."""

    length_buckets: bool = False
    """Length buckets: among `group_size` documents, those of similar length share a step."""

    pad_to_multiple_of: int | None = field(default=None, ge=1)
    """Pad rows to the longest of the micro-batch, rounded up to a multiple of this; null: to
    batch.sequence_length."""

    @derive("method")
    def _derive_method(self) -> str:
        return "concatenate"

    @derive("isolate")
    def _derive_isolate(self) -> bool:
        return self.method != "concatenate"

    @dead("too_long")
    def _too_long_is_dead(self) -> str | None:
        return (
            None
            if self.method != "concatenate"
            else "concatenate cuts documents at the ends of rows"
        )

    @dead("group_size")
    def _group_size_is_dead(self) -> str | None:
        if self.method == "concatenate":
            return "concatenate does not pack groups"
        lengths = self.length_buckets or self.method != "none"
        return None if lengths else "method = none does not pack groups"

    @dead("length_buckets")
    def _length_buckets_is_dead(self) -> str | None:
        return None if self.method == "none" else "rows are full with any method but none"

    @dead("pad_to_multiple_of")
    def _pad_to_multiple_of_is_dead(self) -> str | None:
        return None if self.method != "concatenate" else "concatenate leaves nothing to pad"


class Prepare(Config, role=RUNTIME):
    """Prepared data: tokens kept in a cache and mapped into memory; they never change a run."""

    folder: str | None = None
    """Cache folder of prepared data; null: setpoint/data in $XDG_CACHE_HOME or ~/.cache."""

    above: ByteSize | None = ByteSize(2**28)
    """Minimum size of the text for which a run prepares its data before training; null: never, use
    only what `setpoint data prepare` made."""

    workers: int | None = field(default=None, ge=1, le=1024)
    """Number of processes that tokenize; null: one per core. The tokens do not depend on it."""

    @rule
    def _check_folder(self) -> Iterator[Problem]:
        if self.folder == "":
            yield Problem("folder", "is empty", valid=("null", "prepared"))


class Mixture(Config, role=IDENTITY):
    """Mixture of sources that have weights."""

    temperature: float = field(default=1.0, gt=0, lt=inf)
    """Temperature of the weights: shares are proportional to weight^(1/temperature); above 1 they
    are more even."""

    by: Literal["sequences", "tokens"] = "sequences"
    """Unit of the weights: sequences, or the tokens in them, which differ where rows hold whole
    documents."""


PHASE_UNITS = ("steps", "tokens")
"""Units of the start of a phase."""


class MixturePhase(Config, role=IDENTITY):
    """Part of the run with its own weights."""

    start: Length
    """Start of the phase in steps or tokens from the start of the run ("1e9 tokens"), later than
    the phase before."""

    weights: dict[str, float] = field(factory=dict)
    """Weights of sources by name; others keep their `data.sources.*.weight`."""

    lr_factor: float = field(default=1.0, ge=0, lt=inf)
    """Factor on the learning rate in this phase, on top of the schedule's."""

    @rule
    def _check_start(self) -> Iterator[Problem]:
        if self.start.unit not in PHASE_UNITS or not self.start.count:
            yield Problem("start", "is not a number of steps or tokens above 0",
                          valid=("2000 steps", "1e9 tokens"))  # fmt: skip

    @rule
    def _check_weights(self) -> Iterator[Problem]:
        for name, weight in self.weights.items():
            if not 0 <= weight < inf:
                yield Problem(f"weights.{name}", "is out of range", valid=("0 or more",))


class Curriculum(Config, role=IDENTITY):
    """Order of the documents by difficulty, the same in each epoch."""

    by: Literal["length", "score"] = "length"
    """Key of the order. length: tokens of each document; score: the field that
    `data.sources.*.score` names. Documents with equal keys keep the order of the sources."""

    descending: bool = False
    """Descending order: the longest or highest first."""


class Data(Config, role=IDENTITY, owner="setpoint.data.sides:read_sides"):
    """Training and validation data."""

    sources: tuple[SourceConfig, ...] = field(factory=lambda: (Stdlib(),))
    """Training data sources, one or several."""

    held_out: float = field(default=0.05, ge=0, lt=inf)
    """Validation split: fraction of documents held out, at least one, or the ends of the texts
    where there are only one or two; values of 1 and above are a number of documents. 0: none.
    Documents are chosen by the hashes of their names."""

    validation: tuple[SourceConfig, ...] = ()
    """Validation data sources instead of a split of `sources`; all of their documents are held
    out."""

    shuffle_buffer: int = field(default=10_000, ge=1)
    """Shuffle buffer of streamed sources: documents that are read and shuffled as a block. 1: file
    order."""

    mixture: Mixture = field(factory=Mixture)
    """Mixture of the sources; applies where sources have a weight."""

    phases: tuple[MixturePhase, ...] = ()
    """Phases of the mixture, by rising start: other weights and learning rates from there on."""

    anneal: MixturePhase | None = None
    """Annealing: a final phase; null: none."""

    shuffle: bool = True
    """Reshuffle the training data in each epoch. false: each epoch reads it in source order: paths
    as listed, files of a folder or glob by name, rows in file order."""

    curriculum: Curriculum | None = None
    """Curriculum: documents in the order of their length or score; null: as set by `shuffle`."""

    seed: int | None = field(default=None, ge=0, lt=2**63)
    """Seed of the order of the training data; null: the job's."""

    packing: Packing = field(factory=Packing)
    """Packing of documents into rows."""

    loader: Loader = field(factory=Loader)
    """Data loader: worker processes and prefetching."""

    prepare: Prepare = field(factory=Prepare)
    """Prepared data: the cache of tokens."""

    @property
    def is_mixture(self) -> bool:
        """True if sources are sampled by weight, each with its own epochs."""
        return any(source.weight is not None for source in self.sources)

    @property
    def is_shuffled(self) -> bool:
        """True if each epoch has a random order."""
        return self.shuffle and self.curriculum is None

    @property
    def has_answers(self) -> bool:
        """True if a training source has question-answer pairs, which rows keep whole."""
        return any(source.has_answers for source in self.sources)

    @property
    def streams(self) -> tuple[SourceConfig, ...]:
        """The streamed sources."""
        return tuple(source for source in self.sources if source.is_streamed)

    def packing_of(self, sources: Sequence[SourceConfig]) -> Packing:
        """Packing of evaluation sources: the same as in training, where it suits them.

        If training concatenates plain text, conversations are not packed; if training has only
        conversations, plain text is concatenated.
        """
        if self.packing.method == "concatenate":
            if any(source.has_answers for source in sources) and not self.has_answers:
                return resolve(Packing(method="none"))
        elif all(source.has_answers for source in self.sources) and all(
            isinstance(source, PLAIN) for source in sources
        ):
            return resolve(Packing(method="concatenate"))
        return self.packing

    @property
    def all_phases(self) -> tuple[MixturePhase, ...]:
        """All phases after the initial one, in which the weights are those of the sources."""
        return self.phases if self.anneal is None else (*self.phases, self.anneal)

    @rule
    def _check_mixture(self) -> Iterator[Problem]:
        names = [source.name for source in self.sources]
        given = [index for index, source in enumerate(self.sources) if source.weight is not None]
        for index, source in enumerate(self.sources):
            if given and source.weight is None:
                yield Problem(
                    f"sources.{index}.weight",
                    f"is null, and data.sources.{given[0]}.weight is given",
                    valid=("1.0",),
                    hint="Give every source a weight, or none.",
                )
            if not given and source.epochs is not None:
                yield Problem(
                    f"sources.{index}.epochs",
                    "applies to mixtures only, and no source has a weight",
                    valid=("null",),
                    also=(f"sources.{index}.weight",),
                )
        if not given:
            for path in ("phases", "anneal"):
                if getattr(self, path):
                    yield Problem(
                        path,
                        "applies to mixtures only, and no source has a weight",
                        valid=("null",) if path == "anneal" else ("[]",),
                        also=("sources",),
                    )
            return
        weights = {source.name: source.weight or 0.0 for source in self.sources}
        phases = [(f"phases.{index}", phase) for index, phase in enumerate(self.phases)]
        phases += [("anneal", self.anneal)] if self.anneal is not None else []
        if not any(weights.values()):
            yield Problem("sources.0.weight", "is 0 for all sources", valid=("1.0",))
        before = weights, 1.0
        for path, phase in phases:
            now = weights | phase.weights, phase.lr_factor
            if now == before:
                yield Problem(path, "has no effect: weights and lr_factor are the same as before")
            before = now
            for name in phase.weights:
                if name not in weights:
                    yield Problem(
                        f"{path}.weights.{name}", "is not a source", valid=names, also=("sources",)
                    )
            if not any((weights | phase.weights).values()):
                yield Problem(f"{path}.weights", "are 0 for all sources")

    @rule
    def _check_streams(self) -> Iterator[Problem]:
        streams = self.streams
        for index, source in enumerate(self.sources):
            if not source.is_streamed:
                continue
            if len(self.sources) > 1 and not self.is_mixture:
                yield Problem(
                    f"sources.{index}.streaming",
                    "needs weights: sources without weights are read as one text",
                    valid=("false",),
                    also=(f"sources.{index}.weight",),
                    hint="Give every source a weight.",
                )
            field_name: str = getattr(source, "field", "")
            if field_name.rpartition(".")[2] == "input_ids":
                yield Problem(
                    f"sources.{index}.field",
                    "contains token ids, but only text can be streamed",
                    valid=("text",),
                    also=(f"sources.{index}.streaming",),
                )
            if source.epochs is not None:
                yield Problem(
                    f"sources.{index}.epochs",
                    "limits epochs, and the length of a streamed source is unknown",
                    valid=("null",),
                    also=(f"sources.{index}.streaming",),
                )
        if not streams:
            return
        if self.is_mixture and self.mixture.by == "tokens":
            yield Problem(
                "mixture.by",
                "needs the token count of the next row, which a streamed source does not know",
                valid=("sequences",),
                also=("sources",),
            )
        if self.packing.length_buckets:
            yield Problem(
                "packing.length_buckets",
                "sorts documents by length, and a streamed source does not know them in advance",
                valid=("false",),
                also=("sources",),
            )
        if self.held_out >= 1 and not self.validation:
            yield Problem(
                "held_out",
                "is a number of documents, and a streamed source does not know their total",
                valid=("0.05",),
                also=("sources",),
            )
        elif self.held_out and not self.validation and len(streams) < len(self.sources):
            yield Problem(
                "held_out",
                "splits sources that are either all streamed or all read whole",
                valid=("0",),
                also=("sources",),
                hint="Give data.validation, or evaluation = null with held_out = 0.",
            )

    @derive("packing.method")
    def _derive_method(self) -> str:
        return "next_fit" if self.has_answers else "concatenate"

    @dead("shuffle_buffer")
    def _shuffle_buffer_is_dead(self) -> str | None:
        if not self.streams:
            return "no source is streamed"
        if not self.shuffle and self.packing.method == "concatenate":
            return "nothing is shuffled"
        return None

    @dead("seed")
    def _seed_is_dead(self) -> str | None:
        if self.curriculum is not None:
            return "curriculum fixes the order"
        return None if self.shuffle else "shuffle = false keeps the order of the sources"

    @dead("shuffle")
    def _shuffle_is_dead(self) -> str | None:
        return None if self.curriculum is None else "curriculum fixes the order"

    @rule
    def _check_curriculum(self) -> Iterator[Problem]:
        by_score = self.curriculum is not None and self.curriculum.by == "score"
        for index, source in enumerate(self.sources):
            path = f"sources.{index}"
            # A section without it would look for the nearest name.
            has_scores = "score" in type(source).__setpoint__.fields
            score = getattr(source, "score", None) if has_scores else None
            if self.curriculum is not None and source.is_streamed:
                yield Problem(
                    f"{path}.streaming",
                    "cannot be combined with a curriculum, which sorts all documents in advance",
                    valid=("false",),
                    also=("curriculum",),
                )
            elif by_score and score is None:
                yield Problem(
                    "curriculum.by",
                    f"is score, and data.{path} has no `score`",
                    valid=("length",),
                    also=(path,),
                    hint=f"Set data.{path}.score where rows have one.",
                )
            elif score is not None and not by_score:
                yield Problem(
                    f"{path}.score",
                    "is used with curriculum.by = score only",
                    valid=("null",),
                    also=("curriculum",),
                )

    @rule
    def _check_validation(self) -> Iterator[Problem]:
        yield from unmixed_problems(self.validation, "validation")

    @dead("mixture.temperature")
    def _temperature_is_dead(self) -> str | None:
        return None if self.is_mixture else "no source has a weight"

    @dead("mixture.by")
    def _by_is_dead(self) -> str | None:
        if self.is_mixture and self.packing.method != "concatenate":
            return None
        concatenated = "all rows of concatenated text have the same number of tokens"
        return concatenated if self.is_mixture else "no source has a weight"

    @rule
    def _check_held_out(self) -> Iterator[Problem]:
        if self.held_out > 1 and not self.held_out.is_integer():
            yield Problem(
                "held_out",
                "is neither a fraction below 1 nor an integer number of documents",
                valid=("0.05", "1000"),
            )

    @dead("held_out", holds=(0.0,))
    def _held_out_is_dead(self) -> str | None:
        return "validation replaces it" if self.validation else None

    @rule
    def _check_sources(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", "is empty", valid=('[{type = "stdlib"}]',))
        for field_name, sources in (("sources", self.sources), ("validation", self.validation)):
            first: dict[str, int] = {}
            for index, source in enumerate(sources):
                if first.setdefault(source.name, index) != index:
                    yield Problem(
                        f"{field_name}.{index}.name",
                        f"is already the name of {field_name}.{first[source.name]}",
                        valid=(f"{source.name}-{index}",),
                        hint="Document names begin with the source name and have to be unique.",
                    )


class TokenizerConfig(Config, role=IDENTITY):
    """Tokenizer, which turns text into token ids."""


class Bytes(TokenizerConfig, type="bytes", owner="setpoint.data.tokenizer:ByteTokenizer"):
    """Each byte is a token, and token 256 separates documents: a vocabulary of 257."""


class TokenIds(TokenizerConfig, type="ids", owner="setpoint.data.tokenizer:IdTokenizer"):
    """No tokenizer: the data holds only token ids, in token files or rows of input_ids."""

    count: int = derived(ge=1)
    """Number of token ids, starting at 0. Default: model.vocab_size."""

    separator: int | None = field(default=None, ge=0)
    """Separator token id, which separates documents and splits files without .idx; null: none, a
    file is one document."""

    @derive("count")
    def _derive_count(self) -> int:
        raise Invalid("must be set, or model.vocab_size must be: it is the number of token ids")

    @rule
    def _check_separator(self) -> Iterator[Problem]:
        if self.separator is not None and self.separator >= self.count:
            yield Problem(
                "separator",
                f"is not an id of a vocabulary of {self.count:,}",
                valid=("null", f"0 to {self.count - 1}"),
            )


class HuggingFace(
    TokenizerConfig,
    type="huggingface",
    owner="setpoint.data.tokenizer:HuggingFaceTokenizer",
    rules=(
        Rule("setpoint.data.vocabulary:file_problems",
             "Tokenizer files that are missing, without a separator or with added tokens",
             needs="files"),
    ),
):  # fmt: skip
    """Tokenizer in Hugging Face's format, byte-level BPE or SentencePiece, for text in UTF-8."""

    path: str
    """Tokenizer: a directory with tokenizer.json, the file itself, or a Hugging Face Hub repository
    id. Its content is part of the data's digest."""

    separator: str | None = None
    """Document separator token, before, between and after documents; null: the tokenizer's
    end-of-text token, else its beginning-of-text token."""

    added: tuple[str, ...] = ()
    """Control tokens added to the vocabulary, with ids after its last; chat templates can use them.
    The model needs rows for them: see model.vocab_size."""

    @rule
    def _check_added(self) -> Iterator[Problem]:
        for index, token in enumerate(self.added):
            if not token:
                yield Problem(f"added.{index}", "is empty", hint="Give the text of a token.")
            elif token in self.added[:index]:
                yield Problem(f"added.{index}", f"is added.{self.added.index(token)} again")

    @rule
    def _check_path(self) -> Iterator[Problem]:
        if not self.path:
            yield Problem("path", "is empty", valid=("a directory", "Qwen/Qwen3-0.6B"))
