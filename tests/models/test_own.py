import importlib
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchvision import transforms as T
from torchvision.models import squeezenet1_1

from seewhy.explainers import GradCAM, process_wide
from seewhy.models import Registry, list_models, load_model, wrap_model
from seewhy.models.errors import BadWeightsError, ModelsFileError, UnknownModelError, WeightsUnavailableError
from seewhy.models.models_file import missing_modules, own_specs
from tests import nets
from tests.app.serving import declaration, declare


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a models file."""

    def write(architecture="tests.nets:Net", name="mine", **members) -> Path:
        members = {"weights": "weights.safetensors", "input_size": 224 if ":" in architecture else None} | members
        file = declare(tmp_path, architecture, [name], **members)
        monkeypatch.setenv("SEEWHY_MODELS", str(file))
        return file

    return write


def test_a_factory_with_weights_labels_and_preprocessing(declared, untouched):
    net = untouched(nets.seeded(nets.Net))
    colours = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic"}
    file = declared(input_size=[32, 64], resize=80, licence="secret", **colours)
    save_file(net.state_dict(), file.parent / "weights.safetensors")
    model = load_model("mine", download=False)
    assert list_models()[0] == model.name == "mine"
    assert model.labels == ("a", "b", "c")
    assert model.preprocess.size == (32, 64)
    assert model.preprocess.scale_size == (80, 80)
    assert model.preprocess.interpolation == "bicubic"
    assert model.preprocess.std == (1.0, 1.0, 1.0)
    assert [model.spec.licence, model.spec.source, model.weights] == ["secret", "own", "weights.safetensors"]
    assert model.default_layers == ("conv",)
    images = torch.ones(1, 3, 32, 64)
    assert nets.relative_error(model.module(images), net(images).detach()) < 1e-5


def test_a_size_of_both_sides_changes_the_proportions_as_in_torchvision(declared):
    net = nets.seeded(nets.Net)
    file = declared(input_size=[32, 64], resize=[32, 64], mean=[0, 0, 0], std=[1, 1, 1])
    save_file(net.state_dict(), file.parent / "weights.safetensors")
    model, picture = load_model("mine", download=False), Image.effect_noise((90, 50), 80).convert("RGB")
    expected = T.Compose([T.Resize((32, 64)), T.ToTensor()])(picture)
    assert torch.equal(model.preprocess(picture), expected)
    wrapped = wrap_model(net, input_size=(32, 64), resize=(32, 64), mean=(0, 0, 0), std=(1, 1, 1))
    assert wrapped.preprocess == model.preprocess
    assert model.preprocess.geometry(*picture.size).box == (0, 0, 90, 50)


def test_the_layers_of_a_factory_that_sets_weights_are_known_before_it_is_loaded(declared, caplog):
    registry = Registry(models_file=declared("tests.nets:SetsItsWeights"))
    layers = registry.survey(registry.spec("mine")).layers
    assert [(layer.path, layer.output_shape) for layer in layers if layer.path] == [("conv", (1, 3, 224, 224))]
    assert not caplog.records


def test_a_factory_that_ends_the_program_is_refused(declared):
    registry = Registry(models_file=declared("tests.nets:leaves"))
    with pytest.raises(ModelsFileError, match=r"\[models.mine\]: 'tests.nets:leaves' raised SystemExit"):
        registry.survey(registry.spec("mine"))


def test_labels_from_a_file_and_declared_default_layers(declared):
    file = declared(default_layers=["stem"], labels="labels.txt")
    (file.parent / "labels.txt").write_text("healthy\n\n pneumonia \nother\n", encoding="utf-8")
    save_file(nets.seeded(nets.Net).state_dict(), file.parent / "weights.safetensors")
    model = load_model("mine", download=False)
    assert model.labels == ("healthy", "pneumonia", "other")
    assert model.default_layers == ("stem",)
    assert GradCAM().explain(model, torch.ones(1, 3, 224, 224)).layers == ("stem",)


@pytest.mark.parametrize("architecture", ["squeezenet1_1", "timm/mobilenetv3_small_050", "efficientnet_lite0"])
def test_ready_made_architectures_get_as_many_classes_as_labels(architecture, declared):
    declared(architecture=architecture)
    model = load_model("mine", weights=None)
    assert model.module(torch.zeros(1, *model.spec.image_shape)).shape == (1, 3)
    preprocess = Registry().spec(architecture).preprocess
    assert model.preprocess == preprocess
    assert model.sha256 is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"weigths": "x"}, r"\[models.mine\], weigths: .*Near matches: weights"),
        ({"image_size": 128}, r"image_size: There is no such key\."),
        ({"mean": 0.5}, r"\[models.mine\], mean: It must be a list of three numbers, or of one"),
        ({"default_layers": "body"}, r"default_layers: It must be a list of layers, such as"),
        ({"input_size": "large"}, r"\], input_size: It must be a side in pixels, from 8 to 4096, or \[height, width\]"),
        ({"input_size": 1000000}, "input_size: It must be a side"),
        ({"input_size": 4}, r"\], input_size: It must be a side in pixels, from 8 to 4096, or \[height, width\]"),
        ({"input_size": [224]}, "input_size: It must be a side"),
        ({"input_size": "96"}, "input_size: It must be a side"),
        ({"input_size": [96, "96"]}, "input_size: It must be a side"),
        ({"resize": "96"}, "resize: It must be a side in pixels, from 8 to 4096, or"),
        ({"mean": ["0.5", "0.5", "0.5"]}, "mean: It must be a list of three numbers"),
        ({"resize": [96, 2]}, "resize: It must be a side in pixels, from 8 to 4096, or"),
        ({"mean": [0.5]}, "mean has 1 number and std 3"),
        ({"mean": [0.5, 0.5]}, "mean: It must be a list of three numbers"),
        ({"mean": [124, 116, 104], "std": [58, 57, 57]}, "divide those for levels up to 255 by 255"),
        ({"mean": [math.nan, 0.0, 0.0]}, "mean: It must be a list of three numbers"),
        ({"std": [1.0, 0.0, 1.0]}, "std: It must be a list of three positive numbers"),
        ({"std": [math.inf, 1.0, 1.0]}, "std: It must be a list of three positive numbers"),
        ({"interpolation": "cubic"}, "interpolation: It must be 'nearest', "),
        ({"weights": None}, "weights: A value is required"),
        ({"input_size": None}, r"input_size: A value is required; give the side or \[height, width\]"),
        ({"weights": ""}, "weights: It must be the path of a file"),
        ({"weights": 3}, "weights: It must be the path of a file"),
        ({"sha256": "zz"}, "sha256: It must be 8 to 64 hexadecimal digits"),
        ({"labels": []}, "labels: It must be a list of names, or the path of a text file with one name per line"),
        ({"labels": ["a", ""]}, "labels: It must be a list of names"),
        ({"labels": [1, 2]}, "labels: It must be a list of names"),
        ({"labels": "missing.txt"}, "'missing.txt' cannot be read"),
        ({"labels": "blank.txt"}, "empty"),
        ({"architecture": "resnet19"}, r"no architecture 'resnet19'\. Near matches: resnet1"),
        ({"name": "'x/layers'"}, "letters, digits"),
        ({"name": "'caf\u00e9'"}, "letters, digits"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_the_reason(members, message, declared, tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(ModelsFileError, match=message) as caught:
        own_specs(declared(**members))
    assert str(caught.value).startswith("[models.")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "declares no model"),
        ("this is no TOML", "cannot be read"),
        (2 * declaration("mine"), "cannot be read"),
        ("[models]\nmine = 3", r"\[models.mine\]: It must be a table\."),
        ("[[models.mine]]\n", r"\[models.mine\]: It must be a table\."),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(content, message, tmp_path):
    file = tmp_path / "models.toml"
    with pytest.raises(ModelsFileError, match=r"models\.toml"):
        own_specs(file)
    file.write_text(content)
    with pytest.raises(ModelsFileError, match=message) as caught:
        own_specs(file)
    assert str(tmp_path) not in str(caught.value)


def test_the_name_of_a_ready_made_model_is_taken(declared):
    with pytest.raises(ModelsFileError, match=r"^\[models.resnet18\]: 'resnet18' is the name of a ready-made model"):
        Registry(models_file=declared(name="resnet18"))


def test_missing_weights_of_an_own_model_say_the_way_out(declared, tmp_path):
    registry = Registry(models_file=declared())
    with pytest.raises(WeightsUnavailableError, match=r"'weights.safetensors'") as caught:
        registry.load("mine")
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.__notes__ == [f"Looked for: {tmp_path / 'weights.safetensors'}"]
    assert registry.missing_weights(registry.spec("mine")) is not None


def test_weights_for_another_number_of_classes_are_refused(declared):
    file = declared(architecture="squeezenet1_1")
    save_file(squeezenet1_1().state_dict(), file.parent / "weights.safetensors")
    with pytest.raises(BadWeightsError, match=r"is \(1000, 512, 1, 1\) in the file, and \(3, 512, 1, 1\) in the"):
        load_model("mine", download=False)


def test_an_own_model_has_no_named_weight_sets(declared):
    with pytest.raises(UnknownModelError, match="the models file names"):
        Registry(models_file=declared()).spec("mine", "IMAGENET1K_V1")


def test_a_declared_layer_that_cannot_be_is_refused(declared):
    registry = Registry(models_file=declared(default_layers=["head"]))
    with pytest.raises(ModelsFileError, match="'head'"):
        registry.load("mine", None)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("tests.nets:Nets", r"the module 'tests.nets' has no 'Nets'\. Near matches: Net"),
        ("tests.nothing:Net", r"No module named 'tests.nothing': put its folder on Python's path \(PYTHONPATH="),
        ("tests.nets.py:Net", r"No module named 'tests\.nets\.py': leave out `\.py`"),
        ("builtins:dict", "'builtins:dict' returned a dict"),
        ("tests.nets:relative_error", "must be a function that can be called without arguments"),
        ("tests.nets:__doc__", "must be a function that can be called without arguments"),
    ],
)
def test_a_factory_that_cannot_be_is_refused_without_a_traceback(architecture, message, declared, caplog):
    registry = Registry(models_file=declared(architecture=architecture))
    with pytest.raises(ModelsFileError, match=message):
        registry.load("mine", None)
    assert not caplog.records


def grey() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_network_that_sees_grey_says_what_to_declare(declared, caplog):
    registry = Registry(models_file=declared(f"{__name__}:grey"))
    advice = (
        r"\(3, 224, 224\)\. Its first convolution takes 1 channel, not 3: give `mean` and `std` with 1 number each\."
    )
    with pytest.raises(ModelsFileError, match=advice):
        registry.load("mine", None)
    assert not caplog.records
    assert Registry(models_file=declared(f"{__name__}:grey", mean=[0.5], std=[0.5])).load("mine", None)


def test_models_whose_code_cannot_be_found_are_known_without_importing_anything(declared):
    assert list(missing_modules(declared())) == list(missing_modules(declared(architecture="squeezenet1_1"))) == []
    ((name, warning),) = missing_modules(declared(architecture="nothing_of_the_kind.nets:Net"))
    assert name == "mine"
    assert warning.startswith("[models.mine]: No module named 'nothing_of_the_kind': put its folder on Python's path")


def test_a_name_close_to_a_declared_one_suggests_it(declared):
    with pytest.raises(UnknownModelError, match=r"There is no model 'min'\. Near matches: mine"):
        Registry(models_file=declared()).spec("min")


class Shares(nets.Net):
    def forward(self, images):
        return super().forward(images).softmax(dim=1)


def test_a_declared_model_that_returns_probabilities_is_logged_when_it_is_loaded(declared, caplog):
    Registry(models_file=declared()).load("mine", None)
    Registry(models_file=declared(f"{__name__}:Shares", head="sigmoid")).load("mine", None)
    assert not caplog.messages
    Registry(models_file=declared(architecture=f"{__name__}:Shares")).load("mine", None)
    (message,) = caplog.messages
    assert message.startswith("[models.mine]: the model returns probabilities")
    assert message.endswith("Return the logits before the softmax.")


class Weighing(nets.Net):
    """Returns two tensors, one of which has the logits."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"weights": images.mean(dim=(2, 3)), "logits": super().forward(images)}


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c", "d"]])
def test_the_labels_of_a_dictionary_of_outputs_are_counted(declared, labels):
    with pytest.raises(ModelsFileError, match=f"3 classes, but {len(labels)} labels"):
        Registry(models_file=declared(f"{__name__}:Weighing", labels=labels)).load("mine", None)


def test_labels_that_are_not_as_many_as_the_classes_are_refused(tmp_path, monkeypatch):
    (tmp_path / "factory_of_three.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential("
        "nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))\n"
        "def broken(): raise OSError('/secret')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelsFileError, match="3 classes, but 2 labels"):
        Registry(models_file=declare(tmp_path, "factory_of_three:make", labels=["a", "b"])).load("mine", None)
    with pytest.raises(ModelsFileError, match="OSError") as caught:
        Registry(models_file=declare(tmp_path, "factory_of_three:broken")).load("mine", None)
    assert "secret" not in str(caught.value)


HOOK = "from torch.nn.modules import module\nmodule.register_module_forward_hook(lambda *_: None)\n"
NET = "nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a package of the user's, and returns a registry that has its `make`."""
    monkeypatch.setattr(process_wide, "_start", dict(process_wide._start))
    hooks = module_globals._global_forward_hooks
    before, dtype, call = dict(hooks), torch.get_default_dtype(), nn.Module.__call__

    def write(name: str, **files: str) -> Registry:
        for stem, text in files.items():
            (tmp_path / f"{stem}.py").write_text("import torch\nfrom torch import nn\n" + text)
        monkeypatch.syspath_prepend(tmp_path)
        return Registry(models_file=declare(tmp_path, f"{name}:make", labels=["a", "b"]))

    yield write
    for key in hooks.keys() - before.keys():
        del hooks[key]
    torch.set_default_dtype(dtype)
    nn.Module.__call__ = call


def test_a_package_that_fails_after_it_has_changed_pytorch_is_refused_and_nothing_else(package):
    registry = package("fails_late", fails_late=HOOK + "raise OSError\n")
    with pytest.raises(ModelsFileError, match="OSError"):
        registry.load("mine", None)
    assert process_wide.changes() == []


def test_what_a_factory_imports_may_change_pytorch_too(package):
    registry = package(
        "imports_late", imports_late=f"def make():\n    import imported_late\n    return {NET}\n", imported_late=HOOK
    )
    registry.load("mine", None)
    assert process_wide.changes() == []


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("torch.set_default_dtype(torch.float64)", r"torch\.get_default_dtype\(\)"),
        ("nn.Module.__call__ = lambda *args: None", r"torch\.nn\.Module\.__call__"),
    ],
)
def test_a_factory_that_changes_all_models_is_refused_and_what_it_changed_is_put_back(line, setting, package, request):
    name = f"changes_{abs(hash(line))}"
    registry = package(name, **{name: f"def make():\n    net = {NET}\n    {line}\n    return net\n"})
    with pytest.raises(ModelsFileError, match=f"left {setting} changed"):
        registry.load("mine", None)
    assert process_wide.changes() == []


@pytest.mark.parametrize("ask", ["load", "survey"])
def test_a_package_is_imported_while_others_may_be_alone(ask, package, monkeypatch):
    """Another thread that imports it, and waits to be alone as it does so, must not be waited for in turn."""
    name = f"asks_{ask}"
    text = (
        "import threading\nfrom seewhy.explainers.process_wide import exclusive\n"
        "def enter():\n    with exclusive(): pass\n"
        "thread = threading.Thread(target=enter, daemon=True)\nthread.start()\nthread.join(20)\n"
        f"entered = not thread.is_alive()\ndef make(): return {NET}\n"
    )
    registry = package(name, **{name: text})
    registry.load("mine", None) if ask == "load" else registry.survey(registry.spec("mine"))
    assert importlib.import_module(name).entered


def test_models_with_weights_of_other_axes_than_four_are_loaded(declared):
    net = nets.seeded(Volumes)
    file = declared(architecture="tests.models.test_own:Volumes", labels=["a", "b"])
    save_file(net.state_dict(), file.parent / "weights.safetensors")
    model = load_model("mine", download=False)
    assert model.module.stem.weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.ones(1, 3, 32, 64)
    assert nets.relative_error(model.module(images), net(images).detach()) < 1e-5


class Volumes(nn.Module):
    """Has a convolution over three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.volume, self.head = nn.Conv2d(3, 4, 3), nn.Conv3d(1, 1, 3), nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.volume(self.stem(images)[:, None]).mean((1, 3, 4)))
