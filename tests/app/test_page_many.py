"""Many pictures on the page: a strip of those that are added together or one after another."""

import re
import shutil
from itertools import pairwise

import pytest
from PIL import Image
from playwright.sync_api import expect

from seewhy.app import create_app
from seewhy.app.batch.folders import SUFFIXES
from seewhy.app.settings import Settings
from tests.app.browsing import accessible, answered, ask, explained_anew, later, upload
from tests.app.conftest import EXAMPLES, opened
from tests.app.serving import live
from tests.app.shapes import served
from tests.nets import Bright

START = "votes-detail"
PICTURES = {
    "photos/Espresso/cup.png": "coffee",
    "photos/space_shuttle/2020/rocket.png": "rocket",
    "photos/cat.png": "cat",
}
"""Names in a folder, and the example there."""

HELD = """() => {
    window.held = [];
    window.most = 0;
    const { fetch } = window;
    window.fetch = (path, given) => {
        if (path !== "/explain") return fetch(path, given);
        return new Promise((done, fail) => {
            const [method, fill, { name }] = ["method", "proof_fill", "image"].map((field) => given.body.get(field));
            const request = { method, fill, name, signal: given.signal };
            request.go = () => {
                held.splice(held.indexOf(request), 1);
                fetch(path, given).then(done, fail);
            };
            given.signal.addEventListener("abort", () => {
                held.splice(held.indexOf(request), 1);
                fail(new DOMException("aborted", "AbortError"));
            });
            held.push(request);
            window.most = Math.max(most, held.length);
        });
    };
}"""
"""Lets no question go before `go()` is called for it."""


UNGRADED = """() => {
    const { fetch } = window;
    let isFirst = true;
    window.fetch = async (path, given) => {
        const response = await fetch(path, given);
        if (path !== "/explain" || given.body.get("image").name !== "cup.png" || !isFirst) return response;
        isFirst = false;
        const answer = await response.json();
        Object.assign(answer.explanations[0].proof, { grade: null, calibration: null });
        return new Response(JSON.stringify(answer), response);
    };
}"""
"""Takes the grade from the first answer about a picture, as if the service had known too few scores."""


UNSUPPORTED = """() => {
    const { fetch } = window;
    window.fetch = async (path, given) => {
        const response = await fetch(path, given);
        if (path !== "/explain" || !response.headers.get("Content-Type").includes("json")) return response;
        const answer = await response.json();
        answer.explanations[0].proof.grade = "not supported";
        return new Response(JSON.stringify(answer), response);
    };
}"""
"""Gives the heatmaps of all pictures but the one that is shown a bad grade."""


INCONCLUSIVE = """() => {
    const { fetch } = window;
    window.fetch = async (path, given) => {
        const response = await fetch(path, given);
        if (path !== "/explain" || given.body.get("image").name !== "cup.png") return response;
        const answer = await response.json();
        Object.assign(answer.explanations[0].proof, { grade: "not supported", warnings: ["fill-hides-little"] });
        return new Response(JSON.stringify(answer), response);
    };
}"""
"""Says of one picture, which is not shown, that hiding changes too little for a test."""


REFUSED = """([status, field]) => {
    const { fetch } = window;
    let isFirst = true;
    window.fetch = async (path, given) => {
        if (path !== "/explain" || given.body.get("image").name !== "cup.png" || !isFirst) return fetch(path, given);
        isFirst = false;
        const [detail, headers] = ["It is refused.", { "Content-Type": "application/problem+json" }];
        const errors = field ? [{ field, message: detail }] : [];
        return new Response(JSON.stringify({ detail, status, errors }), { status, headers });
    };
}"""
"""Refuses the first question about a picture."""


OTHER_METHOD_AND_WHY = """async () => {
    const { change } = await import("/static/js/state.js");
    change({ method: "gradcam" });
    document.getElementById("truth-contrast").click();
}"""
"""Follows the link that asks why an answer is wrong, while the answers of the strip are those of another method."""


@pytest.fixture
def folder(tmp_path):
    for path, name in PICTURES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXAMPLES / f"{name}.png", tmp_path / path)
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    return tmp_path / "photos"


def options(page):
    return page.locator("#thumbnails").get_by_role("option")


def labels(page):
    """The names of all pictures of the strip, for screen readers, once all are explained."""
    expect(page.locator("#strip-progress")).to_have_text("")
    return [option.get_attribute("aria-label") for option in options(page).all()]


def told(url, path, truth, model="efficientnet_lite0", method=START):
    """What the strip should say of a picture of the folder."""
    fields = {"model": model, "method": method, "proof": "true", "format": "json"}
    (explanation,) = ask(url, picture=EXAMPLES / f"{PICTURES[path]}.png", **fields).json()["explanations"]
    target = explanation["target"]
    name = path.rpartition("/")[2]
    return f"{name}, {target['label']} {target['probability']:.1%}, {explanation['proof']['grade']}{truth}"


@pytest.fixture
def strip(page, folder):
    """The page with the strip of a folder, all of it explained."""
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(3)
    answered(page)
    labels(page)
    return page


def test_a_folder_becomes_a_strip_with_class_trust_and_truth(strip, url):
    cup, rocket, cat = PICTURES
    assert labels(strip) == [
        told(url, cat, ""),
        told(url, cup, ", right"),
        told(url, rocket, ", wrong, it is space shuttle"),
    ]
    expect(options(strip).nth(0)).to_have_attribute("aria-selected", "true")  # the first one is shown
    expect(strip.locator("#answer-label")).to_have_text("tiger cat")
    expect(strip.locator("#thumbnails .truth")).to_have_text(["right", "is: space shuttle"])
    expect(strip.locator("#thumbnails img")).to_have_count(3)
    expect(strip.locator("#strip-path")).to_have_text("photos/cat.png")
    accessible(strip)


@pytest.mark.slow
def test_pictures_beyond_a_rate_limit_wait_for_their_turn(browser, folder, service):
    app = create_app(Settings(rate_limit="3/2second"))  # of one picture
    app.extensions["seewhy"] = service
    refusals = []
    with live(app) as url, opened(browser, url) as tab:
        tab.on("response", lambda response: refusals.append(response.url) if response.status == 429 else None)
        tab.goto(url)
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#folder", folder)
        for number in (1, 2):  # the first one is shown, with a button to try again
            expect(options(tab).nth(number)).to_have_attribute("aria-label", re.compile("supported|spread"))
    assert refusals


@pytest.mark.slow
def test_a_single_class_is_judged_by_its_own_probability(browser, tmp_path):
    for name, level in (("bright/1", 200), ("bright/2", 20), ("dark/3", 20)):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        noise = Image.effect_noise((64, 48), 30).point(lambda value, level=level: value - 128 + level)
        noise.convert("RGB").save(tmp_path / "all" / f"{name}.png")
    with served(tmp_path, Bright(), ["bright"], "sigmoid") as url, opened(browser, url) as tab:
        tab.goto(url)
        tab.wait_for_selector("body[data-ready]")
        tab.evaluate(UNSUPPORTED)
        tab.set_input_files("#folder", tmp_path / "all")
        expect(options(tab)).to_have_count(3)
        answered(tab)
        labels(tab)
        expect(tab.locator("#thumbnails .truth")).to_have_text(["right", "is: bright"])
        expect(tab.locator("#count-wrong")).to_have_text("1")
        expect(tab.locator("#count-unsure")).to_have_text("2")  # for their heatmaps
        expect(tab.locator("#strip-legend")).to_have_text("Heatmaps: ✗ not supported? not graded")
        doubtful = "Doubtful: the heatmap is not supported or blank."
        expect(tab.locator("#filter-unsure")).to_have_attribute("title", doubtful)
        wrong = "Wrong: the true class, by the folder or file name, has less than 50%."
        expect(tab.locator("#filter-wrong")).to_have_attribute("title", wrong)
        expect(tab.locator("#thumbnails .grade").last).to_have_attribute("title", "Heatmap: not supported")
        options(tab).nth(1).click()
        expect(tab.locator("#answer-probability")).to_have_text(re.compile(r"^0\.\d+%$"))
        expect(tab.locator("#doubt")).to_contain_text("The model does not find bright: its probability is only 0.")
        expect(tab.locator("#answer-guess")).to_be_hidden()
        expect(tab.locator("#target-form")).to_be_hidden()  # there is no other class


@pytest.mark.slow
def test_names_of_files_tell_the_truth_where_no_folder_does(page, tmp_path):
    names = {
        "tabby/cup.png": "tabby",
        "tabby_01.png": "tabby",
        "MISSILE.2.png": "missile",
        "n03773504-space_shuttle (3).png": "space shuttle",
        "tigercats.png": None,
        "tabby_and_missile.png": None,
        "tabby_missile_2.png": None,
        "tabby12.png": "tabby",
        "7.png": None,
    }
    (tmp_path / "all" / "tabby").mkdir(parents=True)
    for name in names:
        shutil.copy(EXAMPLES / "cat.png", tmp_path / "all" / name)
    page.set_input_files("#folder", tmp_path / "all")
    expect(options(page)).to_have_count(len(names))
    answered(page)
    labels(page)
    truths = {
        option.get_attribute("title").splitlines()[0].removeprefix("all/"): option.locator(".truth").all_inner_texts()
        for option in options(page).all()
    }
    assert truths == {name: [f"is: {truth}"] if truth else [] for name, truth in names.items()}


def test_of_a_wrong_answer_the_page_asks_why_it_is_not_the_true_class(strip):
    expect(strip.locator("#truth")).to_be_hidden()  # no name gives a class
    explained_anew(strip, lambda: options(strip).nth(1).click())
    expect(strip.locator("#truth")).to_be_hidden()  # it is right
    expect(strip.locator("#choosing")).to_be_visible()
    explained_anew(strip, lambda: options(strip).nth(2).click())
    expect(strip.locator("#truth")).to_contain_text("The folder or file name says space shuttle.")
    expect(strip.locator("#choosing")).to_be_hidden()
    expect(strip.get_by_role("button", name="Why missile rather than space shuttle?")).to_be_visible()
    explained_anew(strip, lambda: strip.evaluate(OTHER_METHOD_AND_WHY))
    expect(strip.locator("#contrast-text")).to_have_text("Evidence for missile rather than space shuttle.")
    expect(strip.locator("#truth")).to_be_hidden()


def test_pictures_whose_heatmaps_could_not_be_tested_have_a_filter(page, folder):
    page.evaluate(INCONCLUSIVE)
    page.set_input_files("#image", [EXAMPLES / "cat.png", EXAMPLES / "coffee.png"])
    expect(options(page)).to_have_count(2)
    labels(page)
    expect(page.locator("#filter-untested")).to_be_hidden()
    page.set_input_files("#folder", folder)
    expect(page.locator("#count-untested")).to_have_text("1")
    expect(page.locator("#count-unsure")).to_have_text("3")  # the cat, twice, and the rocket
    page.locator("[name=filter][value=untested]").check(force=True)
    expect(options(page)).to_have_count(1)
    expect(page.locator("#strip-note")).to_have_text("Inconclusive: hiding changed too little to test the heatmap.")


def test_arrow_keys_open_the_pictures_that_the_filter_leaves(strip):
    counts = [strip.inner_text(f"#count-{name}") for name in ("all", "wrong", "unsure")]
    assert counts == ["3", "1", "2"]
    options(strip).nth(0).focus()
    explained_anew(strip, lambda: strip.keyboard.press("ArrowRight"))
    expect(strip.locator("#answer-label")).to_have_text("espresso")
    expect(options(strip).nth(1)).to_be_focused()
    expect(options(strip).nth(1)).to_have_attribute("aria-selected", "true")
    strip.locator("[name=filter][value=unsure]").check(force=True)
    expect(options(strip)).to_have_count(2)
    doubtful = "Doubtful: the heatmap is not supported or blank, or the best class has less than 50%."
    expect(strip.locator("#strip-note")).to_have_text(doubtful)
    expect(strip.locator("#filter-unsure")).to_have_attribute("title", doubtful)
    options(strip).nth(0).focus()
    explained_anew(strip, lambda: strip.keyboard.press("ArrowRight"))  # the cup between them is sure
    expect(strip.locator("#answer-label")).to_have_text("missile")
    strip.keyboard.press("ArrowRight")  # it is the last one
    expect(options(strip).nth(1)).to_be_focused()
    explained_anew(strip, lambda: strip.keyboard.press("Home"))
    expect(strip.locator("#answer-label")).to_have_text("tiger cat")
    size = strip.viewport_size
    strip.set_viewport_size({"width": 1440, "height": 900})
    tab = strip.locator("#tab-explain").bounding_box()
    explained_anew(strip, lambda: strip.locator("#filter-wrong").click())
    expect(options(strip)).to_have_count(1)
    expect(options(strip).nth(0)).to_be_focused()  # so that the arrow keys open pictures
    assert strip.locator("#tab-explain").bounding_box() == tab  # the sentence about the filter moves nothing
    strip.set_viewport_size(size)
    expect(strip.locator("#answer-label")).to_have_text("missile")  # the open picture was not wrong
    expect(strip.locator("#strip-note")).to_have_text("Wrong: the folder or file name gives another class.")
    strip.locator("#strip label", has_text="All").click()
    expect(strip.locator("#strip-note")).to_be_hidden()
    expect(strip.locator("#strip-legend")).to_be_visible()
    expect(strip.locator("#thumbnails [aria-selected=true]")).to_be_focused()


@pytest.mark.slow
def test_two_requests_run_at_a_time_and_clearing_cancels_them(page, folder):
    shutil.copy(EXAMPLES / "astronaut.png", folder)
    page.evaluate(HELD)
    page.set_input_files("#folder", folder)
    page.wait_for_function("() => held.length === 2")
    assert page.evaluate("held.map(({ name }) => name)") == ["astronaut.png", "cat.png"]  # with that on the stage
    page.evaluate("held[1].go()")
    page.wait_for_function("() => held.length === 2 && held[1].name === 'cup.png'")
    page.evaluate("window.signal = held[1].signal")
    page.click("#strip-clear")
    assert page.evaluate("[signal.aborted, held.length, most]") == [True, 1, 2]
    expect(page.locator("#strip")).to_be_hidden()
    page.evaluate("held[0].go()")
    answered(page)
    expect(page.locator("#answer-label")).to_have_text("football helmet")
    assert page.evaluate("held.length") == 0  # nothing is asked any more


@pytest.mark.slow
def test_one_that_cannot_be_read_says_so_and_stops_no_other(page, folder):
    (folder / "a.heic").write_text("no picture")
    page.evaluate(HELD.replace('"/explain"', '"/explain" || given.body.get("image").name === "a.heic"', 1))
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(4)
    page.wait_for_function("() => held.length === 2")
    expect(page.locator("#strip-progress")).to_have_text("0 of 4")
    expect(page.locator("#strip-failed")).to_have_text("1 cannot be read")
    expect(page.locator("#strip-again")).to_be_hidden()  # it never can be
    page.evaluate("setInterval(() => [...held].forEach((request) => request.go()), 100)")
    first, second, *_ = labels(page)
    refusal = "a.heic: This is not a readable picture; use a JPEG"
    assert first.startswith(f"a.heic, {refusal}")
    assert refusal in options(page).nth(0).get_attribute("title")
    assert second.startswith("cat.png, tiger cat ")
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#image-fault")).to_be_hidden()
    answered(page)
    expect(options(page).nth(1)).to_have_attribute("aria-selected", "true")
    options(page).nth(0).click()
    expect(page.locator("#image-fault")).to_contain_text(refusal)
    expect(page.locator("#answer-label")).to_have_text("tiger cat")  # which still is shown


@pytest.mark.slow
def test_faults_that_may_pass_are_tried_again(page, folder):
    page.evaluate(REFUSED, [503, ""])
    page.set_input_files("#folder", folder)
    expect(page.locator("#strip-failed")).to_have_text("1 failed")
    page.get_by_role("button", name="Explain 1 again").click()
    expect(page.locator("#strip-failed")).to_be_empty()
    expect(options(page).nth(1)).to_have_attribute("aria-label", re.compile("^cup.png, espresso"))


@pytest.mark.slow
def test_faults_of_a_method_are_tried_again_by_another(page, folder):
    page.evaluate(REFUSED, [422, "method"])
    page.set_input_files("#folder", folder)
    expect(page.locator("#strip-failed")).to_have_text("1 failed")
    labels(page)
    expect(page.locator("#strip-again")).to_be_hidden()
    explained_anew(page, lambda: page.select_option("#method", "gradcam"))
    page.get_by_role("button", name="Explain 2 again").click()
    expect(page.locator("#strip-failed")).to_be_empty()


@pytest.mark.slow
def test_damaged_first_pictures_give_way_to_the_next(page, folder):
    content = (folder / "cat.png").read_bytes()
    (folder / "a.png").write_bytes(content[: len(content) // 2])  # browsers show its upper half
    (folder / "b.png").write_text("no picture")
    upload(page, "coffee.png")
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(6)
    expect(page.locator("#answer-label")).to_have_text("tiger cat")
    answered(page)
    _, first, _, third, *_ = labels(page)
    assert third.startswith("cat.png, tiger cat ")
    assert first == "a.png, a.png: The picture is damaged or truncated and cannot be decoded; use the complete file."
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#image-fault")).to_be_hidden()
    expect(page.locator("#strip-failed")).to_have_text("2 cannot be read")
    expect(page.locator("#strip-again")).to_be_hidden()
    page.click("#tab-likeness")
    titles = [button.get_attribute("title") for button in page.locator("#others button").all()]
    assert titles == ["coffee.png", "photos/Espresso/cup.png", "photos/space_shuttle/2020/rocket.png"]


@pytest.mark.slow
def test_a_picture_that_comes_again_with_its_folder_is_listed_once(page, folder):
    page.set_input_files("#image", folder / "Espresso" / "cup.png")
    answered(page)
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(len(list(folder.rglob("*.png"))))
    assert sum(text.startswith("cup.png, espresso") and "right" in text for text in labels(page)) == 1


@pytest.mark.slow
def test_pictures_opened_one_after_another_are_kept(page):
    upload(page)
    expect(page.locator("#strip")).to_be_hidden()
    page.get_by_role("button", name="A cup of coffee on a table").click()
    expect(page.locator("#answer-label")).to_have_text("espresso")
    expect(options(page)).to_have_count(2)
    assert [text.split(",")[0] for text in labels(page)] == ["cat.png", "coffee.png"]
    expect(page.locator("#strip-path")).to_have_text("coffee.png")
    expect(page.locator("[name=filter][value=wrong]")).to_be_disabled()
    expect(page.locator("#count-wrong")).to_have_text("")  # rather than none
    expect(page.locator("#filter-wrong")).to_have_attribute("title", "No folder or file name gives the true class.")
    former = page.url
    later(page)
    explained_anew(page, options(page).nth(0).click)
    later(page)
    assert page.url != former  # the address names the example no longer
    explained_anew(page, options(page).nth(1).click)
    assert page.url == former
    page.click("#strip-clear")
    expect(page.locator("#strip")).to_be_hidden()
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("#answer-label")).to_have_text("espresso")
    page.go_back()
    expect(options(page)).to_have_count(2)


@pytest.mark.slow
def test_another_fill_is_kept_and_offered_for_the_others(strip):
    wrong = strip.locator("#count-wrong").inner_text()
    fill = "async () => (await import('/static/js/state.js')).change({ proof_fill: 'mean' })"
    assert ("proof_fill", "mean") in explained_anew(strip, lambda: strip.evaluate(fill))
    expect(strip.locator("#thumbnails .outdated")).to_have_count(0)
    expect(strip.locator("#count-wrong")).to_have_text(wrong)
    strip.evaluate(HELD)
    strip.get_by_role("button", name="Explain 2 again").click()
    strip.wait_for_function("() => held.length === 2")
    assert set(strip.evaluate("held.map(({ fill }) => fill)")) == {"mean"}
    strip.evaluate("[...held].forEach((request) => request.go())")
    expect(strip.locator("#strip-again")).to_be_hidden()
    strip.set_input_files("#image", EXAMPLES / "astronaut.png")
    strip.evaluate("window.release = setInterval(() => [...held].forEach((request) => request.go()), 50)")
    answered(strip)
    expect(options(strip).last).to_contain_text("football helmet")
    assert "proof_fill=mean" in strip.url


@pytest.mark.slow
def test_those_of_another_method_are_explained_again(strip, url):
    explained_anew(strip, lambda: strip.select_option("#method", "gradcam"))
    first, second, third = labels(strip)
    assert first == told(url, "photos/cat.png", "", method="gradcam")
    assert second.endswith(", with other settings")
    expect(strip.locator("#count-wrong")).to_have_text("0")
    strip.locator("[name=filter][value=wrong]").check(force=True)
    expect(options(strip)).to_have_count(0)
    expect(strip.locator("#strip-note")).to_contain_text(
        "2 answers with other settings are left out. No picture matches"
    )
    strip.locator("[name=filter][value=all]").check(force=True)
    strip.evaluate(HELD)
    strip.get_by_role("button", name="Explain 2 again").click()
    strip.wait_for_function("() => held.length === 2")
    names = strip.evaluate("held.map(({ method, name }) => `${name} by ${method}`)")
    assert names == ["cup.png by gradcam", "rocket.png by gradcam"]
    strip.evaluate("[...held].forEach((request) => request.go())")
    again = labels(strip)
    assert again[2] == told(url, list(PICTURES)[1], ", wrong, it is space shuttle", method="gradcam") != third
    expect(strip.locator("#strip-again")).to_be_hidden()
    expect(strip.locator("#count-wrong")).to_have_text("1")
    accessible(strip)


@pytest.mark.slow
def test_what_can_be_graded_now_is_explained_again(page, folder, url):
    page.evaluate(UNGRADED)
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(3)
    answered(page)
    assert "not graded" in labels(page)[1]
    page.get_by_role("button", name="Explain 1 again").click()
    expect(page.locator("#strip-again")).to_be_hidden()
    assert labels(page)[1] == told(url, "photos/Espresso/cup.png", ", right")


@pytest.mark.slow
def test_a_class_that_is_asked_about_does_not_become_that_of_the_strip(strip):
    before = labels(strip)
    explained_anew(strip, lambda: strip.click("#predictions .class:has-text('tabby')"))
    assert labels(strip) == before


@pytest.mark.slow
def test_many_pictures_are_not_lost_without_a_question(page, folder):
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.evaluate(HELD)  # what is asked makes no difference
    page.set_input_files("#image", [folder / path.removeprefix("photos/") for path in PICTURES])
    expect(options(page)).to_have_count(3)
    page.click("#examples button")  # which the browser can load again
    expect(options(page)).to_have_count(4)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert asked == []
    files = [EXAMPLES / f"{name}.png" for name in ("astronaut", "cat", "coffee", "rocket")]
    page.set_input_files("#image", files)
    expect(options(page)).to_have_count(5)
    page.click("#tab-compare")  # browsers ask only who has used the page
    with page.expect_event("dialog"):
        page.evaluate("setTimeout(() => location.reload())")
    assert asked == ["beforeunload"]
    expect(options(page)).to_have_count(5)


@pytest.mark.slow
def test_five_hundred_pictures_are_kept(page, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    content = (tmp_path / "small.png").read_bytes()
    page.evaluate(HELD)
    files = [{"name": f"{number}.png", "mimeType": "image/png", "buffer": content} for number in range(502)]
    page.set_input_files("#image", files)
    expect(options(page)).to_have_count(500)
    expect(page.locator("#strip-note")).to_have_text("The page keeps 500 pictures at a time; 2 were left out.")
    page.set_input_files("#image", EXAMPLES / "cat.png")
    expect(page.locator("#strip-note")).to_contain_text("3 were left out")
    expect(options(page)).to_have_count(500)
    expect(options(page).nth(0)).to_have_attribute("aria-label", "1.png, not explained yet")
    expect(options(page).nth(499)).to_have_attribute("aria-label", "cat.png, not explained yet")
    shown = options(page).nth(499).bounding_box()
    assert 0 <= shown["x"] < 1280  # the strip is scrolled to it


@pytest.mark.slow
def test_a_dropped_folder_is_read_to_its_end(page, folder):
    expect(page.locator("#strip")).to_be_hidden()
    page.evaluate(
        """async (names) => {
            const load = async (name) => {
                const response = await fetch(`/static/examples/${name}.png`);
                return new File([await response.blob()], `${name}.png`);
            };
            const files = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await load(name)])));
            const file = (path, name) => ({ isDirectory: false, fullPath: path, file: (done) => done(files[name]) });
            const directory = (batches) => ({
                isDirectory: true,
                createReader: () => ({ readEntries: (done) => done(batches.shift() ?? []) }),
            });
            const inner = directory([[file("/all/tabby/cat.png", "cat")]]);
            const outer = directory([[inner], [file("/all/coffee.png", "coffee")], [file("/all/list.csv", "coffee")]]);
            const event = new DragEvent("drop", { bubbles: true, cancelable: true });
            const items = [{ webkitGetAsEntry: () => outer }];
            Object.defineProperty(event, "dataTransfer", { value: { items, files: [new File([], "all")] } });
            document.body.dispatchEvent(event);
        }""",
        ["cat", "coffee"],
    )
    expect(options(page)).to_have_count(2)
    answered(page)
    assert re.fullmatch(r"cat.png, tiger cat [\d.]+%, \w+, wrong, it is tabby", labels(page)[1])


@pytest.mark.slow
def test_the_page_takes_the_files_of_a_folder_that_batches_take():
    (pattern,) = re.findall(
        r"const PICTURE = /(.+)/i;", (EXAMPLES.parent / "app" / "web" / "js" / "intake.js").read_text(encoding="utf-8")
    )
    assert [suffix for suffix in SUFFIXES if not re.search(pattern, suffix)] == []


@pytest.mark.slow
def test_a_folder_without_pictures_says_so(page, tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    page.set_input_files("#folder", tmp_path)
    expect(page.locator("#image-fault")).to_have_text("This folder has no pictures.")
    expect(page.locator("#strip")).to_be_hidden()


@pytest.mark.slow
def test_what_the_browser_cannot_show_gets_its_copy_once_it_is_opened(page, folder):
    with Image.open(EXAMPLES / "coffee.png") as picture:
        picture.convert("RGB").save(folder / "z.tiff")
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(4)
    assert labels(page)[-1].startswith("z.tiff, espresso ")
    expect(options(page).nth(3).locator("img")).to_have_count(0)
    options(page).nth(3).click()
    expect(options(page).nth(3).locator("img")).to_have_count(1)


@pytest.mark.slow
def test_arrows_lead_to_pictures_that_the_strip_does_not_show(page):
    content = (EXAMPLES / "cat.png").read_bytes()
    page.evaluate(HELD)
    files = [{"name": f"{number}.png", "mimeType": "image/png", "buffer": content} for number in range(7)]
    page.set_input_files("#image", files)
    expect(options(page)).to_have_count(7)
    back, on = (page.get_by_role("button", name=f"Scroll the pictures {way}") for way in ("left", "right"))
    expect(back).to_be_hidden()
    on.click()
    expect(on).to_be_hidden()
    last = options(page).nth(6).bounding_box()
    assert last["x"] + last["width"] <= 1280
    back.click()
    expect(back).to_be_hidden()
    accessible(page)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 1100, 390])
def test_of_a_long_path_the_name_stays_in_sight(page, tmp_path, width):
    path = tmp_path / "photos" / ("of a summer " * 3) / "and of winters" / f"cat-{10**20}.png"
    path.parent.mkdir(parents=True)
    for place in (path, path.with_name("z.png")):
        shutil.copy(EXAMPLES / "cat.png", place)
    page.set_viewport_size({"width": width, "height": 900})
    page.set_input_files("#folder", tmp_path / "photos")
    labels(page)
    options(page).nth(0).click()
    answered(page)
    name = page.locator("#strip-path span").nth(1)
    expect(name).to_have_text(path.name)
    cut = "[...document.querySelectorAll('#strip-path span')].map((part) => part.scrollWidth > part.clientWidth)"
    assert page.evaluate(cut) == [width == 390, False]
    box = page.evaluate("document.querySelectorAll('#strip-path span')[1].getBoundingClientRect().toJSON()")
    assert 0 < box["right"] <= width
    assert box["height"] < 24
    if width > 390:
        assert page.locator("#strip").bounding_box()["height"] < 92


@pytest.mark.slow
def test_the_picture_hardly_shrinks_for_the_strip_and_all_about_it_stays_in_sight(page, folder):
    page.set_viewport_size({"width": 1440, "height": 900})
    upload(page)
    alone = page.locator("#stage").bounding_box()
    page.set_input_files("#image", sorted(folder.rglob("*.png")))
    expect(options(page)).to_have_count(4)
    labels(page)
    options(page).nth(0).click()
    answered(page)
    stage = page.locator("#stage").bounding_box()
    assert stage["height"] > 0.92 * alone["height"]
    for name in ("proof", "bar", "unseen", "save-png", "copy-link", "strip-path", "strip-legend", "strip-clear"):
        expect(page.locator(f"#{name}")).to_be_in_viewport(ratio=1)
    names = ("tab-inside", "strip-path", "strip-legend", "strip-clear")
    boxes = [page.locator(f"#{name}").bounding_box() for name in names]
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] < right["x"]
    page.click("#tab-inside")  # nothing lies over it
    page.click("#strip-clear")
    expect(page.locator("#strip")).to_be_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_names_of_classes_are_read_below_small_pictures_and_answers_move_nothing(page, folder, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(HELD)
    page.set_input_files("#folder", folder)
    expect(options(page)).to_have_count(3)
    height = page.locator("#thumbnails").bounding_box()["height"]
    page.evaluate("window.release = setInterval(() => [...held].forEach((request) => request.go()), 50)")
    labels(page)
    assert page.locator("#thumbnails").bounding_box()["height"] == height
    page.locator("#thumbnails .share").first.evaluate("share => share.textContent = '>99.9%'")
    page.locator("#thumbnails .truth").last.evaluate("truth => truth.textContent = 'is: elongated'")
    page.locator("#thumbnails .label").last.evaluate("label => label.textContent = 'space shuttle'")
    cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert page.locator("#thumbnails :is(.label, .share, .truth)").evaluate_all(cut) == []


@pytest.mark.slow
def test_a_phone_shows_examples_until_there_are_pictures_of_ones_own(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#examples button").first.click()
    answered(page)
    expect(page.locator("#examples")).to_be_visible()
    upload(page, "coffee.png")
    expect(page.locator("#examples")).to_be_hidden()


@pytest.mark.slow
def test_the_strip_fits_a_phone_light_or_dark(strip):
    strip.evaluate(
        """async () => {
            const { signBadge, GRADES } = await import("/static/js/proof.js");
            const { make } = await import("/static/js/dom.js");
            const grades = GRADES.map((grade) => make("span", {}, signBadge({ grade, warnings: [] }), ` ${grade}`));
            document.getElementById("strip-legend").replaceChildren("Heatmaps: ", ...grades);
            document.getElementById("filter-untested").hidden = false;
            for (const count of document.querySelectorAll("#strip output")) count.textContent = "345";
        }"""
    )
    for width in (320, 360, 390):
        strip.set_viewport_size({"width": width, "height": 844})
        assert strip.evaluate("document.documentElement.scrollWidth") == width
    accessible(strip)
    strip.emulate_media(color_scheme="dark", reduced_motion="reduce")
    accessible(strip, "color-contrast")  # all else is the same
