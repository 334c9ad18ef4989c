"""The command evaluate: tables of methods over a folder, and files with the places of targets."""

import csv
import json
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from seewhy.app.cli.truth import read_boxes
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.results.evaluation import Evaluation
from seewhy.explainers.trust.metrics.randomisation import MPRT
from tests.app.conftest import EXAMPLES

PICTURES = [Path("here/cats/tabby.png"), Path("here/dogs/tabby.png"), Path("cup.jpg")]


@pytest.fixture
def folder(tmp_path):
    """A folder of two small pictures, one of them deeper."""
    place = tmp_path / "pictures"
    (place / "deeper").mkdir(parents=True)
    for name, target in (("cat", "cat.png"), ("coffee", "deeper/coffee.png")):
        with Image.open(EXAMPLES / f"{name}.png") as picture:
            picture.convert("RGB").resize((90, 60)).save(place / target)
    return place


def test_a_table_of_a_folder_is_printed_and_written(run, folder, tmp_path):
    (tmp_path / "boxes.csv").write_text("picture,left,top,right,bottom\ncat.png,0,0,90,60\ncoffee.png,10,10,80,50\n")
    arguments = ["--methods", "gradcam,eigencam", "--metrics", "sparseness,energy-in-box"]
    boxes = ["--boxes", tmp_path / "boxes.csv"]
    result = run("evaluate", folder, *arguments, *boxes, "-o", tmp_path / "new" / "table.csv")
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["sparseness", "↑", "energy-in-box", "↑"]
    assert [line.split()[0] for line in lines] == ["gradcam", "eigencam", "random", "edges", "centre"]
    assert "*" not in result.stdout + result.stderr
    rows = list(csv.DictReader((tmp_path / "new" / "table.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == [line.split()[0] for line in lines]
    assert {row["sparseness count"] for row in rows} == {"2"}
    low, high = (float(rows[0][f"sparseness {end}"]) for end in ("low", "high"))
    assert f"({low:.3g} to {high:.3g})" in lines[0]
    assert all(0.3 < float(row["energy-in-box"]) <= 1 for row in rows)


def test_stars_have_a_legend(run, folder, monkeypatch):
    monkeypatch.setattr(Evaluation, "table", lambda _: "gradcam 0.9*")
    result = run("evaluate", folder, "--metrics", "sparseness")
    assert "* better than each of the controls (random, edges, centre), picture by picture;" in result.stderr


def test_a_metric_that_cannot_measure_a_method_says_why(run, folder, monkeypatch):
    def score(_, subject):
        raise UnsupportedModuleError("It cannot be copied.")

    monkeypatch.setattr(MPRT, "score", score)
    result = run("evaluate", folder / "cat.png", "--metrics", "sparseness,mprt", "--no-controls")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[2] == "-"
    assert result.stderr.splitlines() == ["gradcam has no mprt: It cannot be copied."]


def test_options_and_targets_reach_methods_and_metrics(run, folder, tmp_path):
    output = tmp_path / "table.json"
    options = ["--option", "sign=absolute", "--option", "insertion.steps=2", "--no-controls", "--target", "tabby"]
    result = run("evaluate", folder / "cat.png", "--metrics", "insertion", *options, "-o", output)
    assert result.exit_code == 0, result.output
    document = json.loads(output.read_text())
    assert [row["method"] for row in document["methods"]] == ["gradcam"]
    assert document["pictures"] == [str(folder / "cat.png")]
    assert document["methods"][0]["metrics"]["insertion"]["low"] is None
    assert document["left_out"] == {"insertion": document["pictures"]}
    assert "Means of insertion leave out 1 of 1 picture: " in result.stderr


def test_a_picture_marks_where_the_targets_are(run, folder, tmp_path):
    left = np.zeros((300, 451), np.uint8)
    left[:, :225] = 255
    values = {}
    for name, mask in (("left", left), ("right", 255 - left)):
        Image.fromarray(mask).save(tmp_path / f"{name}.png")
        line = ("--methods", "gradcam", "--metrics", "energy-in-box", "--no-controls", "-o", tmp_path / f"{name}.json")
        result = run("evaluate", EXAMPLES / "cat.png", *line, "--truth", tmp_path / f"{name}.png")
        assert result.exit_code == 0, result.output
        values[name] = float(result.stdout.split()[-1])
    assert values["left"] + values["right"] == pytest.approx(1, abs=0.02)
    assert values["left"] > values["right"]  # where the cat is


def test_a_picture_that_cannot_be_read_is_left_out_and_named(run, folder):
    (folder / "bad.png").write_bytes(b"no picture")
    result = run("evaluate", folder, "--metrics", "sparseness", "--no-controls")
    assert result.exit_code == 1
    assert "gradcam" in result.stdout
    assert "bad.png" in result.stderr
    assert "1 of 3 pictures failed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "pointing-game"], "where the targets lie"),
        (["--option", "insertion.stpes=2"], "Near matches: steps"),
        (["-o", "table.txt"], "use .csv, .json, .png"),
        (["--metrics", "gridpg"], "needs pictures of 4 classes"),
    ],
)
def test_what_cannot_be_evaluated_is_a_usage_error(run, folder, arguments, message):
    result = run("evaluate", folder, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_what_no_method_can_have_is_said_once(run, folder):
    result = run("evaluate", folder, "--metrics", "gridpg,sparseness")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("A mosaic of 2 by 2") == 1
    assert "gradcam, random, edges, centre have no gridpg: A mosaic of 2 by 2" in result.stderr
    assert "gridpg.sure" in result.stderr


def test_boxes_of_csv_and_coco_belong_to_the_pictures_that_they_name(tmp_path):
    table = tmp_path / "boxes.csv"
    table.write_text(
        "picture,left,top,right,bottom,label\ncats/tabby.png,1,2,3,4,cat\ncup.jpg,5,6,7,8,\ncats/tabby.png,2,2,9,9,\n"
    )
    assert read_boxes(table, PICTURES) == [[(1, 2, 3, 4), (2, 2, 9, 9)], None, [(5, 6, 7, 8)]]
    coco = tmp_path / "coco.json"
    images = [{"id": 7, "file_name": "cup.jpg"}, {"id": 8, "file_name": "dogs/tabby.png"}]
    annotations = [{"image_id": 7, "bbox": [5, 6, 2, 2]}, {"image_id": 8, "bbox": [0, 0, 1.5, 2]}]
    coco.write_text(json.dumps({"images": images, "annotations": annotations}))
    assert read_boxes(coco, PICTURES) == [None, [(0, 0, 1.5, 2)], [(5, 6, 7, 8)]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", "file,left\na,1\n", "KeyError: 'picture'"),
        ("boxes.csv", "picture,left,top,right,bottom\ncup.jpg,a,b,c,d\n", "ValueError"),
        ("boxes.csv", "picture,left,top,right,bottom\nother.jpg,1,2,3,4\n", "contains none of the pictures"),
        ("boxes.json", "[]", "TypeError"),
        ("boxes.json", "no json", "JSONDecodeError"),
    ],
)
def test_a_file_without_boxes_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(click.BadParameter, match=message):
        read_boxes(path, PICTURES)
