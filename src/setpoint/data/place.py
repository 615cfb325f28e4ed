"""Where in the data a run is, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def place_in_words(state: Mapping[str, Any]) -> str:
    """What the state of a `Sampler` says; empty where it has neither epochs nor sources.

    Returns:
        for instance `epoch 2, after 38 sequences`, or for a mixture that of each source with its
        share of all sequences that were taken.
    """
    mixture = state.get("mixture")
    if isinstance(mixture, dict):
        sources: dict[str, Any] = mixture
        total = sum(each["taken"] for each in sources.values())
        said = [
            f"{name} {each['taken'] / max(total, 1):.1%} ({place_in_words(each['state'])})"
            for name, each in sources.items()
        ]
        return f"after {total:,} sequences: {', '.join(said)}"
    if "group" in state and "row" in state:
        group, row = state["group"] + 1, state["row"]
        return f"epoch {state['epoch'] + 1}, after {row:,} rows of group {group:,}"
    if "epoch" in state and "index" in state:
        found = f"epoch {state['epoch'] + 1}, after {state['index']:,} sequences"
        return found + (_in_stream(state) if "block" in state else "")
    return ""


def _in_stream(state: Mapping[str, Any]) -> str:
    """Which file of a stream, and which document."""
    begin, document = state["block"]["from"], state["next"]["document"]
    found = ""
    if begin is not None:
        found = f", in the documents from {begin['file']}, row {begin.get('row', 0) + 1:,} on"
    if document:
        found += f", {document} at token {state['next']['offset']:,}"
    return found
