"""Tokens per second of greedy generation with and without a cache, beside transformers.

    cd benchmarks && python -m model.generation [--device cuda] [--rounds 10]

Both sides have equal weights and must give equal tokens before anything is measured. They run in
turns in one process. Leaves with status 1 if Setpoint is slower than transformers, with the cache
or without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from harness import clocks_in_turns, devices, misses, options, ratio, record, verdict
from model.architectures import ARCHITECTURES, theirs_and_ours
from model.bare import Shape
from setpoint.cli.output import table
from setpoint.infer.generation import Sampling, generate

# By device: the shape, prompts, their tokens, and new tokens with and without a cache.
SHAPES = {
    "cpu": (Shape(4096, 512, 4, 8, 4, 64, 1408, 512, 128), (1, 4), 64, 128, 24),
    "cuda": (Shape(32_000, 2048, 8, 16, 8, 128, 5632, 2048, 512), (1, 16), 512, 256, 64),
}
HEADINGS = ("architecture", "prompts", "cache", "tokens/s", "transformers", "ratio", "CPU time")
Run = Callable[[], list[list[int]]]


def main() -> int:
    arguments = options(__doc__, device=devices(), rounds=9, only=None)
    device, rounds = torch.device(arguments.device), max(2, arguments.rounds)
    shape, batches, length, cached, uncached = SHAPES[arguments.device]
    rows: list[list[str]] = []
    failed: list[str] = []
    gains: list[str] = []
    for name in ARCHITECTURES if arguments.only is None else (arguments.only,):
        theirs, ours = theirs_and_ours(ARCHITECTURES[name](shape)[0], device)
        theirs.eval()
        for batch in batches:
            prompts = torch.randint(shape.vocab_size, (batch, length), device=device)
            speeds: dict[bool, float] = {}
            for cache, count in ((True, cached), (False, uncached)):
                sides = _sides(theirs, ours, prompts, count, cache)
                title = f"{name}, {batch} prompts, {'with' if cache else 'without'} a cache"
                if (wrote := sides["setpoint"]()) != sides["transformers"]():
                    failed.append(f"{title}: the tokens differ")
                assert all(len(row) == count for row in wrote)
                clocks = clocks_in_turns(sides, rounds, device, warm=1)
                found = ratio(clocks.wall, "setpoint", "transformers")
                by_cpu = ratio(clocks.cpu, "setpoint", "transformers").median
                if misses(clocks, "setpoint", "transformers", 1.0, device):
                    failed.append(f"{title}: {found.median:.3f} of transformers")
                both = [batch * count / sorted(clocks.wall[s])[rounds // 2] for s in sides]
                speeds[cache] = both[0]
                words = [f"{speed:,.0f}" for speed in both]
                cells = [name, str(batch), "yes" if cache else "no", *words, str(found)]
                rows.append([*cells, f"{by_cpu:.3f}"])
            gains.append(f"{name}, {batch}: {speeds[True] / speeds[False]:.1f}")
    print(
        f"greedy tokens behind {length} of each prompt, {shape.layers} layers, dim {shape.dim}, "
        f"{arguments.device}, {torch.get_num_threads()} threads, {rounds} rounds; "
        "ratios: median (10 %-90 %)\n"
    )
    print(table(rows, headings=HEADINGS))
    print(f"\nwhat the cache gains, by architecture and prompts: {'; '.join(gains)}")
    cached = (row for row in rows if row[1:3] == ["1", "yes"])
    record(arguments, "model.generation", {
        "greedy tokens with a cache against `transformers`, one prompt":
            ", ".join(f"{row[0]} {row[-1]}" for row in cached)
    })  # fmt: skip
    return verdict(failed, "ahead of transformers, with the cache and without it")


def _sides(
    theirs: Any, ours: Any, prompts: torch.Tensor, count: int, cache: bool
) -> dict[str, Run]:
    """Both ways to continue the prompts, by name; each returns the new tokens only."""
    from transformers import GenerationConfig

    lists: list[list[int]] = prompts.tolist()
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        use_cache=cache,
        pad_token_id=0,
        eos_token_id=None,
    )
    mask = torch.ones_like(prompts)

    def write_theirs() -> list[list[int]]:
        done = theirs.generate(prompts, attention_mask=mask, generation_config=config)
        return done[:, prompts.shape[1] :].tolist()

    def write_ours() -> list[list[int]]:
        sampling = Sampling(temperature=0)
        done = generate(ours, lists, max_tokens=count, sampling=sampling, cache=cache)
        return [each.tokens for each in done]

    return {"setpoint": write_ours, "transformers": write_theirs}


if __name__ == "__main__":
    sys.exit(main())
