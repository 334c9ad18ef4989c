"""The guide: what it says about methods and proofs, and that it runs nothing."""

import re
from dataclasses import replace
from html import escape, unescape
from typing import get_args
from urllib.parse import quote

from seewhy.app.answers import guide as guide_module
from seewhy.app.answers.guide import guide
from seewhy.explainers.methods.catalogue import METHODS, list_methods
from seewhy.explainers.trust.proof import Grade
from seewhy.models.models_file import ModelDeclaration, own_specs


def test_the_guide_has_a_chapter_on_each_method_and_grade(client):
    response = client.get("/guide")
    assert response.mimetype == "text/html"
    assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    page = response.get_data(as_text=True)
    for name in list_methods():
        chapter = page.partition(f'<section id="{name}"')[2].partition("</section>")[0]
        assert escape(METHODS[name].summary, quote=False).replace("'", "&#39;") in chapter
        assert ("<math" in chapter) == bool(METHODS[name].equation)
        assert all(f"<code>{option}</code>" in chapter for option in METHODS[name].options if option != "layers")
        drawn = re.findall("<math.*?</math>", chapter, re.DOTALL)
        assert [equation for equation in drawn if "\\" in re.sub("<.*?>", "", equation)] == []
    for grade in get_args(Grade):
        assert f'data-grade="{grade}"' in page
    assert "What a heatmap can tell you</h2>" in page.partition('<section id="heatmap"')[2].partition("</section>")[0]
    assert "try the other fill; a blur keeps" in page
    assert "the absence of something" in page.partition('<section id="proof"')[2].partition("</section>")[0]
    assert "<script" not in page
    facts = re.findall('<p class="help">(.*?)</p>', page, re.DOTALL)
    assert [fact for fact in facts if re.search(r"[a-z]\.(<|[A-Z])", fact)] == []  # sentences run together


def test_each_link_into_the_api_names_an_operation(client):
    operations = {
        f"/docs#/{quote(tag)}/{operation['operationId']}"
        for path in client.get("/openapi.json").json["paths"].values()
        for operation in path.values()
        for tag in operation["tags"]
    }
    links = re.findall('href="(/docs#[^"]*)"', client.get("/guide").get_data(as_text=True))
    assert len(links) == 3
    assert set(links) <= operations


def test_methods_of_an_operator_are_left_out(monkeypatch):
    class Own:
        """It stands in for an explainer that is not of this package."""

    monkeypatch.setattr(guide_module, "METHODS", {**METHODS, "gradcam": replace(METHODS["gradcam"], explainer=Own)})
    page = guide.__wrapped__("", "", "").decode()
    assert 'id="gradcam"' not in page
    assert 'id="layercam"' in page


def test_the_guide_declares_a_custom_model_as_the_service_takes_it(client, tmp_path):
    page = client.get("/guide").get_data(as_text=True)
    table = unescape(re.search("<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)[1])
    (tmp_path / "models.toml").write_text(table)
    spec = own_specs(tmp_path / "models.toml")["pneumonia"]
    assert (spec.labels, spec.preprocess.size) == (("healthy", "pneumonia"), (224, 224))
    assert "PYTHONPATH=FOLDER seewhy serve" in page
    assert "calibration" in ModelDeclaration.model_fields
    assert 'calibration = "scores.json"' in page
