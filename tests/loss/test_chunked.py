"""Chunks against the plain loss of all logits at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.loss.cross_entropy import LossOutput
from setpoint.shapes.outcome import Projection

from .small import OPTIONS, batch, chunked, head, plain, projection

each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
TOKENS = 21


def gradients(output: LossOutput, *tensors: Tensor, scale: float = 1.0) -> tuple[Tensor, ...]:
    return torch.autograd.grad(output.total * scale, tensors)


@each_option
@pytest.mark.parametrize(
    ("soft_cap", "chunk_size"), [(3.0, 1), (None, 4), (3.0, TOKENS), (None, 1000)]
)
def test_equal_to_the_plain_loss(
    options: dict[str, Any], soft_cap: float | None, chunk_size: int
) -> None:
    _, targets, weights = batch()
    hidden, matrix = head()
    to_logits = projection(matrix, soft_cap, scale=0.7)
    expected = plain(**options)(to_logits.logits(hidden), targets, weights)
    found = chunked(chunk_size, **options).from_hidden(hidden, to_logits, targets, weights)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-14, atol=0)
    torch.testing.assert_close(found.nats, expected.nats, rtol=1e-14, atol=0)
    assert not found.nats.requires_grad
    # What comes from above, such as the scale of fp16, multiplies the gradients.
    theirs = gradients(expected, hidden, matrix, scale=1024.0)
    for ours, other in zip(gradients(found, hidden, matrix, scale=1024.0), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-11)
    assert not theirs[1][-2:].any(), "rows beyond the vocabulary have no gradient"


def test_without_gradients_nothing_is_kept() -> None:
    _, targets, _ = batch()
    hidden, matrix = head()
    with torch.no_grad():
        found = chunked(4).from_hidden(hidden, projection(matrix), targets)
    assert not found.total.requires_grad
    found = chunked(4).from_hidden(hidden.detach(), projection(matrix.detach()), targets)
    assert not found.total.requires_grad
    assert found.total.item() == pytest.approx(found.nats.item())


@pytest.mark.parametrize("trained", ["hidden", "matrix"])
def test_one_side_may_be_frozen(trained: str) -> None:
    _, targets, _ = batch()
    hidden, matrix = head()
    (hidden if trained == "matrix" else matrix).requires_grad_(False)
    wanted = hidden if trained == "hidden" else matrix
    expected = plain()(projection(matrix).logits(hidden), targets)
    found = chunked(4).from_hidden(hidden, projection(matrix), targets)
    torch.testing.assert_close(gradients(found, wanted), gradients(expected, wanted))


def test_nothing_valid_is_zero_with_zero_gradient() -> None:
    _, targets, _ = batch(ignored=2.0)
    hidden, matrix = head()
    found = chunked(4, z_loss=0.1).from_hidden(hidden, projection(matrix), targets)
    assert (found.total.item(), found.nats.item()) == (0.0, 0.0)
    assert not any(gradient.any() for gradient in gradients(found, hidden, matrix))


def test_autocast_computes_as_the_plain_loss_does() -> None:
    """Products in bf16, sums of the matrix's gradient in fp32."""
    _, targets, _ = batch(rows=16, length=64)
    hidden, matrix = head(rows=16, length=64, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain()(projection(matrix, 5.0).logits(hidden), targets)
        found = chunked(100).from_hidden(hidden, projection(matrix, 5.0), targets)
    assert found.total.dtype == torch.float32
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-6)
    theirs = gradients(expected, hidden, matrix)
    for ours, other in zip(gradients(found, hidden, matrix), theirs, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, other, rtol=2e-2, atol=2e-2 * other.abs().max().item())


def test_short_formats_lose_nothing_between_chunks() -> None:
    _, targets, _ = batch(rows=16, length=64)
    hidden, matrix = head(rows=16, length=64, dtype=torch.bfloat16)
    exact_hidden, exact_matrix = (t.detach().double().requires_grad_() for t in (hidden, matrix))
    exact = plain()(projection(exact_matrix).logits(exact_hidden), targets)
    (wanted,) = gradients(exact, exact_matrix)
    found = chunked(8).from_hidden(hidden, projection(matrix), targets)
    ours = gradients(found, hidden, matrix)
    assert [gradient.dtype for gradient in ours] == [torch.bfloat16] * 2
    error = (ours[1].double() - wanted).norm() / wanted.norm()
    assert error < 4e-3, "the rounding of one bf16, not of 128 sums"


def test_gradients_are_given_once() -> None:
    _, targets, _ = batch()
    hidden, matrix = head()
    found = chunked(4).from_hidden(hidden, projection(matrix), targets)
    found.total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward was run before"):
        found.total.backward()


def test_gradients_of_inputs_and_weights_are_taken_apart() -> None:
    """As zero-bubble schedules do."""
    _, targets, _ = batch()
    hidden, matrix = head()
    expected = gradients(
        chunked(4).from_hidden(hidden, projection(matrix), targets), hidden, matrix
    )
    loss = chunked(4)
    loss.retains = True
    total = loss.from_hidden(hidden, projection(matrix), targets).total * 3
    for each, wanted in zip((hidden, matrix), expected, strict=True):
        (found,) = torch.autograd.grad(total, each, retain_graph=True)
        torch.testing.assert_close(found, 3 * wanted)


def test_all_logits_are_never_held() -> None:
    """The largest tensor that a chunk makes has the rows of a chunk."""
    seen: list[int] = []

    class Watching(Projection):
        def finish(self, logits: Tensor) -> Tensor:
            seen.append(logits.shape[0])
            return super().finish(logits)

    _, targets, _ = batch()
    hidden, matrix = head()
    found = chunked(8).from_hidden(hidden, Watching(matrix, 11), targets)
    assert seen == [8, 8, 5]
    assert gradients(found, hidden, matrix)[0].shape == hidden.shape
    assert seen == [8, 8, 5], "backward computes no logits"


class Model(torch.nn.Module):
    """As a transformer calls its head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 5)
        self.output = torch.nn.Linear(5, 11, bias=False)

    def forward(self, x: Tensor, head: Any) -> Any:
        return head(torch.tanh(self.first(x)), Projection(self.output.weight, 11))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by torch's own tracing
def test_a_compiled_model_breaks_its_graph_before_it() -> None:
    torch.manual_seed(0)
    model, loss = Model(), chunked(4, z_loss=0.1)
    x, (_, targets, _) = torch.randn(3, 7, 5), batch()

    def run(module: Any) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        output = module(x, lambda hidden, to: loss.from_hidden(hidden, to, targets))
        output.total.backward()
        return output.total.item(), [p.grad.clone() for p in model.parameters()]

    value, expected = run(model)
    compiled_value, found = run(torch.compile(model, backend="aot_eager"))
    assert compiled_value == pytest.approx(value, rel=1e-6)
    torch.testing.assert_close(found, expected)
