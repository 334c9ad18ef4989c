"""docs/operations.md, the dashboard and the alerts agree with the existing metrics and records."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from seewhy.app.errors import CLIENT_GONE, HTTP_KINDS, INTERNAL, KINDS
from seewhy.app.observability.logs import fields
from seewhy.app.observability.metrics import Metrics
from seewhy.app.pipeline.record import Interval, Record
from seewhy.app.settings import Settings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text(encoding="utf-8"))
SUFFIXES = {"counter": "_total", "info": "_info"}


@pytest.fixture(scope="module")
def families():
    """The metrics: name to type, labels and help."""
    results = {}
    for collector in Metrics(Settings())._registry._collector_to_names:
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", None)
            if labels is None:  # of a metric that is looked up when asked
                labels = family.samples[0].labels if family.samples else ()
            name = family.name + SUFFIXES.get(family.type, "")
            results[name] = (family.type, tuple(labels), family.documentation)
    return results


def test_every_metric_is_documented(families):
    table = PAGE.partition("| metric |")[2].partition("\n\n")[0].splitlines()[2:]
    expected = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {question} |"
        for name, (kind, labels, question) in families.items()
    ]
    assert table == expected


def test_the_page_shows_how_prometheus_is_given_a_key():
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    jobs = [job for block in blocks for job in block["scrape_configs"]]
    assert [job.get("authorization", {}).keys() for job in jobs] == [set(), {"credentials_file"}]


def expressions():
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for group in RULES["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def selectors(expression):
    """Every selector of an expression: name of the metric, and names of the labels that it matches."""
    plain = re.sub(r"\$__(rate_interval|range)", "5m", expression)
    promql_parser.parse(plain)
    for name, matched in re.findall(r"\b((?:seewhy|process)_\w+|up)\b(?:\{([^}]*)\})?", plain):
        yield name, re.findall(r"(\w+)\s*[!=]~?\s*\"", matched)


def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(families):
    used = set()
    for expression in expressions():
        for name, labels in selectors(expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if name == "up":
                continue
            kind, label_names, _ = families[name] if name in families else families[base]
            assert name in families or kind in ("histogram", "summary"), name
            assert set(labels) <= {*label_names, "instance", "job"}, (name, labels)
            used.add(base if base in families else name)
    assert len(used) > 20


def test_values_that_dashboard_and_alerts_ask_for_exist():
    codes = {kind.code for kind in KINDS.values()} | {CLIENT_GONE}
    text = "".join(expressions())
    assert set(re.findall(r'reason="([^"]+)"', text)) <= codes
    assert set(re.findall(r'route="([^"]+)"', text)) == {"/explain"}
    assert set(re.findall(r'code="([^"]+)"', text)) <= {"blank-map", "saturated-softmax", "improbable-target"}


def test_panels_do_not_overlap_and_have_titles_of_their_own():
    area = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & area, panel["title"]
        assert place["x"] + place["w"] <= 24
        area |= cells
    for name in ("id", "title"):
        assert len({panel[name] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_alerts_say_what_to_do():
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_whatever_breaks_here_stands_in_the_table_of_failures():
    table = PAGE.partition("## Troubleshooting")[2]
    kinds = {*KINDS.values(), *HTTP_KINDS.values(), INTERNAL}
    codes = {kind.code for kind in kinds if kind.status >= 500} | {CLIENT_GONE}
    assert {code for code in codes if f"`{code}`" not in table} == set()
    for row in table.strip().splitlines()[2:]:
        assert all(cell.strip() for cell in row.split("|")[1:-1]), row
        assert row.count("|") == 4


def test_every_member_of_a_log_line_is_documented():
    full = Record(
        "POST", "/explain", "id", "client", "address", "model", "method", ("top",), "problem", "hit", 200, 1, 2
    )
    full.trace_id = "trace"
    full.timed().intervals.append(Interval("decode", 0.0, 1.0))
    for name in fields(full):
        assert f"`{name}`" in PAGE, name
    assert len(fields(full)) == 16
