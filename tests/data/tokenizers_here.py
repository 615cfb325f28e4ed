"""Small tokenizers in Hugging Face's format, built here, in the kinds that are in use."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers as training

TEXT = ["hello world, hello the world of the words; the wörds", "def f(x):\n    return x + 1\n"]
END, BEGIN = "<|endoftext|>", "<|begin|>"
# Control tokens of the chat templates chatml and llama3.
CHAT = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def byte_level(
    folder: Path, *, begin: bool = False, vocab_size: int = 300, special: Sequence[str] = ()
) -> Path:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = training.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, BEGIN, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    if begin:
        made.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, made.token_to_id(BEGIN))]
        )
    return saved(made, folder, {"eos_token": END, "bos_token": {"content": BEGIN}})


def sentence_piece(folder: Path, *, prefix: bool = False, special: Sequence[str] = ()) -> Path:
    """BPE with a sign for spaces and bytes as fallback, as of Llama 2, Mistral and Gemma."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    spaces: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    made.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = training.BpeTrainer(
        vocab_size=330,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    made.train_from_iterator([text.replace(" ", "▁") for text in TEXT], trainer)
    made.add_special_tokens(list(special))
    return saved(made, folder, {"eos_token": "</s>", "bos_token": "<s>"})


def word_piece(folder: Path) -> Path:
    """WordPiece, as BERT has it, which does not keep spaces."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = training.WordPieceTrainer(
        vocab_size=60, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    return saved(made, folder, {"eos_token": "[SEP]"})


def saved(made: Tokenizer, folder: Path, settings: dict[str, Any]) -> Path:
    """Write a tokenizer as `save_pretrained` of transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
