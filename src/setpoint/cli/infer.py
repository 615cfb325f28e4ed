"""`setpoint infer`, `evaluate`, `generate`, `export` and `import`: trained weights in use."""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from setpoint.api import source_of
from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, INFERENCE, JSON, Arguments, Command, Option, Program
from setpoint.cli.output import emit, new_file, print_notes, print_or_write, styled, table
from setpoint.cli.ranks import NPROC, SEVERAL, note, require_ranks, speaks, start_ranks
from setpoint.cli.source import RUN, kind_of, open_source
from setpoint.cli.weights import (
    CHECKPOINT_OPTION,
    OUTPUT,
    SOURCE_OF_WEIGHTS,
    job_with_weights,
    set_fields,
    verified,
)
from setpoint.config import (
    Config,
    ConfigError,
    Origin,
    SetpointError,
    is_set,
    plural,
    resolve,
    to_plain,
)
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.write import write_toml
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.data.sources.config import Conversations, Text, Tokens
from setpoint.infer.tasks import Chat, DataSet, EvaluationTask, ExportTask, Generation
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.config_json import config_of
from setpoint.model.pretrained.convert import PLAIN, SIZES
from setpoint.model.pretrained.locate import job_of, locate
from setpoint.parallel.rank import launched, own_rank
from setpoint.track.progress import make_work_progress
from setpoint.train.config import BatchConfig

if TYPE_CHECKING:
    from setpoint.infer.inference import OnText, Results
    from setpoint.model.pretrained.locate import Place

WAIT = 1.0
"""Seconds without input after which a note says that the prompt is read from there."""
TEMPLATE = Option(
    "--template TEMPLATE", "Chat template of --text; default: as recorded.", requires="--text"
)
TOKEN_DTYPE = Option(
    "--token-dtype DTYPE",
    "dtype of headerless token files; default: as recorded.",
    requires="--text",
)
FIELD = Option(
    "--field NAME", "Text field of records of --text; default: as recorded.", requires="--text"
)
SOURCE_OPTIONS = (
    (TEMPLATE, "template", Conversations, "conversations"),
    (TOKEN_DTYPE, "token_dtype", Tokens, "token files"),
    (FIELD, "field", Text, "text"),
)
"""Options that set a field of the sources of one kind."""


@Command(
    "infer SOURCE [OVERRIDES]",
    NPROC,
    *COMMON,
    JSON,
    about=SEVERAL,
    program=Program("setpoint", INFERENCE),
)
def infer(arguments: Arguments) -> int:
    """Run an inference job on trained weights.

    A job evaluates texts, continues prompts, runs tasks of lm-evaluation-harness, and exports
    weights. Model, tokenizer, data, sequence length and precision are those recorded with the
    weights.

    SOURCE is a TOML, YAML or JSON file with the section `weights`, a preset or module:function that
    returns an Inference, or a directory of results, whose job is run again. OVERRIDES set fields:
    --generation.top_k 40, or generation.top_k=40. `check`, `show`, `why`, `diff` and `fingerprint`
    take the same SOURCE. `generate`, `evaluate` and `export` are short forms.

    Examples:
        setpoint infer eval.toml  a job from a file
        setpoint infer eval.toml --weights.checkpoint latest  with the latest checkpoint
        setpoint infer eval.toml --nproc 8 --parallel.tensor 2  4 copies, on 2 ranks each
    """
    require_ranks(arguments)
    source = arguments.positional[0]
    if kind_of(source) == RUN and os.path.isdir(os.path.join(source, "checkpoints")):
        raise SetpointError(
            f"{source} is a training run, not an inference job: `setpoint evaluate {source}` "
            f"and `setpoint generate {source}` use its weights"
        )
    composition = open_source(source, arguments)
    refused = any(problem.path == "weights.path" for problem in composition.problems)
    if not is_set(composition.draft.weights, "path") and not refused:
        raise SetpointError(
            f"{source} names no weights, so it is not an inference job: add a section weights "
            f"with a path. For a training job, `setpoint evaluate {source}` and `setpoint generate "
            f"{source}` use the weights of its run"
        )
    job = verified(composition, arguments)
    results = _run_job(arguments, job)
    if isinstance(results, int):
        return results

    def text() -> str:
        lines = [_scores(results.scores)] if results.scores else []
        for part in results.texts:
            by = f" {part.stopped_by!r}" if part.stopped_by is not None else ""
            title = f"--- {part.finish}{by}, {plural(part.tokens, 'token')}"
            lines += [title, part.prompt + part.text]
        for task, metrics in results.harness.items():
            lines += [f"{task}  {name}  {value}" for name, value in metrics.items()]
        lines += [f"exported to {results.exported}"] if results.exported is not None else []
        lines += [f"results in {job.output}"] if job.output is not None else []
        return "\n".join(lines)

    emit(arguments, lambda: _facts(job, results), text)
    _print_to_stderr(arguments, results)
    return 0


def _facts(job: Any, results: Results) -> dict[str, Any]:
    return {**results.to_json(job.output), "texts": [asdict(text) for text in results.texts]}


def _run_job(arguments: Arguments, job: Any, on_text: OnText | None = None) -> Results | int:
    """The results of a job on its ranks; the exit status if another process prints them."""
    if (status := start_ranks(arguments)) is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer as run
    if on_text is not None:
        results = run(job, on_text=on_text)
    else:
        with make_work_progress() as progress:
            results = run(job, show=progress.work)
    return 0 if own_rank() else results


def _scores(scores: dict[str, Any]) -> str:
    rows = [
        [name, f"{score.loss:.4f}", f"{score.perplexity:,.4f}", f"{score.bits_per_byte:.4f}",
         score.extent.rpartition(" ")[0], f"{score.tokens:,}", f"{score.bytes:,}"]
        for name, score in scores.items()
    ]  # fmt: skip
    names = ["text", "loss", "perplexity", "bits per byte", "sequences", "tokens", "bytes"]
    return table(rows, names)


def _print_to_stderr(arguments: Arguments, results: Results) -> None:
    """Print profiles and cautions to standard error, except with --json."""
    if arguments.has("--json"):
        return
    for line in results.profiles.format_lines() if results.profiles is not None else ():
        print(line, file=sys.stderr)
    for caution in results.cautions:
        print(f"{styled('caution:', '1;33', sys.stderr)} {caution}", file=sys.stderr)


@Command(
    "evaluate SOURCE [OVERRIDES]",
    Option("--side held_out|train", "Split of the data: validation or training.", True),
    Option("--text PATH", "Text, conversations or tokens: a file or a quoted glob.", True),
    TEMPLATE,
    TOKEN_DTYPE,
    FIELD,
    Option("--sequences N", "Number of sequences to evaluate in each text."),
    CHECKPOINT_OPTION,
    OUTPUT,
    NPROC,
    *COMMON,
    JSON,
    about=SOURCE_OF_WEIGHTS + SEVERAL,
)
def evaluate(arguments: Arguments) -> int:
    """Evaluate trained weights on text.

    The results are the loss in nats per token, the perplexity exp(loss), and bits per byte, which
    is comparable between tokenizers. Without --side or --text the whole validation split of the
    run's data is evaluated; training evaluates the first evaluation.sequences of it.

    Examples:
        setpoint evaluate tiny  the validation split of the preset's run
        setpoint evaluate runs/tiny-3fa94c21 --text novel.txt  on a text of your own
        setpoint evaluate runs/chat-51d0c2aa --text chats.jsonl  on the answers in chats
        setpoint evaluate runs/tiny-3fa94c21 --nproc 4  on 4 ranks, which divide the text
        setpoint evaluate Qwen/Qwen3-0.6B --text 'wiki/*.txt'  a model of the hub
    """
    tasks = {"evaluation": _evaluation(arguments), "output": arguments.value("--output")}
    with _naming_options():
        job: Any = job_with_weights(arguments, tasks)
    sides = () if job.evaluation is None else job.evaluation.sides
    if sides and speaks(arguments) and job.data_is_unknown:
        note(
            f"{' and '.join(sides)}: the training data of the weights is not recorded, so the "
            f"default of data.sources is read, Python's standard library. Give other texts with "
            f"--text"
        )
    with _naming_options():
        results = _run_job(arguments, job)
    if isinstance(results, int):
        return results
    emit(arguments, lambda: results.to_json(job.output), lambda: _scores(results.scores))
    _print_to_stderr(arguments, results)
    return 0


def _evaluation(arguments: Arguments) -> Any:
    """The section `evaluation`, built from the options."""
    sides = [s for text in arguments.values("--side") for s in text.split(",")]
    sets: list[DataSet] = []
    for path in arguments.values("--text"):
        folder, last = os.path.split(path.rstrip("/"))
        # A glob is named after its folder.
        stem = os.path.splitext(os.path.basename(folder) if "*" in last else last)[0]
        name = re.sub(r"[^A-Za-z0-9_.\-]", "-", stem) or "text"
        if name in (*sides, *(data_set.name for data_set in sets)):
            name = f"{name}-{len(sets) + 1}"
        source: Any = source_of(path)
        source.set_field("paths", (path,), Origin(COMMAND_LINE, "--text"))
        sets.append(DataSet(name=name, sources=(source,)))
    for option, field, kind, content in SOURCE_OPTIONS:
        value = arguments.value(option.name)
        if value is None:
            continue
        sources = [
            source for data_set in sets for source in data_set.sources if isinstance(source, kind)
        ]
        if not sources:
            raise SetpointError(f"{option.name} has no effect: no --text contains {content}")
        for source in sources:
            set_fields(arguments, source, {field: value})
    values = {
        "sides": tuple(sides) if sides or sets else None,
        "sets": tuple(sets) or None,
        "sequences": arguments.integer("--sequences"),
    }
    return set_fields(arguments, EvaluationTask(), values)


@contextmanager
def _naming_options() -> Iterator[None]:
    """Add the option to the error about a field that it sets."""
    try:
        yield
    except SetpointError as error:
        paths = [str(error).partition(": ")[0]]
        if isinstance(error, ConfigError):
            paths = [problem.path for problem in error.problems]
        for option, field, *_ in SOURCE_OPTIONS:
            pattern = rf"evaluation\.sets\.\d+\.sources\.0\.{field}"
            matching = any(re.fullmatch(pattern, path) for path in paths)
            if matching and option.name not in str(error):
                name = f"{option.name} {option.metavar}"
                raise SetpointError(f"{error}\nSet it with {name}.") from error
        raise


@Command(
    "generate SOURCE [OVERRIDES]",
    Option("--prompt TEXT", "Text or token ids to continue; '-' or a pipe: stdin.", True),
    Option("--prompts-file FILE", "Further prompts: one per line, or .jsonl (messages, prompt)."),
    Option("--chat", "Prompts are the user's messages; without one, read a conversation."),
    Option("--system TEXT", "System message.", requires="--chat"),
    Option("--template NAME", "Another chat template: name or Jinja file.", requires="--chat"),
    Option("--control-tokens", "Read control tokens that prompts spell (<|im_start|>)."),
    Option("--samples N", "Samples per prompt; default: 1."),
    Option("--max-tokens N", "Maximum number of new tokens; default: 256."),
    Option("--temperature T", "Sampling temperature; 0 is greedy; default: 0.8.", type=float),
    Option("--top-k K", "Top-k sampling.", type=int),
    Option("--top-p P", "Top-p (nucleus) sampling.", type=float),
    Option("--min-p P", "Min-p sampling.", type=float),
    Option("--repetition-penalty R", "Penalty for repeated tokens, above 1.", type=float),
    Option("--stop TEXT", "Stop string; the text ends before it.", True),
    Option("--stop-tokens TOKEN", "Stop token: an id or its text, '<|im_end|>'.", True),
    Option("--no-cache", "No KV cache: run the whole context for each token."),
    Option("--sampling-seed N", "Sampling seed; default: 0.", at_least=0),
    CHECKPOINT_OPTION,
    OUTPUT,
    NPROC,
    *COMMON,
    JSON,
    about=SOURCE_OF_WEIGHTS + SEVERAL,
)
def generate(arguments: Arguments) -> int:
    """Continue a prompt with trained weights, or answer it with --chat.

    --chat without a prompt is a conversation: each line of standard input is a message, answered in
    the context of those before it, until the input ends (Ctrl-D).

    Control tokens in a prompt are treated as text, unless --control-tokens is given. A continuation
    ends at an end-of-text token, a stop string, a stop token or --max-tokens.

    Examples:
        setpoint generate tiny --prompt 'def '  the run of the preset
        setpoint generate runs/tiny-3fa94c21 --temperature 0  a run, greedy decoding
        setpoint generate runs/chat-3fa94c21 --chat  talk to a chat model
        setpoint generate runs/chat-3fa94c21 --chat --prompt '2 + 2?'  ask it one question
        setpoint generate runs/tiny-3fa94c21 --nproc 2 --parallel.tensor 2  on 2 ranks
        setpoint generate Qwen/Qwen3-0.6B --prompt 'Once'  a model of the hub
    """
    is_conversation = arguments.has("--chat") and not (
        arguments.has("--prompt") or arguments.has("--prompts-file")
    )
    if is_conversation:
        return _converse(arguments)
    tasks = {
        "generation": _generation(arguments),
        "chat": _chat(arguments),
        "seed": arguments.integer("--sampling-seed"),
        "output": arguments.value("--output"),
    }
    job: Any = job_with_weights(arguments, tasks)
    section = job.generation
    is_json, count = arguments.has("--json"), len(section.prompts) * section.samples
    if is_json or count > 1 or section.prompts_file is not None:
        results = _run_job(arguments, job)
        if isinstance(results, int):
            return results
        texts = (  # for a conversation, only the answer
            text.text if text.messages is not None else text.prompt + text.text
            for text in results.texts
        )
        emit(arguments, lambda: _facts(job, results), lambda: "\n---\n".join(texts))
        _print_to_stderr(arguments, results)
        return 0

    begun: list[bool] = []
    before = "" if job.chat is not None else section.prompts[0]
    if job.ids is not None and speaks(arguments):
        with Loading():
            from setpoint.infer.prompts import id_prompt
        before = id_prompt(before, job.ids, "--prompt").text

    def show(_: int, piece: str) -> None:
        if not begun:
            # Not earlier: errors of weights or device come first.
            begun.append(True)
            sys.stdout.write(before)
        sys.stdout.write(piece)
        sys.stdout.flush()

    results = _run_job(arguments, job, on_text=show)
    if isinstance(results, int):
        return results
    print("" if begun else before)
    _print_to_stderr(arguments, results)
    return 0


def _converse(arguments: Arguments) -> int:
    """Answer the lines of standard input as one conversation."""
    for name in ("--samples", "--output", "--nproc", "--json"):
        if arguments.has(name):
            raise SetpointError(
                f"{name} has no effect in a conversation\nValid with {name}: --prompt TEXT, or "
                f"--prompts-file FILE"
            )
    if launched() > 1:
        raise SetpointError(
            "--chat without a prompt reads standard input, but ranks started by a launcher have "
            "none\nValid: --prompt TEXT, or --prompts-file FILE"
        )
    messages: list[dict[str, str]] = []
    with TemporaryDirectory() as folder:
        file = Path(folder, "conversation.jsonl")

        def add(role: str, text: str) -> None:
            messages.append({"role": role, "content": text})
            file.write_text(f"{json.dumps({'messages': messages})}\n", encoding="utf-8")

        add("user", "")  # for the checks of the job
        arguments.options["--prompts-file"] = [str(file)]
        sections = {"generation": _generation(arguments), "chat": _chat(arguments)}
        seed = arguments.integer("--sampling-seed")
        job: Any = job_with_weights(arguments, {**sections, "seed": seed})
        with Loading():
            from setpoint.infer.inference import infer_on, require_started
            from setpoint.infer.loaded_model import load
            from setpoint.parallel.world import World
        require_started(job)
        loaded = load(job)
        messages.clear()
        for line in _lines():
            add("user", line)
            results = infer_on(World(loaded.device), job, on_text=_print_piece, loaded=loaded)
            print(flush=True)  # cautions begin a line of their own
            _print_to_stderr(arguments, results)
            add("assistant", results.texts[0].text)
    return 0


def _lines() -> Iterator[str]:
    """Lines of standard input that are not empty; a terminal shows where to type."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = f"{input('> ')}\n" if is_terminal else sys.stdin.readline()
        except EOFError:  # Ctrl-D
            print()
            return
        except UnicodeError as error:
            raise SetpointError(f"standard input is not UTF-8: {error}") from None
        if not line:
            return
        if text := _text(line.strip(), "standard input"):
            yield text


def _print_piece(_: int, piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _chat(arguments: Arguments) -> Any:
    """The section `chat`, built from the options; None without --chat."""
    if not arguments.has("--chat"):
        return None
    system = arguments.value("--system")
    system = None if system is None else _text(system, "--system")
    values = {"system": system, "template": arguments.value("--template")}
    return set_fields(arguments, Chat(), values)


def _generation(arguments: Arguments) -> Any:
    """The section `generation`, built from the options."""
    values: dict[str, Any] = {
        name: arguments.integer(f"--{name.replace('_', '-')}")
        for name in ("samples", "max_tokens", "top_k")
    } | {
        name: arguments.number(f"--{name.replace('_', '-')}")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty")
    }
    values["cache"] = False if arguments.has("--no-cache") else None
    values["control_tokens"] = arguments.has("--control-tokens") or None
    values["prompts_file"] = arguments.value("--prompts-file")
    tokens = (
        int(token) if token.isascii() and token.isdecimal() else _text(token, "--stop-tokens")
        for token in arguments.values("--stop-tokens")
    )
    values["stop_tokens"] = tuple(tokens) or None
    values["stop"] = tuple(_text(text, "--stop") for text in arguments.values("--stop")) or None
    # Begin with a line break; a conversation begins with its message.
    has_others = arguments.has("--prompts-file") or arguments.has("--chat")
    texts = arguments.values("--prompt") or ["-"] * (not has_others and _is_piped(arguments))
    prompts = [_prompt(text) for text in texts]
    if prompts:  # ranks have no standard input
        arguments.options["--prompt"] = prompts
    values["prompts"] = tuple(prompts or ([] if has_others else ["\n"]))
    return set_fields(arguments, Generation(), values)


def _is_piped(arguments: Arguments) -> bool:
    """True if standard input is a pipe or file that nothing else of the command line reads."""
    if launched() > 1 or "-" in arguments.positional or arguments.has("--config-from-stdin"):
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a file, as in a notebook
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _prompt(text: str) -> str:
    if text != "-":
        return _text(text, "--prompt") or "\n"
    name = "--prompt -: standard input"
    if launched() > 1:
        raise SetpointError(
            f"{name} cannot be read: ranks started by a launcher have no standard input.\n"
            f"Valid: --prompt TEXT, --prompts-file FILE; or --nproc instead of the launcher"
        )
    with suppress(OSError, TypeError, ValueError):  # closed, or not a file, as in a notebook
        if not select.select([sys.stdin], [], [], WAIT)[0]:
            print_notes(["reading the prompt from standard input, to its end"])
    try:
        return _text(sys.stdin.read(), name) or "\n"
    except UnicodeError as error:
        raise SetpointError(f"{name} is not UTF-8: {error}") from None


def _text(text: str, name: str) -> str:
    try:
        # Invalid bytes can arrive as halves of surrogate pairs, which cannot be encoded.
        text.encode()
    except UnicodeError as error:
        raise SetpointError(f"{name} is not UTF-8: {error}") from None
    return text


@Command(
    "export SOURCE OUTPUT [OVERRIDES]",
    Option("--dtype fp32|bf16|fp16", "dtype; default: checkpoint.last_dtype or fp32."),
    Option("--family NAME", "model_type of transformers; default: the base's."),
    Option("--max-shard-size N", "Maximum size of a weights file in bytes."),
    Option("--adapter", "Write only the adapter, in PEFT's format.", excludes="--merge"),
    Option("--merge", "Write the model with its adapter merged, as without --adapter."),
    CHECKPOINT_OPTION,
    NPROC,
    *COMMON,
    JSON,
    about=SOURCE_OF_WEIGHTS,
)
def export(arguments: Arguments) -> int:
    """Export trained weights as a Hugging Face model into the new directory OUTPUT.

    OUTPUT contains config.json, safetensors, and the files of the tokenizer, if any. A model that
    no model_type of transformers can express is refused with the reason.

    Examples:
        setpoint export runs/tiny-3fa94c21 tiny-hf  the best checkpoint of a run
        setpoint export tiny tiny-hf --dtype bf16  at half the size
        setpoint export runs/lora-3fa94c21 lora-peft --adapter  for PEFT
    """
    values = {
        "dtype": arguments.value("--dtype"),
        "family": arguments.value("--family"),
        "max_shard_size": arguments.integer("--max-shard-size"),
        "adapter": arguments.has("--adapter") or None,
    }
    section = set_fields(arguments, ExportTask(path=Path(arguments.positional[1])), values)
    job: Any = job_with_weights(arguments, {"export": section})
    results = _run_job(arguments, job)
    if isinstance(results, int):
        return results
    text = f"{results.weights} is written to {results.exported}"
    emit(arguments, lambda: results.to_json(job.output), text)
    _print_to_stderr(arguments, results)
    return 0


@Command("import MODEL", Option("--output FILE", "Write to a file instead of standard output."))
def import_model(arguments: Arguments) -> int:
    """Print the configuration of a pretrained model as TOML.

    The section [model] contains the architecture and location of the weights; a section [tokenizer]
    follows if the directory has a tokenizer. Nothing is trained, and no weights are downloaded. The
    file is a SOURCE for other commands, or can be named in `extends`.

    MODEL is the directory of a Hugging Face model, of a run or of a checkpoint, or the id of a
    model on the hub: organization/name, optionally with @revision. A directory wins over an id.

    Examples:
        setpoint import Qwen/Qwen3-0.6B  a model of the hub
        setpoint import models/llama --output llama.toml  then: setpoint train llama.toml
        setpoint import runs/tiny-3fa94c21  the trained model of a run
    """
    name = arguments.positional[0]
    output = new_file(arguments)
    place = locate(name, weights=False)
    print_or_write(f"# setpoint import {name}\n{write_toml(_sections(place))}", output)
    return 0


def _sections(place: Place) -> dict[str, Any]:
    if place.is_checkpoint:
        job = job_of(place.directory)
        return {
            "model": {**_non_defaults(job.model), "pretrained": place.name},
            "tokenizer": _non_defaults(job.tokenizer),
        }
    config = config_of(place)
    model = {**_non_defaults(config), **_fields_of_weights(config), "pretrained": place.name}
    sections: dict[str, Any] = {"model": model}
    longest = sections["model"].get("max_sequence_length")
    usual = BatchConfig.__setpoint__.fields["sequence_length"].default
    if isinstance(longest, int) and longest < usual:
        # Makes the file valid: sequences of the default length would not fit.
        sections["batch"] = {"sequence_length": longest}
    if (place.directory / "tokenizer.json").is_file():
        sections["tokenizer"] = {"type": "huggingface", "path": place.name}
    return sections


def _fields_of_weights(config: TransformerConfig) -> dict[str, Any]:
    """Fields determined by the weights, with defaults that a preset below may change."""
    plain = to_plain(config)
    values = {name: plain[name] for name in (*SIZES, *PLAIN)}
    try:
        resolve(TransformerConfig(**values))
    except ConfigError as error:  # fields without effect in such a model
        for problem in error.problems:
            values.pop(problem.path.partition(".")[0], None)
    return values


def _non_defaults(config: Config) -> dict[str, Any]:
    """The fields that differ from the defaults, with the type first."""
    return {"type": type(config).__setpoint__.tag, **to_minimal(config)}
