"""Upload of prepared data to a data set on the Hugging Face Hub, with a data set card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import RunError
from setpoint.data.token_store import (
    INPUTS,
    MANIFEST,
    Side,
    StoreManifest,
    open_side,
    read_manifest,
    shard_name,
    verify,
    write_array,
    write_parts,
)
from setpoint.data.vocabulary import SETTINGS, TEMPLATE, find_tokenizer
from setpoint.files.atomic import Written, write_file
from setpoint.hub.upload import Uploaded, upload_dataset

if TYPE_CHECKING:
    from setpoint.data.config import TokenizerConfig
    from setpoint.data.corpus import TokenRow
    from setpoint.data.tokenizer import Tokenizer


COPIED = 1 << 22
"""Tokens that are copied at a time."""


def reshard(
    folder: Path, manifest: StoreManifest, target: Path, shards: int | None, tokenizer: Tokenizer
) -> StoreManifest:
    """Copy verified prepared data into a new folder with a different number of shards.

    Tokens that were mapped in place are copied. A shard has at least one document.

    Arguments:
        shards: number of shards per side; None: unchanged.

    Raises:
        RunError: the data cannot be written; the new folder is then removed.
    """
    try:
        target.mkdir(parents=True)
        files: dict[str, Written] = {}
        sides: list[Side] = []
        for side in manifest.sides:
            sides.append(replace(side, shards=min(shards or side.shards, side.documents)))
            files |= _write_side(folder, manifest, side, target, sides[-1].shards, tokenizer)
        shards_before = {
            f"{shard_name(side.name, number)}.{kind}.npy"
            for side in manifest.sides
            for number in range(side.shards)
            for kind in ("tokens", "mask")
        }
        for name in manifest.files.keys() - files.keys() - shards_before:
            shutil.copyfile(folder / name, target / name)
            files[name] = Written(*manifest.files[name])
        named = {name: (file.size, file.digest) for name, file in sorted(files.items())}
        resharded = replace(manifest, sides=tuple(sides), files=named, token_files=())
        write_file(target / MANIFEST, [resharded.text().encode()])
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise RunError(
            f"{error.filename or target} cannot be written: {error.strerror or error}. Changing "
            f"the number of shards needs the same space again until the upload is complete"
        ) from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return resharded


def _write_side(
    folder: Path,
    manifest: StoreManifest,
    side: Side,
    target: Path,
    shards: int,
    tokenizer: Tokenizer,
) -> dict[str, Written]:
    corpus = open_side(folder, manifest, side, tokenizer)
    ends = np.append(corpus.starts[1:], side.tokens)  # with the separator behind each document
    cuts = _cuts(ends, shards)
    bounds = [1, *(int(ends[cut - 1]) for cut in cuts[1:])]
    files: dict[str, Written] = {}
    for number, (start, end) in enumerate(pairwise(bounds)):
        for kind, row in (("tokens", corpus.tokens), ("mask", corpus.trained)):
            if row is not None:
                name = f"{shard_name(side.name, number)}.{kind}.npy"
                files[name] = _copy(target / name, row, start, end)
    if manifest.token_files:
        index = np.load(folder / f"{side.name}.index.npy")
        index["file"], index["at"] = 0, corpus.starts - 1
        name = f"{side.name}.index.npy"
        files[name] = write_array(target / name, index)
    return files


def _cuts(ends: npt.NDArray[np.int64], shards: int) -> list[int]:
    """First document of each shard; shards have roughly equal numbers of tokens."""
    targets = [int(ends[-1]) * k // shards for k in range(1, shards)]
    cuts = [0]
    for k, document in enumerate(np.searchsorted(ends, targets).tolist(), start=1):
        cuts.append(min(max(document, cuts[-1] + 1), len(ends) - (shards - k)))
    return [*cuts, len(ends)]


def _copy(path: Path, row: TokenRow, start: int, end: int) -> Written:
    """Write a range of a side's tokens or mask."""
    parts = (np.asarray(row[i : min(i + COPIED, end)]) for i in range(start, end, COPIED))
    return write_parts(path, row.dtype, end - start, parts)


TOKENIZER = "tokenizer"
"""Folder of the tokenizer in the data set."""
TRAIN, VALIDATION = "train", "validation"
"""Folders of `data.sources` and of `data.validation`."""
MARK = "<!-- made by setpoint data push, which replaces this card as long as this line is in it -->"


class Target(NamedTuple):
    """Repository to push to; see `setpoint.hub.upload.upload_dataset`."""

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
    """Verify and push folders of prepared data.

    Arguments:
        folders: folders by their names in the data set.
        shards: number of shards per side; None: unchanged.

    Raises:
        SetpointError: prepared data is damaged, or the data set cannot be written.
        RunError: the hub is unreachable or refuses the upload, or shards cannot be written.
    """
    staged: list[Path] = []
    try:
        files: dict[str, Path] = {}
        manifests: dict[str, StoreManifest] = {}
        for name, folder in folders.items():
            manifest = read_manifest(folder)
            verify(folder, manifest)
            if shards is not None or manifest.token_files:
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
            message=f"Prepared data {', '.join(m.key for m in manifests.values())}",
            revision=target.revision,
            public=target.public,
            token=target.token,
        )
    finally:
        for copy in staged:
            shutil.rmtree(copy, ignore_errors=True)


def _tokenizer_files(section: TokenizerConfig) -> Sequence[Path]:
    """Files of a local tokenizer; empty for one from the hub."""
    path = getattr(section, "path", None)
    if path is None or not os.path.exists(os.path.expanduser(path)):
        return ()
    file = find_tokenizer(path)
    return [file_path for file_path in (file, file.with_name(SETTINGS), file.with_name(TEMPLATE))
            if file_path.is_file()]  # fmt: skip


def card(
    target: Target,
    manifests: Mapping[str, StoreManifest],
    section: TokenizerConfig,
    with_tokenizer: bool,
) -> str:
    """Data set card: contents, and instructions for training on it."""
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
