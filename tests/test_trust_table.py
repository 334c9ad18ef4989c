"""The tables of docs/trust.md: what they say of the numbers that they are made of."""

import json

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
    assert text.startswith("before\n<!-- tables: begin -->\n\n| votes-detail less gradcam |")
    assert text.endswith("<!-- tables: end -->\nafter\n")
    assert "old" not in text


def test_the_tables_of_the_page_are_of_the_numbers_beside_it():
    files = [table.NUMBERS / f"{name}.json" for name in table.NETWORKS]
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    page = table.PAGE.read_text(encoding="utf-8")
    for line in [*table.differences(rows), *(line for network in rows for line in table.table(network))]:
        assert line in page
