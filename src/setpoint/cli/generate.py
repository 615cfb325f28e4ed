"""`setpoint generate`: generate text with a trained model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.ranks import NPROC, SEVERAL, start_ranks
from setpoint.cli.results import tell_profiles
from setpoint.cli.weights import (
    CHECKPOINT_OPTION,
    OUTPUT,
    SOURCE_OF_WEIGHTS,
    given,
    job_with_weights,
)
from setpoint.config import SetpointError
from setpoint.infer.tasks import Chat, Generation
from setpoint.parallel.rank import launched, own_rank
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.infer.continuation import GeneratedText

COMMAND = Command(
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
        Option("--system", "System message; with --chat.", "TEXT"),
        Option("--template", "Another chat template: name or Jinja file; with --chat.", "NAME"),
        Option("--control-tokens", "Read control tokens that prompts spell (<|im_start|>)."),
        Option("--samples", "Samples per prompt; default 1.", "N"),
        Option("--max-tokens", "Maximum number of new tokens; default 256.", "N"),
        Option("--temperature", "Sampling temperature; 0 is greedy; default 0.8.", "T"),
        Option("--top-k", "Top-k sampling.", "K"),
        Option("--top-p", "Top-p (nucleus) sampling.", "P"),
        Option("--min-p", "Min-p sampling.", "P"),
        Option("--repetition-penalty", "Penalty for repeated tokens, above 1.", "R"),
        Option("--stop", "Stop string; the text ends before it.", "TEXT", True),
        Option("--stop-tokens", "Stop token: an id or its text, '<|im_end|>'.",
               "TOKEN", True),
        Option("--no-cache", "No KV cache: run the whole context for each token."),
        Option("--sampling-seed", "Sampling seed; default 0.", "N"),
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
NUMBERS = {
    "--samples": 1,
    "--max-tokens": 1,
    "--top-k": 1,
    "--temperature": 0.0,
    "--top-p": 0.0,
    "--min-p": 0.0,
    "--repetition-penalty": 0.0,
}
"""Options with a number: the least it may be, whole or not."""


@COMMAND
def run(arguments: Arguments) -> int:
    """Print each prompt and its continuation, a single one as it is made."""
    tasks: dict[str, Any] = {"generation": _generation(arguments)}
    chat = _chat(arguments)
    if chat is not None:
        tasks["chat"] = chat
    seed = arguments.integer("--sampling-seed", 0)
    if seed is not None:
        tasks["seed"] = seed
    if arguments.has(OUTPUT.name):
        tasks["output"] = arguments.value(OUTPUT.name)
    job: Any = job_with_weights(arguments, tasks)
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer
        from setpoint.infer.prompts import id_prompt
    section = job.generation
    if len(section.prompts) * section.samples > 1 or section.prompts_file is not None:
        with make_work_progress() as progress:
            results = infer(job, show=progress.work)
        if own_rank():
            return 0
        print("\n---\n".join(_shown(text) for text in results.texts))
        tell_profiles(results)
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

    results = infer(job, on_text=show)
    if own_rank():
        return 0
    print("" if begun else before)
    tell_profiles(results)
    return 0


def _shown(text: GeneratedText) -> str:
    """The prompt and its continuation, of a conversation the answer alone."""
    return text.text if text.messages is not None else text.prompt + text.text


def _chat(arguments: Arguments) -> Any:
    """The section `chat` as the options say it; None without --chat."""
    found = {name: arguments.value(f"--{name}") for name in ("system", "template")}
    found = {name: value for name, value in found.items() if value is not None}
    if not arguments.has("--chat"):
        for name in found:
            raise SetpointError(f"--{name} has no effect without --chat")
        return None
    if not arguments.has("--prompt") and not arguments.has("--prompts-file"):
        raise SetpointError("--chat needs what is said: --prompt TEXT, or --prompts-file FILE")
    if "system" in found:
        found["system"] = _text(str(found["system"]), "--system")
    return given(arguments, Chat(), found)


def _generation(arguments: Arguments) -> Any:
    """The section `generation` as the options say it."""
    found: dict[str, Any] = {}
    for name, least in NUMBERS.items():
        whole = isinstance(least, int)
        value = arguments.integer(name, least) if whole else arguments.number(name, least)
        if value is not None:
            found[name[2:].replace("-", "_")] = value
    if arguments.has("--no-cache"):
        found["cache"] = False
    if arguments.has("--control-tokens"):
        found["control_tokens"] = True
    if arguments.has("--stop-tokens"):
        found["stop_tokens"] = tuple(
            int(each) if each.isascii() and each.isdecimal() else _text(each, "--stop-tokens")
            for each in arguments.options["--stop-tokens"]
        )
    if arguments.has("--stop"):
        found["stop"] = tuple(_text(each, "--stop") for each in arguments.options["--stop"])
    prompts = [_prompt(each) for each in arguments.options.get("--prompt", [])]
    if prompts:  # the ranks have no standard input
        arguments.options["--prompt"] = prompts
    file = arguments.value("--prompts-file")
    if file is not None:
        found["prompts_file"] = file
    # Something to begin with, where nothing is said; a conversation begins with what is said.
    found["prompts"] = tuple(prompts or ([] if file or arguments.has("--chat") else ["\n"]))
    return given(arguments, Generation(), found)


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
