"""examples/notebook.ipynb runs, and shows its committed output."""

import warnings

import nbformat
import pytest

from docs.notebook import NOTEBOOK, executed


@pytest.fixture(scope="module")
def committed():
    return nbformat.read(NOTEBOOK, as_version=4)


def cell_contents(notebook):
    """Return what each cell shows: text as it is, of pictures that there is one."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    results = []
    for cell in cells:
        texts = [output["text"] for output in cell.outputs if output.get("name") == "stdout"]
        data = [output["data"] for output in cell.outputs if "data" in output]
        kinds = [kind for bundle in data for kind in bundle if kind.startswith("image/")]
        results.append((texts, [bundle["text/plain"] for bundle in data if not kinds], kinds))
    return results


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(committed):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="zmq")  # of its own event loop
        ran = executed()
    assert cell_contents(ran) == cell_contents(committed)


def test_it_is_committed_small_and_without_traces_of_a_machine(committed):
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 1_200_000
    assert not any(output.get("name") == "stderr" for cell in committed.cells for output in cell.get("outputs", ()))
    for word in ("site-packages", "/tmp/", "/home/", "/root"):
        assert word not in text
    assert sum(any(kind for kind in kinds) for *_, kinds in cell_contents(committed)) == 5
