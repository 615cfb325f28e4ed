"""Peak host memory of checkpoints, exports and loads, each in a fork of its own.

    cd benchmarks && python -m train.host_memory [--megabytes 50 500]

Measured is by how much resident memory rises at most, in parts of what is saved or loaded:

- save, in the background, load: tensors that are in memory already
- export, whole: a checkpoint of several ranks, written as a Hugging Face model, and as one file
- bf16, nf4: weights of a Hugging Face model, loaded as they are, and quantized one by one

Leaves with status 1 if one is above its bound and 64 MiB, for libraries that are loaded at first
use, chunks of files and threads.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from harness import Report, forget_peak, memory_line
from setpoint.adapter.config import QLoRA
from setpoint.adapter.quantized_weight import quantize_base
from setpoint.adapter.targets import quantized_sites, sites_of
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import compose, record_files
from setpoint.model import save_pretrained
from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.fill import weights_of
from setpoint.train.build.job_parameters import trained_parameters
from setpoint.train.config import Job
from train.checkpoint import joined, load_into, states_of

SLACK = 64 << 20
RANKS, DIM = 4, 1024
# From bytes of all tensors and of the largest one in fp32 to the most that may be taken.
Bound = Callable[[int, int], float]


def in_a_fork(act: Callable[[], int]) -> int:
    """The result of a function that runs in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(act()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)
    return int(found)


def peak(act: Callable[[], object]) -> int:
    """By how much a function raises the resident memory of this process at most."""
    before = forget_peak()
    act()
    return memory_line("VmHWM") - before


def saved(megabytes: int, what: str, folder: Path) -> int:
    """The peak of a save or a load of tensors that are in memory."""
    states = states_of(megabytes)
    if what == "load":
        for tensor in joined(states).values():
            tensor.zero_()
        return peak(lambda: load_into(states, folder))
    if what == "save":
        return peak(lambda: CheckpointStore(folder).save(1, states, {}))
    store = CheckpointStore(folder / "background", in_flight=1, timeout=600)

    def twice() -> None:
        for step in (1, 2):
            store.save(step, states, {})
        store.wait()

    return peak(twice)


def write_model(megabytes: int, folder: Path) -> tuple[int, int]:
    """Save a model in parts and in bf16; its bytes in fp32, and those of the largest tensor."""
    layers = max(1, round(megabytes * 1e6 / 4 / (12 * DIM * DIM)))
    flags = [f"model.dim={DIM}", f"model.layers={layers}", "model.heads=8"]
    job = compose(Job, "tiny", flags=flags).resolve()
    model = skeleton(job.model, 257)
    materialize(model, "cpu", torch.float32)
    initialize(model, 1)
    tensors = model.state_dict()
    texts = record_files(job)
    whole = CheckpointStore(folder / "saved").save(1, {"model": tensors}, {}, texts=texts)
    convert(whole, folder / "parts", RANKS)
    sizes = [tensor.nbytes for tensor in tensors.values()]
    save_pretrained(whole, folder / "dense", dtype="bf16")
    return sum(sizes), max(sizes)


def loaded(folder: Path, quantized: bool) -> int:
    """The peak of loading weights in bf16."""
    config, family = read_config(folder)
    assert config.vocab_size is not None
    model, whole = (skeleton(config, config.vocab_size) for _ in range(2))
    if quantized:
        adapter = compose(QLoRA).resolve()
        assert adapter.quantize is not None
        sites = quantized_sites(adapter, sites_of(trained_parameters(model)))
        quantize_base(adapter.quantize, model, sites, 1)
    weights = weights_of(folder, family, whole, config)
    return peak(lambda: weights.fill(model, device="cpu", dtype=torch.bfloat16))


def measured(megabytes: int, folder: Path) -> Iterator[tuple[str, int, int, float]]:
    """Name, peak, bytes that it is compared with, and the most that it may be."""
    states = in_a_fork(lambda: sum(t.nbytes for t in joined(states_of(megabytes)).values()))
    for what, bound in {"save": 0.0, "in the background": 1.02, "load": 0.0}.items():
        took = in_a_fork(lambda what=what: saved(megabytes, what, folder / "states"))
        yield what, took, states, bound * states
    sizes = folder / "sizes"
    in_a_fork(lambda: sizes.write_text(" ".join(map(str, write_model(megabytes, folder)))))
    size, largest = map(int, sizes.read_text().split())
    acts: dict[str, tuple[Callable[[], int], float]] = {
        "export": (lambda: peak(lambda: save_pretrained(folder / "parts", folder / "hf")),
                   3 * largest),
        "whole": (lambda: peak(lambda: convert(folder / "parts", folder / "whole", None)),
                  3 * largest),
        "bf16": (lambda: loaded(folder / "dense", False), size / 2 + 3 * largest),
        "nf4": (lambda: loaded(folder / "dense", True), 0.15 * size + 3 * largest),
    }  # fmt: skip
    for what, (act, bound) in acts.items():
        yield what, in_a_fork(act), size, bound


def main(words: list[str] | None = None) -> int:
    report = Report("train.host_memory", __doc__, words, megabytes=[50, 500])
    torch.set_num_threads(1)
    for megabytes in report.options.megabytes:
        shares: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            for what, took, size, bound in measured(megabytes, Path(folder)):
                limit = bound + SLACK
                report.bound(took <= limit, f"{what}: {took / 2**20:.0f} MiB of {size / 2**20:.0f}")
                shares.append(f"{what} {took / size:.2f}")
                figures = (f"{each / 2**20:.0f}" for each in (size, took, limit))
                report.rows.append((f"{megabytes} MB", what, *figures))
    report.results["additional host memory, as a multiple of the bytes saved or loaded"] = (
        f"{megabytes} MB: {', '.join(shares)}"
    )
    return report.finish(("states", "what", "MiB", "peak MiB", "bound MiB"))


if __name__ == "__main__":
    sys.exit(main())
