"""Tokens per second of `setpoint data prepare` against `datasets.map`, on as many processes.

    python -m benchmarks.data.prepare TOKENIZER [PROCESSES]

TOKENIZER is a folder with tokenizer.json. Both read one file of JSON Lines, twice the standard
library's source, and keep the tokens on the disk.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from setpoint.data.config import Data, Prepare
from setpoint.data.prepared.use import prepare_all
from setpoint.data.sources.config import Text
from setpoint.data.tokenizers.config import HuggingFace


def write_rows(file: Path) -> None:
    """Write the texts, twice."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = (path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts)
    texts = [path.read_text(errors="replace") for path in found if "test" not in path.parts]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 2))


def main() -> None:
    """Measure both, and print their ratio."""
    import datasets

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    datasets.disable_progress_bars()
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    tokenizer: Any = HuggingFace(path=sys.argv[1]).build()
    encoder = tokenizer.tokenizer

    def encode(rows: Any) -> Any:
        found = encoder.encode_batch(rows["text"], add_special_tokens=False)
        return {"ids": [each.ids for each in found]}

    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "rows.jsonl"
        write_rows(file)
        cache = Prepare(folder=f"{name}/ours", workers=count)
        data = Data(sources=(Text(paths=(str(file),)),), held_out=0.0, prepare=cache)
        begin = time.perf_counter()
        (prepared,) = prepare_all(data, tokenizer)
        ours = prepared.tokens / (time.perf_counter() - begin)
        begin = time.perf_counter()
        table: Any = datasets.load_dataset(
            "json", data_files=str(file), split="train", cache_dir=f"{name}/theirs"
        )
        table = table.map(
            encode, batched=True, batch_size=100, num_proc=count, remove_columns=["text"]
        )
        seconds = time.perf_counter() - begin
        theirs = sum(map(len, table["ids"])) / seconds
    print(f"prepare {ours:,.0f} tokens/s, datasets.map {theirs:,.0f}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
