"""Sanity of a method on a network: the choice of the unlikely class."""

from types import SimpleNamespace

import pytest
import torch

from seewhy.explainers.sanity import sanity_of


@pytest.mark.parametrize(("count", "rank"), [(1000, 500), (10, 5), (5, 2), (4, 1), (3, 0)])
def test_the_unlikely_class_is_half_way_down_and_never_the_runner_up(count, rank):
    ascending = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    outputs = torch.zeros(2, count).scatter_(1, ascending, torch.arange(count).float().expand(2, -1))
    maps = torch.arange(8.0).view(2, 2, 2)
    asked = []

    def run(explainer, model, images, classes):
        asked.append((model, classes))
        return SimpleNamespace(maps=maps, targets=outputs.argmax(1), outputs=outputs)

    sanity = sanity_of(None, ("plain", "head", "whole"), torch.zeros(2, 3, 4, 4), run)
    assert [model for model, _ in asked] == ["plain", "head", "whole", "plain"]
    assert asked[0][1] is None
    assert asked[1][1].tolist() == asked[2][1].tolist() == ascending[:, -1].tolist()
    assert asked[3][1].tolist() == ascending[:, rank].tolist()
    assert (sanity.same_with_random_head, sanity.same_for_an_unlikely_class, sanity.pictures) == (1, 1, 2)


def test_two_classes_have_no_unlikely_one():
    outputs = torch.tensor([[0.0, 1.0]])
    answer = SimpleNamespace(maps=torch.zeros(1, 2, 2), targets=torch.tensor([1]), outputs=outputs)
    with pytest.raises(TypeError, match="3 classes or more"):
        sanity_of(None, ("plain", "head", "whole"), torch.zeros(1, 3, 4, 4), lambda *_: answer)
