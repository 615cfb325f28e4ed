"""Run tasks of lm-evaluation-harness, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setpoint.config import SetpointError, did_you_mean
from setpoint.infer.config import Inference
from setpoint.infer.harness.answers import Answers
from setpoint.infer.load import Loaded
from setpoint.infer.tasks import Harness

Metrics = dict[str, dict[str, Any]]


def open_harness(section: Harness) -> Callable[[Loaded, Inference], Metrics]:
    """Import the harness and find its tasks, before any weights are read.

    Raises:
        SetpointError: the package is missing, or it has no such task.
    """
    try:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"harness: it needs the package {error.name!r}: install 'setpoint[harness]'"
        ) from None
    path = None if section.tasks_path is None else str(section.tasks_path)
    manager = TaskManager(include_path=path)
    unknown = [task for task in section.tasks if task not in manager.all_tasks]
    if unknown:
        meant = did_you_mean(unknown[0], manager.all_tasks, " ")
        raise SetpointError(
            f"harness.tasks: the harness has no task {unknown[0]!r}.{meant} "
            f"`lm_eval ls tasks` lists all"
        )

    def run(loaded: Loaded, job: Inference) -> Metrics:
        from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]

        from setpoint.infer.harness.model import SetpointLM

        as_chat: dict[str, Any] = {}
        if job.chat is not None:
            as_chat = {
                "apply_chat_template": True,
                "system_instruction": job.chat.system,
                "fewshot_as_multiturn": section.few_shot_turns,
            }
        found = simple_evaluate(
            model=SetpointLM(Answers(loaded, job.batch.micro_size, job.seed, job.chat)),
            tasks=list(section.tasks),
            num_fewshot=section.few_shot,
            limit=section.limit,
            task_manager=manager,
            bootstrap_iters=0,
            random_seed=job.seed % 2**32,
            numpy_random_seed=job.seed % 2**32,
            torch_random_seed=job.seed,
            fewshot_random_seed=job.seed,
            log_samples=False,
            verbosity="ERROR",
            **as_chat,
        )
        assert found is not None, "only other ranks of a group get nothing"
        return {task: _numbers(metrics) for task, metrics in found["results"].items()}

    return run


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """The measured values by name, as JSON can hold them."""
    kept = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {name.removesuffix(",none"): value for name, value in kept.items()}
