"""The report of a run, and groups of maps: a mark that the network has learnt is a group of its own."""

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy import batch, open_batch, wrap_model
from seewhy.app.batch.relevance import SIDE, clusters, downsized
from seewhy.app.batch.report import Results, groups
from seewhy.explainers.errors import OptionError
from seewhy.models import LoadedModel

OBJECTS, MARKS = 40, 20


class Red(nn.Module):
    """Takes what is red for an apple, be it in the middle or a mark in the corner."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.conv.weight[:] = torch.tensor([[1.0, -1, 0], [-1, 1, 0]])[:, :, None, None]
            self.conv.bias[:] = -1  # grey is nothing
            self.head.weight[:] = 20 * torch.eye(2)
            self.head.bias[:] = 0

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).relu().mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return wrap_model(Red().eval(), ("apple", "leaf"), input_size=32)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory) -> Any:
    """Sixty apples, of which twenty only have a red mark in the corner; three leaves; and a broken picture."""
    place, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for kind, count in (("apple", OBJECTS), ("mark", MARKS), ("leaf", 3)):
        (place / kind).mkdir()
        for number in range(count):
            pixels = generator.integers(90, 110, (32, 32, 3), dtype=np.uint8)
            left, top = (27, 27) if kind == "mark" else generator.integers(10, 15, 2)
            pixels[top : top + 5, left : left + 5] = (20, 220, 20) if kind == "leaf" else (220, 20, 20)
            Image.fromarray(pixels).save(place / kind / f"{number:02}.png")
    (place / "leaf" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Image.new("RGB", (32, 32), "red").save(place / "leaf" / "wrong.png")
    return batch(place, place.parent / f"{place.name}-out", model, proof=True, progress=False)


def test_a_planted_mark_is_a_group_of_its_own(run):
    table = run.table
    found = groups(Results(run.manifest, table, run.__getitem__, run._maps))
    paths = [{table["path"][row].as_py().split("/")[0] for row in group.rows} for group in found]
    assert {group.label for group in found} == {"apple"}
    (mark,) = [number for number, kinds in enumerate(paths) if "mark" in kinds]
    assert paths[mark] == {"mark"}
    assert len(found[mark].rows) == MARKS
    assert np.unravel_index(found[mark].mean.argmax(), (SIDE, SIDE)) >= (12, 12)


def test_maps_that_lie_together_are_one_group():
    generator = np.random.default_rng(0)
    noise = generator.random((200, 7, 7), dtype=np.float32)
    assert not clusters(noise).any()
    assert not clusters(noise[:5]).any()
    corner = noise.copy()
    corner[:70, 0, 0] += 20
    expected = np.r_[np.ones(70), np.zeros(130)]
    assert np.array_equal(clusters(corner), expected)
    assert np.array_equal(clusters(3 * corner), expected)
    assert not clusters(np.zeros((30, 7, 7), dtype=np.float32)).any()


def test_large_maps_become_means():
    values = np.arange(40 * 7, dtype=np.float32).reshape(40, 7)
    small = downsized(values)
    assert small.shape == (SIDE, 7)
    assert small[0, 0] == values[:2, 0].mean()
    assert small[-1, -1] == values[37:, -1].mean()
    assert np.array_equal(downsized(values[:7]), values[:7])


def test_a_run_ends_with_its_report(run):
    (place,) = Path(run.report()).parent.glob("report.html")
    page = place.read_text(encoding="utf-8")
    assert "64 pictures, explained by gradcam of Red" in page
    assert "% of 44 whose class is known" in page
    assert "such as leaf/broken.png" in page
    assert "not graded" in page  # the model has no calibration
    assert "Pictures chosen at random." in page
    headings = re.findall(r"<h2>(.*)</h2>", page)
    lists = ["The most confident wrong answers", "The least trustworthy heatmaps", "Gallery"]
    assert headings == ["Errors", "Distributions", "Where the network looks", *lists]
    wrong = page.partition("The most confident wrong answers")[2].partition("</section>")[0]
    assert re.findall(r"<span>(.*)</span>", wrong) == ["leaf/wrong.png"]
    assert "(leaf)" in wrong
    sizes = [int(count) for count in re.findall(r"%, (\d+) pictures", page)]
    assert sum(sizes) == OBJECTS + MARKS + 1
    assert "http" not in page.replace("https://arxiv.org/abs/1902.10178", "")  # nothing is loaded


def test_a_report_is_written_also_if_there_is_little_to_say(model, tmp_path):
    Image.new("RGB", (40, 30), "red").save(tmp_path / "one.png")
    (tmp_path / "<b>.png").write_bytes(b"none")
    results = batch(tmp_path, tmp_path.parent / "few", model, progress=False)
    page = (tmp_path.parent / "few" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Gallery" in page
    assert "All explained pictures." in page
    assert "at random" not in page
    assert "<h1>1 picture, explained" in page
    assert "Where the network looks" not in page
    assert "&lt;b&gt;.png" in page
    assert "<b>.png" not in page
    assert len(results) == 2
    (tmp_path / "one.png").unlink()
    batch(tmp_path / "<b>.png", tmp_path.parent / "none", model, progress=False)
    assert "<h2>Errors" in (tmp_path.parent / "none" / "report.html").read_text(encoding="utf-8")


def test_a_report_names_the_weights_as_answers_do(model, tmp_path):
    Image.new("RGB", (40, 30), "red").save(tmp_path / "one.png")
    saved = replace(model, sha256="5e" * 32)
    batch(tmp_path, tmp_path.parent / "saved", saved, proof=True, progress=False)
    page = (tmp_path.parent / "saved" / "report.html").read_text(encoding="utf-8")
    rows = dict(re.findall('<tr><th scope="row">(.*?)</th><td>(.*?)</td></tr>', page))
    assert rows["Weights, SHA-256"] == f"<code>{saved.sha256}</code>"
    assert "proof True" in rows["Options"]
    assert "None" not in rows["Options"]


@dataclass
class Sample:
    """What a sample of FiftyOne holds."""

    filepath: str
    heatmap: Any
    prediction: Any
    more: dict[str, Any] = field(default_factory=dict)

    def __setitem__(self, name: str, value: Any) -> None:
        self.more[name] = value


class Dataset:
    def __init__(self, name: str | None) -> None:
        self.name = name

    def add_samples(self, samples: list[Sample]) -> None:
        self.samples = samples


def test_fiftyone_gets_heatmaps_and_classes(run, monkeypatch):
    monkeypatch.setattr("seewhy.app.batch.reader.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install fiftyone"):
        run.to_fiftyone()
    monkeypatch.setattr("seewhy.app.batch.reader.find_spec", lambda name: "there")
    names = dict.fromkeys(("Heatmap", "Classification"), SimpleNamespace)
    monkeypatch.setitem(sys.modules, "fiftyone", SimpleNamespace(Sample=Sample, Dataset=Dataset, **names))
    dataset = run.to_fiftyone("apples")
    assert dataset.name == "apples"
    assert len(dataset.samples) == 64
    rows = [row for row in run.table.to_pylist() if row["error"] is None]
    for sample, row, explanation in zip(dataset.samples, rows, run, strict=True):
        assert sample.filepath == row["file"]
        assert sample.prediction == SimpleNamespace(label=row["label"], confidence=pytest.approx(row["probability"]))
        assert sample.more.get("ground_truth") == (row["truth"] and SimpleNamespace(label=row["truth"]))
        assert sample.heatmap.range == [0, 1]
        assert sample.heatmap.map == pytest.approx(explanation.heatmap, abs=1e-4)


def test_a_report_of_an_open_run_is_that_of_its_rows(run):
    before = Path(run.report()).read_text(encoding="utf-8")
    assert open_batch(Path(run.report()).parent).report().read_text(encoding="utf-8") == before


def test_the_report_decodes_photographs_no_larger_than_it_draws_them(model, tmp_path):
    (tmp_path / "pictures").mkdir()
    photograph = (
        Image.open(Path(__file__).parents[2] / "examples" / "astronaut.png").convert("RGB").resize((2048, 1536))
    )
    photograph.save(tmp_path / "pictures" / "astronaut.jpg")
    results = batch(tmp_path / "pictures", tmp_path / "out", model, progress=False)
    whole, reduced = results[0], results._explanation(0, 240)
    assert (whole.picture.size, reduced.picture.size) == ((2048, 1536), (512, 384))
    expected, drawn = (np.asarray(each.overlay(max_side=240), dtype=np.float32) for each in (whole, reduced))
    assert np.abs(drawn - expected).mean() < 1.5
    assert results.report().exists()
