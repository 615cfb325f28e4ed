"""No dead knobs: each field of an inference job changes something, in a table of all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import Config, SetpointError
from setpoint.config.composition import compose
from setpoint.config.schema.class_info import section_classes
from setpoint.data.config import WorkerOptions
from setpoint.data.loader import BatchLoader
from setpoint.infer.adopt import complete, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.continuation import GeneratedText
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.train.config import Job

from .small import folder_of


def texts(job: Inference) -> list[GeneratedText]:
    return infer(job).texts


def scores(job: Inference) -> dict[str, Any]:
    return infer(job).scores


def shapes(job: Inference) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def watch(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        found.append(tuple(given[0].shape))

    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: watch(module, given) if hasattr(module, "projection") else None
    )
    try:
        infer(job)
    finally:
        hook.remove()
    return found


def written(job: Inference) -> dict[str, bytes]:
    """The exported files; of `config.json` and the sizes of the others, what is in them."""
    folder = infer(job).exported
    assert folder is not None
    return folder_of(folder)


def weights(job: Inference) -> tuple[str, str]:
    loaded = load(complete(job))
    return loaded.place.directory.name, str(next(loaded.model.parameters()).dtype)


def backend(job: Inference) -> str:
    config: Any = load(complete(job)).model.config
    return config.attention_backend


def device(job: Inference) -> str:
    """Where the model would lie on a machine with a GPU."""
    from setpoint.parallel.world import choose_device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        return choose_device(complete(job).parallel).type


def deterministic(job: Inference) -> bool:
    """What torch was told."""
    told: list[bool] = []

    def look(*given: Any) -> LoadedModel:
        told.append(torch.are_deterministic_algorithms_enabled())
        return load(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.infer.inference.load", look)
        infer(job)
    assert not torch.are_deterministic_algorithms_enabled()
    return told[0]


def written_files(job: Inference) -> set[str]:
    infer(job)
    assert job.output is not None
    return set(folder_of(job.output))


def pauses(job: Inference) -> list[int]:
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.resilience.gc.gc.collect", found.append)
        infer(job)
    return found


def results(job: Inference) -> bool:
    infer(job)
    return job.output is not None and (Path(job.output) / "results.json").is_file()


def cautions(job: Inference) -> list[str]:
    return [caution.code for caution in verify_job(complete(job), ("files",)).cautions]


def asked(job: Inference) -> dict[str, Any]:
    """What the harness is asked for; the harness itself is not there in most places."""
    import sys
    from types import ModuleType, SimpleNamespace

    seen: dict[str, Any] = {}

    class TaskManager:
        all_tasks = ("one", "two")

        def __init__(self, include_path: str | None) -> None:
            seen["include_path"] = include_path

    def simple_evaluate(**given: Any) -> dict[str, Any]:
        names = ("tasks", "num_fewshot", "limit")
        as_chat = ("apply_chat_template", "system_instruction", "fewshot_as_multiturn")
        seen.update({name: given.get(name) for name in (*names, *as_chat)})
        return {"results": {task: {"acc,none": 0.5, "alias": task} for task in given["tasks"]}}

    lm_eval, tasks = ModuleType("lm_eval"), ModuleType("lm_eval.tasks")
    api, model = ModuleType("lm_eval.api"), ModuleType("lm_eval.api.model")
    vars(lm_eval).update(simple_evaluate=simple_evaluate)
    vars(tasks).update(TaskManager=TaskManager)
    vars(model).update(LM=type("LM", (SimpleNamespace,), {}))
    with pytest.MonkeyPatch.context() as patch:
        for module in (lm_eval, tasks, api, model):
            patch.setitem(sys.modules, module.__name__, module)
        return {**seen, "metrics": infer(job).harness} | seen


@dataclass(frozen=True)
class Effect:
    """One field that is changed, and where the change is seen."""

    change: str
    see: Callable[[Inference], Any]
    base: tuple[str, ...]


WRITE = ('generation.prompts=["!", "a"]', "generation.max_tokens=12", "generation.temperature=1.5")
GREEDY = ('generation.prompts=["!", "a"]', "generation.max_tokens=12", "generation.temperature=0")
JUDGE = ("evaluation.sequences=4",)
SOURCE = "{type=random, documents=9, alphabet=8}"
SETS = (*JUDGE, "evaluation.sides=[]", f"evaluation.sets=[{{name=one, sources=[{SOURCE}]}}]")
SEND = ("export.path={out}/hf",)
ASK = ("harness.tasks=[one]",)
PLAIN = "chat.template=plain"
SPELLED = ("generation.prompts=['!<|endoftext|>']", *GREEDY[1:])

EFFECTS = {
    "Inference.deterministic": Effect("deterministic=true", deterministic, JUDGE),
    "Inference.seed": Effect("seed=7", texts, WRITE),
    "Inference.chat": Effect(PLAIN, texts, GREEDY),
    "Inference.silence": Effect("silence=[control-tokens-as-text]", cautions, SPELLED),
    "Chat.template": Effect("chat.template=alpaca", texts, (*GREEDY, PLAIN)),
    "Chat.system": Effect("chat.system='#'", texts, (*GREEDY, PLAIN)),
    "Inference.generation": Effect('generation.prompts=["#"]', texts, JUDGE),
    "Inference.evaluation": Effect("evaluation.sequences=2", scores, WRITE),
    "Inference.export": Effect("export.path={out}/hf", lambda job: infer(job).exported, JUDGE),
    "Inference.harness": Effect("harness.tasks=[one]", asked, JUDGE),
    "Inference.output": Effect("output={out}/results", results, JUDGE),
    "Inference.profiling": Effect(
        "profiling.wait=0", written_files, (*JUDGE, "profiling.warmup=0", "output={out}")
    ),
    "Inference.resilience": Effect("resilience.gc.every=1 steps", pauses, JUDGE),
    "InferenceWeights.path": Effect("weights.path={run}/checkpoints/step-00000040", scores, JUDGE),
    "InferenceWeights.checkpoint": Effect("weights.checkpoint=40", weights, JUDGE),
    "InferenceWeights.dtype": Effect("weights.dtype=bf16", weights, JUDGE),
    "InferenceBatch.global_size": Effect("batch.global_size=1", shapes, JUDGE),
    "InferenceBatch.micro_size": Effect("batch.micro_size=1", shapes, JUDGE),
    "InferenceBatch.sequence_length": Effect("batch.sequence_length=8", scores, JUDGE),
    "InferencePrecision.compute": Effect("precision.compute=bf16", scores, JUDGE),
    "Parallel.device": Effect("parallel.device=cpu", device, JUDGE),
    "Parallel.world_size": Effect("parallel.world_size=2", scores, JUDGE),
    "Data.sources": Effect("data.sources=[{type=random, documents=60}]", scores, JUDGE),
    "Data.held_out": Effect("data.held_out=0.4", scores, ("evaluation.sides=[held_out]",)),
    "Data.validation": Effect(
        "data.validation=[{type=random, documents=9}]", scores, ("evaluation.sides=[held_out]",)
    ),
    "Generation.prompts": Effect('generation.prompts=["#"]', texts, GREEDY),
    "Generation.prompts_file": Effect("generation.prompts_file={tmp}/prompts.txt", texts, GREEDY),
    "Generation.control_tokens": Effect("generation.control_tokens=true", texts, SPELLED),
    "Generation.samples": Effect("generation.samples=2", texts, WRITE),
    "Generation.max_tokens": Effect("generation.max_tokens=3", texts, GREEDY),
    "Generation.temperature": Effect("generation.temperature=0.1", texts, WRITE),
    "Generation.top_k": Effect("generation.top_k=1", texts, WRITE),
    "Generation.top_p": Effect("generation.top_p=0.01", texts, WRITE),
    "Generation.min_p": Effect("generation.min_p=0.9", texts, WRITE),
    "Generation.repetition_penalty": Effect("generation.repetition_penalty=9", texts, GREEDY),
    "Generation.stop": Effect('generation.stop=["#"]', texts, GREEDY),
    "Generation.stop_tokens": Effect("generation.stop_tokens=[35]", texts, GREEDY),
    "Generation.cache": Effect("generation.cache=false", shapes, GREEDY),
    "EvaluationTask.sides": Effect("evaluation.sides=[train]", scores, JUDGE),
    "EvaluationTask.sets": Effect(SETS[-1], scores, JUDGE),
    "EvaluationTask.sequences": Effect("evaluation.sequences=2", scores, JUDGE),
    "DataSet.name": Effect("evaluation.sets.0.name=two", scores, SETS),
    "DataSet.sources": Effect("evaluation.sets.0.sources=[{type=random}]", scores, SETS),
    "ExportTask.path": Effect("export.path={out}/other", lambda job: infer(job).exported, SEND),
    "ExportTask.family": Effect("export.family=mistral", written, SEND),
    "ExportTask.dtype": Effect("export.dtype=bf16", written, SEND),
    "ExportTask.max_shard_size": Effect("export.max_shard_size=9000", written, SEND),
    "Harness.tasks": Effect("harness.tasks=[two]", asked, ASK),
    "Harness.tasks_path": Effect("harness.tasks_path={tmp}", asked, ASK),
    "Harness.few_shot": Effect("harness.few_shot=2", asked, ASK),
    "Harness.few_shot_turns": Effect("harness.few_shot_turns=true", asked, (*ASK, PLAIN)),
    "Harness.limit": Effect("harness.limit=3", asked, ASK),
}

# Always there: what is in them counts. Of the model only what is not part of what was learned may
# be set.
ELSEWHERE = {
    "Data.seed": "rows to train on",
    "Data.shuffle": "rows to train on",
    "Data.loader": "who makes batches of evaluation, in a test below",
    "Data.prepare": "where tokens lie, and never which",
    "Data.shuffle_buffer": "rows to train on",
    "Data.curriculum": "rows to train on",
    "Data.mixture": "which rows are trained on",
    "Data.packing": "rows to train on; and isolation, in a test below",
    "Data.phases": "which rows are trained on",
    "Data.anneal": "which rows are trained on",
    "Inference.weights": "Weights",
    "Inference.adapter": "tests/infer/test_adapter.py",
    "InferenceWeights.merge_adapter": "tests/infer/test_adapter.py",
    "ExportTask.adapter": "tests/infer/test_adapter.py",
    "Inference.model": "its attention backend, in a test below",
    "Inference.tokenizer": "tests/infer/test_adopt.py",
    "Inference.data": "Data",
    "Inference.batch": "Batch",
    "Inference.precision": "Precision",
    "Inference.parallel": "Parallel",
}
# What of the model each rank holds: tests/infer/test_distributed.py has those of inference, and
# refuses what concerns training alone; tests/train and tests/parallel have the rest.
LAYOUT = (
    "Parallel", "Pipelining", "Sharding", "TorchFT", "DeepEP", "DeepSpeed", "AllToAll", "Torch",
)  # fmt: skip
# The fields of what training has as well are seen there, in tests/train/test_config_effects.py.
OURS = ("setpoint.infer.", "setpoint.parallel.")


def classes(cls: type[Config] = Inference) -> Iterator[type[Config]]:
    """The config classes of a job, itself included, but for those of models and sources."""
    yield cls
    for info in cls.__setpoint__.fields.values():
        for below in section_classes(info.type):
            if below.__module__.startswith(OURS) or below.__name__ in ("Precision", "Data"):
                yield from classes(below)


def job_of(run: Path, folder: Path, out: Path, flags: tuple[str, ...]) -> Inference:
    places = {"{tmp}": folder, "{out}": out, "{run}": run}
    given = [f"weights.path={run}", *flags]
    for sign, place in places.items():
        given = [flag.replace(sign, str(place)) for flag in given]
    return complete(compose(Inference, flags=given).draft)


def observed(effect: Effect, run: Path, folder: Path, out: Path, *change: str) -> Any:
    try:
        seen = effect.see(job_of(run, folder, out, (*effect.base, *change)))
    except SetpointError as error:
        return f"refused: {error}"
    return seen.relative_to(out) if isinstance(seen, Path) else seen


Before = Callable[[Effect], Any]


@pytest.fixture(scope="module")
def before(trained: tuple[Job, Path], tmp_path_factory: pytest.TempPathFactory) -> Before:
    """What is seen without a change, once for all rows that start from the same."""
    folder, seen = tmp_path_factory.mktemp("before"), dict[Any, Any]()

    def look_up(effect: Effect) -> Any:
        key = (effect.see, effect.base)
        if key not in seen:
            seen[key] = observed(effect, trained[1], folder, folder / str(len(seen)))
        return seen[key]

    return look_up


def test_each_field_is_in_the_table() -> None:
    names = {f"{cls.__name__}.{name}" for cls in classes() for name in cls.__setpoint__.fields}
    names -= ELSEWHERE.keys()
    assert {
        name for name in names - EFFECTS.keys() if name.partition(".")[0] not in LAYOUT
    } == set()
    assert EFFECTS.keys() <= names


@pytest.mark.parametrize("name", EFFECTS)
def test_the_field_has_an_effect(
    trained: tuple[Job, Path], before: Before, tmp_path: Path, name: str
) -> None:
    effect, without = EFFECTS[name], before(EFFECTS[name])
    (tmp_path / "prompts.txt").write_text("%\n")
    after = observed(effect, trained[1], tmp_path, tmp_path / "after", effect.change)
    assert not str(without).startswith("refused"), without
    assert str(after).startswith("refused") == (name == "Parallel.world_size"), after
    assert after != without


def test_isolated_documents(trained: tuple[Job, Path], tmp_path: Path) -> None:
    source = "data.sources=[{type=random, documents=200, alphabet=8, length=7}]"
    flags = (*JUDGE, source)
    with_others, alone = (
        EFFECTS["EvaluationTask.sequences"].see(job_of(trained[1], tmp_path, tmp_path, given))
        for given in (flags, (*flags, "data.packing.isolate=true"))
    )
    assert with_others != alone


def test_workers_of_evaluation(trained: tuple[Job, Path], tmp_path: Path) -> None:
    started: list[int] = []

    def loader(texts: Any, plans: Any, options: WorkerOptions, section: str) -> Any:
        started.append(options.workers)
        return BatchLoader(texts, plans, options, section)

    flags = (*SETS, "data.loader.workers=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.data.loader.BatchLoader", loader)
        found = [
            scores(job_of(trained[1], tmp_path, tmp_path, (*flags, *more)))
            for more in ((), ("data.loader.evaluation.workers=1",), ("data.loader.workers=0",))
        ]
    assert found[0] == found[1] == found[2]
    assert started == [2, 1]


def test_the_attention_backend(trained: tuple[Job, Path], tmp_path: Path) -> None:
    job = job_of(trained[1], tmp_path, tmp_path, (*JUDGE, "model.attention_backend=eager"))
    assert backend(job) == "eager"
