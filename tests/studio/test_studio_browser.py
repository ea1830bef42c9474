"""The page of the studio, and its views Tokenizer and Calculator, in Chromium, wide and narrow.

Needs selenium, Chromium and its driver (Debian: chromium, chromium-driver); skipped without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser_pages import CSS, Keys, Page, open_browser, open_clean_page, ui, webdriver
from studios import (
    OpenStudio,
    open_studio,
    write_runs_and_tokenizers,
    write_tokenizer,
)

VIEWS = ("runs", "tokenizer", "write", "inside", "calculator")
KEY = "correct horse"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs_and_tokenizers(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def studio(folder: Path) -> Iterator[OpenStudio]:
    with open_studio(folder) as studio:
        yield studio


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with open_browser() as driver:
        yield driver


@pytest.fixture
def page(driver: Any, studio: OpenStudio) -> Iterator[Page]:
    with open_clean_page(driver, studio.url) as page:
        yield page


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_the_page(page: Page, view: str, width: int, scheme: str) -> None:
    page.open(view, width=width, scheme=scheme)
    page.find(f".view-{view} h1")
    page.until(lambda: page.all(".view .card, .view .notice"))
    assert page.script("return document.documentElement.scrollWidth") <= width
    page.until(lambda: view != "tokenizer" or page.all(".token"))
    page.until(lambda: view != "calculator" or page.figure("Parameters"))
    assert page.layout_shift() < 0.1
    assert page.low_contrast() == []
    assert page.overflowing() == []
    red, green, blue = map(
        int, re.findall(r"\d+", page.find("body").value_of_css_property("background-color"))[:3]
    )
    assert (red + green + blue > 382) == (scheme == "light")


def test_a_text_is_shown_as_tokens_with_their_merges(page: Page) -> None:
    page.open("tokenizer")
    page.until(lambda: page.all(".token"))
    ui.Select(page.all("section select")[1]).select_by_visible_text("tokenizers/small")
    area = page.find("textarea")
    area.clear()
    area.send_keys("<b> the other cat sat on the mat")
    page.until(lambda: page.text(".tokens").endswith("mat"))
    first, second = page.all(".tokens")
    page.until(lambda: second.text.endswith("mat"))
    numbers = [len(each.find_elements(CSS, ".token")) for each in (first, second)]
    assert numbers[0] < numbers[1]  # the larger vocabulary needs fewer tokens
    webdriver.ActionChains(page.driver).move_to_element(first.find_elements(CSS, ".token")[-1]).perform()
    page.until(lambda: "merge" in page.text(".merges"))
    assert page.all(".token.same")  # the same bytes in the other tokenizer
    first.find_elements(CSS, ".token")[0].click()
    page.script("document.querySelector('.token').focus()")
    page.press(Keys.END)
    page.until(lambda: "mat" in page.text(".merges .chip"))
    page.find(".check input").click()
    page.until(lambda: page.find(".token small").is_displayed())
    ui.Select(page.all("section select")[1]).select_by_visible_text("none")
    page.until(lambda: not page.all(".tokens")[1].is_displayed())


def test_a_damaged_tokenizer_is_not_shown_at_first(driver: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write_tokenizer(tmp_path / name, 270 if name == "d" else 320)
    for name in ("a", "c"):
        (tmp_path / name / "vocabulary.json").write_text("{")
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open("tokenizer")
        page.until(lambda: len(page.all(".tokens:has(.token)")) == 2)
        shown = [ui.Select(each).first_selected_option.text for each in page.all("section select")]
        assert shown == ["b", "d"]
        assert not page.all(".problem")
        assert page.messages() == []  # a failed request would be reported
        ui.Select(page.all("section select")[1]).select_by_visible_text("c")
        page.until(lambda: page.text(".problem").startswith("c/vocabulary.json"))
        driver.get("about:blank")
    assert all("400" in message for message in page.messages())  # the browser reports the failed requests


def test_a_copy_of_a_tokenizer_is_not_compared_unless_requested(driver: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tokenizer(tmp_path / name, 300)
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open("tokenizer")
        page.until(lambda: page.all(".token"))
        second = ui.Select(page.all("section select")[1])
        assert second.first_selected_option.text == "none"
        second.select_by_visible_text("b")
        page.until(lambda: len(page.all(".tokens:has(.token)")) == 2)
        page.until(lambda: "same tokenizer" in page.all(".columns > section")[1].text)
        second.select_by_visible_text("none")
        page.until(lambda: "same tokenizer" not in page.all(".columns > section")[1].text)
        driver.get("about:blank")
    assert page.messages() == []


def test_a_long_text_is_truncated_with_a_notice(page: Page) -> None:
    page.open("tokenizer")
    page.until(lambda: page.all(".token"))
    tokenizers = [ui.Select(each).first_selected_option.text for each in page.all("section select")]
    assert "tokenizers/small" in tokenizers  # two copies of one tokenizer are not compared
    assert len(set(tokenizers)) == 2
    # A paste, in which the limit divides a character in two.
    page.script(
        """
        const area = document.querySelector("textarea");
        area.value = "\\ud83d".repeat(149999) + "😀".repeat(200000);
        area.dispatchEvent(new Event("input"));
        """
    )
    page.until(lambda: "first 150,000" in page.text(".below small"))
    page.until(lambda: "more" in page.text(".tokens"))
    assert "549,999" in page.text(".below small")
    page.find("textarea").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    page.until(lambda: "paste" in page.text(".tokens"))
    assert "Point" in page.text(".below small")


def test_a_view_keeps_its_state_until_the_user_returns(page: Page) -> None:
    page.open("tokenizer")
    page.find("textarea").send_keys(" and more")
    page.until(lambda: "and+more" in page.driver.current_url)
    page.script("document.activeElement.blur()")
    page.press("5")
    page.until(lambda: page.figure("Parameters"))
    page.press("2")
    page.until(lambda: page.all(".token"))
    assert page.find("textarea").get_attribute("value").endswith(" and more")
    page.driver.back()
    page.find(".view-calculator h1")
    page.driver.forward()
    page.until(lambda: page.all(".token"))
    assert page.find("textarea").get_attribute("value").endswith(" and more")


def test_sliders_change_the_costs_at_once(page: Page) -> None:
    page.open("calculator")
    page.until(lambda: page.figure("Parameters") == "190 M")
    slider = next(each for each in page.all(".slider") if each.text.startswith("Layers"))
    slider.find_element(CSS, "input").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.figure("Parameters") == "209 M")
    assert ui.Select(page.find("select")).first_selected_option.text == "own shape"
    assert "num_layers=14" in page.driver.current_url
    ui.Select(page.find("select")).select_by_visible_text("gpt2-xl")
    page.until(lambda: page.figure("Parameters") == "2.13 B")
    before = page.figure("Time")
    device = next(each for each in page.all("select") if "RTX 4090" in each.text)
    ui.Select(device).select_by_value("rtx4090")
    page.until(lambda: page.all(".bad"))  # it does not fit
    page.until(lambda: page.figure("Time") != before)
    page.find("summary").click()
    assert "d_model = 1600" in page.text("pre")
    page.open("calculator?d_model=8192&num_layers=96&num_heads=64&num_kv_heads=64&d_ff=32768")
    page.until(lambda: page.figure("Energy").endswith(" MWh"))


HUGE = "num_layers=126&d_model=16384&num_heads=64&d_ff=65536&context_length=131072&vocab_size=200000"


@pytest.mark.parametrize("shape", [HUGE, "num_layers=1&d_model=2&num_heads=1&d_ff=1&context_length=1"])
def test_absurd_figures_fit_their_place(page: Page, shape: str) -> None:
    page.open(f"calculator?{shape}&num_tokens=2200000000000000&device=rtx4060", width=390)
    page.until(lambda: page.figure("Parameters"))
    assert page.overflowing() == []
    if shape == HUGE:
        assert page.figure("Time") == "19.3 M years"
        assert page.figure("Compute of the run").endswith(" RFLOP")
    else:
        assert page.figure("Largest batch").endswith(" M")


@pytest.mark.parametrize("width", [390, 1400])
def test_a_control_in_focus_is_not_covered(page: Page, width: int) -> None:
    page.open("calculator", width=width)
    page.until(lambda: page.figure("Parameters"))
    page.script("document.querySelector('summary').focus()")
    found = []
    for _ in range(15):
        webdriver.ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(
            Keys.SHIFT
        ).perform()
        kind, is_covered = page.script(
            """
            const control = document.activeElement;
            const { left, top, bottom } = control.getBoundingClientRect();
            return [control.type, document.elementFromPoint(left + 5, (top + bottom) / 2) !== control];
            """
        )
        found.append(kind)
        assert kind == "radio" or not is_covered, found
    assert found.count("range") == 10


def test_a_link_with_heads_and_no_key_value_heads_means_as_many_of_both(page: Page) -> None:
    found = []
    for sizes in ("num_heads=8&num_kv_heads=8", "num_heads=8"):
        page.open(f"calculator?{sizes}")
        page.until(lambda: page.figure("Parameters") or page.text(".calc-problem"))
        found.append(page.figure("Parameters"))
    assert found[0] == found[1]


def test_keys_open_views_and_switch_the_colours(page: Page) -> None:
    page.open("runs")
    page.until(lambda: page.all(".runs li"))
    page.press("2")
    page.find(".view-tokenizer h1")
    page.find("textarea").send_keys("3")  # in a text, a digit is a digit
    assert page.all(".view-tokenizer h1")
    page.script("document.activeElement.blur()")
    page.press("1")
    page.find(".view-runs .choice label").click()  # the focus is then on a radio button
    page.press(Keys.RIGHT)
    page.until(lambda: "metric=bits_per_byte" in page.driver.current_url)
    page.press("2")
    page.find(".view-tokenizer h1")
    page.find("#nav a").send_keys(Keys.ENTER)
    page.find(".view-runs h1")
    page.press("t", "t")
    assert page.script("return document.documentElement.dataset.theme") == "dark"
    page.driver.refresh()
    page.until(lambda: page.script("return document.documentElement.dataset.theme") == "dark")
    page.press(Keys.TAB)
    assert page.script("return document.activeElement.className") == "skip"


def test_a_view_that_is_left_does_not_change_the_address(page: Page) -> None:
    page.open("runs")
    page.until(lambda: page.all(".runs li"))
    page.script("""
        const sort = document.querySelector(".view-runs select");
        location.hash = "#/tokenizer";  // the page opens the view in a later event
        sort.selectedIndex = 1;
        sort.dispatchEvent(new Event("change"));
    """)
    page.find(".view-tokenizer h1")


def test_the_page_asks_for_the_key(driver: Any, folder: Path) -> None:
    with open_studio(folder, api_key=KEY) as studio:
        page = Page(driver, studio.url)
        page.open("runs")
        page.find("dialog input[type=password]")
        page.press("wrong", Keys.ENTER)  # without a click: the focus is in the field
        page.until(lambda: page.text("dialog .error"))
        page.press(KEY, Keys.ENTER)
        page.until(lambda: len(page.all(".runs li")) == 4)
        driver.get("about:blank")
    # The browser reports the rejected requests.
    assert [message for message in page.messages() if "401" not in message] == []


def test_a_lost_server_is_reported(driver: Any, folder: Path) -> None:
    with open_studio(folder) as studio:
        page = Page(driver, studio.url)
        page.open("runs")
        # The page then loads the modules of the other views, which a lost server could not send.
        loaded = "return performance.getEntriesByType('resource').map((each) => each.name).join()"
        page.until(lambda: "tokenizer/panel.js" in page.script(loaded))
        assert page.all(".runs li")
    page.until(lambda: "lost" in page.text(".view > header"))
    page.press("2")  # a view that was not open before
    page.until(lambda: "does not answer" in page.text(".notice"))
    assert page.text(".notice button") == "Try again"
    driver.get("about:blank")
    page.messages()
