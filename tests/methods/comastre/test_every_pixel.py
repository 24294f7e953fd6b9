"""Dense data: pixels that no segment took get the best class."""

import pytest
import torch

from comastre.methods.comastre.config import InferenceConfig
from comastre.methods.comastre.inference import filled, merge


def test_the_best_class_is_what_a_loop_over_pixels_gives():
    generator = torch.Generator().manual_seed(0)
    masks, weights = torch.randn(4, 5, 6, generator=generator), torch.rand(4, 3, generator=generator)
    label_map = torch.randint(0, 4, (5, 6), generator=generator)
    found = filled(label_map, masks, weights, None)
    for row in range(5):
        for column in range(6):
            sums = [
                sum(weights[k, c] * torch.sigmoid(masks[k, row, column]) for k in range(4)).item() for c in range(3)
            ]
            expected = int(label_map[row, column]) or 1 + sums.index(max(sums))
            assert found[row, column] == expected


@pytest.mark.parametrize("every", [False, True])
def test_a_merge_leaves_pixels_or_does_not(every):
    masks = torch.full((2, 4, 4), -4.0)
    masks[0, :2], masks[1, 3:] = 4.0, 4.0
    objectness, classes = torch.tensor([0.9, 0.95]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    found = merge(masks, objectness, classes, (4, 4), InferenceConfig(every_pixel=every))
    assert found.label_map[:2].eq(1).all() and found.label_map[3].eq(2).all()
    # Both masks are as unlikely in the third row: the class with the larger sum of scores takes it.
    assert found.label_map[2].eq(1 if every else 0).all()
    assert [segment.area for segment in found.segments] == [8, 4]
    nothing = merge(masks, torch.zeros(2), classes, (4, 4), InferenceConfig(every_pixel=every))
    assert nothing.label_map.eq(0).all()  # nobody is sure of anything
