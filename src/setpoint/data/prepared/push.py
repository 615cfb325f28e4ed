"""Prepared data in a data set of the Hugging Face hub, with a card that says how to train on it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from setpoint.data.prepared.names import MANIFEST
from setpoint.data.prepared.reshard import reshard
from setpoint.data.prepared.store import INPUTS, Manifest, read_manifest, verify
from setpoint.data.tokenizers.vocabulary import SETTINGS, TEMPLATE, find_tokenizer
from setpoint.hub.upload import Uploaded, upload_dataset

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.data.tokenizers.tokenizer import Tokenizer

TOKENIZER = "tokenizer"
"""Folder of the tokenizer's files in the data set."""
TRAIN, VALIDATION = "train", "validation"
"""Folders of `data.sources` and of `data.validation`."""
MARK = "<!-- made by setpoint data push, which replaces this card as long as this line is in it -->"


class Target(NamedTuple):
    """Where to push to; see `setpoint.hub.upload.upload_dataset`."""

    repository: str
    revision: str = "main"
    public: bool = False
    token: str | None = None


def push(
    folders: Mapping[str, Path],
    section: TokenizerConfig,
    tokenizer: Tokenizer,
    target: Target,
    shards: int | None = None,
) -> Uploaded:
    """Push folders of prepared data, each verified before.

    Arguments:
        folders: by their names in the data set.
        shards: number of a side; None: as they are.

    Raises:
        SetpointError: prepared data is damaged, or the data set cannot be written to as asked for.
        RunError: the hub cannot be reached or refuses, or another number of shards cannot be
            written.
    """
    staged: list[Path] = []
    try:
        files: dict[str, Path] = {}
        manifests: dict[str, Manifest] = {}
        for name, folder in folders.items():
            manifest = read_manifest(folder)
            verify(folder, manifest)
            if shards is not None:
                copy = folder.with_name(f"{folder.name}.shards-{os.getpid()}")
                manifest = reshard(folder, manifest, copy, shards, tokenizer)
                staged.append(folder := copy)
            manifests[name] = manifest
            # The manifest last, as it is written last.
            files |= {f"{name}/{file}": folder / file for file in (*manifest.files, MANIFEST)}
        kept = _tokenizer_files(section)
        files |= {f"{TOKENIZER}/{file.name}": file for file in kept}
        return upload_dataset(
            target.repository,
            files,
            card(target, manifests, section, bool(kept)),
            mark=MARK,
            owned=(*folders, TOKENIZER),
            message=f"Prepared data {', '.join(each.key for each in manifests.values())}",
            revision=target.revision,
            public=target.public,
            token=target.token,
        )
    finally:
        for copy in staged:
            shutil.rmtree(copy, ignore_errors=True)


def _tokenizer_files(section: TokenizerConfig) -> Sequence[Path]:
    """The files of a tokenizer that lies on this machine alone."""
    path = getattr(section, "path", None)
    if path is None or not os.path.exists(os.path.expanduser(path)):
        return ()
    file = find_tokenizer(path)
    return [each for each in (file, file.with_name(SETTINGS), file.with_name(TEMPLATE))
            if each.is_file()]  # fmt: skip


def card(
    target: Target,
    manifests: Mapping[str, Manifest],
    section: TokenizerConfig,
    with_tokenizer: bool,
) -> str:
    """The data set card: what is in it, and how to train on it."""
    rows = [
        f"| `{name}` | {side.side} | {', '.join(side.sources)} | {side.documents:,} | "
        f"{side.tokens:,} | {side.bytes:,} | {side.shards} | `{side.digest[:16]}` |"
        for name, manifest in manifests.items()
        for side in manifest.sides
    ]
    first = next(iter(manifests.values()))
    keys = ", ".join(f"`{name}` {manifest.key}" for name, manifest in manifests.items())
    branch = "" if target.revision == "main" else f"@{target.revision}"
    url = f"hf://datasets/{target.repository}{branch}"
    fields = {str(name): value for name, value in section.to_dict().items() if value}
    fetch = ""
    if with_tokenizer:
        fields["path"] = TOKENIZER
        fetch = (
            "The tokenizer is in it, too:\n\n```console\n"
            f"$ hf download {target.repository} --repo-type dataset --revision {target.revision} "
            f"--include '{TOKENIZER}/*' --local-dir .\n```\n\n"
        )
    source = '[[data.{}]]\ntype = "tokens"\npaths = ["{}/{}"]\n'
    data = source.format("sources", url, TRAIN)
    if VALIDATION in manifests:
        data += "\n" + source.format("validation", url, VALIDATION)
    else:
        held_out = manifests[TRAIN].described["held_out"]
        held_out = held_out if held_out < 1 else int(held_out)
        data = f"[data]\nheld_out = {held_out}\n\n{data}"
    settings = "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())
    return f"""\
---
tags: [setpoint, tokenized]
viewer: false
---
{MARK}

# {target.repository}

Tokens for training language models, as `setpoint data prepare` writes them: `.npy` files with an
index of documents, and a `{MANIFEST}` with the size and SHA-256 of each file. `{INPUTS}` names the
files that they were made from.

| folder | side | sources | documents | tokens | bytes of text | shards | digest |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Tokenizer: `{first.tokenizer}`, a vocabulary of {first.vocab_size:,}, stored as `{first.dtype}`.
Fingerprints: {keys}.

## Train on it

{fetch}```toml
[tokenizer]
{settings}

{data}```
"""
