"""The same maps as captum's and pytorch-grad-cam's on stock architectures with fixed random weights."""

from copy import deepcopy

import pytest
import torch
import torchvision
from torch import Tensor, nn

from explainers import GradCAM, Saliency
from tests import nets

pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS = {"resnet18": "layer4", "vgg11": "features.19", "mobilenet_v2": "features", "densenet121": "features"}


@pytest.fixture(scope="module", params=LAYERS)
def stock(request) -> tuple[nn.Module, str]:
    return nets.seeded(torchvision.models.get_model, request.param), LAYERS[request.param]


@pytest.fixture
def targets() -> Tensor:
    return torch.tensor([7, 999, 0, 7])


def test_gradcam_equals_captum(stock, images, targets):
    from captum.attr import LayerGradCam

    model, layer = stock
    peer = LayerGradCam(model, model.get_submodule(layer))
    for sign, rectified in (("signed", False), ("positive", True)):
        expected = peer.attribute(images, targets, relu_attributions=rectified)[:, 0].detach()
        found = GradCAM(layers=(layer,), sign=sign).explain(model, images, targets).maps
        assert expected.abs().max() > 0
        assert nets.relative_error(found, expected) < 1e-5


def test_gradcam_equals_pytorch_grad_cam(stock, images, targets):
    from pytorch_grad_cam import GradCAM as PeerGradCAM

    if isinstance(stock[0], torchvision.models.DenseNet):
        pytest.skip("it lets the in-place ReLU after `features` overwrite the activations that it weighs")
    model, layer = deepcopy(stock[0]), stock[1]
    target_layer = model.get_submodule(layer)
    with PeerGradCAM(model, [target_layer]) as peer:
        logits = peer.activations_and_grads(images)
        logits[range(4), targets].sum().backward()
        activations = peer.activations_and_grads.activations[0].detach().numpy()
        gradients = peer.activations_and_grads.gradients[0].numpy()
        expected = peer.get_cam_image(images, target_layer, None, activations, gradients)
    found = GradCAM(layers=(layer,), sign="signed").explain(stock[0], images, targets).maps
    assert nets.relative_error(found, torch.as_tensor(expected)) < 1e-5


def test_saliency_equals_captum(stock, images, targets):
    from captum.attr import Saliency as PeerSaliency

    model, _ = stock
    expected = PeerSaliency(model).attribute(images.clone().requires_grad_(), targets).amax(dim=1)
    found = Saliency().explain(model, images, targets).maps
    assert nets.relative_error(found, expected.detach()) < 1e-5
