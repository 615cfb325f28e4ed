import pytest
import torch

from setpoint.model.attention.backends import visible

from .layouts import BATCH, LAYOUTS, LENGTH, layout


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_pair_by_itself(name, window):
    places = LAYOUTS[name]
    mask = visible(places, window).expand(BATCH, 1, -1, -1)
    assert mask.shape == (BATCH, 1, places.queries, LENGTH)
    for row in range(BATCH):
        for s in range(places.queries):
            for other in range(LENGTH):
                assert bool(mask[row, 0, s, other]) == sees(places, row, s, other, window)


def sees(places, row, s, other, window) -> bool:
    at = LENGTH - places.queries + s
    if places.positions is None:
        positions = list(range(LENGTH))
    else:
        positions = places.positions.expand(BATCH, -1)[row].tolist()
    if at == other:
        return True
    if other > at or positions[other] < 0:
        return False
    if window is not None and positions[at] - positions[other] >= window:
        return False
    return places.documents is None or bool(
        places.documents[row, at] == places.documents[row, other]
    )


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_needs_no_mask_is_as_if_it_had_one(name, window):
    places = LAYOUTS[name]
    mask = visible(places, window)
    if places.is_causal(window):
        assert torch.equal(mask[0, 0], torch.ones(LENGTH, LENGTH).tril().bool())
    if places.queries == 1 and not places.is_masked(window):
        assert mask.all()


def test_the_common_cases_need_no_mask():
    assert LAYOUTS["plain"].is_causal(None)
    assert LAYOUTS["plain"].is_causal(LENGTH)
    assert LAYOUTS["shifted"].is_causal(None)
    assert not LAYOUTS["plain"].is_causal(LENGTH - 1)
    assert not LAYOUTS["last one"].is_masked(None)
    assert not LAYOUTS["last one"].is_masked(LENGTH)
    assert LAYOUTS["last one"].is_masked(LENGTH - 1)


@pytest.mark.parametrize("name", ["plain", "documents, positions anew", "last four, left padding"])
def test_the_first_keys_can_be_left_out(name):
    places = LAYOUTS[name]
    for count in range(LENGTH - places.queries + 1):
        mask = visible(places.without_first(count), 4)
        assert torch.equal(mask, visible(places, 4)[..., count:])


def test_layouts_differ():
    masks = [visible(x, None).expand(BATCH, 1, -1, -1) for x in LAYOUTS.values() if x.queries == 11]
    different = {mask.numpy().tobytes() for mask in masks}
    # Shifted positions and those that start anew change nothing but windows and rotations.
    assert len(different) == len(masks) - 2
    assert layout().documents is None
