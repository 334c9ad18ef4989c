"""The tables of docs/trust.md, made from given numbers."""

import json

import pytest
import torch
from PIL import Image
from torch import nn

from seewhy import wrap_model
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.cam.scorecam import ISCAM, SSCAM
from seewhy.explainers.methods.catalogue import METHODS
from tests.explainers.test_evaluate import LABELS, brightness
from tools.trust import table


def numbers(**methods):
    columns = {column: [0.5, 0.5] for column in table.COLUMNS}
    sanity = {"pictures": 2, **dict.fromkeys(table.SANITY, 0.25)}
    rows = {
        name: {"values": columns | {"gridpg": values}, "sanity": sanity, "passes": 2}
        for name, values in methods.items()
    }
    return {"model": "net", "sha256": None, "pictures": 2, "sure": 0.5, "methods": rows}


def test_the_best_method_stands_first_and_controls_last():
    rows = list(table.table(numbers(edges=[1, 1], gradcam=[0.2, 0.4], votes=[0.8, None])))
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| votes", "| gradcam", "| edges (control)"]
    assert rows[3].split(" | ")[1:3] == ["0.30 ±0.10", "0.50 ±0.00"]


def test_differences_are_of_the_same_pictures():
    (_, _, row) = table.differences([numbers(**{"gradcam": [0.1, 0.5, None], "votes-detail": [0.3, 0.7, 0.9]})])
    assert row.split(" | ")[1] == "+0.200 (+0.200 to +0.200)"


def test_methods_whose_advantage_excludes_zero_are_named_with_the_columns():
    network = numbers(**{"votes-detail": [0.3, 0.7], "votes": [0.4, 0.8], "gradcam": [0.2, 0.9], "rise": [0.3, 0.6]})
    network["methods"]["rise"]["values"]["deletion"] = [0.4, 0.3]
    network["methods"]["gradcam"]["values"]["road"] = [0.7, None]
    sentence = "Better than `votes-detail`, as the interval of the difference excludes 0: "
    assert table.better(network) == f"{sentence}`gradcam` (ROAD), `rise` (del), `votes` (GridPG)."
    assert table.better(numbers(**{"votes-detail": [0.3, 0.7]})) == f"{sentence}none."


def test_tables_go_between_the_marks_of_the_page(tmp_path, monkeypatch):
    page = tmp_path / "trust.md"
    page.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(table, "NUMBERS", tmp_path)
    (tmp_path / "efficientnet_lite0.json").write_text(
        json.dumps(numbers(**{"gradcam": [0.1, 0.5], "votes-detail": [0.3, 0.7]}))
    )
    monkeypatch.setattr("sys.argv", ["table", "--write"])
    table.main()
    text = page.read_text()
    assert text.startswith("before\n<!-- tables: begin -->\n\n| votes-detail minus gradcam |")
    assert text.endswith("<!-- tables: end -->\nafter\n")
    assert "old" not in text


def test_the_tables_of_the_page_are_of_the_numbers_beside_it():
    page = table.PAGE.read_text(encoding="utf-8").splitlines()
    assert set(table.tables(table.kept())) <= set(page)


def test_fewer_pictures_have_a_table_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "NUMBERS", tmp_path)
    whole = {"gradcam": [0.1, 0.5, 0.5], "votes-detail": [0.3, 0.7, 0.7]}
    for name, count, values in (("mobilenet_v2", None, whole), ("efficientnet_lite0", 4, {"votes-detail": [0.4, 0.6]})):
        document = numbers(**values) | {"model": name, "pictures": count or 5}
        table.file_of(name, count).write_text(json.dumps(document))
    heads = [line.split(" | ")[0] for line in table.tables(table.kept()) if "| top |" in line]
    assert heads == ["| votes-detail minus gradcam", "| mobilenet_v2, 5 pictures", "| efficientnet_lite0, 4 pictures"]


def test_methods_in_no_table_are_named():
    fit, others = table.left_out([numbers(**{name: [0.5] for name in METHODS if name not in ("drise", "sscam")})])
    assert "no attention, boxes or regions: `drise`." in fit
    assert others == "Not measured: `sscam`."


@pytest.fixture(scope="module")
def colours():
    """A model of four colours, and a picture of each."""
    model = wrap_model(brightness(), LABELS, 16, mean=(0, 0, 0), std=(1, 1, 1), name="colours")
    return model, [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue", "grey")]


def test_methods_of_many_passes_are_measured_on_few_pictures_next_to_some_others(colours):
    methods = table.methods_of(colours[0])
    shares = table.shares(colours[0], methods)
    assert {"gradcam", "edges", "smoothgrad"} <= shares[None].keys()
    assert {"gradcam", "edges", "rise"} <= shares[table.FEW].keys()
    assert "smoothgrad" not in shares[table.FEW]
    assert "rise" not in shares[None]
    assert not {"drise", "legrad", "iscam"} & methods.keys()
    assert methods["iscam:samples=3"] == ISCAM(samples=3)


def test_measuring_all_methods_begins_anew(colours, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "NUMBERS", tmp_path)
    monkeypatch.setattr(table, "load_model", lambda name: colours[0])
    monkeypatch.setattr(table, "methods_of", lambda model: {"gradcam": table.explainer_of("gradcam")})
    counts = []
    monkeypatch.setattr(table, "measure", lambda model, pictures, methods, file: counts.append(len(pictures)))
    for number in range(5):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"{number}.png")
    file = table.file_of("colours", table.FEW)
    for options, stays in (["--methods", "edges"], True), ([], False):
        file.write_text("{}")
        monkeypatch.setattr("sys.argv", ["table", str(tmp_path), "--networks", "colours", *options])
        table.main()
        assert file.exists() == stays
    assert counts == [5, 4, 5, 4]


def test_a_folder_of_few_photographs_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, "NUMBERS", tmp_path)
    monkeypatch.setattr("sys.argv", ["table", str(tmp_path)])
    with pytest.raises(SystemExit):
        table.main()
    assert "has 0 photographs; give a folder of more than 4" in capsys.readouterr().err


def test_methods_are_named_with_their_options():
    assert table.explainer_of("sscam:samples=4,std=1") == SSCAM(samples=4, std=1)
    *_, others = table.left_out([numbers(**{"sscam:samples=4": [0.5]})])
    assert "sscam" not in others
    with pytest.raises(OptionError, match="samples"):
        table.explainer_of("sscam:samples")


@pytest.mark.slow
def test_methods_are_added_to_those_that_were_measured_alike(colours, tmp_path):
    file, (model, pictures) = tmp_path / "colours.json", colours
    table.measure(model, pictures, {"edges": table.explainer_of("edges")}, file)
    table.measure(model, pictures, {"hirescam": table.explainer_of("hirescam")}, file)
    document = json.loads(file.read_text())
    assert (document["pictures"], list(document["methods"])) == (4, ["edges", "hirescam"])
    row = document["methods"]["hirescam"]
    assert row["sanity"]["pictures"] == 2
    assert row["values"].keys() == table.COLUMNS.keys()
    assert min(row["values"]["gridpg"][:3]) > 0.9
    table.measure(model, [*pictures, pictures[0]], {"edges": table.explainer_of("edges")}, file)
    assert list(json.loads(file.read_text())["methods"]) == ["edges"]


def test_the_surest_pictures_are_kept_in_their_order():
    class Bright(nn.Module):
        def forward(self, images):
            mean = images.mean(dim=(1, 2, 3))
            return torch.stack([mean, -mean], dim=1)

    model = wrap_model(Bright().eval(), input_size=8, mean=(0, 0, 0), std=(1, 1, 1), head="sigmoid")
    pictures = [Image.new("RGB", (8, 8), (grey,) * 3) for grey in (200, 40, 250, 90)]
    assert table.surest(model, pictures, 2) == [pictures[0], pictures[2]]
    assert table.surest(model, pictures, None) == pictures
