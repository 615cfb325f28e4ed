"""A chat model from its data to its answers, against transformers with the exported files."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import setpoint as sp
from setpoint.cli.main import main
from setpoint.config import ConfigError, chain_of, compose
from setpoint.data.sources.chat import NAMED
from setpoint.infer.adopt import complete, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.continuation import GeneratedText, continue_prompts
from setpoint.infer.harness import Answers
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.infer.prompts import prompts_of
from setpoint.infer.tasks import Chat, EvaluationTask, ExportTask, Generation
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.train.run import train

from ..data.tokenizers_here import BEGIN, CHAT, END, byte_level, sentence_piece
from ..support.snapshots import refused
from ..train.small import small_job
from .small import inference, small_model

QUESTIONS = {"2 + 2?": "four", "1 + 3?": "four", "3 + 3?": "six", "5 + 3?": "eight"}


class Trained(NamedTuple):
    """A run on conversations, and its export."""

    run: Path
    exported: Path


def train_chat(folder: Path, *flags: str) -> Path:
    """A run on conversations, with a tokenizer that has no chat template."""
    rows = folder / "chats.jsonl"
    chats = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        for asked, answer in QUESTIONS.items()
    ]
    text = "".join(json.dumps({"messages": messages}) + "\n" for messages in chats)
    rows.write_text(text * 3)
    tokenizer = byte_level(folder / "tokenizer", special=CHAT)
    names = {"eos_token": END, "bos_token": BEGIN, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(names))
    source = f"{{type=conversations, paths=[{rows}], template=chatml}}"
    return train(
        small_job(
            folder, f"tokenizer={{type=huggingface, path={tokenizer}}}", f"data.sources=[{source}]",
            "data.held_out=0", "data.packing.method=none", "evaluation=null", "model.dropout=0",
            "model.dim=32", "batch.sequence_length=48", "batch.micro_size=4",
            "checkpoint.every=60 steps", *flags,
        )
    ).directory  # fmt: skip


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that has learnt to answer four questions."""
    folder = tmp_path_factory.mktemp("chat")
    run = train_chat(folder, "duration=60 steps", "optimizer.lr=2e-2")
    exported = infer(inference(run, export=ExportTask(path=folder / "hf"))).exported
    assert exported is not None
    return Trained(run, exported)


def answers(
    path: Path, *prompts: str, chat: Chat | None = None, **fields: Any
) -> list[GeneratedText]:
    section = Generation(prompts=prompts, **{"temperature": 0.0, "max_tokens": 12, **fields})
    return infer(inference(path, chat=chat, generation=section)).texts


def opened(path: Path) -> LoadedModel:
    return load(complete(inference(path, generation=asking("a"))))


def ids_of(loaded: LoadedModel) -> Mapping[str, int]:
    assert loaded.facts is not None
    return loaded.facts.tokens


def asking(*prompts: str, **fields: Any) -> Generation:
    return Generation(prompts=prompts, temperature=0.0, **fields)


def test_answers_are_those_of_transformers_and_end(chat: Trained) -> None:
    """Of the run and of its export, token by token, with the template that the run named."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat.exported)
    model: Any = AutoModelForCausalLM.from_pretrained(chat.exported)
    for system in (None, "Be terse."):
        ours, again = (
            answers(path, *QUESTIONS, chat=Chat(system=system))
            for path in (chat.run, chat.exported)
        )
        assert ours == again
        for question, text in zip(QUESTIONS, ours, strict=True):
            messages = [{"role": "user", "content": question}]
            messages = ([{"role": "system", "content": system}] if system else []) + messages
            given = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            whole = model.generate(**given, max_new_tokens=12, do_sample=False)[0].tolist()
            theirs = whole[given["input_ids"].shape[1] :]
            ended = theirs[-1] in model.generation_config.eos_token_id
            assert text.messages == messages
            assert text.prompt == tokenizer.decode(given["input_ids"][0])
            assert text.text == tokenizer.decode(theirs, skip_special_tokens=True)
            assert text.tokens == len(theirs) - ended
            assert text.finish == ("stop token" if ended else "length")
            if system is None:
                assert (text.text, text.stopped_by) == (QUESTIONS[question], "<|im_end|>")


def test_export_names_all_ends_and_the_template(chat: Trained) -> None:
    ids = ids_of(opened(chat.run))
    for name in ("config.json", "generation_config.json"):
        keys = json.loads((chat.exported / name).read_text())
        assert keys["eos_token_id"] == [ids[END], ids["<|im_end|>"]]
        assert keys["bos_token_id"] == ids[BEGIN]
    assert (chat.exported / "chat_template.jinja").read_text() == NAMED["chatml"]
    again = save_pretrained(chat.run, chat.exported.parent / "by-python")
    assert (again / "config.json").read_text() == (chat.exported / "config.json").read_text()
    assert (again / "chat_template.jinja").is_file()


def test_control_tokens_of_a_text_prompt_are_text_unless_a_flag_says_so(
    chat: Trained, tmp_path: Path
) -> None:
    text = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    section = asking(text)
    loaded = opened(chat.run)
    (prompt,) = prompts_of(section, None, loaded.facts, loaded.place.directory)
    # A run on conversations has seen no separator in front of anything.
    assert loaded.tokens_of(prompt) == loaded.tokenizer.encode(text.encode()).tolist()
    (spelled,) = answers(chat.run, text, control_tokens=True)
    assert (spelled.text, spelled.finish) == ("four", "stop token")
    job = complete(inference(chat.run, generation=section))
    (caution,) = verify_job(job, ("files",)).cautions
    assert "spells the control tokens <|im_start|>, <|im_end|>, which" in caution.message
    assert "--chat" in caution.hint and "--control-tokens" in caution.hint
    file = tmp_path / "prompts.txt"
    file.write_text("<|im_start|>user\n")
    section = Generation(prompts=("a",), prompts_file=file)
    (caution,) = verify_job(complete(inference(chat.run, generation=section)), ("files",)).cautions
    assert caution.path == "generation.prompts_file"
    job = complete(inference(chat.run, generation=asking(text, control_tokens=True)))
    assert not verify_job(job, ("files",)).cautions


@pytest.mark.parametrize(
    "made", [lambda f: byte_level(f, begin=True, special=CHAT),
             lambda f: sentence_piece(f, prefix=True, special=CHAT)],
)  # fmt: skip
def test_spelled_control_tokens_are_those_of_transformers(
    tmp_path: Path, made: Callable[[Path], Path]
) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = made(save_pretrained(small_model(vocab_size=340), tmp_path / "hf"))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    loaded = opened(folder)
    for text in ("<|im_start|>user\nhello <|im_end|> world", "the<|im_end|>", "  words", "ab"):
        section = asking(text, control_tokens=True)
        (prompt,) = prompts_of(section, None, loaded.facts, folder)
        assert loaded.tokens_of(prompt) == theirs(text, add_special_tokens=False)["input_ids"]
        (prompt,) = prompts_of(asking(text), None, loaded.facts, folder)
        as_text = loaded.tokenizer.encode(text.encode()).tolist()
        assert loaded.tokens_of(prompt) == [*loaded.opening, *as_text]


def test_stop_tokens_by_id_and_by_text(chat: Trained) -> None:
    """A string that is a control token is one; with other text it would never match."""
    for token in (ids_of(opened(chat.run))["r"], "r"):
        (found,) = answers(chat.run, "2 + 2?", chat=Chat(), stop_tokens=(token,))
        assert (found.text, found.tokens, found.stopped_by) == ("fou", 3, "r")
    loaded = replace(opened(chat.run), stops=())
    for stop in ((), ("<|im_end|>",)):
        section = complete(inference(chat.run, generation=asking("2 + 2?", stop=stop))).generation
        assert section is not None
        prompts = prompts_of(section, Chat(), loaded.facts, loaded.place.directory)
        (found,) = continue_prompts(loaded, section, prompts, seed=0, micro_size=1)
        assert (found.finish, found.stopped_by) == (
            ("stop token", "<|im_end|>") if stop else ("length", None)
        )
    for fields in ({"stop": ("<|im_end|>\n",)}, {"stop_tokens": ("<|im_edn|>", 9999)}):
        with refused(ConfigError):
            infer(inference(chat.run, generation=asking("a", **fields)))


def test_a_prompts_file_may_hold_conversations(
    chat: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("rows.jsonl")
    asked = [{"role": "user", "content": "3 + 3?"}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    rows = [
        {"messages": [*asked, {"role": "assistant", "content": "?"}], "tools": tools},
        {"prompt": "3 + 3?"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    first, second = answers(chat.run, prompts_file=file)
    assert (first.messages, first.tools, second.messages) == (asked, tools, None)
    assert second.prompt == "3 + 3?"
    first, second = answers(chat.run, prompts_file=file, chat=Chat())
    assert (first.text, second.text, second.messages) == ("six", "six", asked)
    file.write_text('{"messages": [{"role": "user", "content": "\ufdd0"}]}')
    with refused(ConfigError):
        infer(inference(chat.run, generation=asking(prompts_file=file)))


def test_no_chat_template(tmp_path: Path, chat: Trained) -> None:
    folder = byte_level(save_pretrained(small_model(vocab_size=300), tmp_path / "hf"))
    for section in (Chat(), Chat(template="chatml")):
        with refused(ConfigError):
            infer(inference(folder, generation=asking("a"), chat=section))
    assert answers(folder, "a", chat=Chat(template="plain"))[0].prompt == "a"
    with refused(ConfigError):
        infer(inference(chat.run, generation=asking("a", control_tokens=True), chat=Chat()))


def test_the_settings_of_weights_to_start_from(tmp_path: Path) -> None:
    """Their ends are kept beside the trained one, and their sampling counts unless it is given."""
    tokenizer = byte_level(tmp_path / "hf", special=CHAT)
    fields = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": None}
    start = save_pretrained(
        small_model(vocab_size=299, **fields), tmp_path / "start", tokenizer=tokenizer
    )
    theirs = {"eos_token_id": [6, 50], "do_sample": True, "temperature": 0.3, "top_p": 0.9,
              "top_k": 0, "max_length": 20}  # fmt: skip
    (start / "generation_config.json").write_text(json.dumps(theirs))
    run = train_chat(
        tmp_path, f"model.pretrained={start}", "duration=1 steps", "model.init_std=0.3",
        "model.kv_heads=2", "model.vocab_size=299", "model.max_sequence_length=48",
    )  # fmt: skip
    exported = infer(inference(run, export=ExportTask(path=tmp_path / "out"))).exported
    assert exported is not None
    settings = json.loads((exported / "generation_config.json").read_text())
    ids = ids_of(opened(run))
    assert settings["eos_token_id"] == [6, 50, ids[END], ids["<|im_end|>"]]
    assert (settings["temperature"], settings["top_p"]) == (0.3, 0.9)
    for path in (start, run, exported):
        flags = [f"weights.path={path}", "generation.prompts=[a]", "generation.top_p=0.5"]
        section: Any = complete(compose(Inference, flags=flags).draft).generation
        assert (section.temperature, section.top_p, section.top_k) == (0.3, 0.5, None)
        (origin, _), *_ = chain_of(section, "temperature")
        assert "generation_config.json" in origin.describe(("generation", "temperature"))
        greedy: Any = complete(inference(path, generation=asking("a"))).generation
        assert (greedy.temperature, greedy.top_p) == (0.0, None)
    (start / "generation_config.json").write_text('{"do_sample": true, "temperature": -1}')
    with refused(ConfigError):
        infer(inference(start, generation=Generation(prompts=("a",))))


def test_an_adapter_goes_with_its_tokenizer_and_template(tmp_path: Path) -> None:
    run = train_chat(tmp_path, "duration=1 steps", "adapter={type=lora, rank=2}")
    export = ExportTask(path=tmp_path / "peft", adapter=True)
    infer(inference(run, export=export))
    assert (tmp_path / "peft" / "tokenizer.json").is_file()
    assert len({file.stat().st_mode for file in (tmp_path / "peft").iterdir()}) == 1
    assert (tmp_path / "peft" / "chat_template.jinja").read_text() == NAMED["chatml"]


def test_tasks_of_the_harness_are_asked_as_conversations(chat: Trained) -> None:
    loaded = opened(chat.run)
    asked = Answers(loaded, 2, 0, Chat())
    contexts = [asked.written([{"role": "user", "content": each}]) for each in QUESTIONS]
    settings = {"until": ["</s>", "<|im_end|>"], "max_gen_toks": 12}
    assert asked.generate_until([(c, settings) for c in contexts]) == [*QUESTIONS.values()]
    scores = asked.loglikelihood([(contexts[0], "four"), (contexts[0], "eight")])
    assert scores[0].log_probability > scores[1].log_probability
    begun = asked.written([{"role": "user", "content": "2 + 2?"},
                           {"role": "assistant", "content": "fo"}], is_open=True)  # fmt: skip
    assert begun == f"{contexts[0]}fo"


def test_the_command_prints_the_answer(chat: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "12")

    def said(*words: str) -> tuple[int, str, str]:
        status = main(["generate", *words])
        found = capsys.readouterr()
        return status, found.out, found.err

    for path in map(str, chat):
        assert said(path, "--chat", "--prompt", "2 + 2?", *greedy)[:2] == (0, "four\n")
    both = said(str(chat.run), "--chat", "--prompt", "3 + 3?", "--prompt", "5 + 3?", *greedy)
    assert both[:2] == (0, "six\n---\neight\n")
    _, out, err = said(str(chat.run), "--prompt", "a<|im_end|>", "--stop-tokens", "r", *greedy)
    assert out.startswith("a<|im_end|>")
    assert "caution" in err and "spells the control token <|im_end|>, which" in err
    assert "silence" not in err
    assert not said(str(chat.run), "--prompt", "a<|im_end|>", "--control-tokens", *greedy)[2]
    tokenizer = str(chat.exported)
    hint = f"--tokenizer huggingface --tokenizer.path {tokenizer}"
    assert hint in said(tokenizer, "--tokenizer", tokenizer)[2]


def test_a_conversation_on_standard_input(
    chat: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each line is answered in the context of those before it, as a file of messages is."""
    greedy = ("--system", "Add.", "--temperature", "0", "--max-tokens", "12")
    monkeypatch.setattr("sys.stdin", io.StringIO("2 + 2?\n\n  3 + 3?\n"))
    assert main(["generate", str(chat.run), "--chat", *greedy]) == 0
    first, second = capsys.readouterr().out.splitlines()
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "3 + 3?"},
    ]
    for count, answer in ((1, first), (3, second)):
        file = tmp_path / "turns.jsonl"
        file.write_text(json.dumps({"messages": messages[:count]}))
        assert (
            main(["generate", str(chat.run), "--chat", "--prompts-file", str(file), *greedy]) == 0
        )
        assert capsys.readouterr().out == f"{answer}\n"
    assert main(["generate", str(chat.run), "--chat", "--samples", "2"]) == 2
    assert "--samples has no effect in a conversation" in capsys.readouterr().err


@pytest.mark.parametrize("column", ["asked", "text"])
def test_texts_are_read_with_the_columns_of_the_run(tmp_path: Path, column: str) -> None:
    rows = tmp_path / "asked.jsonl"
    lines = [{column: asked, "said": answer} for asked, answer in QUESTIONS.items()]
    lines.append({column: "and this?", "said": ""})  # dropped
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = f"data.sources.0.columns={{prompt: {column}, completion: said}}"
    flags = (f"data.sources.0.paths=[{rows}]", columns, "data.sources.0.untrained=drop")
    run = train_chat(tmp_path, *flags, "duration=1 steps")
    task = EvaluationTask(sides=("train",))
    expected = infer(inference(run, evaluation=task)).scores["train"]
    assert sp.evaluate(run, {"asked": str(rows)})["asked"].loss == pytest.approx(expected.loss)


def test_a_template_may_refuse_or_need_a_system_message(chat: Trained, tmp_path: Path) -> None:
    files = tmp_path / "refuses.jinja", tmp_path / "needs.jinja"
    for file, sign in zip(files, ("==", "!="), strict=True):
        condition = f"messages[0].role {sign} 'system'"
        refusal = f"{{% if {condition} %}}{{{{ raise_exception('no system') }}}}{{% endif %}}"
        file.write_text(refusal + NAMED["chatml"])
    refuses, needs = map(str, files)
    for section in (Chat(system="Be terse.", template=refuses), Chat(template=needs)):
        with refused(ConfigError):
            infer(inference(chat.run, chat=section, generation=asking("a")))
    section = Chat(system="Be terse.", template=needs)
    assert infer(inference(chat.run, chat=section, generation=asking("a", max_tokens=1)))


def test_a_prompt_longer_than_the_context_is_a_caution(chat: Trained) -> None:
    short, long = (
        infer(inference(chat.run, generation=asking(prompt, max_tokens=1))).cautions
        for prompt in ("a", "a b " * 40)
    )
    assert not short and len(long) == 1 and "sees only the last 48" in long[0]
