import errno
import hashlib
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models as torchvision_models

from seewhy.models import Registry, load_model
from seewhy.models.errors import BadWeightsError, ModelsFileError, WeightsUnavailableError
from seewhy.models.weights import (
    checked_sha256,
    fill_by_name,
    fill_by_order,
    obtain_weights,
    read_state_dict,
    sha256_of,
)
from seewhy.models.zoo import EMBEDDED, zoo_spec
from tests import nets
from tests.app.serving import declare


@pytest.fixture(scope="module")
def squeezenet() -> dict[str, Tensor]:
    return nets.seeded(torchvision_models.squeezenet1_1).state_dict()


def save(state: dict[str, Tensor], file: Path) -> Path:
    (save_file if file.suffix == ".safetensors" else torch.save)(state, file)
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of weights, and no cache beside it."""
    monkeypatch.setenv("SEEWHY_WEIGHTS_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    return tmp_path


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(actual) == list(expected) and all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_weights_in_the_folder_are_found_and_read(suffix, folder, squeezenet):
    file = save(squeezenet, folder / f"squeezenet1_1{suffix}")
    model = load_model("squeezenet1_1", download=False)
    assert same(model.module.state_dict(), squeezenet)
    assert model.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert model.weights == "IMAGENET1K_V1"
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


def test_weights_that_may_not_be_read_are_named(folder, squeezenet, monkeypatch):
    file = folder / "squeezenet1_1.pth"
    torch.save(squeezenet, file)
    opened = Path.open

    def refuse(path, *arguments):
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", refuse)  # whoever administers the system may read all
    with pytest.raises(BadWeightsError, match=r"'squeezenet1_1.pth' cannot be read \(Permission denied\)") as caught:
        load_model("squeezenet1_1", download=False)
    assert str(folder) not in str(caught.value)


def test_weights_where_nobody_may_look_are_not_there(folder, squeezenet, monkeypatch):
    stat = os.stat

    def refuse(path, *arguments, **options):
        if Path(path).parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(WeightsUnavailableError, match="not installed"):
        load_model("squeezenet1_1", download=False)
    assert load_model("efficientnet_lite0", download=False).sha256 is not None


def test_weights_under_the_publishers_file_name_and_in_the_librarys_cache(folder, squeezenet, monkeypatch):
    monkeypatch.setattr(
        "seewhy.models.registry.checked_sha256", lambda spec, path: sha256_of(path)
    )  # these are not published
    published = "squeezenet1_1-b8a52dc0.pth"
    torch.save(squeezenet, folder / published)
    assert load_model("squeezenet1_1", download=False).sha256 is not None
    cache = folder / "hub" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    (folder / published).rename(cache / published)
    assert load_model("squeezenet1_1", "IMAGENET1K_V1", download=False).sha256 is not None


def test_timm_weights_in_the_folder(folder):
    module = load_model("timm/mobilenetv3_small_050", None).module.to(memory_format=torch.contiguous_format)
    (folder / "timm").mkdir()
    save_file(module.state_dict(), folder / "timm" / "mobilenetv3_small_050.safetensors")
    model = load_model("timm/mobilenetv3_small_050", download=False)
    assert same(model.module.state_dict(), module.state_dict())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_training_checkpoints_are_unwrapped(key, folder, squeezenet):
    wrapped = {f"module._orig_mod.{name}": value for name, value in squeezenet.items()}
    torch.save({"epoch": 3, key: wrapped}, folder / "squeezenet1_1.pth")
    assert same(load_model("squeezenet1_1", download=False).module.state_dict(), squeezenet)


class RunsCode:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("code-has-run"),))


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": RunsCode()}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(RunsCode(), protocol=2))
    for file in ("a.pth", "b.pth"):
        with pytest.raises(BadWeightsError, match="never run"):
            read_state_dict(tmp_path / file)
    assert not Path("code-has-run").exists()


@pytest.mark.fault("damaged weights", "503 with the file name")
@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("content", [b"", b"text, not weights", bytes(4096), b"PK\x03\x04" + bytes(100)])
def test_damaged_files_are_refused_by_name(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        BadWeightsError, match=rf"{name}.*It must hold a state dict: save `model.state_dict\(\)`"
    ) as caught:
        read_state_dict(tmp_path / name)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.fault("incomplete or modified weights", "503 with the file name, without a known digest")
@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_half_copied_and_altered_files_never_raise_anything_else(name, tmp_path, generator):
    file = save({"weight": torch.ones(64, 64)}, tmp_path / name)
    content = file.read_bytes()
    for step in range(40):
        damaged = bytearray(content[: len(content) * (step + 1) // 40])
        for place in torch.randint(0, min(len(damaged), 600), (4,), generator=generator):
            damaged[place] ^= 0x55
        file.write_bytes(bytes(damaged))
        try:
            read_state_dict(file)
        except BadWeightsError:
            continue


@pytest.mark.parametrize("content", [[1, 2], {"weight": 1}, torch.ones(3)])
def test_a_file_without_a_state_dict_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(BadWeightsError, match="no state dict"):
        read_state_dict(tmp_path / "w.pth")


def test_weights_of_another_architecture_are_counted(folder, squeezenet):
    torch.save(nets.seeded(nets.Net).state_dict(), folder / "squeezenet1_1.pth")
    with pytest.raises(BadWeightsError, match=r"squeezenet1_1: .*52 tensors are missing.*8 are unexpected"):
        load_model("squeezenet1_1", download=False)
    wrong_weights = {**squeezenet, "classifier.1.bias": torch.zeros(10)}
    torch.save(wrong_weights, folder / "squeezenet1_1.pth")
    with pytest.raises(BadWeightsError, match=r"'classifier.1.bias' is \(10,\) in the file, and \(1000,\) in the"):
        load_model("squeezenet1_1", download=False)


def test_filling_by_order_needs_the_same_shapes_and_only_those():
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    renamed = {f"other.{name}": value for name, value in source.state_dict().items()}
    fill_by_order(target, renamed)
    assert same(target.state_dict(), source.state_dict())
    with pytest.raises(BadWeightsError, match="shapes differ"):
        fill_by_order(nn.Linear(2, 3), renamed)
    with pytest.raises(BadWeightsError, match="2 are unexpected"):
        fill_by_name(target, renamed)


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
def test_weights_that_are_not_here_say_the_way_out(name, folder):
    registry = Registry(weights_dir=folder)
    reason = registry.missing_weights(registry.spec(name))
    with pytest.raises(WeightsUnavailableError, match="not installed") as caught:
        registry.load(name)
    for message in (str(caught.value), reason):
        assert all(way in message for way in (f"'{name}.safetensors'", "SEEWHY_WEIGHTS_DIR", "SEEWHY_DOWNLOAD=1"))
        assert str(folder) not in message
        assert str(Path.home()) not in message


def test_a_failed_download_says_so_and_the_way_out(folder, monkeypatch):
    failure = OSError("no route to /secret/path")
    monkeypatch.setattr(torch.hub, "download_url_to_file", Mock(side_effect=failure))
    with pytest.raises(WeightsUnavailableError, match=r"download .* failed \(OSError\)") as caught:
        obtain_weights(Registry().spec("resnet18"), folder, download=True)
    assert "SEEWHY_WEIGHTS_DIR" in str(caught.value)
    assert "/secret/path" not in str(caught.value)


@pytest.mark.slow
def test_a_model_without_published_weights_says_so(folder):
    registry = Registry()
    spec = next(spec for spec in registry.specs() if spec.weights is None)
    with pytest.raises(WeightsUnavailableError, match="SEEWHY_MODELS"):
        obtain_weights(spec, folder, download=True)


def test_a_file_that_is_not_the_published_one_is_refused_by_name(tmp_path):
    registry = Registry(tmp_path)
    (name,) = registry.spec("resnet18").weights.digests
    torch.save(torchvision_models.resnet18().state_dict(), tmp_path / name)
    with pytest.raises(BadWeightsError, match=rf"{name}.*not the one that was published.*{name[-12:-4]}"):
        registry.load("resnet18")
    torch.save(torchvision_models.resnet18().state_dict(), tmp_path / "resnet18.pth")  # of one's own
    assert registry.load("resnet18").sha256


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_weights_are_those_whose_whole_digest_stands_here(name):
    weights = Registry().spec(name).weights
    assert re.fullmatch("[0-9a-f]{64}", weights.digests[weights.cached().name])
    assert sha256_of(weights.cached()) == weights.digests[weights.cached().name] == EMBEDDED[name].sha256


def test_embedded_weights_that_only_begin_like_the_published_ones_are_refused(monkeypatch):
    sha256 = EMBEDDED["efficientnet_lite0"].sha256
    almost = sha256[:-1] + ("0" if sha256[-1] != "0" else "1")
    monkeypatch.setattr("seewhy.models.weights.sha256_of", lambda path: almost)
    with pytest.raises(BadWeightsError, match=f"efficientnet_lite0: .*57934424.pth.* is {almost}, not {sha256}"):
        load_model("efficientnet_lite0")


def test_embedded_weights_that_were_altered_are_refused(tmp_path, monkeypatch):
    file_name = EMBEDDED["efficientnet_lite0"].file_name
    shipped = Registry().spec("efficientnet_lite0").weights.cached()
    package = tmp_path / "altered_weights"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    content = bytearray(shipped.read_bytes())
    content[len(content) // 2] ^= 1  # a weight
    (package / "models" / file_name).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    altered = replace(EMBEDDED["efficientnet_lite0"], package="altered_weights")
    monkeypatch.setitem(EMBEDDED, "efficientnet_lite0", altered)
    spec = zoo_spec.__wrapped__("efficientnet_lite0")  # the altered one is not to be cached
    with pytest.raises(BadWeightsError, match=f"not the one that was published: .*not {altered.sha256}"):
        checked_sha256(spec, spec.weights.cached())


@pytest.mark.slow
@pytest.mark.fault("weights with another digest than expected", "503 with the file name and both digests")
def test_a_digest_may_stand_in_the_models_file(tmp_path):
    torch.save(torchvision_models.resnet18(num_classes=2).state_dict(), tmp_path / "w.pth")
    digest = sha256_of(tmp_path / "w.pth")

    def load(digest):
        declared = declare(tmp_path, "resnet18", labels=["a", "b"], input_size=64, sha256=digest)
        return Registry(models_file=declared).load("mine")

    for text in (digest, digest[:8].upper()):
        assert load(text).sha256 == digest
    with pytest.raises(BadWeightsError, match=rf"SHA-256 {digest}, but the models file says {'0' * 64}: correct"):
        load("0" * 64)
    with pytest.raises(ModelsFileError):
        load("xyz")
    with (tmp_path / "w.pth").open("r+b") as file:  # half copied
        file.truncate(100_000)
    with pytest.raises(BadWeightsError, match=r"w\.pth.*incomplete"):
        load(digest)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_modules_that_ask_for_the_version_of_their_weights_get_it(tmp_path, suffix):
    saved, loaded = nets.seeded(torchvision_models.mnasnet0_5), torchvision_models.mnasnet0_5()
    fill_by_name(loaded, read_state_dict(save(saved.state_dict(), tmp_path / f"weights{suffix}")))
    assert same(loaded.state_dict(), saved.state_dict())
