"""A map depends on its picture alone: not on the batch, the place in it, or the number of threads."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.results.explanation import explanations
from seewhy.models import wrap_model
from tests import nets
from tests.explainers.test_catalogue import LAYERS, net_for
from tests.grids import CLASSIFYING, diagonal, few
from tools import company


@pytest.mark.parametrize("name", few(CLASSIFYING, short=["gradcam", "eigencam", "fullgrad", "deeplift", "rise"]))
def test_company_does_not_matter(name):
    model, images = net_for(name), company.pictures(24)
    options: dict[str, Any] = {"layers": LAYERS.get(name, ("conv",))} if METHODS[name].takes_layers else {}
    gap = company.measured(model, name, images, torch.arange(8) % 4, company.ROW, **options)
    assert gap.size <= company.TOLERANCE, gap


def indifferent(share: float) -> nn.Module:
    """Its logits hardly depend on the picture, beside a large constant."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return share * net.layer(images).mean(dim=(2, 3)) + torch.tensor([10.0, 11.0, 12.0, 13.0])

    return nets.Wired(run, layer=nn.Conv2d(3, 4, 3, padding=1))


@pytest.mark.parametrize(
    "name", ["occlusion", "feature-ablation", "kernel-shap", "ablationcam", "rise", "sobol", "lime", "recipro-cam"]
)
@pytest.mark.parametrize(("share", "is_drawn", "codes"), [(1e-6, False, ["blank-map"]), (1e-2, True, ["faint-map"])])
def test_a_score_that_only_rounding_changes_draws_nothing(name, share, is_drawn, codes):
    model = wrap_model(nets.seeded(indifferent, share), input_size=24)
    explainer = company.explainer_of(name, model, sign="signed")
    images = company.pictures(24)[:2]
    attribution = explainer.explain(model, images, torch.tensor([0, 3]))
    assert bool(attribution.maps.any()) is is_drawn
    assert attribution.is_faint(0) is is_drawn
    if METHODS[name].takes_layers:
        return
    picture = Image.new("RGB", (24, 24))
    geometry = model.preprocess.geometry(24, 24)
    tied = explanations(model, name, picture, geometry, attribution.rows()[1])
    assert [diagnostic.code for diagnostic in tied[0].diagnostics] == codes


HARDEST = ("eigencam", "gradcam++", "refinecam", "deeplift", "fullgrad")
"""The methods where rounding was seen most, in an order that puts no long one on a long network."""


@pytest.mark.slow
@pytest.mark.parametrize(("network", "name"), diagonal(company.NETWORKS[1::2], HARDEST), ids=str)
def test_company_does_not_matter_on_any_network(network, name):
    """Every second network; `python -m tools.company` tries all, with all methods."""
    model, images = network.load(), company.pictures(network.side)
    targets = company.targets_of(getattr(model, "module", model), images)
    gap = company.measured(model, name, images, targets, company.ROW, **company.options_of(name, network))
    assert gap.is_allowed, gap


def test_what_rounding_can_decide_is_told_with_the_map(lite0):
    from seewhy.explainers import explain

    picture = company.EXAMPLES / "cat.png"
    (result,) = explain(lite0, picture, "guided-ig", steps=1).diagnostics
    assert result.code == "rounding-decides"
    assert METHODS["guided-ig"].rounding in result.message
    assert "rounding-decides" not in [diagnostic.code for diagnostic in explain(lite0, picture).diagnostics]
