import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy.explainers import Explanation, explain, explain_many
from seewhy.explainers.errors import LayerError, NonFiniteError, OptionError, TargetError, UnreadablePictureError
from seewhy.explainers.many import _Series
from tests.grids import few

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
SMALL = [Image.effect_noise((60 + number, 50), 80).convert("RGB") for number in range(5)]


@pytest.mark.parametrize("method", few(["gradcam", "smoothgrad", "dff"], short=["gradcam"]))
def test_the_maps_are_those_of_explain(lite0, untouched, method):
    untouched(lite0.module)
    options = {"samples": 3} if method == "smoothgrad" else {}
    # Gradients jump at the bends of activations, and rounding may pass one.
    limit = 1e-2 if method == "smoothgrad" else 1e-4
    results = list(explain_many(lite0, EXAMPLES, method, against="goldfish", batch_size=3, **options))
    assert len(results) == len(EXAMPLES) == 4
    for path, result in zip(EXAMPLES, results, strict=True):
        alone = explain(lite0, path, method, against="goldfish", **options)
        assert np.linalg.norm(result.map - alone.map) <= limit * np.linalg.norm(alone.map)
        assert result.target.label == alone.target.label
        assert result.against.index == alone.against.index
        assert result.geometry == alone.geometry
        assert [region.map.shape for region in result.regions] == [region.map.shape for region in alone.regions]


def test_a_target_and_a_layer_are_those_of_all(lite0):
    results = list(explain_many(lite0, EXAMPLES, target="tabby", layer="blocks.4"))
    assert {result.target.label for result in results} == {"tabby"}
    assert {result.layers for result in results} == {("blocks.4",)}


@pytest.fixture
def batches(monkeypatch):
    sizes = []
    explained = _Series.explain

    def counted(task, batch):
        sizes.append(len(batch))
        return explained(task, batch)

    monkeypatch.setattr(_Series, "explain", counted)
    return sizes


def test_pictures_share_passes(lite0, batches):
    assert len(list(explain_many(lite0, SMALL, batch_size=2))) == 5
    assert batches == [2, 2, 1]


def test_pictures_are_taken_as_they_are_needed_and_kept_no_longer(lite0):
    requests, references = [], []

    def endless():
        while True:
            picture = SMALL[0].copy()
            requests.append(None)
            yield picture

    results = explain_many(lite0, endless(), batch_size=2)
    for _ in range(6):
        references.append(weakref.ref(next(results).picture))
    assert len(requests) <= 6 + 4
    assert sum(reference() is not None for reference in references) <= 2
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_the_first_bad_picture_is_raised_after_those_before_it(lite0, tmp_path):
    results = explain_many(lite0, [SMALL[0], SMALL[1], b"text", SMALL[2]])
    assert isinstance(next(results), Explanation)
    assert isinstance(next(results), Explanation)
    with pytest.raises(UnreadablePictureError):
        next(results)
    with pytest.raises(FileNotFoundError):
        list(explain_many(lite0, [tmp_path / "nowhere.png"]))


def test_bad_pictures_can_be_yielded_in_their_place(lite0, tmp_path):
    (tmp_path / "text.png").write_bytes(b"text")
    pictures = [tmp_path / "text.png", SMALL[0], tmp_path / "nowhere.png", SMALL[1]]
    results = list(explain_many(lite0, pictures, on_error="yield"))
    assert str(results[0]).startswith(f"{pictures[0]}: This is not a readable picture")
    kinds = [UnreadablePictureError, Explanation, FileNotFoundError, Explanation]
    assert [type(result) for result in results] == kinds


def test_one_that_the_model_fails_on_does_not_take_its_batch_down(lite0, monkeypatch):
    preprocess = type(lite0.preprocess).__call__

    def poisoned(self, picture, *rest):
        image = preprocess(self, picture, *rest)
        return image * float("nan") if picture.width == SMALL[1].width else image

    monkeypatch.setattr(type(lite0.preprocess), "__call__", poisoned)
    results = list(explain_many(lite0, SMALL, on_error="yield"))
    assert [type(result) for result in results] == [Explanation, NonFiniteError, Explanation, Explanation, Explanation]
    with pytest.raises(NonFiniteError):
        list(explain_many(lite0, SMALL))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "gradcan"}, OptionError, "gradcam"),
        ({"signs": "signed"}, OptionError, "sign"),
        ({"target": "tiger kat"}, TargetError, "tiger cat"),
        ({"layer": "blocks.66"}, LayerError, "blocks.6"),
        ({"batch_size": 0}, OptionError, "1 or more"),
        ({"on_error": "skip"}, OptionError, "yield"),
        ({"pictures": "cat.png"}, OptionError, "Give several pictures"),
    ],
)
def test_mistakes_are_told_before_the_first_picture(lite0, arguments, error, message):
    with pytest.raises(error, match=message):
        explain_many(lite0, **{"pictures": SMALL, **arguments})


def test_progress_shows_how_many_of_how_many(lite0, capsys):
    list(explain_many(lite0, SMALL[:2], progress=True))
    assert "2/2" in capsys.readouterr().err
    list(explain_many(lite0, iter(SMALL[:2])))
    assert capsys.readouterr().err == ""
