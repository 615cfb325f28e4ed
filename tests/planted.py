"""Breaks one thing at a time in a copy of the tree, and says whether the tests catch it.

    python -m tests.planted [WORD]...     (`make planted`) the breaks whose file or name has a word

Each break is one exact replacement in one file of `src/setpoint`, with the tests that ought to
catch it: files or folders, run in this order up to the first failure. A break that none of them
catches is `MISSED`, and the exit status 1. One whose text is not there (any more) is `STALE`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120


class Break(NamedTuple):
    """One planted break.

    Arguments:
        file: below `src/setpoint`.
        old, new: a text that stands there once, and what it becomes.
        tests: below `tests`, in order.
    """

    file: str
    old: str
    new: str
    tests: str


BREAKS = [
    # The kernel.
    Break(
        "config/record/record.py",
        "for leaf in leaves(config) if leaf.role is IDENTITY]",
        "for leaf in leaves(config) if leaf.role is not None]",
        "config/test_fingerprint.py",
    ),
    Break(
        "config/draft/walk.py",
        "if value is None and name in cls.added:",
        "if name in cls.added:",
        "config/test_added.py",
    ),
    Break(
        "config/record/record.py",
        "ensure_ascii=True",
        "ensure_ascii=False",
        "config/test_fingerprint.py",
    ),
    Break(
        "config/record/record.py",
        "if value != other:",
        "if value != other and key in recorded:",
        "config/test_record.py",
    ),
    Break(
        "config/record/record.py",
        "if given != actual:",
        "if given and given < actual:",
        "config/test_record.py",
    ),
    Break(
        "config/draft/walk.py",
        "for role in (RUNTIME, BUDGET):",
        "for role in (BUDGET, RUNTIME):",
        "config/test_walk.py config/test_fingerprint.py",
    ),
    Break(
        "units/quantity.py",
        '"min": "min", "minute": "min", "minutes": "min"',
        '"min": "min", "minute": "min", "minutes": "h"',
        "units/test_quantity.py",
    ),
    Break(
        "units/quantity.py",
        'if not 0 < number < float("inf"):',
        'if not 0 <= number < float("inf"):',
        "units/test_quantity.py",
    ),
    Break(
        "config/schema/field.py",
        "(self.le is None or value <= self.le)",
        "(self.le is None or value < self.le)",
        "config/test_field.py",
    ),
    Break(
        "config/schema/field.py",
        "(self.gt is None or value > self.gt)",
        "(self.gt is None or value >= self.gt)",
        "config/test_field.py",
    ),
    Break(
        "config/values/reference.py",
        '"Sub": ("-", lambda left, right: left - right)',
        '"Sub": ("-", lambda left, right: right - left)',
        "config/test_reference.py",
    ),
    Break(
        "config/layers/environment_variables.py",
        "if other != name:",
        "if other == name and other != name:",
        "config/layers/test_environment_variables.py",
    ),
    # Data.
    Break(
        "data/rows.py",
        "return windows[:, :-1].copy(), windows[:, 1:].copy()",
        "return windows[:, :-1].copy(), windows[:, :-1].copy()",
        "data train/test_loop.py",
    ),
    Break("data/rows.py", "targets[~valid] = IGNORE_INDEX", "targets[:0] = IGNORE_INDEX", "data"),
    Break(
        "data/rows.py",
        "target_tokens = int(np.count_nonzero(trained))",
        "target_tokens = trained.size",
        "data",
    ),
    Break(
        "data/loader.py",
        "self.sampler.take(count, slice(first, first + self.micro_size))",
        "self.sampler.take(count, slice(0, self.micro_size))",
        "data/test_loader.py data",
    ),
    Break(
        "data/order.py",
        "return EpochPosition(epoch, epoch_row, group, row)",
        "return EpochPosition(0, epoch_row, group, row)",
        "data/test_loader.py data train/test_killed_anywhere.py",
    ),
    Break(
        "data/rows.py",
        "more = stride - length + partial * (length - 1)",
        "more = stride - length",
        "data train/evaluation",
    ),
    Break("data/order.py", "words *= _SECOND", "words *= _FIRST", "data test_curves.py"),
    Break(
        "data/reading.py",
        "return ordered[count:], ordered[:count]",
        "return ordered, ordered[:count]",
        "data",
    ),
    # Losses.
    Break(
        "loss/cross_entropy.py",
        "per_token = per_token.where(valid, 0.0)",
        "per_token = per_token * valid",
        "loss",
    ),
    Break(
        "loss/cross_entropy.py",
        "log_z.square(), valid, weights",
        "log_z.abs(), valid, weights",
        "loss",
    ),
    Break(
        "loss/cross_entropy.py",
        "logits.mean(dim=-1) if mean else",
        "logits.amax(dim=-1) if mean else",
        "loss",
    ),
    Break(
        "loss/cross_entropy.py", "logits = logits.float()", "logits = logits + 0", "loss precision"
    ),
    Break(
        "loss/cross_entropy.py",
        "weights.masked_fill(targets == IGNORE_INDEX, 0.0)",
        "weights",
        "loss",
    ),
    # Models.
    Break(
        "model/attention/attention.py",
        "positions.to(torch.float64).unsqueeze(-1) * radians",
        "positions.to(torch.float32).unsqueeze(-1) * radians.float()",
        "model/attention",
    ),
    Break(
        "model/attention/attention.py",
        "0.1 * math.log(scaling.factor) + 1.0",
        "0.1 * math.log2(scaling.factor) + 1.0",
        "model/attention",
    ),
    Break(
        "model/attention/backends.py",
        "products = torch.tanh(products / scores.soft_cap) * scores.soft_cap",
        "products = torch.tanh(products / scores.soft_cap)",
        "acceptance/test_models.py",
    ),
    Break(
        "model/attention/backends.py",
        "products = products.to(torch.promote_types(products.dtype, torch.float32))",
        "products = products.to(value.dtype)",
        "model/attention precision",
    ),
    Break(
        "model/attention/attention.py",
        "dropout = self.dropout if self.training else 0.0",
        "dropout = self.dropout",
        "model",
    ),
    Break(
        "model/block_modules.py",
        "NormalInit(others.get(name, std))",
        "NormalInit(std)",
        "model",
    ),
    Break("model/initialize.py", "min(last, self.count)", "last", "model"),
    Break(
        "model/initialize.py",
        "drawn[start : start + last - first]",
        "drawn[: last - first]",
        "model",
    ),
    Break(
        "train/loop.py",
        "seed_step(self.job.seed, position.step,",
        "seed_step(self.job.seed, 0,",
        "train/test_loop.py",
    ),
    Break(
        "data/order.py",
        "beyond[elements[beyond] >= size]",
        "beyond[elements[beyond] > size]",
        "data",
    ),
    Break(
        "model/moe/layer.py",
        "step = router.bias_rate *",
        "step = -router.bias_rate *",
        "model/moe train/callbacks",
    ),
    Break(
        "model/moe/layer.py",
        "(chosen if valid is None else chosen * valid.unsqueeze(-1))",
        "(chosen if valid is None else chosen + 0 * valid.unsqueeze(-1))",
        "model/moe",
    ),
    Break(
        "model/block_modules.py",
        "return dx.add_(mean.mul_(r)), dw, None",
        "return dx, dw, None",
        "model/test_block_modules.py",
    ),
    # Optimizers and schedules.
    Break(
        "optim/muon.py",
        'shard.mul_(1 - lr * group["weight_decay"])',
        'shard.mul_(1 - adjusted * group["weight_decay"])',
        "optim",
    ),
    Break(
        "optim/muon.py",
        'gradient.lerp(exact, momentum) if group["nesterov"]',
        "gradient.lerp(exact, momentum) if momentum",
        "optim",
    ),
    Break(
        "optim/elementwise.py",
        'counters["lr_max"] = max(group["lr"], counters["lr_max"])',
        'counters["lr_max"] = group["lr"]',
        "optim",
    ),
    Break(
        "optim/elementwise.py", "p.copy_(y)", "p.lerp_(y, 0.999)", "optim train/test_averaging.py"
    ),
    Break(
        "optim/clip.py",
        "norm = global_norm((p.grad for p in counted if p.grad is not None), stages)",
        "norm = global_norm((p.grad for p in counted[1:] if p.grad is not None), stages)",
        "optim",
    ),
    Break(
        "optim/curves.py",
        "point += place.extent.get(unit, 0.0)",
        "point += 0.0",
        "optim/schedule",
    ),
    Break(
        "optim/curves.py",
        "if self.waited > self.config.patience:",
        "if self.waited >= self.config.patience:",
        "optim/schedule",
    ),
    # Checkpoints.
    Break(
        "checkpoint/repartition.py",
        "        _compare(source, aside, frozen or {})\n",
        "        pass\n",
        "checkpoint/test_repartition.py",
    ),
    Break(
        "train/warm_start.py",
        "excluded |= _excluded(job, [*names, *sorted(saved)], of_optimizer=True)",
        "excluded |= set()",
        "train/test_warm_start.py",
    ),
    Break(
        "train/warm_start.py",
        'first.get("manifest") != loaded.digest',
        "False",
        "train/test_warm_start.py",
    ),
    Break(
        "model/pretrained/fill.py",
        "ranges[part.dim] = (part.start, part.start + (part.length or 1))",
        "ranges[part.dim] = (0, part.length or 1)",
        "cli/test_checkpoint.py",
    ),
    Break(
        "checkpoint/store.py",
        "stay = [other for other in checkpoints if other < s]",
        "stay = [other for other in checkpoints if other <= s]",
        "checkpoint/test_crashes.py",
    ),
    Break(
        "checkpoint/folder.py",
        "sync_directory(directory.parent)\n    shutil.rmtree(doomed)",
        "shutil.rmtree(doomed)",
        "checkpoint/test_crashes.py",
    ),
    Break(
        "checkpoint/store.py", "sync_directory(folder)\n", "pass\n", "checkpoint/test_crashes.py"
    ),
    Break("files/atomic.py", "if self != expected:", "if self.size == 0:", "checkpoint"),
    Break(
        "checkpoint/folder.py",
        "why.append(protected[step])",
        "pass",
        "checkpoint train/callbacks/test_evaluate.py",
    ),
    Break(
        "checkpoint/store.py",
        "publish(folder, target)\n",
        "_ = [each.move() for each in pointers]; publish(folder, target)\n",
        "checkpoint",
    ),
    Break(
        "files/lock.py",
        "_flock(descriptor, fcntl.LOCK_SH)",
        "_flock(descriptor, fcntl.LOCK_EX)",
        "files/test_lock.py",
    ),
    Break(
        "track/jsonl.py",
        "os.ftruncate(self._descriptor, offset)",
        "os.ftruncate(self._descriptor, self._offset)",
        "track train/test_killed_anywhere.py",
    ),
    # The trainer.
    Break(
        "data/loader.py",
        "counts = tuple(self.count(batch) for batch in batches)",
        "counts = tuple(self.count(batches[0]) for batch in batches)",
        "data/test_loader.py data train/test_loop_accumulation.py train/test_loop.py",
    ),
    Break(
        "train/engine.py",
        'group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)',
        'group["lr"] = rates.lr',
        "train/test_loop.py train/build/test_job_parameters.py",
    ),
    Break(
        "train/engine.py",
        "(total.weight, total.targets, weight_share)",
        "(total.weight, total.targets, total.weight)",
        "train/test_loop_accumulation.py train/test_loop.py train/test_routing.py",
    ),
    Break(
        "train/engine.py",
        "update_biases(components.model, counts, rates.done, rates.frozen, skip)",
        "update_biases(components.model, counts, rates.done, rates.frozen, skip * 0)",
        "train/test_routing.py train/test_loop.py",
    ),
    Break(
        "train/position.py",
        "return period.multiples_in(done) > period.multiples_in(earlier)",
        "return done - earlier >= period.count",
        "train/test_position.py",
    ),
    Break(
        "train/run_state.py",
        "self.owner.load_state_dict(saved.state.get(self.key, {}))",
        "self.owner.state_dict()",
        "train/test_run_state.py train/test_learning_rate.py train/test_killed_anywhere.py",
    ),
    Break(
        "train/run_state.py",
        "convert_state(self.job.precision, components.optimizer, dtypes)",
        "dtypes = None",
        "train/test_run_state.py train/test_formats.py",
    ),
    Break(
        "train/evaluation/scores.py",
        "value < self.reference - min_delta",
        "value <= self.reference - min_delta",
        "train/evaluation train/callbacks/test_evaluate.py",
    ),
    Break(
        "train/evaluation/scores.py",
        'return -value if section.best.direction == "max" else value',
        "return value",
        "train/evaluation train/callbacks/test_evaluate.py",
    ),
    Break(
        "shapes/scoring.py",
        "tokens += counted.targets",
        "tokens += batch.target_tokens",
        "train/evaluation",
    ),
    Break(
        "train/run_state.py",
        "training = stack.enter_context(evaluation_point(self.components))",
        "training = {}\n        stack.enter_context(evaluation_point(self.components))",
        "train/test_averaging.py train/test_killed_anywhere.py",
    ),
    Break(
        "track/jsonl.py",
        "self._writer.truncate(min(offset, self._writer.offset))",
        "self._writer.truncate(self._writer.offset)",
        "track train/test_killed_anywhere.py",
    ),
    Break(
        "precision/mixed_precision.py",
        'self.skipped = state_dict.get("skipped", 0)',
        "self.skipped = 0",
        "precision train/test_formats.py",
    ),
    Break(
        "optim/optimizer.py",
        "optimizer.grad_scale, optimizer.found_inf = None, flag",
        "optimizer.grad_scale, optimizer.found_inf = None, flag * 0",
        "train/test_engine.py",
    ),
]


def copy_tree(root: Path, tree: Path) -> None:
    """Copy a tree without its history, environments, caches and, at the top, `runs`."""
    everywhere = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return everywhere(folder, names) | ({"runs"} if Path(folder) == root else set())

    shutil.copytree(root, tree, ignore=left_out)


def plant(tree: Path, one: Break) -> bool:
    """Break a copy of the tree; False where the text does not stand there once."""
    path = tree / "src/setpoint" / one.file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(one.old) != 1:
        return False
    path.write_text(text.replace(one.old, one.new), encoding="utf-8")
    return True


def catches(tree: Path, tests: str) -> str | None:
    """The first test that fails; None if none does.

    Arguments:
        tree: the copy.
        tests: files and folders below `tests`, run in this order.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    for name in tests.split():
        if not (tree / "tests" / name).exists():
            continue
        try:
            done = subprocess.run(
                [sys.executable, *words, f"tests/{name}"],
                cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"tests/{name} came to no end"
        if done.returncode == 1 or done.returncode == 2:
            said = [
                line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            return (said or [done.stdout[-200:]])[0]
        assert done.returncode in (0, 5), done.stdout + done.stderr
    return None


def main(words: list[str]) -> int:
    """Plant each break, and print which are caught.

    Arguments:
        words: parts of names of files; none: all breaks. `--tree DIRECTORY` comes first to break a
            copy of another tree than this one.

    Returns:
        the exit status.
    """
    root = ROOT
    if words[:1] == ["--tree"]:
        root, words = Path(words[1]).resolve(), words[2:]
    wanted = [one for one in BREAKS if not words or any(word in one.file for word in words)]
    counts = {"caught": 0, "MISSED": 0, "STALE": 0}
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(root, tree)
        for one in wanted:
            began = time.monotonic()
            found, result, path = None, "STALE", tree / "src/setpoint" / one.file
            whole = path.read_text(encoding="utf-8") if path.exists() else ""
            if plant(tree, one):
                found = catches(tree, one.tests)
                result = "caught" if found else "MISSED"
                path.write_text(whole, encoding="utf-8")
            counts[result] += 1
            seconds = time.monotonic() - began
            what = one.new.splitlines()[0].strip()[:70]
            print(f"{result} {one.file}: {what}  ({seconds:.0f} s)", flush=True)
            if found:
                print(f"    by {found[:150]}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items() if count))
    return 1 if counts["MISSED"] or counts["STALE"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
