"""The benchmarks run, and contestants that compute the same map agree; times are not tested."""

import json
import subprocess
import sys
import tomllib
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks import batch as batch_runs
from benchmarks import contestants, library, metrics, page, proofs, rounds
from benchmarks.machine import description
from benchmarks.rounds import Effort, interleaved, ratio
from tests.grids import few

ROOT = Path(__file__).parents[1]
SIDE = 64


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        return contestants.load("resnet18")


@pytest.fixture
def workload(model):
    with ExitStack() as stack:
        yield contestants.workload(model, 2, stack, SIDE)


def display_maps(heatmaps) -> Tensor:
    """Return maps as a picture shows them: as large as the input, each from 0 to 1."""
    maps = torch.as_tensor(heatmaps).detach().float()[:, None]
    maps = interpolate(maps, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return (maps - maps.amin((2, 3), keepdim=True)) / (
        maps.amax((2, 3), keepdim=True) - maps.amin((2, 3), keepdim=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", few(["gradcam", "saliency", "integrated-gradients"], short=["saliency"]))
@pytest.mark.filterwarnings("ignore")
def test_contestants_compute_the_same_map(method, workload):
    runs = contestants.contestants(method, workload)
    expected = display_maps(runs.pop(contestants.SEEWHY)())
    assert expected.isfinite().all()
    assert set(runs) == set(contestants.PEERS[method])
    for name, run in runs.items():
        assert (display_maps(run()) - expected).abs().max() < 0.01, name


@pytest.mark.slow
def test_seewhy_keeps_less_for_its_backward_pass(model):
    sizes = library.memory(model)
    assert 0 < sizes["SeeWhy"] < sizes["pytorch-grad-cam"] / 10


def test_the_table_of_proofs_has_all_ratios():
    text = proofs.table({"gradcam": [0.01, 0.02], "votes-detail": [0.02, 0.04], "proof": [0.02, 0.03]})
    assert "| proof | 30.0 | 1.75 | 0.88 |" in text


@pytest.mark.slow
def test_metrics_run_beside_quantus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("quantus")
    model = metrics.grey(contestants.load(metrics.MODEL))
    for case in metrics.CASES[::4]:
        row = metrics.row(case, metrics.timed(case, model, rounds.QUICK, 56))
        assert len(row) == len(metrics.HEAD)
    assert metrics.network(model, rounds.QUICK, 56).keys() == {metrics.SEEWHY, metrics.QUANTUS}


def test_contestants_run_in_turn():
    log: list[str] = []
    runs = {name: lambda name=name: log.append(name) for name in "abc"}
    times = interleaved(runs, Effort(seconds=0, least=2, most=2, warm=1))
    assert "".join(log) == "abcabcbca"
    assert [len(time) for time in times.values()] == [2, 2, 2]
    assert ratio({"a": [1.0, 2.0, 9.0], "b": [1.0, 1.0, 3.0]}, "a", "b") == 2
    assert ratio(times, "a", "d") is None


def test_a_run_of_some_models_keeps_the_rows_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "RESULTS", tmp_path)

    def timed(model, mark):
        case = {"method": "gradcam", "model": model, "batch": 1}
        return {**case, "row": [model, mark, *[""] * (len(library.HEAD) - 2)]}

    earlier = library.together(
        {}, [timed("efficientnet_lite0", "first"), timed("vgg16", "first")], {"vgg16": {"SeeWhy": 1}}
    )
    page.publish("library", earlier, quick=False)
    whole = library.together(
        page.saved("library", description()), [timed("resnet50", "second"), timed("vgg16", "second")], {}
    )
    rows = [(case["model"], case["row"][1]) for case in whole["cases"]]
    assert rows == [("efficientnet_lite0", "first"), ("resnet50", "second"), ("vgg16", "second")]
    assert whole["kept_bytes"] == {"vgg16": {"SeeWhy": 1}}
    assert "| vgg16 | second |" in whole["tables"]
    assert page.saved("library", "another machine") == page.saved("gpu", description()) == {}


def test_cases_of_slow_methods_have_one_picture():
    results = list(library.cases(library.MODELS, contestants.OPTIONS))
    assert {case.batch for case in results if case.method in library.SLOW} == {1}
    assert {case.batch for case in results if case.method == "gradcam"} == {1, 8}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_its_benchmark_says_so(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    import_module("benchmarks.gpu").main()
    assert capsys.readouterr().out == "no CUDA device\n"


def test_page_has_the_tables_of_the_results_and_one_without_markers_is_refused():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text
    for file in page.RESULTS.glob("*.json"):
        assert json.loads(file.read_text(encoding="utf-8"))["tables"].strip() in text
    with pytest.raises(ValueError, match="0 places for library"):
        page.filled("nothing")


def test_benchmarks_are_not_installed():
    result = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert result["tool"]["setuptools"]["packages"]["find"]["where"] == ["src"]


def test_command_names_its_options():
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--quick" in process.stdout


def test_the_memory_of_a_batch_run_is_read_after_a_tenth_of_its_pictures_and_after_the_last(monkeypatch):
    pictures = []
    monkeypatch.setattr(batch_runs.Gauge, "memory", [])
    monkeypatch.setattr(batch_runs, "resident", lambda: len(pictures))
    with batch_runs.Gauge(total=50, disable=True) as bar:
        for _ in range(25):
            pictures += [None] * 2
            bar.update(2)
    assert batch_runs.Gauge.memory == [6, 50]
