"""Conditions on tensors of a GPU, which are checked once, at the end of a batch."""

import pytest
import torch
from torch import Tensor

from seewhy.explainers import GradCAM
from seewhy.explainers.errors import NonFiniteError, TargetError
from seewhy.explainers.execution import deferred_checks as checks
from seewhy.explainers.execution.chunks import chunks
from seewhy.explainers.execution.deferred_checks import deferred, require
from seewhy.explainers.execution.progress import SILENT
from tests import nets

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def waits(monkeypatch):
    """Take tensors of the processor for some of a GPU."""
    monkeypatch.setattr(checks, "_is_at_hand", lambda tensor: False)


def test_a_condition_is_looked_at_where_it_arises():
    with deferred(), pytest.raises(KeyError):
        require(torch.tensor(False), KeyError)
    require(torch.tensor(True), KeyError)


def test_a_condition_on_a_gpu_is_looked_at_at_the_end(waits):
    finished = []

    @deferred()
    def batch():
        require(torch.tensor(True), ValueError)
        with deferred():
            require(torch.tensor(False), KeyError)
            require(torch.tensor(False), ValueError)
        finished.append("the whole block")

    with pytest.raises(KeyError):
        batch()
    assert finished
    with pytest.raises(KeyError):  # nothing is put off outside
        require(torch.tensor(False), KeyError)


@pytest.mark.parametrize(("condition", "error"), [(False, KeyError), (True, ZeroDivisionError)])
def test_a_condition_that_failed_is_told_rather_than_what_came_of_it(condition, error, waits):
    @deferred()
    def batch():
        require(torch.tensor(condition), KeyError)
        raise ZeroDivisionError

    with pytest.raises(error):
        batch()


def test_conditions_are_settled_before_long_work(waits):
    finished = []

    @deferred()
    def batch():
        require(torch.tensor(False), KeyError)
        for part in chunks(8, 4, SILENT):
            finished.append(part)

    with pytest.raises(KeyError):
        batch()
    assert finished == []


def test_nobody_looks_at_a_tensor_within_a_batch(waits, images, monkeypatch):
    """Grad-CAM of a batch looks at its conditions once; what is wrong is told all the same."""
    net, looks = nets.seeded(nets.Net).eval(), []
    expected = GradCAM(layers=("conv",)).explain(net, images).maps
    look = Tensor.__bool__
    monkeypatch.setattr(Tensor, "__bool__", lambda tensor: looks.append(tensor) or look(tensor))
    with deferred():
        attribution = GradCAM(layers=("conv",)).explain(net, images, torch.zeros(len(images)).long())
        assert attribution.maps.shape == expected.shape
        assert not looks
    assert looks
    with pytest.raises(TargetError, match="Class 99 is out of range"):
        GradCAM(layers=("conv",)).explain(net, images, torch.full((len(images),), 99))
    with pytest.raises(TargetError, match="contrasted with itself"):
        GradCAM(layers=("conv",)).explain(net, images, torch.zeros(len(images)).long(), torch.zeros(len(images)).long())
    with pytest.raises(NonFiniteError, match="logits"):
        GradCAM(layers=("conv",)).explain(net, images * torch.nan)


@cuda
def test_a_batch_does_not_wait_for_the_gpu(images):
    net, targets = nets.seeded(nets.Net).eval(), torch.zeros(len(images)).long()
    expected = GradCAM(layers=("conv",)).explain(net, images, targets).maps
    net, pictures = net.cuda(), images.cuda()
    GradCAM(layers=("conv",)).explain(net, pictures, targets)  # libraries get ready
    with deferred():
        torch.cuda.set_sync_debug_mode("error")
        try:
            maps = GradCAM(layers=("conv",)).explain(net, pictures, targets).maps
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(maps.cpu(), expected, atol=1e-3, rtol=1e-2)


@cuda
def test_a_class_out_of_range_leaves_the_gpu_in_order(images):
    net, pictures = nets.seeded(nets.Net).eval().cuda(), images.cuda()
    with pytest.raises(TargetError, match="Class 99 is out of range"):
        GradCAM(layers=("conv",)).explain(net, pictures, torch.full((len(images),), 99))
    assert GradCAM(layers=("conv",)).explain(net, pictures).maps.isfinite().all()
