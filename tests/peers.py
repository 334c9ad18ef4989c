"""The same maps as other libraries': `make peers` prints the largest differences, and writes docs/peers.md.

Each network has fixed random weights and sees the same random pictures. A peer gets a copy of the network, for some
leave hooks, gradients or other modules behind.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from explainers.registry import get_method
from tests import nets

PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
NETS = {"resnet18": "layer4", "vgg11": "features.19", "mobilenet_v2": "features", "densenet121": "features"}
TARGETS = torch.tensor([7, 999, 0, 7])

Run = Callable[[nn.Module, nn.Module, Tensor, Tensor], Any]
"""From a network of its own, its layer, the pictures (4, 3, 64, 64) and the targets (4,) to maps (4, h, w)."""


@dataclass(frozen=True)
class Peer:
    """A method of another library.

    Attributes:
        method: our name for it.
        library: as it is installed.
        run: calls it.
        options: ours, with which it should be equal.
        without: networks where it cannot be compared, and why.
        tolerance: largest relative difference.
    """

    method: str
    library: str
    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-4


def network(name: str) -> nn.Module:
    """Return a network with fixed random weights, in evaluation mode."""
    net: nn.Module = nets.seeded(torchvision.models.get_model, name)
    return net.eval()


def pictures() -> Tensor:
    """Return four random pictures (4, 3, 64, 64)."""
    return torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def difference(peer: Peer, name: str) -> float:
    """Return the largest difference between the peer's maps and ours, over the largest value of the peer's."""
    model, images = network(name), pictures()
    explainer = get_method(peer.method).build(
        {**peer.options, **({"layers": (NETS[name],)} if get_method(peer.method).takes_layers else {})}
    )
    found = explainer.explain(model, images, TARGETS).maps
    copy = deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = peer.run(copy, copy.get_submodule(NETS[name]), images.clone(), TARGETS)
    expected = torch.as_tensor(expected).detach()
    if not expected.abs().max() > 0:
        raise ValueError(f"{peer.library} finds nothing for {peer.method} on {name}.")
    return nets.relative_error(found, expected)


def _grad_cam(name: str, **options: Any) -> Run:
    """Return a CAM of pytorch-grad-cam, before it is rectified and resized."""

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        wanted = [ClassifierOutputTarget(int(target)) for target in targets]
        with getattr(pytorch_grad_cam, name)(model, [layer]) as peer:
            logits = peer.activations_and_grads(images)
            logits[range(len(targets)), targets].sum().backward()
            activations = peer.activations_and_grads.activations[0].detach().numpy()
            gradients = peer.activations_and_grads.gradients[0].detach().numpy()
            return peer.get_cam_image(images, layer, wanted, activations, gradients, **options)

    return run


def _captum_gradcam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from captum.attr import LayerGradCam

    return LayerGradCam(model, layer).attribute(images, targets)[:, 0]


def _captum_saliency(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from captum.attr import Saliency

    return Saliency(model).attribute(images.requires_grad_(), targets).amax(dim=1)


_IN_PLACE = {"densenet121": "it lets the in-place ReLU after `features` overwrite the activations that it weighs"}

PEERS: tuple[Peer, ...] = (
    Peer("gradcam", "captum", _captum_gradcam, {"sign": "signed"}, tolerance=1e-5),
    Peer("gradcam", "grad-cam", _grad_cam("GradCAM"), {"sign": "signed"}, _IN_PLACE, 1e-5),
    Peer("saliency", "captum", _captum_saliency, tolerance=1e-5),
)


def page() -> str:
    """Return the page with the table; runs everything."""
    libraries = sorted({peer.library for peer in PEERS})
    lines = [
        "# Peers",
        "",
        "Made by `make peers`. Largest difference between the maps of another library and ours, over the largest value "
        "of theirs: four random pictures of 64 by 64, networks of torchvision with fixed random weights, "
        f"{', '.join(f'{name} {version(name)}' for name in [*libraries, 'torch', 'torchvision'])}, on a processor.",
        "",
        f"| method | peer | {' | '.join(NETS)} |",
        f"| --- | --- | {' | '.join('---' for _ in NETS)} |",
    ]
    notes: list[str] = []
    for peer in PEERS:
        cells = []
        for name in NETS:
            if name in peer.without:
                if peer.without[name] not in notes:
                    notes.append(peer.without[name])
                cells.append(f"[{notes.index(peer.without[name]) + 1}]")
            else:
                cells.append(f"{difference(peer, name):.1e}")
        options = " ".join(f"`{key}={value}`" for key, value in peer.options.items())
        lines.append(f"| `{peer.method}` {options} | {peer.library} | {' | '.join(cells)} |".replace("  ", " "))
        print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", *(f"[{number}] Not compared: {note}." for number, note in enumerate(notes, start=1))]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Print the page; with --write, also into docs/peers.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    text = page()
    if parser.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
