"""Our maps compared with other libraries': `make peers` prints the largest differences, and writes docs/peers.md.

Each network has fixed random weights and sees the same random pictures, in double precision: in single precision, a
rectifier whose input is zero up to rounding may be open in one library and closed in another. A peer gets a copy of the
network, because some leave hooks, gradients or other modules behind.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers.methods.catalogue import get_method
from tests import nets

PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
NETS = {"resnet18": "layer4", "vgg11": "features.19", "mobilenet_v2": "features", "densenet121": "features"}
TARGETS = torch.tensor([7, 999, 0, 7])
TOLERANCE = 1e-5

Run = Callable[[nn.Module, nn.Module, Tensor, Tensor], Any]
"""From its own copy of a network, its layer, the pictures (4, 3, 64, 64) and the targets (4,) to maps (4, h, w)."""


@dataclass(frozen=True)
class Peer:
    """A method of another library.

    Attributes:
        method: our name of the method.
        library: name of its package.
        run: calls it.
        options: our options for which the maps should be equal.
        without: networks on which it cannot be compared, with the reason.
        images: the pictures.
        layers: by network.
    """

    method: str
    library: str
    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=lambda: NETS)
    images: Callable[[], Tensor] = lambda: pictures()


def network(name: str) -> nn.Module:
    """Return a network with fixed random weights, in evaluation mode and double precision."""
    net: nn.Module = nets.seeded(torchvision.models.get_model, name)
    return net.eval().double()


def pictures() -> Tensor:
    """Return four random pictures (4, 3, 64, 64)."""
    return torch.randn(4, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def positive_pictures() -> Tensor:
    """Return the pictures without negative values."""
    return pictures().abs()


def difference(peer: Peer, name: str, count: int = len(TARGETS)) -> float:
    """Return the largest difference between the peer's maps and ours, over the largest value of the peer's.

    Args:
        peer: the method.
        name: name of the network.
        count: number of pictures.
    """
    model, images, targets = network(name), peer.images()[:count], TARGETS[:count]
    explainer = get_method(peer.method).build(
        {**peer.options, **({"layers": (peer.layers[name],)} if get_method(peer.method).takes_layers else {})}
    )
    maps = explainer.explain(model, images, targets).maps
    copy = deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = peer.run(copy, copy.get_submodule(peer.layers[name]), images.clone(), targets)
    expected = torch.as_tensor(expected).detach()
    if not expected.abs().max() > 0:
        raise ValueError(f"{peer.library} finds nothing for {peer.method} on {name}.")
    return nets.relative_error(maps, expected)


def _grad_cam(name: str, scale: float = 1.0, **options: Any) -> Run:
    """Return a CAM of pytorch-grad-cam, before it is rectified and resized.

    Args:
        name: name of the class.
        scale: factor of the features and divisor of the gradients. By its equation the map stays the same, and the
            constant that the peer adds to a denominator vanishes.
        options: options of `get_cam_image`.
    """

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        class_targets = [ClassifierOutputTarget(int(target)) for target in targets]
        with getattr(pytorch_grad_cam, name)(model, [layer]) as peer:
            logits = peer.activations_and_grads(images.requires_grad_())
            logits[range(len(targets)), targets].sum().backward()
            activations, gradients = (
                getattr(peer.activations_and_grads, kind)[0].detach().double().numpy()
                for kind in ("activations", "gradients")
            )
            options.setdefault("eigen_smooth", False)
            maps = peer.get_cam_image(images, layer, class_targets, activations * scale, gradients / scale, **options)
            return torch.as_tensor(maps).float()

    return run


def _magnitude(run: Run) -> Run:
    """Return the magnitude of a peer's maps, whose sign is arbitrary."""
    return lambda *arguments: torch.as_tensor(run(*arguments)).abs()


def _captum_layer(name: str) -> Run:
    """Return a method of captum that reads a layer, summed over the layer's channels."""

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        import captum.attr

        return getattr(captum.attr, name)(model, layer).attribute(images, targets).sum(dim=1)

    return run


def _captum(name: str, **options: Any) -> Run:
    """Return a method of captum, summed over the colour channels."""

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        import captum.attr

        attributions = getattr(captum.attr, name)(model).attribute(images.requires_grad_(), target=targets, **options)
        return attributions.sum(dim=1)

    return run


def _mean_of_colours(name: str, **options: Any) -> Run:
    """Return a method of captum that gives each colour channel of a pixel the same value."""
    run = _captum(name, **options)
    return lambda *arguments: run(*arguments) / arguments[2].shape[1]


def _captum_saliency(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from captum.attr import Saliency

    return Saliency(model).attribute(images.requires_grad_(), targets).amax(dim=1)


def _captum_noise(kind: str) -> Run:
    """Return SmoothGrad or VarGrad of captum with the numbers that our generator draws."""

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        from captum.attr import NoiseTunnel, Saliency

        maps = []
        for image, target in zip(images.split(1), targets.split(1), strict=True):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                deviation = 0.15 * float(image.max() - image.min())
                tunnel = NoiseTunnel(Saliency(model))
                leaf = image.clone().requires_grad_()
                options = {"nt_type": kind, "nt_samples": 6, "stdevs": deviation, "target": target, "abs": False}
                maps.append(tunnel.attribute(leaf, **options))
        together = torch.cat(maps)
        return together.abs().amax(dim=1) if kind == "smoothgrad" else together.sum(dim=1)

    return run


def _captum_superpixels(name: str, segmentation: str, segments: int) -> Run:
    """Return a method of captum over our superpixels."""

    def run(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        import captum.attr

        from seewhy.explainers.methods.perturbation.base import superpixels

        maps = []
        for image, target in zip(images, targets, strict=True):
            labels = superpixels(image, segmentation, segments)[None, None]
            peer = getattr(captum.attr, name)(model)
            maps.append(peer.attribute(image[None], target=int(target), feature_mask=labels)[:, 0])
        return torch.cat(maps)

    return run


def _without_in_place(run: Run) -> Run:
    """Return the map of a peer for the model without in-place rectifiers."""

    def replaced(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
        path = next(path for path, part in model.named_modules() if part is layer)
        model = nets.modules_of_their_own(model)
        return run(model, model.get_submodule(path), images, targets)

    return replaced


def _captum_guided_gradcam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from captum.attr import GuidedGradCam

    leaf = images.requires_grad_()
    return GuidedGradCam(model, layer).attribute(leaf, targets, interpolate_mode="bilinear").sum(dim=1)


def _shapley_cam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    """Return ShapleyCAM of pytorch-grad-cam with the score of its authors, logit plus log-probability."""
    from pytorch_grad_cam import ShapleyCAM

    with ShapleyCAM(model, [layer]) as peer:
        leaf = images.requires_grad_()
        logits = peer.activations_and_grads(leaf)
        rows = range(len(targets))
        score = (logits[rows, targets] + logits.log_softmax(dim=1)[rows, targets]).sum()
        torch.autograd.grad(score, leaf, retain_graph=True, create_graph=True)
        (activations,), (gradients,) = peer.activations_and_grads.activations, peer.activations_and_grads.gradients
        return peer.get_cam_image(images, layer, [], activations, gradients)


def _ablation_cam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from pytorch_grad_cam import AblationCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    with AblationCAM(model, [layer]) as peer:
        peer.activations_and_grads(images)
        activations = peer.activations_and_grads.activations[0].detach().numpy()
        class_targets = [ClassifierOutputTarget(int(target)) for target in targets]
        return peer.get_cam_image(images, layer, class_targets, activations, None)


def _score_cam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    """Return Score-CAM of pytorch-grad-cam, but resized without aligned corners, and without weights of constant maps.

    The authors of the method do the same; constant maps add nothing, but reduce the weights of the others.
    """
    from pytorch_grad_cam import ScoreCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def resize(size: tuple[int, int]) -> nn.Module:
        return nn.Upsample(size, mode="bilinear", align_corners=False)

    with ScoreCAM(model, [layer]) as peer, patch.object(nn, "UpsamplingBilinear2d", resize):
        peer.activations_and_grads(images)
        activations = peer.activations_and_grads.activations[0].detach().numpy()
        class_targets = [ClassifierOutputTarget(int(target)) for target in targets]
        weights = peer.get_cam_weights(images, layer, class_targets, activations, None)
        weights = weights * (activations.max(axis=(2, 3)) > activations.min(axis=(2, 3)))
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights[:, :, None, None] * activations).sum(axis=1)


def _finer_cam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    """Return Finer-CAM of pytorch-grad-cam, against the class with the nearest logit."""
    from pytorch_grad_cam import FinerCAM
    from pytorch_grad_cam.utils.model_targets import FinerWeightedTarget

    with FinerCAM(model, [layer]) as peer:
        logits = peer.base_cam.activations_and_grads(images.requires_grad_())
        distances = (logits - logits[range(len(targets)), targets][:, None]).abs()
        nearest = distances.argsort(dim=1)[:, 1]
        pairs = zip(logits, targets, nearest, strict=True)
        sum(FinerWeightedTarget(int(own), [int(rival)], 0.6)(row) for row, own, rival in pairs).backward()
        (activations,), (gradients,) = (
            [tensor.detach().numpy() for tensor in getattr(peer.base_cam.activations_and_grads, kind)]
            for kind in ("activations", "gradients")
        )
        return peer.base_cam.get_cam_image(images, layer, [], activations, gradients, False)


def _lime(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    """Return LIME of captum for the sets of superpixels that we draw."""
    from captum._utils.models.linear_model import SkLearnRidge
    from captum.attr import LimeBase

    from seewhy.explainers.methods.perturbation.base import superpixels
    from seewhy.explainers.methods.perturbation.superpixels import LIME

    labels = superpixels(images[0], "grid", 8)
    coalitions = LIME(samples=40).coalitions(int(labels.max()) + 1)

    def nearness(_original: Tensor, _perturbed: Tensor, sample: Tensor, **_: Any) -> Tensor:
        cosine = torch.nn.functional.cosine_similarity(sample, torch.ones_like(sample))
        return torch.exp(-((1 - cosine) ** 2) / 0.35**2)

    def samples(*_: Any, **__: Any) -> Iterator[Tensor]:
        yield from coalitions[:, None]

    peer = LimeBase(
        model,
        SkLearnRidge(alpha=1.0),
        nearness,
        samples,
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda sample, original, **_: original * sample[0][labels],
        to_interp_rep_transform=None,
    )
    maps = [
        peer.attribute(image[None], target=int(target), n_samples=len(coalitions)).flatten()[labels]
        for image, target in zip(images, targets, strict=True)
    ]
    return torch.stack(maps)


def _captum_lrp(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule

    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.rule = Alpha1_Beta0_Rule()
        elif isinstance(part, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
            part.rule = EpsilonRule(epsilon=1e-9)
    return LRP(model).attribute(images.requires_grad_(), targets).sum(dim=1)


def _xrai(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor) -> Any:
    """Return the authors' ranking of our regions by captum's integrated gradients from both baselines."""
    from captum.attr import IntegratedGradients
    from saliency.core.xrai import XRAI

    from seewhy.explainers.methods.gradient.xrai import regions_at_scales

    maps = []
    for image, target in zip(images, targets, strict=True):
        total = torch.zeros_like(image[0])
        for baseline in (image.min(), image.max()):
            options = {"baselines": float(baseline), "target": int(target), "n_steps": 5}
            total += (
                IntegratedGradients(model).attribute(image[None].requires_grad_(), **options)[0].sum(dim=0).detach()
            )
        regions = [region.numpy() for masks in regions_at_scales(image) for region in masks]
        ranked, _ = XRAI._xrai((total / 2).numpy(), regions, min_pixel_diff=5)
        maps.append(torch.as_tensor(ranked))
    return torch.stack(maps)


_IN_PLACE = {"densenet121": "the in-place ReLU after `features` overwrites its activations"}
_FINE = {
    "resnet18": "layer1",
    "vgg11": "features.4",
    "mobilenet_v2": "features.3",
    "densenet121": "features.denseblock1",
}
_MODULES = {
    "mobilenet_v2": "it has no rule for ReLU6, which then keeps its own derivative",
    "densenet121": "it does not see the functional ReLU after `features`",
}
_ONCE = {
    "resnet18": "it fails where a ReLU runs twice",
    "mobilenet_v2": _MODULES["mobilenet_v2"],
    "densenet121": _MODULES["densenet121"],
}
_RECTIFIED = {
    "mobilenet_v2": "it ablates with a large negative number if a layer has negative values",
    "densenet121": "it ablates with a large negative number if a layer has negative values",
}
_RELEVANCE = {
    "resnet18": "it has no rule for additions that are not modules, and doubles their relevance",
    "mobilenet_v2": "it has no rule for ReLU6 or for additions that are not modules",
    "densenet121": "it has no rule for ReLUs and poolings that are not modules",
}
_SIGNED = {"sign": "signed"}

PEERS: tuple[Peer, ...] = (
    Peer("gradcam", "captum", _captum_layer("LayerGradCam"), _SIGNED),
    Peer("gradcam", "grad-cam", _grad_cam("GradCAM"), _SIGNED, _IN_PLACE),
    Peer("gradcam++", "grad-cam", _grad_cam("GradCAMPlusPlus", 1e-9), _SIGNED, _IN_PLACE),
    Peer("xgradcam", "grad-cam", _grad_cam("XGradCAM", 1e12), _SIGNED, _IN_PLACE),
    Peer("hirescam", "captum", _captum_layer("LayerGradientXActivation"), _SIGNED),
    Peer("hirescam", "grad-cam", _grad_cam("HiResCAM"), _SIGNED, _IN_PLACE),
    Peer("gradcam-elementwise", "grad-cam", _grad_cam("GradCAMElementWise"), _SIGNED, _IN_PLACE),
    Peer("layercam", "grad-cam", _grad_cam("LayerCAM"), _SIGNED, _IN_PLACE),
    Peer("kpcacam", "grad-cam", _magnitude(_grad_cam("KPCA_CAM")), {"sign": "absolute"}, layers=_FINE),
    Peer("shapleycam", "grad-cam", _shapley_cam, _SIGNED, _IN_PLACE),
    Peer("finercam", "grad-cam", _finer_cam, {"references": 1, "strength": 0.6, **_SIGNED}, _IN_PLACE),
    Peer("scorecam", "grad-cam", _score_cam, _SIGNED, layers=_FINE),
    Peer(
        "ablationcam",
        "grad-cam",
        _magnitude(_ablation_cam),
        {"sign": "absolute"},
        _RECTIFIED,
        layers={"resnet18": "layer1", "vgg11": "features.4", "mobilenet_v2": "features", "densenet121": "features"},
    ),
    Peer("saliency", "captum", _captum_saliency),
    Peer("input-x-gradient", "captum", _captum("InputXGradient")),
    Peer("smoothgrad", "captum", _captum_noise("smoothgrad"), {"samples": 6}),
    Peer("vargrad", "captum", _captum_noise("vargrad"), {"samples": 6}),
    Peer(
        "integrated-gradients",
        "captum",
        _captum("IntegratedGradients", baselines=0.1, n_steps=20),
        {"steps": 20, "baseline": "given", "value": (0.1,)},
    ),
    Peer("guided-backprop", "captum", _without_in_place(_captum("GuidedBackprop")), _SIGNED, _MODULES),
    Peer("deconvnet", "captum", _without_in_place(_captum("Deconvolution")), _SIGNED, _MODULES),
    Peer("guided-gradcam", "captum", _without_in_place(_captum_guided_gradcam), _SIGNED, _MODULES),
    Peer("deeplift", "captum", _without_in_place(_captum("DeepLift", baselines=0)), {}, _ONCE),
    Peer(
        "lrp",
        "captum",
        _without_in_place(_captum_lrp),
        {"composite": "z-plus"},
        _RELEVANCE,
        images=positive_pictures,
    ),
    Peer("xrai", "saliency", _xrai, {"steps": 5}),
    Peer(
        "occlusion",
        "captum",
        _mean_of_colours("Occlusion", sliding_window_shapes=(3, 16, 16), strides=(3, 16, 16)),
        {"patch": 16, "stride": 16, "sign": "signed"},
    ),
    Peer("feature-ablation", "captum", _captum_superpixels("FeatureAblation", "slic", 8), {"segments": 8, **_SIGNED}),
    Peer("lime", "captum", _lime, {"segmentation": "grid", "segments": 8, "samples": 40, "score": "logit"}),
    Peer(
        "kernel-shap",
        "captum",
        _captum_superpixels("ShapleyValues", "grid", 4),
        {"segmentation": "grid", "segments": 4, **_SIGNED},
    ),
)


DIFFERENT = (
    ("gradcam++", "grad-cam", "adds 1e-6 to denominators of squared gradients; compared where this is negligible"),
    ("gradcam++", "torchcam", "divides a copy, so its weights differ from the paper's"),
    ("xgradcam", "grad-cam", "adds 1e-7 to sums of features; compared where this is negligible"),
    ("eigencam, eigengradcam", "grad-cam", "centres the features, and leaves the sign undetermined"),
    (
        "fem",
        "grad-cam",
        "multiplies features by the share of strong positions, instead of multiplying the mean by the positions",
    ),
    (
        "finercam",
        "grad-cam",
        "weights several classes by probabilities and differentiates these; compared with one class",
    ),
    ("refinecam", "grad-cam", "subtracts each map's minimum first, and works on the picture's grid"),
    (
        "fullgrad",
        "grad-cam",
        "rescales each channel separately and ignores normalisation biases, so it is not complete",
    ),
    (
        "scorecam",
        "grad-cam",
        "aligns corners when it resizes, and weights constant maps; compared without these",
    ),
    ("scorecam, sscam", "torchcam", "normalises before it resizes; equal where the centres of cells are pixels"),
    ("iscam", "torchcam", "sums the steps from 1 to i instead of 0 to i - 1 as in the paper"),
    ("deeplift", "captum", "fails for ReLUs that run twice or in place; its sums are wrong next to max pooling"),
    ("lrp", "captum", "assumes pictures without negative values; compared on those (epsilon and gamma on SqueezeNet)"),
    (
        "xrai",
        "saliency",
        "sums both ends of the path, and takes the largest channel; the ranking is compared",
    ),
    (
        "guided-ig",
        "saliency",
        "uses the left Riemann sum along the path instead of the trapezoidal rule; the paths are equal",
    ),
    ("blur-ig", "saliency", "pads with zeros when it blurs; equal in the limit with mirrored borders"),
    ("dff", "grad-cam", "subtracts each channel's minimum and adds it to the concepts, so the product differs"),
)
"""Methods whose peers differ, with the differences; tests check our maps of these methods against the equation."""


def page() -> str:
    """Return the page with the table; runs everything."""
    libraries = sorted({peer.library for peer in PEERS})
    lines = [
        "# Comparison with other libraries",
        "",
        "`make peers` writes this page. The table shows the largest difference between the maps of another library "
        "and ours, divided by the maximum of theirs, for four random pictures of 64 by 64 and torchvision networks "
        "with fixed random weights, "
        f"{', '.join(f'{name} {version(name)}' for name in [*libraries, 'torch', 'torchvision'])}, on a processor.",
        "",
        f"| method | library | {' | '.join(NETS)} |",
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
    lines += [
        "",
        "## Known differences",
        "",
        "For these methods, the tests check our maps against the equation instead.",
        "",
        "| method | library | difference |",
        "| --- | --- | --- |",
        *(
            f"| {', '.join(f'`{method}`' for method in names.split(', '))} | {peer} | {how} |"
            for names, peer, how in DIFFERENT
        ),
    ]
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
