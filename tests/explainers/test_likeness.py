"""The similarity of two pictures to a network: by hand, as exact sums, and as estimated sums."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import VisionTransformer, densenet121

from seewhy import LoadedModel, load_model, similar, wrap_model
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import OptionError, PictureError, UnreadablePictureError, UnsuitableModelError
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.layers.layout import TokenGrid
from seewhy.explainers.likeness import decomposition
from seewhy.explainers.likeness.decomposition import decompose
from seewhy.explainers.results.likeness import Likeness
from tests import nets
from tests.app.conftest import EXAMPLES

CAT, COFFEE = EXAMPLES / "cat.png", EXAMPLES / "coffee.png"


def plain(module: nn.Module, size: int = 16) -> LoadedModel:
    """Wrap a net that sees levels as they are."""
    return wrap_model(module, input_size=size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def sequence(*parts: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), *parts).eval()


@pytest.fixture
def pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, 3, 16, 16, generator=generator)
    return first, second


def embeddings(model: LoadedModel, head: str | None, pictures: tuple[Tensor, Tensor]) -> list[Tensor]:
    """What a plain hook of PyTorch sees before the head, in one batch of both pictures."""
    seen: list[Tensor] = []
    part = model.module if head is None else model.module.get_submodule(head)
    handle = part.register_forward_hook(lambda _, args, output: seen.append(output if head is None else args[0]))
    training = model.module.training
    with torch.no_grad():
        model.module.eval()(torch.stack(pictures))
    model.module.train(training)
    handle.remove()
    return list(seen[0].flatten(1).double())


def cosine(first: Tensor, second: Tensor) -> float:
    return float(first @ second / first.norm() / second.norm())


def test_two_cells_of_one_colour_make_the_likeness():
    conv, head = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, 2)
    with torch.no_grad():
        conv.weight.copy_(torch.eye(3)[:, :, None, None])
    model = plain(nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head), size=2)
    image, reference = torch.zeros(2, 3, 2, 2)
    image[0, 0, 0] = reference[0, 1, 1] = reference[1, 0, 1] = 4  # the averages are (1, 0, 0) and (1, 1, 0)
    result = similar(model, image, reference, top=1, proof="full", proof_fill="mean")
    root = 0.5**0.5
    assert result.score == pytest.approx(root, abs=1e-6)
    assert (result.embedding, result.layer, result.exact) == ("3", "0", True)
    np.testing.assert_allclose(result.maps[0], [[root, 0], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(result.maps[1], [[0, 0], [0, root]], atol=1e-6)
    first, second = (proof.faithfulness for proof in result.proof)
    assert (first.value, first.kept, first.dropped, first.hidden, first.score) == pytest.approx((root, root, 0, 0, 1))
    assert (second.kept, second.dropped, second.score) == pytest.approx((1, 0, 1 / root))
    assert [proof.cost for proof in result.proof] == [Passes(7)] * 2
    assert "painted over, the similarity goes from 0.707 to 0" in result.proof[0].sentence
    document = json.loads(json.dumps(result.document()))
    assert [document[side]["proof"]["copies"]["beaten"] for side in ("image", "reference")] == [1, 1]
    assert [json.loads(text)["cost"]["forwards"] for text in result.arrays()["proofs"]] == [7, 7]
    (strongest,) = result.pairs
    assert (strongest.image, strongest.reference) == ((0, 0, 1, 1), (1, 1, 2, 2))
    assert strongest.contribution == pytest.approx(root, abs=1e-6)


AVERAGES = {
    "a functional ReLU and mean": (lambda: nets.seeded(nets.Net), "head", "conv"),
    "a ReLU in place": (lambda: nets.seeded(nets.InPlaceModule), "head", "relu"),
    "a sum of branches": (lambda: nets.seeded(nets.InPlaceFunction), "head", "conv"),
    "dropout and norms": (lambda: nets.seeded(nets.Stochastic), "head", None),
    "sums of cells as outputs": (lambda: nets.Weighted((1.0, 2.0, -1.0), (0.5, -1.0, 1.0)), None, "conv"),
    "a list of all cells": (lambda: sequence(nn.Flatten(), nn.Linear(6 * 64, 3)), "3", "1"),
    "a convolution as head": (lambda: sequence(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 3, 1), nn.Flatten()), "3", "1"),
    "a pooling module": (lambda: sequence(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)), "4", "1"),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_maps_and_pairs_of_small_nets_sum_to_the_cosine_before_the_head(name, pair, untouched):
    make, head, layer = AVERAGES[name]
    model = plain(untouched(make()))
    parts = decompose(model, pair[0][None], pair[1][None], top=2**16)
    assert (parts.embedding, parts.exact) == (head, True)
    assert layer in (parts.layer, None)
    expected = cosine(*embeddings(model, head, pair))
    contribution = sum(cells.contribution for cells in parts.pairs)
    sums = [parts.score, *(float(values.sum()) for values in parts.maps), contribution]
    np.testing.assert_allclose(sums, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "mobilenet_v2"])
def test_maps_and_pairs_of_the_embedded_networks_sum_to_the_cosine(name, untouched):
    model = load_model(name)
    untouched(model.module)
    result = similar(model, CAT, COFFEE, top=49 * 49)
    pictures = [model.preprocess(Image.open(path).convert("RGB")) for path in (CAT, COFFEE)]
    expected = cosine(*embeddings(model, result.embedding, (pictures[0], pictures[1])))
    assert result.exact
    assert result.diagnostics == ()
    assert len(result.pairs) == 49 * 49
    sums = [result.score, *(float(values.sum(dtype=float)) for values in result.maps)]
    np.testing.assert_allclose(sums, expected, atol=1e-6)
    assert sum(cells.contribution for cells in result.pairs) == pytest.approx(expected, abs=1e-6)
    contributions = [cells.contribution for cells in result.pairs]
    assert contributions == sorted(contributions, reverse=True)


@pytest.mark.slow
def test_a_relu_between_the_layer_and_the_pooling_counts():
    model = wrap_model(densenet121(weights=None).eval(), input_size=224)
    assert similar(model, CAT, COFFEE).exact


def test_the_likeness_is_the_same_the_other_way_round(lite0):
    there, back = similar(lite0, CAT, COFFEE, top=20), similar(lite0, COFFEE, CAT, top=20)
    # Between the two, the model may reach the number of pictures after which it is compiled, and round otherwise.
    assert there.score == pytest.approx(back.score, abs=1e-6)
    for mine, other in zip(there.maps, reversed(back.maps), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    assert {cells.boxes for cells in there.pairs} == {cells.boxes[::-1] for cells in back.pairs}


@pytest.mark.parametrize("name", [*AVERAGES, "estimated"])
def test_a_picture_is_like_itself(name, pair):
    model = plain(estimated() if name == "estimated" else AVERAGES[name][0]())
    result = similar(model, pair[0], pair[0])
    assert result.score == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(result.maps[0], result.maps[1], atol=1e-6)


def test_features_of_another_size_change_nothing(pair):
    net = sequence(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    larger = deepcopy(net)
    with torch.no_grad():
        for value in larger[0].parameters():
            value *= 3
    first, second = (similar(plain(module), *pair, top=9) for module in (net, larger))
    assert first.score == pytest.approx(second.score, abs=1e-6)
    np.testing.assert_allclose(first.maps[0], second.maps[0], atol=1e-6)
    assert [part.boxes for part in first.pairs] == [part.boxes for part in second.pairs]


def test_a_list_of_cells_pairs_each_cell_with_itself(pair):
    result = similar(plain(AVERAGES["a list of all cells"][0]()), *pair, top=100)
    assert len(result.pairs) == 64
    assert all(cells.image == cells.reference for cells in result.pairs)
    np.testing.assert_array_equal(*result.maps)


def test_pictures_of_two_sizes_are_compared(pair, generator):
    other = torch.randn(3, 24, 20, generator=generator)
    model = plain(nets.seeded(nets.Net))
    result = similar(model, pair[0], other)
    assert [values.shape for values in result.maps] == [(8, 8), (12, 10)]
    assert result.exact
    assert result.maps[0].sum() == pytest.approx(result.maps[1].sum(), abs=1e-6)


def estimated(bias: bool = True) -> nn.Module:
    """A network whose head reads a layer behind the pooling."""
    hidden = nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 3, bias=bias)
    return sequence(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden)


def test_a_layer_behind_the_pooling_is_estimated_by_gradient_times_activation(pair):
    model = plain(estimated(bias=False))
    parts = decompose(model, pair[0][None], pair[1][None], top=2**16)
    assert (parts.embedding, parts.layer, parts.exact) == ("6", "1", False)
    assert parts.score == pytest.approx(cosine(*embeddings(model, "6", pair)), abs=1e-6)
    for values in parts.maps:  # of a piecewise linear part without biases, they do sum to the score
        assert float(values.sum()) == pytest.approx(parts.score, abs=1e-5)
    assert sum(cells.contribution for cells in parts.pairs) == pytest.approx(parts.score, abs=1e-5)
    assert [notice.code for notice in similar(model, *pair).diagnostics] == ["estimated-pairs"]


def transformer() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=3).eval()
        nn.init.normal_(net.heads.head.weight)  # which torchvision leaves at zero
    return net


def test_a_transformer_has_its_patches_where_the_last_attention_reads_them(generator, untouched):
    model = plain(untouched(transformer()), size=32)
    pictures = torch.randn(2, 3, 32, 32, generator=generator)
    result = similar(model, pictures[0], pictures[1], top=1)
    assert (result.embedding, result.layer) == ("heads.head", "encoder.layers.encoder_layer_1.ln_1")
    assert not result.exact
    assert [values.shape for values in result.maps] == [(4, 4), (4, 4)]
    assert result.score == pytest.approx(cosine(*embeddings(model, "heads.head", (pictures[0], pictures[1]))), abs=1e-6)
    left, top, right, bottom = result.pairs[0].image
    assert (right - left, bottom - top) == (8, 8)
    tokens = {layer.path: layer.tokens for layer in model.survey.layers if layer.tokens}
    assert tokens["encoder.layers.encoder_layer_1.ln_1"] == TokenGrid(4, 4, before=1)
    assert "heads.head" not in tokens


def test_rounding_of_half_precision_counts_as_rounding(pair):
    result = similar(plain(nets.seeded(nets.Net).bfloat16()), *pair, top=2**16)
    assert result.exact
    assert sum(cells.contribution for cells in result.pairs) == pytest.approx(result.score, abs=1e-6)
    assert result.score == pytest.approx(similar(plain(nets.seeded(nets.Net)), *pair).score, abs=0.02)


def test_an_embedding_of_zeros_is_like_nothing(pair):
    net = sequence(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.fill_(-1)
    result = similar(plain(net), *pair)
    assert result.score == 0
    assert "blank-map" in [notice.code for notice in result.diagnostics]


def test_a_network_without_cells_is_refused(pair):
    with pytest.raises(UnsuitableModelError, match="No layer has cells"):
        similar(plain(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))), *pair)


def test_a_segmenter_has_no_embedding(pair):
    model = wrap_model(nn.Conv2d(3, 2, 3, padding=1), ["back", "cat"], input_size=16, head="segmentation")
    with pytest.raises(UnsuitableModelError, match="no embedding"):
        similar(model, *pair)


def test_a_network_in_training_is_left_as_it_is(pair, untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    first, second = (similar(plain(net), *pair) for _ in range(2))
    assert first.score == second.score
    assert net.dropout.training


def test_threads_share_a_model(lite0, untouched):
    untouched(lite0.module)
    expected = similar(lite0, CAT, COFFEE)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: similar(lite0, CAT, COFFEE), range(6)))
    for result in results:
        assert result.score == pytest.approx(expected.score, abs=1e-6)
        assert [cells.boxes for cells in result.pairs] == [cells.boxes for cells in expected.pairs]


@pytest.mark.parametrize("net", [lambda: nets.seeded(nets.Net), estimated])
def test_pairs_are_the_same_however_few_fit_into_memory(pair, monkeypatch, net):
    model = plain(net())
    expected = similar(model, *pair, top=7).pairs
    monkeypatch.setattr(decomposition, "_BLOCK", 150)
    pairs = similar(model, *pair, top=7).pairs
    assert [cells.boxes for cells in pairs] == [cells.boxes for cells in expected]
    np.testing.assert_allclose([cells.contribution for cells in pairs], [cells.contribution for cells in expected])


@pytest.fixture(scope="module")
def result(lite0) -> Likeness:
    return similar(lite0, CAT, COFFEE)


def test_heatmaps_lie_in_the_uploads_to_one_scale(result):
    assert [values.shape for values in result.heatmaps] == [(300, 451), (400, 600)]
    assert max(values.max() for values in result.heatmaps) == 1
    ratio = result.raw_heatmaps[0].max() / result.raw_heatmaps[1].max()
    assert result.heatmaps[0].max() / result.heatmaps[1].max() == pytest.approx(ratio, rel=1e-5)
    assert result.heatmaps[0][:, 0].max() == 0, "the model's crop does not see the border"
    for cells in result.pairs:
        left, top, right, bottom = cells.image
        assert 0 <= left < right <= 451
        assert 0 <= top < bottom <= 300
    assert repr(result) == "Likeness(cosine 0.088 of the input of classifier, by patches of bn2; 5 pairs)"


def test_a_drawing_has_both_pictures_and_the_pairs_in_colours(result, tmp_path):
    with Image.open(result.save(tmp_path / "out.png")) as file:
        drawing = file.convert("RGB")
    width, height = drawing.size
    assert (width, height) == result.drawn_size(Style())
    assert 390 < height - 2 * 24 <= 400
    assert width == pytest.approx((height - 48) * (451 / 300 + 600 / 400), abs=12)
    colours = {colour for _, colour in drawing.getcolors(2**20)}
    assert {(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (204, 121, 167)} <= colours
    bare = replace(result, pairs=())
    changed = np.abs(np.asarray(drawing, int) - np.asarray(bare.overlay(), int)).max(axis=2) > 0
    assert changed[24:424, : width // 2].any()
    assert changed[24:424, width // 2 :].any()


@pytest.mark.parametrize("view", ["overlay", "heatmap", "side-by-side"])
@pytest.mark.parametrize("side", [64, 300, 2048])
def test_a_drawing_keeps_to_its_longest_side(result, view, side):
    drawing = result.overlay(view, max_side=side, colormap="viridis", scale="robust", alpha=0.3)
    assert max(drawing.size) <= side
    assert drawing.size == result.drawn_size(Style(view=view, max_side=side))


def test_small_pictures_are_enlarged_and_long_ones_bounded(lite0):
    small = Image.new("RGB", (40, 30), "teal")
    assert similar(lite0, small, small).overlay().height == 240 + 2 * 24
    strip = similar(lite0, Image.new("RGB", (900, 3)), Image.new("RGB", (3, 900)))
    assert max(strip.overlay().size) <= 1800


def test_numbers_go_into_files(result, tmp_path):
    document = json.loads(result.save(tmp_path / "out.json").read_text())
    assert document["score"] == result.score
    assert (document["embedding"], document["layer"], document["exact"]) == ("classifier", "bn2", True)
    assert np.array(document["image"]["map"]).shape == (7, 7)
    assert document["reference"]["shape"] == [400, 600]
    assert document["pairs"][0]["contribution"] == result.pairs[0].contribution
    with np.load(result.save(tmp_path / "out.npz")) as arrays:
        assert arrays["score"] == result.score
        assert arrays["image_boxes"].shape == arrays["reference_boxes"].shape == (5, 4)
        np.testing.assert_array_equal(arrays["reference_heatmap"], result.heatmaps[1])
    with pytest.raises(OptionError, match="is not drawn by options"):
        result.save(tmp_path / "out.npz", alpha=0.3)


def test_a_notebook_shows_it(result):
    with Image.open(io.BytesIO(result._repr_png_())) as shown:
        assert shown.width <= 1200


def test_what_is_wrong_is_named(lite0, tmp_path):
    with pytest.raises(OptionError, match="top is 0"):
        similar(lite0, CAT, COFFEE, top=0)
    with pytest.raises(UnreadablePictureError) as caught:
        similar(lite0, CAT, b"no picture")
    assert caught.value.field == "reference"
    with pytest.raises(PictureError) as caught:
        similar(lite0, b"no picture", COFFEE)
    assert caught.value.field is None
    with pytest.raises(OptionError, match="no colormap"):
        similar(lite0, CAT, COFFEE).save(tmp_path / "out.png", colormap="viridjs")
