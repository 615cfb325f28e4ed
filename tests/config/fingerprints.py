"""Fingerprints of a few fixed jobs; a program of its own, so that any Python can be asked."""

import json

from setpoint.config import Config, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint

from .sample import AdamW, Batch, Job, Mode, Secret, Sgd, Synthetic, Text, Tracker, Transformer


def jobs() -> dict[str, Config]:
    """The jobs by name."""
    rich = Job(
        seed=None,
        mode=Mode.EXACT,
        warmup=3,
        model=Transformer(dim=64, heads=4, dropout=0.1),
        optimizer=Sgd(lr=1e-5, momentum=1 / 3, clip_norm=float("inf")),
        sources=[Text(paths=["é", "\U0001f600"], weight=1e22), Synthetic(documents=2)],
        evaluations={"b": Batch(size=2), "a": Batch(size=3)},
        thresholds={"z": 1e-7, "a": 123456789.0},
        tracker=Tracker(url="http://x", token=Secret("env:TOKEN")),
        user={"b": [1, 2.5, None, True, {"y": 1, "x": 2}], "a": {"c": "null?"}},
    )
    flags = ["--optimizer.betas=0.5,1e-1", "--model.dim=${batch.size * 12}", "--seed=1e6"]
    return {
        "default": resolve(Job()),
        "rich": resolve(rich),
        "flags": compose(Job, flags=flags).resolve(),
        "section": resolve(AdamW(lr=0.1)),
    }


def of_presets() -> dict[str, str]:
    """The fingerprints of Setpoint's own presets."""
    import setpoint.presets  # noqa: F401 - registers them
    from setpoint.config.layers.presets import presets
    from setpoint.train.config import Job as TrainingJob

    found = {name: fingerprint(compose(TrainingJob, name).resolve()) for name in presets}
    return dict(sorted(found.items()))


if __name__ == "__main__":
    of_sample = {name: fingerprint(job) for name, job in jobs().items()}
    print(json.dumps({**of_sample, **of_presets()}))
