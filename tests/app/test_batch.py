"""Batch runs: the contents of a folder of shards, and how a stopped run resumes."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from seewhy import batch, explain, forecast, open_batch, wrap_model
from seewhy.app.batch import processes, shards, work
from seewhy.app.batch.sources import description_of, sources
from seewhy.app.batch.work import TooManyErrorsError, Work
from seewhy.explainers.errors import OptionError, PictureError
from seewhy.models import LoadedModel
from tests import nets
from tests.app.batches import draw_noise
from tests.waiting import GUARD, until

LABELS = ("ant", "bee", "house cat")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return wrap_model(nets.seeded(nets.Net), LABELS, input_size=32)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_batch(model, out):
    """Explain a source into the folder `out`, in silence."""
    return lambda source, **options: batch(source, **{"out": out, "model": model, "progress": False, **options})


@pytest.fixture
def folder(tmp_path) -> Path:
    """Seven pictures in folders of classes, one of them broken, and a file that is none."""
    place = tmp_path / "pictures"
    for number, kind in enumerate(("ant", "ant", "bee", "bee", "house_cat", "unknown")):
        (place / kind).mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40 + number, 36), 80).convert("RGB").save(place / kind / f"{number}.png")
    (place / "bee" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (place / "bee" / "notes.txt").write_text("no picture")
    return place


def paths(out: Path) -> list[str]:
    return sorted(open_batch(out).table["path"].to_pylist())


@pytest.mark.parametrize(("map_type", "tolerance"), [("float32", 0.0), ("float16", 2**-11)])
def test_rows_are_the_explanations(run_batch, map_type, tolerance, model, folder):
    results = run_batch(folder, map_type=map_type, proof=True)
    assert len(results) == 7
    table = results.to_pandas()
    for row, explanation in zip(table[table.error.isna()].itertuples(), results, strict=True):
        alone = explain(model, folder / row.path, "gradcam", proof=True)
        assert np.abs(explanation.map - alone.map).max() <= (tolerance + 1e-5) * np.abs(alone.map).max()
        assert explanation.geometry == alone.geometry
        assert explanation.target.label == alone.target.label == row.label
        assert row.probability == pytest.approx(alone.target.probability, abs=1e-5)
        assert row.score == pytest.approx(alone.target.score, abs=1e-4)
        assert explanation.proof.faithfulness.score == pytest.approx(alone.proof.faithfulness.score, abs=1e-4)
        assert explanation.proof.faithfulness.score == pytest.approx(row.proof_score)
        assert explanation.proof.grade == alone.proof.grade
        assert [note.code for note in explanation.diagnostics] == [note.code for note in alone.diagnostics]
        assert np.array_equal(np.asarray(explanation.picture), np.asarray(alone.picture))


@pytest.mark.parametrize("logits", [True, False])
def test_rows_have_all_outputs_if_they_are_wanted(run_batch, model, folder, out, logits):
    run_batch(folder, logits=logits)
    for row in parquet.read_table(shards.files(out)).to_pylist():
        if row["error"] is not None or not logits:
            assert row["logits"] is None
        else:
            expected = explain(model, folder / row["path"]).origin.outputs
            assert row["logits"] == pytest.approx(expected.tolist(), abs=1e-4)


def test_small_numbers_survive(model, folder):
    """Squares of them would vanish in float16."""
    (source, *_) = sources(folder)
    explanation = explain(model, folder / "ant" / "0.png")
    row = shards.row_of(source, replace(explanation, map=explanation.map * 1e-9), None, "float16")
    assert row["scale"] < 1e-8
    assert row["map"].max() == 1
    blank = shards.row_of(source, replace(explanation, map=explanation.map * 0), None, "float16")
    assert not blank["map"].any()


@pytest.mark.parametrize(
    ("count", "probabilities", "truth"),
    [
        (1, (0.2,), False),
        (1, (0.7,), True),
        (3, (0.9, 0.6, 0.1), True),
        (3, (0.9, 0.4), False),
        (6, (0.9, 0.6, 0.6), None),
    ],
)
def test_labels_that_do_not_exclude_each_other_are_judged_alone(folder, count, probabilities, truth):
    net = nets.seeded(nets.Net) if count > 1 else nets.seeded(nets.OneLogit)
    model = wrap_model(net, LABELS[:count], input_size=32, head="sigmoid")
    truth_label = [*LABELS, "cow"][count // 2]
    explanation = explain(model, folder / "ant" / "0.png")
    predictions = [
        replace(explanation.predictions[0], label=label, probability=probability)
        for label, probability in zip(LABELS, probabilities, strict=False)
    ]
    (source, *_) = sources(folder)
    row = shards.row_of(source, replace(explanation, predictions=tuple(predictions)), truth_label, "float16")
    assert row["correct"] is truth


def test_a_broken_picture_is_a_row_with_its_error(run_batch, folder):
    results = run_batch(folder)
    (number,) = [index for index, error in enumerate(results.table["error"].to_pylist()) if error]
    assert results.table["path"][number].as_py() == "bee/broken.png"
    with pytest.raises(PictureError, match=r"^bee/broken\.png: The picture is damaged"):
        results[number]
    assert (results.manifest.pictures, results.manifest.errors) == (6, 1)
    assert len(list(results)) == 6
    for index in (7, -8):
        with pytest.raises(IndexError, match=rf"no row {index}; the run has 7 rows, numbered from 0"):
            results[index]
    for index in ("x", slice(2)):
        with pytest.raises(TypeError, match="is not the number of a row; the run has 7 rows"):
            results[index]
    assert results[-1].method == "gradcam"


@pytest.mark.parametrize("place", ["", "*"])
def test_pipes_are_skipped_and_foreign_formats_are_kept(tmp_path, place):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "phone.heic").touch()
    assert [source.path.rpartition("/")[2] for source in sources(str(tmp_path / place))] == ["phone.heic"]


def test_the_name_of_a_folder_is_looked_up_once(run_batch, folder, monkeypatch):
    names = []
    find = work.class_index
    monkeypatch.setattr(work, "class_index", lambda name, labels: names.append(name) or find(name, labels))
    run_batch(folder)
    assert Counter(names) == dict.fromkeys(["ant", "bee", "house cat", "unknown"], 1)


def test_folders_name_the_classes(run_batch, folder):
    table = run_batch(folder).to_pandas().set_index("path")
    assert table.truth["ant/0.png"] == "ant"
    assert table.truth["house_cat/4.png"] == "house cat"
    assert table.truth.isna()["unknown/5.png"]
    known = table[table.truth.notna() & table.error.isna()]
    assert (known.correct == (known.predicted == known.truth)).all()
    assert table.correct.isna()["unknown/5.png"]


def stopped(monkeypatch, after: int) -> None:
    """Let the next run be interrupted after some rows, in shards of two."""
    rows = Work.rows

    def interrupted(work, remaining):
        for number, row in enumerate(rows(work, remaining)):
            if number == after:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(processes, "SHARD_ROWS", 2)
    monkeypatch.setattr(shards, "TABLE_ROWS", 1)
    monkeypatch.setattr(Work, "rows", interrupted)


def test_a_run_goes_on_where_it_was_stopped(run_batch, folder, monkeypatch, out):
    with monkeypatch.context() as patch:
        stopped(patch, after=3)
        with pytest.raises(KeyboardInterrupt):
            run_batch(folder)
    earlier = paths(out)
    assert len(earlier) == 3
    assert open_batch(out).manifest.finished is None
    left, foreign = out / f".{uuid4().hex}.parquet", out / ".notes.parquet"
    left.write_bytes(b"half a sh")  # of a process that was killed
    foreign.write_bytes(b"mine")
    explained = list[str]()
    rows = Work.rows

    def noted(work, remaining):
        return rows(work, (explained.append(each.path) or each for each in remaining))

    monkeypatch.setattr(Work, "rows", noted)
    results = run_batch(folder)
    assert sorted([*earlier, *explained]) == paths(out) == sorted(each.path for each in sources(folder))
    assert (left.exists(), foreign.read_bytes()) == (False, b"mine")
    assert results.manifest.finished is not None
    assert results.manifest.started == open_batch(out).manifest.started
    (folder / "bee" / "broken.png").write_bytes((folder / "bee" / "2.png").read_bytes())
    run_batch(folder)  # only the picture that was broken is tried again
    assert paths(out) == sorted(each.path for each in sources(folder))
    assert open_batch(out).table["error"].null_count == 7
    before = {file: file.stat().st_mtime_ns for file in shards.files(out)}
    run_batch(folder)  # nothing is left to do
    assert {file: file.stat().st_mtime_ns for file in shards.files(out)} == before


def test_free_memory_is_returned_while_a_run_goes_on(run_batch, folder, monkeypatch):
    """What lies between the small objects of rows is kept by the C library, and grows with the pictures."""
    trims = list[int]()
    monkeypatch.setattr(shards, "TABLE_ROWS", 1)
    monkeypatch.setattr(shards, "TRIMMED_TABLES", 2)
    monkeypatch.setattr(shards, "trim", lambda: trims.append(1))
    run_batch(folder)
    assert len(trims) == 3  # for seven rows


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "hirescam"}, "method 'gradcam', not 'hirescam'"),
        ({"sign": "signed"}, "sign 'positive', not 'signed'"),
        ({"target": "bee"}, "with target none, not 'bee'"),
        ({"proof": True}, "proof False, not True"),
        ({"map_type": "float32"}, "map_type 'float16', not 'float32'"),
        ({"layer": "stem"}, "with layer none, not 'stem'. Choose"),
        ({"method": "saliency", "sign": "signed"}, "'saliency'; sign 'positive', not 'signed'. Choose"),
    ],
)
def test_another_question_needs_another_folder(run_batch, change, named, folder):
    run_batch(folder)
    with pytest.raises(OptionError, match=named):
        run_batch(folder, **change)


def test_a_log_has_no_bar(run_batch, folder, capsys, monkeypatch):
    run_batch(folder, progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run_batch(folder, progress=True)
    assert "picture/s" in capsys.readouterr().err


def test_another_network_or_data_set_needs_another_folder(run_batch, folder):
    """Its pictures may have the same names."""
    run_batch(folder / "ant")
    network = nets.seeded(nets.Net)
    network.head.bias.data[0] += 1
    with pytest.raises(OptionError, match="holds a run with another version of Net, such as other weights"):
        run_batch(folder / "ant", model=wrap_model(network, LABELS, input_size=32))
    for other in (folder / "bee", str(folder / "ant" / "*.png"), Pairs([folder / "ant" / "0.png"])):
        with pytest.raises(OptionError, match="holds a run with source"):
            run_batch(other)


def test_numbers_that_are_not_finite_are_read_back(model, folder, tmp_path):
    (source, *_) = sources(folder)
    explanation = explain(model, folder / "ant" / "0.png")
    target = replace(explanation.target, logit=float("nan"), probability=float("inf"))
    shard = shards.Shard(tmp_path, "float16", pictures=False)
    shard.add(shards.row_of(source, replace(explanation, target=target), None, "float16"), None)
    shards.publish(tmp_path, shard.write(), 0)
    (file,) = shards.files(tmp_path)
    restored = shards.explanation_of(parquet.read_table(file).to_pylist()[0], None)
    assert np.isnan(restored.target.logit)
    assert restored.target.probability == float("inf")


def test_nothing_is_written_without_pictures(run_batch, tmp_path, out):
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="There is no picture in "):
        run_batch(tmp_path / "empty")
    assert not (out).exists()


def test_a_folder_with_other_files_is_left_alone(run_batch, folder):
    with pytest.raises(OptionError, match="holds other files"):
        run_batch(folder, out=folder)
    with pytest.raises(OptionError, match="holds no results of a batch"):
        open_batch(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(OptionError, match="is not a run manifest"):
        open_batch(folder)


def test_one_process_at_a_time(run_batch, folder, out):
    (out).mkdir()
    with open(out / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OptionError, match="Another process writes to"):
            run_batch(folder)
    assert len(run_batch(folder)) == 7


def test_a_run_stops_at_too_many_errors_and_keeps_its_rows(run_batch, folder, out):
    with pytest.raises(TooManyErrorsError, match=r"1 pictures failed, more than max_errors=0.*broken"):
        run_batch(folder, max_errors=0)
    assert paths(out) == ["ant/0.png", "ant/1.png", "bee/2.png", "bee/3.png", "bee/broken.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "cloud"}, "engine is 'cloud'"),
        ({"map_type": "int8"}, "map_type is 'int8'"),
        ({"target": [1, 2]}, r"target is \[1, 2\]"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"method": "gradcam", "steps": 3}, "steps"),
        ({"target": "dog"}, "dog"),
    ],
)
def test_bad_options_leave_no_folder(run_batch, arguments, message, folder, out):
    with pytest.raises(Exception, match=message):
        run_batch(folder, **arguments)
    assert not (out).exists()


def png(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.rglob("[0-9].png"))]


def test_tables_of_pictures(run_batch, folder, tmp_path):
    pictures = png(folder)
    plain = pyarrow.table({"bytes": pictures, "id": [f"p{number}" for number in range(6)], "label": [0, 0, 1, 1, 2, 9]})
    parquet.write_table(plain, tmp_path / "plain.parquet")
    structs = [{"bytes": picture, "path": None} for picture in pictures[1:]]
    first = {"bytes": None, "path": str(folder / "ant" / "0.png")}
    structs = pyarrow.table({"image": [first, *structs, None]})
    parquet.write_table(structs, tmp_path / "structs.parquet")
    files = pyarrow.table({"path": [str(file) for file in sorted(folder.rglob("[0-9].png"))]})
    parquet.write_table(files, tmp_path / "files.parquet")
    table = run_batch(tmp_path / "plain.parquet").to_pandas()
    assert list(table.path) == [f"p{number}" for number in range(6)]
    assert list(table.truth.dropna()) == ["ant", "ant", "bee", "bee", "house cat"]
    maps = [each.map for each in run_batch(sorted(folder.rglob("[0-9].png")), out=tmp_path / "direct")]
    for name in ("structs", "files"):
        results = run_batch(tmp_path / f"{name}.parquet", out=tmp_path / name)
        assert all(np.allclose(each.map, other, atol=1e-3) for each, other in zip(results, maps, strict=True))
    assert "no picture in this row" in open_batch(tmp_path / "structs").table["error"][6].as_py()
    (file,) = {*open_batch(tmp_path / "files").table["file"].to_pylist()} & {str(folder / "ant" / "0.png")}
    assert file
    parquet.write_table(pyarrow.table({"number": [1]}), tmp_path / "none.parquet")
    with pytest.raises(OptionError, match="no column image or bytes or path"):
        list(sources(tmp_path / "none.parquet"))


def pack(place: Path, files: dict[str, bytes]) -> Path:
    """Write a tar file."""
    with tarfile.open(place, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return place


def test_shards_of_webdataset(run_batch, model, folder, tmp_path):
    first, second, third, fourth, *_ = png(folder)
    shard = pack(
        tmp_path / "a.tar",
        {
            "x/1.left.png": first,
            "x/1.right.PNG": second,
            "x/1.cls": b"1\n",
            "x/2.cls": b"house cat",
            "x/2.png": third,
            "x/2.json": b"{}",
            "y/2.png": fourth,
            "y/3.png": b"no picture",
            "y/readme": b"nothing",
        },
    )
    results = run_batch(shard, pictures=True)
    table = results.to_pandas()
    assert list(table.path) == [
        f"a.tar/{name}" for name in ("x/1.left.png", "x/1.right.PNG", "x/2.png", "y/2.png", "y/3.png")
    ]
    assert list(table.truth.fillna("")) == ["bee", "bee", "house cat", "", ""]
    assert list(table.error.isna()) == [True] * 4 + [False]
    assert np.array_equal(np.asarray(results[2].picture), np.asarray(Image.open(io.BytesIO(third)).convert("RGB")))
    expected = explain(model, second, "gradcam").map
    assert np.abs(results[1].map - expected).max() <= 1e-3 * np.abs(expected).max()
    (tmp_path / "many").mkdir()
    pack(tmp_path / "many" / "b.tar", {"1.png": first})
    shard.rename(tmp_path / "many" / "a.tar")
    assert len([*sources(tmp_path / "many"), *sources(str(tmp_path / "many" / "*.tar"))]) == 12
    (tmp_path / "many" / "c.tar").write_bytes(b"no archive, " * 100)
    with pytest.raises(OptionError, match=r"c\.tar cannot be read"):
        list(sources(tmp_path / "many"))


def test_overlays_are_shards_of_webdataset_too(run_batch, folder, out):
    results = run_batch(folder, pictures=True)
    with tarfile.open(out / "pictures-00000000.tar") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}
    drawings = [Image.open(io.BytesIO(files[name])) for name in sorted(files) if name.endswith(".jpg")]
    labels = [json.loads(files[name]) for name in sorted(files) if name.endswith(".json")]
    assert len(files) == 12
    rows = [row for row in results.table.to_pylist() if row["error"] is None]
    for row, label, drawing, explanation in zip(rows, labels, drawings, results, strict=True):
        assert {name: row[name] for name in label} == pytest.approx(label)
        exact = np.asarray(explanation.overlay().convert("RGB"), dtype=float)
        assert np.abs(np.asarray(drawing, dtype=float) - exact).mean() < 10
    assert len(list(sources(out / "pictures-00000000.tar"))) == 6
    shards.files(out)[0].unlink()
    shards.tidy(out)  # overlays without rows are of a run that was killed in between
    assert not list((out).glob("*.tar"))


@pytest.mark.parametrize("rows", [10, 100, 1000])
def test_rows_of_tables_are_read_in_any_order(rows, tmp_path):
    table = pyarrow.table({"bytes": [str(number).encode() for number in range(1000)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=rows)
    found = list(sources(tmp_path / "rows.parquet"))
    for number in (0, 3, 1, 999, 998, 500, 511, 20, 999, *range(300, 400)):
        assert found[number].open() == str(number).encode()


def test_the_order_of_rows_is_that_of_the_run_also_in_a_copy(run_batch, folder, monkeypatch, out):
    monkeypatch.setattr(processes, "SHARD_ROWS", 2)
    expected = run_batch(folder).table["path"].to_pylist()
    assert expected == [each.path for each in sources(folder)]
    for number, file in enumerate(reversed(shards.files(out))):
        os.utime(file, (number, number))
    assert open_batch(out).table["path"].to_pylist() == expected


class Pairs:
    """A data set as `torch.utils.data` knows it."""

    def __init__(self, pictures: list[Path]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.pictures[index]).convert("RGB"), index % 3


def test_data_sets_may_raise_anything(run_batch, folder):
    class Raising(Pairs):
        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            if index == 1:
                raise RuntimeError("the disk is gone")
            return super().__getitem__(index)

    table = run_batch(Raising(sorted(folder.rglob("[0-9].png")))).to_pandas()
    assert list(table.path) == ["0", "1", "2", "3", "4", "5"]
    assert list(table.truth.fillna("")) == ["ant", "", "house cat", "ant", "bee", "house cat"]
    assert list(table.error.fillna("")) == ["", "RuntimeError: the disk is gone", *[""] * 4]


def test_globs_lists_and_single_pictures(folder):
    assert [each.path for each in sources(str(folder / "*" / "[0-3].png"))] == [
        str(folder / kind / f"{number}.png") for number, kind in enumerate(("ant", "ant", "bee", "bee"))
    ]
    assert [each.path for each in sources([folder / "ant", folder / "unknown" / "5.png"])] == [
        str(folder / "ant" / "0.png"),
        str(folder / "ant" / "1.png"),
        str(folder / "unknown" / "5.png"),
    ]
    with pytest.raises(OptionError, match="Two pictures have the path"):
        list(sources([folder / "ant", folder / "ant"]))
    with pytest.raises(OptionError, match="no picture in"):
        list(sources([]))
    with pytest.raises(OptionError, match=r"nowhere\.png does not exist"):
        list(sources(folder / "nowhere.png"))
    with pytest.raises(OptionError, match="needs a length"):
        description_of(iter([]))


def test_object_stores(run_batch, folder):
    store = fsspec.filesystem("memory")
    for number, picture in enumerate(png(folder)):
        store.pipe_file(f"/bucket/ant/{number}.png", picture)
    try:
        results = run_batch("memory://bucket")
        assert results.table["path"].to_pylist() == [f"memory:///bucket/ant/{number}.png" for number in range(6)]
        assert {*results.table["truth"].to_pylist()} == {"ant"}
        assert np.array_equal(np.asarray(results[0].picture), np.asarray(Image.open(folder / "ant" / "0.png")))
        store.rm("/bucket/ant/0.png")
        assert {*np.asarray(results[0].picture).ravel()} == {128}
    finally:
        store.rm("/bucket", recursive=True)
    with pytest.raises(OptionError, match="cannot be listed"):
        list(sources("nowhere://bucket"))


def test_coco_masks_hold_the_strongest_part(run_batch, folder):
    results = run_batch(folder / "ant" / "0.png")
    (mask,) = results.to_coco(share=0.2)
    height, width = mask["segmentation"]["size"]
    values = np.repeat(np.arange(len(mask["segmentation"]["counts"])) % 2, mask["segmentation"]["counts"])
    drawn = values.reshape(width, height).T.astype(bool)
    heatmap = results[0].raw_heatmap
    assert drawn.shape == heatmap.shape == (36, 40)
    assert 0.15 < drawn.mean() <= 0.25
    assert heatmap[drawn].min() >= heatmap[~drawn].max()
    assert mask["category_id"] == results[0].target.index
    with pytest.raises(OptionError, match="share is 1"):
        results.to_coco(share=1)


def test_a_forecast_writes_nothing(run_batch, model, folder, tmp_path, out):
    run_batch(folder / "ant")
    before = sorted((out).iterdir())
    for number in range(6, 9):
        Image.effect_noise((40, 36), 80).convert("RGB").save(folder / "ant" / f"{number}.png")
    cost = forecast(folder / "ant", out, model)
    assert (cost.pictures, cost.remaining, cost.passes) == (5, 3, 2)
    assert cost.seconds > 0
    assert cost.bytes > 3 * 200
    assert sorted((out).iterdir()) == before
    with pytest.raises(OptionError, match="method 'gradcam', not 'hirescam'"):
        forecast(folder / "ant", out, model, "hirescam")
    assert forecast(folder, tmp_path / "new", model).remaining == 10
    assert forecast(folder, tmp_path / "new", model, proof="full").passes == 2 + 7
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("readable", [True, False])
def test_a_forecast_counts_what_it_does_not_try(monkeypatch, model, tmp_path, readable):
    for number in range(72):
        place = tmp_path / f"{number}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(place) if readable else place.write_bytes(b"no picture")
    seconds = iter([0.0, 10.0, 20.0, 22.0])  # of 24 pictures, and of 8 of them again
    monkeypatch.setattr("seewhy.app.batch.run.monotonic", lambda: next(seconds))
    cost = forecast(tmp_path, tmp_path / "out", model)
    assert cost.seconds == pytest.approx(10 + 48 * (2 / 8 if readable else 10 / 24))


def test_the_command(run, folder, tmp_path, out):
    result = run("batch", folder, "-o", out, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "pictures: 7, of which 7 remain" in result.stdout
    arguments = ["--method", "eigencam", "--option", "sign=absolute", "--batch-size", "3"]
    result = run("batch", folder, "-o", out, *arguments)
    assert result.exit_code == 1, result.output
    assert "1 of 7 pictures failed." in result.stderr
    assert "Error: bee/broken.png: " in result.stderr
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["method"], manifest["options"]["sign"]) == ("eigencam", "absolute")
    (folder / "bee" / "broken.png").unlink()
    result = run("batch", folder / "ant", "-o", tmp_path / "quiet", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = run("batch", folder, "-o", out)
    assert result.exit_code == 2
    assert "method 'eigencam', not 'gradcam'" in result.stderr
    for options, message in [
        (["--option", "nonsense=1"], "nonsense"),
        (["--option", "top=3"], "batch takes no 'top'."),
        (["--option", "target=1", "--option", "target=2"], "batch takes one target."),
    ]:
        result = run("batch", folder, "-o", tmp_path / "new", *options)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "new").exists()
    assert run("batch", tmp_path / "nowhere" / "*.png", "-o", tmp_path / "new").exit_code == 2


def test_the_command_says_what_to_install(run, folder, monkeypatch, out):
    monkeypatch.setattr(sys.modules["seewhy.app.cli.batch"], "find_spec", lambda name: None)
    result = run("batch", folder, "-o", out)
    assert result.exit_code == 1
    assert "pip install 'seewhy[batch]'" in result.stderr


@pytest.mark.slow
def test_a_killed_run_loses_no_picture_and_repeats_none(lite0, tmp_path, out):
    place = tmp_path / "pictures"
    draw_noise(place, 120)
    code = (
        "import sys; from seewhy.app.batch import processes, run; processes.SHARD_ROWS = 10; "
        "run.batch(sys.argv[1], sys.argv[2], progress=False)"
    )
    command = [sys.executable, "-c", code, str(place), str(out)]
    with subprocess.Popen(command) as process:
        until(lambda: len(shards.files(out)) >= 2)
        os.kill(process.pid, signal.SIGKILL)
    earlier = paths(out)
    assert 20 <= len(earlier) < 120
    subprocess.run(command, check=True, timeout=GUARD)
    assert Counter(paths(out)) == Counter(f"{number}.png" for number in range(120))
    results = open_batch(out)
    for number in range(0, 120, 17):
        row = results.table["path"][number].as_py()
        expected = explain(lite0, place / row, "gradcam").map
        assert np.abs(results[number].map - expected).max() <= 1e-3 * np.abs(expected).max()
