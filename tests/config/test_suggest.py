from setpoint.config import Config
from setpoint.config.suggest import (
    classes_at,
    field_of,
    holds_secret,
    names_secret,
    nearest,
    place_of,
    schema,
    section_classes,
    unknown_key,
)

from .sample import (
    AdamW,
    Batch,
    Experts,
    Job,
    Recurrent,
    Sgd,
    Synthetic,
    Text,
    Tracker,
    Transformer,
)


def test_the_nearest_names() -> None:
    names = ["learning_rate", "warmup", "weight_decay"]
    assert nearest("lerning-rate", names) == ["learning_rate"]
    assert nearest("decay", names) == ["weight_decay"]
    assert nearest("WARMUP", names, 1) == ["warmup"]
    assert nearest("x", names) == []
    assert nearest("", names) == []


def test_classes_that_can_stand_in_a_field() -> None:
    kinds = {name: info.type for name, info in Job.__setpoint__.fields.items()}
    assert section_classes(kinds["model"]) == [Transformer, Recurrent]
    assert section_classes(kinds["sources"]) == [Text, Synthetic]
    assert section_classes(kinds["tracker"]) == [Tracker]
    assert section_classes(kinds["evaluations"]) == [Batch]
    assert section_classes(kinds["seed"]) == []
    assert classes_at(Job, ()) == [Job]
    assert classes_at(Job, ("model", "experts")) == [Experts]
    assert classes_at(Job, ("sources", "0")) == [Text, Synthetic]
    assert classes_at(Job, ("evaluations", "size")) == [Batch]
    assert classes_at(Job, ("seed", "x")) == []
    assert field_of(Batch, "sequence-length") is Batch.__setpoint__.fields["sequence_length"]


def test_every_path_of_every_variant() -> None:
    paths = [path for path, _ in schema(Job)]
    assert {"model.dim", "model.cell", "optimizer.momentum", "sources.paths", "tracker.token",
            "model.experts.count", "evaluations.size"} <= set(paths)  # fmt: skip


class Node(Config):
    """A family that contains itself."""


class Pair(Node, type="pair"):
    """Two of them."""

    left: Node | None = None
    """One."""

    right: Node | None = None
    """Another."""


class Triple(Node, type="triple"):
    """Three of them."""

    nodes: tuple[Node, ...] = ()
    """All."""

    weight: float = 1.0
    """A leaf."""


def test_a_family_that_contains_itself_has_an_end() -> None:
    paths = [path for path, _ in schema(Pair)]
    assert "left.right" in paths
    assert "left.nodes.left" in paths
    assert len(paths) < 100
    assert place_of(Pair, "wieght", "left.wieght") == "Did you mean left.weight?"


def test_where_a_key_belongs() -> None:
    assert place_of(Job, "lr", "lr") == "Did you mean optimizer.lr?"
    assert place_of(Job, "sedd", "sedd") == "Did you mean seed?"
    assert place_of(Job, "documnts", "sources.0.documnts") == "Did you mean sources.0.documents?"
    assert place_of(Job, "momentum", "optimizer.momentum") == "It is a field of type = sgd."
    assert place_of(Job, "paths", "sources.3.paths") == "It is a field of type = text."
    assert place_of(Job, "zzzzzz", "zzzzzz") == ""


def test_the_error_for_an_unknown_key_is_short() -> None:
    error = unknown_key(Sgd, "x" * 1000)
    assert len(str(error)) < 200
    assert error.valid == ("clip_norm", "lr", "momentum", "nesterov")
    assert unknown_key(AdamW, "beta").hint == "Did you mean betas?"
    assert not unknown_key(AdamW, "beta").secret


def test_names_of_secrets() -> None:
    assert names_secret(Job, "token")
    assert names_secret(Job, "tokens")
    assert not names_secret(Job, "lr")
    assert holds_secret(Job.__setpoint__.fields["tracker"].type)
    assert not holds_secret(Job.__setpoint__.fields["model"].type)
