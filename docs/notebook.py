"""Runs examples/notebook.ipynb and keeps what its cells show: `make notebook`. A test runs it too."""

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from docs.pictures import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def executed() -> NotebookNode:
    """Return the notebook after a run in its folder.

    Raises:
        CellExecutionError: a cell raised.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return notebook


if __name__ == "__main__":
    ran = executed()
    ran.metadata["language_info"] = {"name": "python"}
    for cell in ran.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if "outputs" in cell:  # warnings name paths of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(ran, NOTEBOOK)
