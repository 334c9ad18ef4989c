"""Results of batch runs as a Zarr store. Needs the extra `zarr`; xarray reads the store where it is installed."""

from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy import batch, explain, open_batch, wrap_model
from seewhy.app.batch import processes, shards
from seewhy.app.batch.sources import sources
from seewhy.explainers.errors import OptionError
from seewhy.models import LoadedModel
from tests import nets

needs_zarr = pytest.mark.skipif(find_spec("zarr") is None, reason="needs the extra zarr")
needs_xarray = pytest.mark.skipif(find_spec("xarray") is None, reason="needs xarray")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return wrap_model(nets.seeded(nets.Net), ("ant", "bee", "cat"), input_size=32)


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Six pictures in folders of classes, of which the second is broken and the last of an unknown class."""
    for number, kind in enumerate(("ant", "ant", "bee", "bee", "cat", "unknown")):
        (tmp_path / "pictures" / kind).mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40 + number, 36), 80).convert("RGB").save(tmp_path / f"pictures/{kind}/{number}.png")
    (tmp_path / "pictures" / "ant" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return tmp_path / "pictures"


@pytest.fixture
def out(model, pictures, tmp_path, monkeypatch) -> Path:
    """A run of three shards."""
    monkeypatch.setattr(processes, "SHARD_ROWS", 2)
    batch(pictures, tmp_path / "out", model, progress=False)
    return tmp_path / "out"


@needs_zarr
def test_a_store_has_the_rows_and_maps_of_the_run(out, tmp_path, monkeypatch):
    import zarr

    from seewhy.app.batch import zarr_store

    monkeypatch.setattr(zarr_store, "_ROWS", 4)  # chunks that are no shards
    results = open_batch(out)
    store = zarr.open_group(results.to_zarr(tmp_path / "run.zarr"), mode="r")
    heatmaps, scale = store["heatmaps"], store["scale"][:]
    assert (heatmaps.shape, heatmaps.dtype, heatmaps.chunks) == ((6, 16, 16), np.float16, (4, 16, 16))
    assert heatmaps.metadata.dimension_names == ("picture", "y", "x")
    assert np.isnan(heatmaps[1]).all()
    for number in (0, 2, 3, 4, 5):
        assert np.array_equal(heatmaps[number].astype(np.float32) * scale[number], results[number].map)
    for name in (name for name in results.table.column_names if name != "correct"):
        missing = "" if results.table[name].type == "string" else np.nan
        expected = [missing if value is None else value for value in results.table[name].to_pylist()]
        assert np.array_equal(store[name][:], expected, equal_nan=missing != ""), name
        assert store[name].metadata.dimension_names == ("picture",)
    known = results.table["correct"].to_pylist()
    assert store["correct"][:].tolist() == [-1 if value is None else int(value) for value in known]
    assert '"geometry"' in str(store["details"][5])
    assert dict(store.attrs) == asdict(results.manifest)


@needs_zarr
@needs_xarray
def test_xarray_opens_it_as_a_data_set(out, tmp_path):
    import xarray

    results = open_batch(out)
    with xarray.open_zarr(results.to_zarr(tmp_path / "run.zarr")) as dataset:
        assert dict(dataset.sizes) == {"picture": 6, "y": 16, "x": 16}
        maps = (dataset.heatmaps.astype("float32") * dataset.scale).values
        assert np.array_equal(maps[5], results[5].map)
        assert np.isnan(dataset.correct.values).tolist() == [False, True, False, False, False, True]
        assert dataset.attrs["method"] == "gradcam"


@needs_zarr
def test_what_is_there_stays_there(out, tmp_path):
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"run\.zarr exists; choose another path"):
        open_batch(out).to_zarr(tmp_path / "run.zarr")
    assert [file.name for file in (tmp_path / "run.zarr").iterdir()] == ["notes.txt"]


@needs_zarr
def test_a_hidden_folder_of_the_same_name_stays_there(out, tmp_path):
    (tmp_path / "new" / ".git").mkdir(parents=True)
    (tmp_path / "new" / ".git" / "HEAD").write_text("mine")
    store = open_batch(out).to_zarr(tmp_path / "new" / "git")
    assert (tmp_path / "new" / ".git" / "HEAD").read_text() == "mine"
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [".git", "git"]
    assert store.stat().st_mode == (tmp_path / "new").stat().st_mode


@needs_zarr
def test_a_store_that_cannot_be_written_leaves_nothing(out, tmp_path, monkeypatch):
    monkeypatch.setattr("seewhy.app.batch.zarr_store._fill", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_batch(out).to_zarr(tmp_path / "new" / "run.zarr")
    assert list((tmp_path / "new").iterdir()) == []


@needs_zarr
def test_maps_of_several_sizes_are_refused(model, pictures, out, tmp_path):
    source = next(sources(pictures))
    explanation = replace(explain(model, pictures / "ant" / "0.png"), map=np.ones((3, 5), np.float32))
    shard = shards.Shard(out, "float16", pictures=False)
    shard.add(shards.row_of(source, explanation, None, "float16"), None)
    shards.publish(out, shard.write(), shards.next_number(out))
    with pytest.raises(OptionError, match=r"has 2, such as 3×5, 16×16\. Explain pictures of each size"):
        open_batch(out).to_zarr(tmp_path / "run.zarr")
    assert not (tmp_path / "run.zarr").exists()


@needs_zarr
def test_a_run_without_maps_is_refused(model, pictures, tmp_path):
    results = batch(pictures / "ant" / "1.png", tmp_path / "out", model, progress=False)
    with pytest.raises(OptionError, match="No picture of this run was explained"):
        results.to_zarr(tmp_path / "run.zarr")


def test_it_says_what_to_install(out, tmp_path, monkeypatch):
    monkeypatch.setattr("seewhy.app.batch.reader.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'seewhy\[zarr\]'"):
        open_batch(out).to_zarr(tmp_path / "run.zarr")
