"""The page with a regression network: what raises a value, what lowers it, and its lead over another one."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

from tests.app.browsing import accessible, answered, ask, clipboard, explained_anew
from tests.app.conftest import opened
from tests.app.shapes import saved, served

pytestmark = pytest.mark.slow

LABELS = ["red", "green", "blue"]


class Tints(nn.Module):
    """How much more red, green and blue there is in a picture in [0, 1] than of the other two, in percent."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 3, 9, padding=4, bias=False)
        with torch.no_grad():
            self.features.weight.copy_(((1.5 * torch.eye(3) - 0.5) / 81)[:, :, None, None].expand(-1, -1, 9, 9))

    def forward(self, images):
        return 100 * self.features(images).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def tints(tmp_path_factory):
    """The address of a service whose default model is a network of values."""
    with served(tmp_path_factory.mktemp("tints"), Tints(), LABELS, "value") as url:
        yield url


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def values(browser, tints, picture):
    """The page with the values of the picture, for one question after another."""
    with opened(browser, tints) as tab:
        tab.goto(f"{tints}/?method=hirescam")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        yield answered(tab)


def test_a_control_asks_what_lowers_a_value(values, tints, picture):
    control = values.get_by_label("Explain what")
    expect(control).to_have_value("")
    expect(values.locator("#meaning")).to_have_text("Bright: raises 'red'.")
    fields = explained_anew(values, lambda: control.select_option("lowers it"))
    assert ("target", "output:0:down") in fields
    expect(values.locator("#meaning")).to_have_text("Bright: lowers 'red'.")
    expect(values.locator("#stage .below")).to_have_attribute("alt", re.compile("for what lowers red, −"))
    first, second = ask(tints, picture=picture, format="json").json()["predictions"][:2]
    for place, row in enumerate((first, second)):
        fields = explained_anew(values, values.locator("#predictions .class").nth(place).click)
        assert ("target", f"output:{place}:down") in fields  # the same about another value
        expect(values.locator("#answer-probability")).to_have_text(f"−{-row['value']:.3g}")
        expect(values.locator("#proof")).to_contain_text(f"'{row['label']}' goes from −{-row['value']:.4g} to −")
    fields = explained_anew(values, values.get_by_role("button", name="Contrast with red").click)
    assert {("target", "output:1:down"), ("against", "output:0")} <= set(fields)
    expect(values.locator("#contrast-text")).to_have_text("What lowers the lead of green over red.")
    expect(values.locator("#meaning")).to_have_text("Bright: lowers the lead of 'green' over 'red'.")
    accessible(values)
    explained_anew(values, values.get_by_role("button", name="Explain without contrast").click)


def test_a_link_asks_what_lowers_a_value(values, browser, tints, picture):
    explained_anew(values, values.locator("#predictions .class").nth(2).click)
    values.get_by_label("Explain what").select_option("lowers it")
    answered(values)
    values.click("#copy-link")
    with opened(browser, tints) as visitor:
        visitor.goto(clipboard(values))
        visitor.wait_for_selector("body[data-ready]")
        visitor.set_input_files("#image", picture)
        answered(visitor)
        expect(visitor.get_by_label("Explain what")).to_have_value("down")
        fields = explained_anew(visitor, lambda: visitor.get_by_label("Explain what").select_option("raises it"))
        assert ("target", "output:2") in fields


def test_values_have_no_bars_and_all_of_them_are_listed(values):
    expect(values.locator("#predictions .class")).to_have_count(3)
    assert values.locator("#predictions .track").count() == 0
    expect(values.locator("#target-form")).to_be_hidden()  # there is no other one


def test_what_lowers_a_value_is_compared_and_said(browser, tints, picture):
    with opened(browser, tints) as tab:
        tab.goto(f"{tints}/?target=output:1:down&compare=hirescam&show=compare")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        expect(tab.locator(".card .facts")).to_contain_text("what lowers green −")
        expect(tab.locator("#classes-title")).to_have_text("Values")
        chips = tab.locator("#chips-classes label")
        expect(chips).to_have_text(["what lowers green", *LABELS])
        expect(chips.locator("input:checked")).to_have_count(1)
        expect(tab.locator("#class-add")).to_be_hidden()
        chips.get_by_text("red").click()
        names = [f"hirescam, {name}" for name in ("what lowers green", "red")]
        expect(tab.locator(".card h3")).to_have_text(names)


def test_channels_contribute_to_the_value_itself(browser, tints, picture):
    """Whatever is asked: what lowers it has another sign, which no reader expects beside its name."""
    effects = []
    for target in ("output:2", "output:2:down"):
        with opened(browser, tints) as tab:
            tab.goto(f"{tints}/?target={target}&show=inside")
            tab.wait_for_selector("body[data-ready]")
            tab.set_input_files("#image", picture)
            answered(tab)
            tab.click("#copy-trace")
            assert re.search(r"target=output:2\b(?!:)", clipboard(tab))
            expect(tab.locator("#inside-about")).to_have_text("the value of blue")
            tile = tab.locator("#maps .tile", has_text="ch 2").locator(".effect")
            expect(tile).to_have_text(re.compile(r"^\+[1-9]"))
            effects.append(tile.inner_text())
            expect(tab.locator("#off-strongest")).to_have_text("Switch off the one with the largest positive effect")
            assert tab.locator("#effect-list .track").count() == 0
    assert effects[0] == effects[1]


def test_the_method_that_drew_the_map_is_named_where_votes_cannot_be_counted(browser, tints, picture):
    with opened(browser, tints) as tab:
        tab.goto(f"{tints}/?method=votes-detail")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        answered(tab)
        assert tab.locator("#diagnostics").inner_text().startswith("Grad-CAM drew this map, because")
        assert tab.locator("#status").inner_text().count("explained by gradcam.") == 1
