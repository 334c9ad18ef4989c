"""The contestants that compute a method's maps: SeeWhy, and other libraries, called as in their own documentation."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rounds import Run
from seewhy.explainers.execution.accelerated import GRADIENTS_TO_COMPILE
from seewhy.explainers.methods.catalogue import get_method
from seewhy.models import LoadedModel, load_model

OPTIONS: dict[str, dict[str, Any]] = {
    "gradcam": {},
    "saliency": {},
    "smoothgrad": {"samples": 25},
    "integrated-gradients": {"steps": 50},
    "scorecam": {},
    "ablationcam": {},
}
"""The methods, with the options in which they differ from SeeWhy's defaults."""

SEEWHY = "SeeWhy"
SEEWHY_BFLOAT16 = "SeeWhy in bfloat16"
LIBRARIES = {"pytorch-grad-cam": "grad-cam", "captum": "captum", "torchcam": "torchcam"}
"""The other libraries, and their names on PyPI."""

PER_PASS = 32
"""Pictures in one pass of a method of many passes, for libraries that leave this to the caller."""


@dataclass(frozen=True, eq=False)
class Workload:
    """The work of all contestants.

    Attributes:
        model: the model, ready, its parts compiled.
        images: (N, C, H, W).
        targets: (N,), the classes to explain.
        stack: closes what the contestants keep open.
        rounded: the model in bfloat16; None where it stays in float32.
    """

    model: LoadedModel
    images: Tensor
    targets: Tensor
    stack: ExitStack
    rounded: LoadedModel | None = None

    @property
    def layer(self) -> str:
        """Path of the layer that CAMs read."""
        return self.model.default_layers[0]

    def network(self) -> nn.Module:
        """Return a copy of the network as model zoos hand it out: not frozen, channels first."""
        return deepcopy(self.model.module).requires_grad_(True).to(memory_format=torch.contiguous_format)


def load(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Return a model, compiled; all but the embedded one with fixed random weights."""
    torch.manual_seed(0)
    weights = "default" if "lite" in name else None
    model = load_model(name, weights=weights, device=device, dtype=dtype)
    model.accelerated.warm()
    return model


def load_rounded(name: str) -> LoadedModel | None:
    """Return a model in bfloat16; None if it stays in float32."""
    model = load(name, dtype=torch.bfloat16)
    return model if model.bfloat16 and model.precision == "bfloat16" else None


def compile_gradients(model: LoadedModel) -> None:
    """Compile the graph of a model's gradients with respect to pictures, as a service does after some requests."""
    model.accelerated.vjp(torch.zeros(1, *model.spec.image_shape).expand(GRADIENTS_TO_COMPILE, -1, -1, -1))


def workload(
    model: LoadedModel, batch: int, stack: ExitStack, side: int | None = None, rounded: LoadedModel | None = None
) -> Workload:
    """Return the workload for a batch of random pictures.

    Args:
        model: as `load` returns it.
        batch: number of pictures.
        stack: closes what the contestants keep open.
        side: side of the pictures; the model's own if None.
        rounded: the model in bfloat16, if there is one.
    """
    channels, height, width = model.spec.image_shape
    shape = (batch, channels, side or height, side or width)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.device)
    with torch.no_grad():
        targets = model.module(images).argmax(dim=1)
    return Workload(model, images, targets, stack, rounded)


def contestants(method: str, workload: Workload) -> dict[str, Run]:
    """Return the contestants that have a method, ready to run."""
    explainer = get_method(method).build(OPTIONS[method])
    models = {SEEWHY: workload.model} | ({SEEWHY_BFLOAT16: workload.rounded} if workload.rounded else {})
    runs: dict[str, Run] = {
        name: lambda model=model: explainer.explain(model, workload.images, workload.targets).maps  # type: ignore[misc]
        for name, model in models.items()
    }
    return runs | {library: make(workload) for library, make in PEERS[method].items()}


def _grad_cam(name: str, batch_size: int | None = None) -> Callable[[Workload], Run]:
    """Return a CAM of pytorch-grad-cam; its maps are numpy arrays of the picture's size."""

    def make(workload: Workload) -> Run:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        network = workload.network()
        layers = [network.get_submodule(workload.layer)]
        cam = workload.stack.enter_context(getattr(pytorch_grad_cam, name)(model=network, target_layers=layers))
        if batch_size:
            cam.batch_size = batch_size
        targets = [ClassifierOutputTarget(int(target)) for target in workload.targets]
        return lambda: cam(input_tensor=workload.images, targets=targets)

    return make


def _torchcam(name: str) -> Callable[[Workload], Run]:
    """Return a CAM of torchcam, with its own number of pictures in a pass, which is ours."""

    def make(workload: Workload) -> Run:
        import torchcam.methods

        network = workload.network()
        cam = workload.stack.enter_context(getattr(torchcam.methods, name)(network, workload.layer))
        classes = workload.targets.tolist()
        forward_only = name == "ScoreCAM"

        def run() -> Tensor:
            with torch.inference_mode(forward_only):
                scores = network(workload.images)
            maps: Tensor = (cam(classes) if forward_only else cam(classes, scores))[0]
            return maps

        return run

    return make


def _captum_gradcam(workload: Workload) -> Run:
    from captum.attr import LayerGradCam

    network = workload.network()
    cam = LayerGradCam(network, network.get_submodule(workload.layer))
    return lambda: cam.attribute(workload.images, target=workload.targets, relu_attributions=True)[:, 0]


def _captum_saliency(workload: Workload) -> Run:
    from captum.attr import Saliency

    saliency, images = Saliency(workload.network()), workload.images.clone().requires_grad_()
    return lambda: saliency.attribute(images, target=workload.targets).amax(dim=1)


def _captum_smoothgrad(workload: Workload) -> Run:
    from captum.attr import NoiseTunnel, Saliency

    tunnel, images = NoiseTunnel(Saliency(workload.network())), workload.images.clone().requires_grad_()
    deviation = 0.15 * float(images.max() - images.min())
    options = {
        "nt_type": "smoothgrad",
        "nt_samples": OPTIONS["smoothgrad"]["samples"],
        "nt_samples_batch_size": max(1, PER_PASS // len(images)),
        "stdevs": deviation,
    }
    return lambda: tunnel.attribute(images, target=workload.targets, **options).amax(dim=1)


def _captum_integrated(workload: Workload) -> Run:
    from captum.attr import IntegratedGradients

    integrated, images = IntegratedGradients(workload.network()), workload.images.clone().requires_grad_()
    options = {"n_steps": OPTIONS["integrated-gradients"]["steps"], "internal_batch_size": PER_PASS}
    return lambda: integrated.attribute(images, target=workload.targets, **options).sum(dim=1)


PEERS: Mapping[str, Mapping[str, Callable[[Workload], Run]]] = {
    "gradcam": {
        "pytorch-grad-cam": _grad_cam("GradCAM"),
        "captum": _captum_gradcam,
        "torchcam": _torchcam("GradCAM"),
    },
    "saliency": {"captum": _captum_saliency},
    "smoothgrad": {"captum": _captum_smoothgrad},
    "integrated-gradients": {"captum": _captum_integrated},
    "scorecam": {"pytorch-grad-cam": _grad_cam("ScoreCAM", PER_PASS), "torchcam": _torchcam("ScoreCAM")},
    "ablationcam": {"pytorch-grad-cam": _grad_cam("AblationCAM", PER_PASS)},
}
"""The other libraries that have each method."""
