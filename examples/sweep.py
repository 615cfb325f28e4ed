"""A sweep, its table and a generation, in Python."""

from itertools import product

import setpoint as sp

runs = []
for kind, lr in product(["adamw", "muon"], [3e-3, 1e-2]):
    overrides = {
        "name": f"python-{kind}",
        "duration": "40 steps",
        "model.dim": 64,
        "optimizer.type": kind,
        "optimizer.lr": lr,
        "evaluation.every": "last_step",
        "tracking.progress": "none",
    }
    sp.check("tiny", overrides)  # all problems at once, before anything is computed
    runs.append(sp.load_run(sp.train("tiny", overrides=overrides)))

for run in runs:
    loss = run.metrics("evaluation")["held_out_loss"].iloc[-1]
    print(f"{run.config.optimizer.lr:7} {run.directory.name:24} {loss:.4f}")

best = min(runs, key=lambda run: run.metrics("evaluation")["held_out_loss"].iloc[-1])
print(best.model().generate("def ", max_tokens=40)[0].text)
