"""`setpoint infer`, `evaluate`, `generate` and `export`: what is done with trained weights."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.cli.main import Loading
from setpoint.cli.options import (
    COMMON,
    INFERENCE,
    JSON,
    SOURCE_HELP,
    Arguments,
    Command,
    Option,
    Program,
)
from setpoint.cli.output import emit, print_cautions, styled, table
from setpoint.cli.ranks import (
    NPROC,
    SEVERAL,
    count_ranks,
    note,
    require_ranks,
    speaks,
    start_ranks,
)
from setpoint.cli.source import RUN, kind_of, open_source
from setpoint.cli.weights import (
    CHECKPOINT_OPTION,
    OUTPUT,
    SOURCE_OF_WEIGHTS,
    job_with_weights,
    set_fields,
)
from setpoint.config import ConfigError, Origin, SetpointError, cautions_of, is_set, leaves
from setpoint.config.values.origin import COMMAND_LINE, DEFAULT
from setpoint.data.sources.config import Conversations, Text, Tokens
from setpoint.infer.tasks import EXPORTED as FORMATS
from setpoint.infer.tasks import Chat, DataSet, Evaluation, Export, Generation
from setpoint.parallel.rank import launched, own_rank
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.infer.continuation import GeneratedText
    from setpoint.infer.inference import Results

TEMPLATE = Option(
    "--template",
    "Chat template of --text; default: that of the run, else of the tokenizer.",
    "TEMPLATE",
    requires=("--text",),
)
TOKEN_DTYPE = Option(
    "--token-dtype",
    "dtype of token files without a header; default: that of the run.",
    "DTYPE",
    requires=("--text",),
)
SOURCE_OPTIONS = (
    (TEMPLATE, "template", Conversations, "conversations"),
    (TOKEN_DTYPE, "token_dtype", Tokens, "token files"),
)
"""Options that set a field of the sources of one kind."""


@Command(
    "infer",
    "SOURCE [OVERRIDES]",
    "Run an inference job on trained weights: evaluate texts, continue prompts, run tasks of\n"
    "lm-evaluation-harness, export. Model, tokenizer, data, sequence length and precision are\n"
    "those recorded with the weights.\n"
    f"{SEVERAL}\n"
    "\n"
    "SOURCE is a TOML, YAML or JSON file with the section `weights`, a preset or module:function\n"
    "that returns an Inference, or a directory of results, whose job is run again. OVERRIDES set\n"
    "fields: --generation.top_k 40, or generation.top_k=40. `check`, `show`, `why`, `diff` and\n"
    "`fingerprint` take the same SOURCE. `generate`, `evaluate` and `export` are short forms.",
    [NPROC, *COMMON, JSON],
    [
        ("setpoint infer eval.toml", "a job from a file"),
        ("setpoint infer eval.toml --weights.checkpoint latest", "with the latest checkpoint"),
        ("setpoint infer eval.toml --nproc 8 --parallel.tensor 2", "4 copies, on 2 ranks each"),
    ],
    program=Program("setpoint", INFERENCE),
)
def infer(arguments: Arguments) -> int:
    """Do the tasks, and print their results."""
    require_ranks(arguments)
    source = arguments.positional[0]
    if kind_of(source) == RUN and os.path.isdir(os.path.join(source, "checkpoints")):
        raise SetpointError(
            f"{source} is a run of training, and no inference job: `setpoint evaluate {source}` "
            f"and `setpoint generate {source}` take its weights"
        )
    composition = open_source(source, arguments)
    refused = any(problem.path == "weights.path" for problem in composition.problems)
    if not is_set(composition.draft.weights, "path") and not refused:
        raise SetpointError(
            f"{source} names no weights, so it is no inference job: give it the section weights "
            f"with a path. Of a training job, `setpoint evaluate {source}` and `setpoint generate "
            f"{source}` take the weights of its run"
        )
    from setpoint.infer.adopt import verify_job

    count_ranks(arguments, composition)
    job = composition.resolve()
    verification = verify_job(job, ("files",))
    if verification.problems:
        raise ConfigError(verification.problems)
    if speaks(arguments):
        print_cautions(each for each in verification.cautions if each not in cautions_of(job))
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer as run_job
    with make_work_progress() as progress:
        results = run_job(job, show=progress.work)
    if own_rank():
        return 0

    def facts() -> dict[str, Any]:
        from dataclasses import asdict

        return {**results.to_json(job.output), "texts": [asdict(text) for text in results.texts]}

    def text() -> str:
        lines = [_scores(results.scores)] if results.scores else []
        for part in results.texts:
            by = f" {part.stopped_by!r}" if part.stopped_by is not None else ""
            title = f"--- {part.finish}{by}, {part.tokens} tokens"
            lines += [title, part.prompt + part.text]
        for task, metrics in results.harness.items():
            lines += [f"{task}  {name}  {value}" for name, value in metrics.items()]
        lines += [f"exported to {results.exported}"] if results.exported is not None else []
        lines += [f"results in {job.output}"] if job.output is not None else []
        return "\n".join(lines)

    emit(arguments, facts, text)
    if not arguments.has("--json"):
        _print_beside(results)
    return 0


def _scores(scores: dict[str, Any]) -> str:
    rows = [
        [name, f"{score.loss:.4f}", f"{score.perplexity:,.4f}", f"{score.bits_per_byte:.4f}",
         f"{score.tokens:,}", f"{score.bytes:,}"]
        for name, score in scores.items()
    ]  # fmt: skip
    return table(rows, ["text", "loss", "perplexity", "bits per byte", "tokens", "bytes"])


def _print_beside(results: Results) -> None:
    """Print profiles of results and cautions about them on standard error."""
    for line in results.profiles.format_lines() if results.profiles is not None else ():
        print(line, file=sys.stderr)
    for caution in results.cautions:
        print(f"{styled('caution:', '1;33', sys.stderr)} {caution}", file=sys.stderr)


@Command(
    "evaluate",
    "SOURCE [OVERRIDES]",
    "Evaluate trained weights on text: the loss in nats per token, the perplexity exp(loss), and\n"
    "bits per byte, which can be compared between tokenizers. Without --side or --text the\n"
    f"validation split of the run's data is evaluated. {SOURCE_OF_WEIGHTS}\n"
    f"{SEVERAL}\n" + SOURCE_HELP,
    [
        Option("--side", "Split of the data: held_out (validation) or train.", "SIDE", True,
               ("held_out", "train")),
        Option("--text", "Text, conversations or tokens: a file or a quoted glob.", "PATH", True),
        TEMPLATE,
        TOKEN_DTYPE,
        Option("--sequences", "Number of sequences to evaluate in each text.", "N", type=int),
        CHECKPOINT_OPTION,
        OUTPUT,
        NPROC,
        *COMMON,
        JSON,
    ],
    [
        ("setpoint evaluate tiny", "the validation split of the preset's run"),
        ("setpoint evaluate runs/tiny-3fa94c21 --text novel.txt", "on a text of your own"),
        ("setpoint evaluate runs/chat-51d0c2aa --text chats.jsonl", "on the answers in chats"),
        ("setpoint evaluate runs/tiny-3fa94c21 --nproc 4", "on 4 ranks, which divide the text"),
        ("setpoint evaluate Qwen/Qwen3-0.6B --text 'wiki/*.txt'", "a model of the hub"),
    ],
)  # fmt: skip
def evaluate(arguments: Arguments) -> int:
    """Print a row for each text."""
    tasks: dict[str, Any] = {"evaluation": _evaluation(arguments)}
    if arguments.has(OUTPUT.name):
        tasks["output"] = arguments.value(OUTPUT.name)
    with _naming_options():
        job: Any = job_with_weights(arguments, tasks)
    status = start_ranks(arguments)
    if status is not None:
        return status
    sides = () if job.evaluation is None else job.evaluation.sides
    of_data = (leaf for leaf in leaves(job) if leaf.key.startswith("data.sources"))
    if sides and own_rank() == 0 and all(leaf.origin.layer == DEFAULT for leaf in of_data):
        note(
            f"{' and '.join(sides)}: nothing says what data the weights were trained on, so that "
            f"the default of data.sources is read: Python's standard library. --text names others"
        )
    with Loading():
        from setpoint.infer.inference import infer as run_job
    with make_work_progress() as progress, _naming_options():
        results = run_job(job, show=progress.work)
    if own_rank():
        return 0
    emit(arguments, lambda: results.to_json(job.output), lambda: _scores(results.scores))
    if not arguments.has("--json"):
        _print_beside(results)
    return 0


def _evaluation(arguments: Arguments) -> Any:
    """The section `evaluation` as the options say it."""
    sides = [s for text in arguments.values("--side") for s in text.split(",")]
    sets: list[DataSet] = []
    for path in arguments.values("--text"):
        stem = os.path.splitext(os.path.basename(path.rstrip("/")))[0]
        name = re.sub(r"[^A-Za-z0-9_.\-]", "-", stem) or "text"
        if name in (*sides, *(each.name for each in sets)):
            name = f"{name}-{len(sets) + 1}"
        source = _source(path)
        source.set_field("paths", (path,), Origin(COMMAND_LINE, "--text"))
        sets.append(DataSet(name=name, sources=(source,)))
    for option, field, kind, content in SOURCE_OPTIONS:
        value = arguments.value(option.name)
        if value is None:
            continue
        sources = [source for each in sets for source in each.sources if isinstance(source, kind)]
        if not sources:
            raise SetpointError(f"{option.name} has no effect: no --text holds {content}")
        for source in sources:
            set_fields(arguments, source, {field: value})
    values: dict[str, Any] = {}
    if sides or sets:
        values["sides"] = tuple(sides)
    if sets:
        values["sets"] = tuple(sets)
    count = arguments.integer("--sequences")
    if count is not None:
        values["sequences"] = count
    return set_fields(arguments, Evaluation(), values)


@contextmanager
def _naming_options() -> Iterator[None]:
    """Name the option beside an error of a field that it sets."""
    try:
        yield
    except SetpointError as error:
        paths = [str(error).partition(": ")[0]]
        if isinstance(error, ConfigError):
            paths = [problem.path for problem in error.problems]
        for option, field, *_ in SOURCE_OPTIONS:
            pattern = rf"evaluation\.sets\.\d+\.sources\.0\.{field}"
            if any(re.fullmatch(pattern, path) for path in paths):
                name = f"{option.name} {option.metavar}"
                raise SetpointError(f"{error}\nName it with {name}.") from error
        raise


def _source(path: str) -> Any:
    """The kind of data that files are: tokens, conversations or text."""
    from setpoint.data.sources.conversations import conversations_in
    from setpoint.data.sources.tokens import names_token_files

    tokens = Tokens(paths=(path,))
    if names_token_files(tokens):
        return tokens
    text = Text(paths=(path,))
    return conversations_in(text) or text


@Command(
    "generate",
    "SOURCE [OVERRIDES]",
    "Load trained weights and continue a prompt, or answer it with --chat. Control tokens in a\n"
    "prompt are text, unless --control-tokens is given. A text ends where the weights were\n"
    f"trained to end it, at a stop string or at a stop token. {SOURCE_OF_WEIGHTS}\n"
    f"{SEVERAL}\n" + SOURCE_HELP,
    [
        Option("--prompt", "Text or token ids to continue; '-': standard input.", "TEXT", True),
        Option("--prompts-file", "Further prompts: one per line, or .jsonl (messages, prompt).",
               "FILE"),
        Option("--chat", "Prompts are the user's messages, under a chat template."),
        Option("--system", "System message.", "TEXT", requires=("--chat",)),
        Option("--template", "Another chat template: name or Jinja file.", "NAME",
               requires=("--chat",)),
        Option("--control-tokens", "Read control tokens that prompts spell (<|im_start|>)."),
        Option("--samples", "Samples per prompt; default: 1.", "N", type=int),
        Option("--max-tokens", "Maximum number of new tokens; default: 256.", "N", type=int),
        Option("--temperature", "Sampling temperature; 0 is greedy; default: 0.8.", "T",
               type=float),
        Option("--top-k", "Top-k sampling.", "K", type=int),
        Option("--top-p", "Top-p (nucleus) sampling.", "P", type=float),
        Option("--min-p", "Min-p sampling.", "P", type=float),
        Option("--repetition-penalty", "Penalty for repeated tokens, above 1.", "R", type=float),
        Option("--stop", "Stop string; the text ends before it.", "TEXT", True),
        Option("--stop-tokens", "Stop token: an id or its text, '<|im_end|>'.",
               "TOKEN", True),
        Option("--no-cache", "No KV cache: run the whole context for each token."),
        Option("--sampling-seed", "Sampling seed; default: 0.", "N", type=int, at_least=0),
        CHECKPOINT_OPTION,
        OUTPUT,
        NPROC,
        *COMMON,
    ],
    [
        ("setpoint generate tiny --prompt 'def '", "the run of the preset"),
        ("setpoint generate runs/tiny-3fa94c21 --temperature 0", "a run, greedy decoding"),
        ("setpoint generate runs/chat-3fa94c21 --chat --prompt '2 + 2?'", "ask a chat model"),
        ("setpoint generate runs/tiny-3fa94c21 --nproc 2 --parallel.tensor 2", "on 2 ranks"),
        ("setpoint generate Qwen/Qwen3-0.6B --prompt 'Once'", "a model of the hub"),
    ],
)  # fmt: skip
def generate(arguments: Arguments) -> int:
    """Print each prompt and its continuation, a single one while it is generated."""
    tasks: dict[str, Any] = {"generation": _generation(arguments)}
    chat = _chat(arguments)
    if chat is not None:
        tasks["chat"] = chat
    seed = arguments.integer("--sampling-seed")
    if seed is not None:
        tasks["seed"] = seed
    if arguments.has(OUTPUT.name):
        tasks["output"] = arguments.value(OUTPUT.name)
    job: Any = job_with_weights(arguments, tasks)
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer as run_job
        from setpoint.infer.prompts import id_prompt
    section = job.generation
    if len(section.prompts) * section.samples > 1 or section.prompts_file is not None:
        with make_work_progress() as progress:
            results = run_job(job, show=progress.work)
        if own_rank():
            return 0
        print("\n---\n".join(_full_text(text) for text in results.texts))
        _print_beside(results)
        return 0

    begun: list[bool] = []
    before = "" if job.chat is not None else section.prompts[0]
    if job.ids is not None:
        before = id_prompt(before, job.ids, "--prompt").text

    def show(_: int, piece: str) -> None:
        if not begun:
            # Not before: what is wrong with weights or device is said instead.
            begun.append(True)
            sys.stdout.write(before)
        sys.stdout.write(piece)
        sys.stdout.flush()

    results = run_job(job, on_text=show)
    if own_rank():
        return 0
    print("" if begun else before)
    _print_beside(results)
    return 0


def _full_text(text: GeneratedText) -> str:
    """The prompt and its continuation, of a conversation the answer alone."""
    return text.text if text.messages is not None else text.prompt + text.text


def _chat(arguments: Arguments) -> Any:
    """The section `chat` as the options say it; None without --chat."""
    values = {name: arguments.value(f"--{name}") for name in ("system", "template")}
    values = {name: value for name, value in values.items() if value is not None}
    if not arguments.has("--chat"):
        return None
    if not arguments.has("--prompt") and not arguments.has("--prompts-file"):
        raise SetpointError("--chat needs a message: --prompt TEXT, or --prompts-file FILE")
    if "system" in values:
        values["system"] = _text(str(values["system"]), "--system")
    return set_fields(arguments, Chat(), values)


def _generation(arguments: Arguments) -> Any:
    """The section `generation` as the options say it."""
    values: dict[str, Any] = {
        name: arguments.integer(f"--{name.replace('_', '-')}")
        for name in ("samples", "max_tokens", "top_k")
    } | {
        name: arguments.number(f"--{name.replace('_', '-')}")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty")
    }
    values = {name: value for name, value in values.items() if value is not None}
    if arguments.has("--no-cache"):
        values["cache"] = False
    if arguments.has("--control-tokens"):
        values["control_tokens"] = True
    if arguments.has("--stop-tokens"):
        values["stop_tokens"] = tuple(
            int(each) if each.isascii() and each.isdecimal() else _text(each, "--stop-tokens")
            for each in arguments.options["--stop-tokens"]
        )
    if arguments.has("--stop"):
        values["stop"] = tuple(_text(each, "--stop") for each in arguments.options["--stop"])
    prompts = [_prompt(each) for each in arguments.values("--prompt")]
    if prompts:  # the ranks have no standard input
        arguments.options["--prompt"] = prompts
    file = arguments.value("--prompts-file")
    if file is not None:
        values["prompts_file"] = file
    # A line end to begin with; a conversation begins with its message.
    values["prompts"] = tuple(prompts or ([] if file or arguments.has("--chat") else ["\n"]))
    return set_fields(arguments, Generation(), values)


def _prompt(text: str) -> str:
    if text != "-":
        return _text(text, "--prompt") or "\n"
    name = "--prompt -: standard input"
    if launched() > 1:
        raise SetpointError(
            f"{name} reaches no rank of a launcher.\nValid: --prompt TEXT, --prompts-file FILE; or "
            f"--nproc in place of the launcher"
        )
    try:
        return _text(sys.stdin.read(), name) or "\n"
    except UnicodeError as error:
        raise SetpointError(f"{name} is not UTF-8: {error}") from None


def _text(text: str, name: str) -> str:
    try:
        # Bytes that are no text can arrive as halves of surrogate pairs, which nothing encodes.
        text.encode()
    except UnicodeError as error:
        raise SetpointError(f"{name} is not UTF-8: {error}") from None
    return text


@Command(
    "export",
    "SOURCE OUTPUT [OVERRIDES]",
    "Export trained weights as a Hugging Face model into the new directory OUTPUT: config.json,\n"
    "safetensors, and the tokenizer's files if there are any. A model that no model_type of\n"
    f"transformers can express is refused with the reason. {SOURCE_OF_WEIGHTS}\n"
    + SOURCE_HELP,
    [
        Option("--dtype", "dtype of the weights; default: checkpoint.last_dtype or fp32.",
               "FORMAT", choices=FORMATS),
        Option("--family", "model_type of transformers; default: the simplest that fits.", "NAME"),
        Option("--max-shard-size", "Maximum size of a weights file in bytes.", "N", type=int),
        Option("--adapter", "Write the adapter alone, in PEFT's format.", excludes=("--merge",)),
        Option("--merge", "Write the model with its adapter merged, as without --adapter."),
        CHECKPOINT_OPTION,
        NPROC,
        *COMMON,
    ],
    [
        ("setpoint export runs/tiny-3fa94c21 tiny-hf", "the best checkpoint of a run"),
        ("setpoint export tiny tiny-hf --dtype bf16", "in half the size"),
        ("setpoint export runs/lora-3fa94c21 lora-peft --adapter", "for PEFT"),
    ],
    positional=(2, 2),
)  # fmt: skip
def export(arguments: Arguments) -> int:
    """Write the directory, and print its path."""
    values: dict[str, Any] = {
        "dtype": arguments.value("--dtype"),
        "family": arguments.value("--family"),
        "max_shard_size": arguments.integer("--max-shard-size"),
        "adapter": True if arguments.has("--adapter") else None,
    }
    values = {name: value for name, value in values.items() if value is not None}
    section = set_fields(arguments, Export(path=Path(arguments.positional[1])), values)
    job: Any = job_with_weights(arguments, {"export": section})
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer as run_job
    results = run_job(job)
    if own_rank():
        return 0
    print(f"{results.weights} is written to {results.exported}")
    _print_beside(results)
    return 0
