"""`setpoint import`: the configuration of a pretrained model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import Arguments, Command, Option
from setpoint.config import Config, ConfigError, SetpointError, resolve, to_plain
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.write import write_toml
from setpoint.files.atomic import write_text
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.config_json import config_of
from setpoint.model.pretrained.convert import PLAIN, SIZES
from setpoint.model.pretrained.locate import locate
from setpoint.model.pretrained.run import job_of
from setpoint.train.batch import Batch

if TYPE_CHECKING:
    from setpoint.model.pretrained.locate import Place

COMMAND = Command(
    "import",
    "MODEL [--output FILE]",
    "Print the configuration of a pretrained model as TOML: the section [model] with all that the\n"
    "weights ask for and where they lie, and [tokenizer] if there is one beside them. Nothing is\n"
    "trained, and of a model on the hub no weights are fetched. The file is a SOURCE of the other\n"
    "commands, or part of one by `extends`.\n"
    "\n"
    "MODEL is the directory of a Hugging Face model, of a run or of a checkpoint, or the id of a\n"
    "model on the hub: organization/name, perhaps with @revision. A directory wins over an id.",
    [Option("--output", "Write to a file instead of standard output.", "FILE")],
    [
        ("setpoint import Qwen/Qwen3-0.6B", "a model of the hub"),
        ("setpoint import models/llama --output llama.toml", "then: setpoint train llama.toml"),
        ("setpoint import runs/tiny-3fa94c21", "what a run has trained"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print or write the fragment."""
    name = arguments.positional[0]
    output = arguments.value("--output")
    if output is not None and os.path.exists(output):
        raise SetpointError(
            f"--output {output} exists already, and what is in it would be lost; choose another "
            f"name, or remove it"
        )
    place = locate(name, weights=False)
    text = f"# setpoint import {name}\n{write_toml(_sections(place))}"
    if output is None:
        print(text, end="")
        return 0
    from pathlib import Path

    write_text(Path(output), text)
    return 0


def _sections(place: Place) -> dict[str, Any]:
    if place.kind == "checkpoint":
        job = job_of(place.directory)
        return {
            "model": {**_non_defaults(job.model), "pretrained": place.name},
            "tokenizer": _non_defaults(job.tokenizer),
        }
    config = config_of(place)
    model = {**_non_defaults(config), **_fields_of_weights(config), "pretrained": place.name}
    sections: dict[str, Any] = {"model": model}
    longest = sections["model"].get("max_sequence_length")
    usual = Batch.__setpoint__.fields["sequence_length"].default
    if isinstance(longest, int) and longest < usual:
        # So that the file is whole: sequences of the usual length would not fit.
        sections["batch"] = {"sequence_length": longest}
    if (place.directory / "tokenizer.json").is_file():
        sections["tokenizer"] = {"type": "huggingface", "path": place.name}
    return sections


def _fields_of_weights(config: TransformerConfig) -> dict[str, Any]:
    """The fields that the weights decide, also defaults: a preset below may have other values."""
    plain = to_plain(config)
    values = {name: plain[name] for name in (*SIZES, *PLAIN)}
    try:
        resolve(TransformerConfig(**values))
    except ConfigError as error:  # what has no effect in such a model
        for problem in error.problems:
            values.pop(problem.path.partition(".")[0], None)
    return values


def _non_defaults(config: Config) -> dict[str, Any]:
    """The fields that differ from the defaults, with the type first."""
    return {"type": type(config).__setpoint__.tag, **to_minimal(config)}
