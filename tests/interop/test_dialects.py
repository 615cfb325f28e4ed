"""Each dialect has every key with its default, and converts or reports any subset of them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.cli.main import main
from setpoint.config.files.file_document import FileError
from setpoint.interop.dialect import DIALECTS, REQUIRED, Conversion, dialect_named, read_foreign

from ..support.snapshots import refused
from .conftest import Refuses

EXAMPLES = ("learning_rate", "batch_size", "precision")
"""Keys of a class in DanLing's documentation, which a file may have or not."""
ANSWERS = Path(__file__).parents[1] / "coverage" / "answers.toml"


def documented(system: str) -> dict[str, dict[str, Any]]:
    tables = tomllib.loads(ANSWERS.read_text()).values()
    answers = {key: answer for table in tables for key, answer in table.items()}
    return {
        key.removeprefix(f"{system} "): answer
        for key, answer in answers.items()
        if key.startswith(f"{system} ") and not {"[", "<", ":"} & {*key}
        and answer.get("kind") not in ("computed", "section")
    }  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_key_is_there_with_its_default(name: str) -> None:
    dialect = dialect_named(name)
    for key, answer in documented(dialect.name).items():
        if any(name.startswith(f"{key}.") for name in dialect.keys):
            continue  # a section with a choice of its own
        assert key in dialect.keys, key
        default = dialect.keys[key].default
        if " = " in answer.get("takes", ""):
            text = answer["takes"].partition(" = ")[2]
            words: dict[str, object] = {"null": None, "true": True, "false": False}
            if text in ("<required>", "<absent>") or key in EXAMPLES:
                # Null says that the file leaves it to Python.
                assert default is REQUIRED or default is None or dialect.name == "d9d", key
            elif not text.startswith(("=", "env ")):
                shown = str(list(default)) if isinstance(default, tuple) else str(default)
                assert shown == str(words.get(text, text)), key
        elif "choices" in answer and isinstance(default, str) and default:
            assert default in answer["choices"], key


class Memory:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.name = "memory.toml"

    def where(self, path: tuple[str, ...]) -> str:
        return f"memory.toml:{len(path)}:1"


VALUES = st.sampled_from(
    [None, 0, 1, 2, -1, 0.5, True, False, "text", "1", [], [1], ["a"], {}, {"a": 1}, [{"b": 2}]]
)


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
def test_any_keys_convert_or_are_reported(name: str, data: st.DataObject) -> None:
    dialect = dialect_named(name)
    own = {
        key: st.one_of(st.sampled_from([entry.default, *(entry.values or {})]), VALUES)
        for key, entry in dialect.keys.items()
    }
    chosen = data.draw(st.lists(st.sampled_from([*dialect.keys]), max_size=12, unique=True))
    values = {key: data.draw(own[key]) for key in chosen}
    values = {key: value for key, value in values.items() if value is not REQUIRED}
    conversion = Conversion(dialect, Memory(values))  # pyright: ignore[reportArgumentType]
    conversion.convert()
    named = {problem.path for problem in conversion.problems}
    for name in named | {report.key for report in conversion.reports}:
        assert name in dialect.keys or name.partition(".")[0] in chosen  # a table as a value


def test_no_key_is_lost_in_silence() -> None:
    """A key that no rule read, in this mode or at all, is reported with its place."""
    values = {"train.ce_chunk_size": 7, "distributed.pp_schedule": "gpipe"}
    conversion = Conversion(dialect_named("kempnerforge"), Memory(values))  # pyright: ignore[reportArgumentType]
    conversion.convert()
    lost = {report.key for report in conversion.reports if report.kind == "not converted"}
    assert lost == {*values}
    values = {"parallelism.pipeline_parallel_schedule_csv": "a", "checkpoint.load_step": 3}
    conversion = Conversion(dialect_named("torchtitan"), Memory(values))  # pyright: ignore[reportArgumentType]
    conversion.convert()
    lost = {report.key for report in conversion.reports if report.kind == "not converted"}
    assert lost == {"parallelism.pipeline_parallel_schedule_csv"}
    # What a switch of the file turns off has no effect there either.
    idle = {report.key for report in conversion.reports if report.kind == "without effect"}
    assert idle == {"checkpoint.load_step"}


JOB = """
model: {model_path: a/b}
data: {datasets: [{path: dummy}]}
train: {output_dir: out, data_parallel_mode: fsdp2}
"""


def test_overrides_have_the_spelling_of_the_system(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    typed = ["--", "--train.lr", "2e-4", "--train.enable_compile", "train.lr=3e-4"]
    assert main(["why", "optimizer.lr", "xorl:job.yaml", *typed]) == 0
    assert "> 0.0003  job.yaml -- train.lr" in capsys.readouterr().out
    assert main(["show", "job.yaml", *typed]) == 0
    assert "file of xorl" in capsys.readouterr().err
    assert main(["convert", "xorl:job.yaml", *typed, "--data.datasets", "[{path: c/d}]"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# setpoint convert xorl:job.yaml -- --train.lr 2e-4") and "c/d" in text
    assert "[compile]" in text or "compile =" in text
    refuses("show", "tiny", "--", "--train.lr=1")
    refuses("list", "--", "a=1")
    refuses("show", "xorl:job.yaml", "--", "lr")
    refuses("show", "xorl:job.yaml", "--", "--train.lrr", "1")
    words = ["model.foundation.rope=1", "model.foundation.rope.theta=2", "~train.lr"]
    document = read_foreign("xorl", "job.yaml", words)
    assert document.data["model"] | {"overrides": {"rope": {"theta": 2}}} == document.data["model"]


@pytest.mark.parametrize(("name", "values"), [
    ("kempnerforge", {"data.datasets": [{"path": "a", "wieght": 2}]}),
    ("xorl", {"data.datasets": [{"path": "a/b", "wieght": 2}]}),
    ("torchtune", {"dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "wieght": 2}}),
])  # fmt: skip
def test_names_in_lists_are_not_lost_either(name: str, values: dict[str, Any]) -> None:
    conversion = Conversion(dialect_named(name), Memory(values))  # pyright: ignore[reportArgumentType]
    conversion.convert()
    texts = [report.text for report in conversion.reports if report.kind == "not converted"]
    assert texts == ["no field corresponds to wieght"]


def test_no_file_is_trained_on_the_default_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"per_device_train_batch_size": 2, "max_steps": 3, "optim": "adamw_torch"}')
    assert main(["check", f"huggingface_trainer:{file}", "--model", "transformer"]) == 0
    assert "training needs --data.sources text" in capsys.readouterr().err
    refuses("train", f"huggingface_trainer:{file}", "--model", "transformer")


def test_a_refused_file_has_no_notes(tmp_path: Path, refuses: Refuses) -> None:
    file = tmp_path / "run.args"
    file.write_text("--config flux_dev\n")
    refuses("check", f"torchtitan:{file}")


def test_advice_for_files_of_setpoint_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("<<: {base_model: a}\n")
    with refused(FileError):
        read_foreign("axolotl", str(file))


def test_a_file_of_another_dialect_is_named(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    refuses("convert", "torchtitan:job.yaml")
    refuses("check", "huggingface:job.yaml")


def test_a_key_is_listed_once() -> None:
    """In `keys.toml`, where a second reason would replace the first."""
    path = Path(__file__).parents[2] / "src" / "setpoint" / "interop" / "keys.toml"
    for lists in tomllib.loads(path.read_text()).values():
        groups = [lists.pop("null"), lists.pop("false", "")]
        groups += [names for reasons in lists.values() for names in reasons.values()]
        names = [name for group in groups for name in group.split()]
        assert len(names) == len({*names})
