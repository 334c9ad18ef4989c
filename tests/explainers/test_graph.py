"""The graph of layers: by hand on small networks, and as `torch.fx` traces those of torchvision."""

from collections import defaultdict

import pytest
import torch
import torchvision
from torch import Tensor, fx, nn

from seewhy.explainers.tasks.pose import survey
from tests import nets

SHAPE = (3, 32, 32)


def edges(net, shape=SHAPE):
    return {layer.path: (layer.inputs, layer.parts) for layer in survey(net, shape).layers if layer.path}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        made = self.conv(features)
        return made * self.gate(made) + features


class Halves(nn.Module):
    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        return tuple(features.chunk(2, dim=1))


def u_shaped(net: nn.Module, images: Tensor) -> Tensor:
    fine = net.down(images)
    coarse = net.bottom(fine)
    return net.up(torch.cat([fine, nn.functional.interpolate(coarse, fine.shape[-2:])], dim=1)).mean((2, 3))


def halved(net: nn.Module, images: Tensor) -> Tensor:
    first, second = net.halves(net.stem(images))
    return net.head((net.left(first) + net.right(second)).mean((2, 3)))


def test_a_chain_reads_one_after_another():
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), nn.Flatten(), nn.Linear(3600, 2))
    assert edges(net) == {
        "0": (("",), ()),
        "0.0": (("",), ()),
        "0.1": (("0.0",), ()),
        "1": (("0.1",), ()),
        "2": (("1",), ()),
    }


def test_a_residual_block_is_made_of_its_branch_its_gate_and_its_input():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), Residual(4), Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = edges(net)
    assert found["1"] == (("0",), ("0", "1.conv", "1.gate.1"))
    assert found["1.conv"] == (("0",), ())
    assert found["1.gate"] == (("1.conv",), ())  # it returns what its last module made
    assert found["2"] == (("1",), ("1", "2.conv", "2.gate.1"))
    assert found["3"] == (("2",), ())


def test_a_skip_past_several_layers_is_read_where_it_is_joined():
    net = nets.Wired(u_shaped, down=nn.Conv2d(3, 4, 3), bottom=nn.Conv2d(4, 4, 3, stride=2), up=nn.Conv2d(8, 3, 1))
    assert edges(net)["up"] == (("down", "bottom"), ())


def test_each_of_several_outputs_is_read_by_itself():
    parts = {"stem": nn.Conv2d(3, 4, 3), "halves": Halves(), "head": nn.Linear(2, 2)}
    found = edges(nets.Wired(halved, **parts, left=nn.Conv2d(2, 2, 1), right=nn.Conv2d(2, 2, 1)))
    assert found["left"] == found["right"] == (("halves",), ())
    assert found["head"] == (("left", "right"), ())


def test_a_layer_that_runs_twice_reads_what_either_call_does():
    found = edges(nets.seeded(nets.Twice))
    assert found["again"][0] == ("conv", "again")


def test_the_model_is_made_of_what_its_functions_join():
    first, second = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 3, padding=1)
    net = nets.Wired(
        lambda net, images: (net.first(images) + net.second(images)).mean((2, 3)), first=first, second=second
    )
    root = survey(net, SHAPE).layers[0]
    assert (root.path, root.inputs, root.parts) == ("", ("",), ("first", "second"))


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("densenet121", "googlenet", "convnext_tiny", "efficientnet_v2_s", "squeezenet1_1")
        ),
    ],
)
def test_layers_read_what_a_tracer_of_the_code_finds(name):
    with torch.device("meta"):
        keywords = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        net = torchvision.models.get_model(name, **keywords).eval()
    found = edges(net, (3, 224, 224))
    ends = {path for path in found if not any(other.startswith(f"{path}.") for other in found)}

    def made_by(path: str) -> set[str]:
        """The layers without others in them that made what a layer returns."""
        return {path} if path in {"", *ends} else set().union(*map(made_by, found[path][1]))

    actual = {path: set().union(*map(made_by, found[path][0])) for path in ends}
    assert actual == traced(net, ends)


def traced(net: nn.Module, ends: set[str]) -> dict[str, set[str]]:
    """Which layers' outputs each layer reads, with functions in between, in the graph of `torch.fx`."""

    class Tracer(fx.Tracer):
        def is_leaf_module(self, module: nn.Module, path: str) -> bool:
            return path in ends

    made: dict[fx.Node, set[str]] = {}
    read = defaultdict(set)
    for node in Tracer().trace(net).nodes:
        sources = set().union(*(made[source] for source in node.all_input_nodes))
        if node.op == "call_module":
            read[node.target] |= sources
            sources = {node.target}
        made[node] = {""} if node.op == "placeholder" else sources
    return dict(read)
