"""The views Runs, Tokenizer and Calculator in Chromium, used with mouse and keyboard, wide and narrow.

Needs selenium, Chromium and its driver (Debian: chromium, chromium-driver); skipped without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser_pages import CSS, Keys, Page, open_browser, ui, webdriver
from studios import OpenStudio, append_records, open_studio, write_floor, write_run, write_tokenizer

VIEWS = ("runs", "tokenizer", "write", "inside", "calculator")
KEY = "correct horse"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    tokenizer = write_tokenizer(folder / "tokenizers" / "large", 320)
    write_tokenizer(folder / "tokenizers" / "small", 270)
    write_run(folder / "sweep" / "first", tokenizer=tokenizer)
    write_run(folder / "sweep" / "second", lr=3e-3)
    write_floor(folder / "sweep", 0.4)
    write_run(folder / "growing", end=30)
    (write_run(folder / "broken") / "config.json").write_text("<script>alert(1)</script>")
    (folder / "sweep" / "report.html").write_text("<title>A report</title><p>Report</p>")
    return folder


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
    """The page; at the end of a test its console must be empty."""
    page = Page(driver, studio.url)
    yield page
    messages = page.messages()
    page.open("calculator")  # a report has no storage
    page.script("localStorage.clear()")
    driver.get("about:blank")
    assert messages == []
    page.messages()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_the_page(page: Page, view: str, width: int, scheme: str) -> None:
    page.open(view, width=width, scheme=scheme)
    page.find(f".view-{view} h1")
    page.until(lambda: page.all(".view .card, .view .notice"))
    assert page.script("return document.documentElement.scrollWidth") <= width
    red, green, blue = map(
        int, re.findall(r"\d+", page.find("body").value_of_css_property("background-color"))[:3]
    )
    assert (red + green + blue > 382) == (scheme == "light")


def test_runs_are_selected_compared_and_followed(page: Page, folder: Path) -> None:
    page.open("runs")
    page.until(lambda: len(page.all(".runs li")) == 4)
    assert "broken" in page.text(".runs")
    names = [each.text for each in page.all(".runs .name")]
    for index, name in enumerate(names):  # select the two runs of the sweep, and no other
        label = page.all(".runs label")[index]
        if label.find_element(CSS, "input").is_selected() != ("sweep" in name):
            label.click()
    page.until(lambda: "optimizer.lr" in page.text(".compare"))
    assert "0.003" in page.text(".compare")
    page.until(lambda: len(page.all(".chart path.line")) == 4)  # validation and training loss of two runs
    assert "above the entropy floor of 0.8" in page.text(".chart figcaption")
    assert "<b>on</b>" in page.text(".samples")  # a sample is text, not markup
    page.script("document.querySelector('.chart svg').focus()")
    page.press(Keys.END)
    page.until(lambda: page.text(".chart .legend b"))
    # A run that is trained while the page is open.
    page.find(".side input").send_keys("growing")
    page.until(lambda: len(page.all(".runs li")) == 1)
    checkbox = page.find(".runs input")
    checkbox.send_keys(Keys.SPACE)
    page.until(lambda: "growing" in page.text(".compare"))
    assert "ids=" in page.driver.current_url
    append_records(folder / "growing", range(40, 101, 10))
    page.until(lambda: "100 steps" in page.text(".runs"))


def test_a_broken_run_shows_its_reason_as_text(page: Page, studio: OpenStudio) -> None:
    page.open(f"runs?ids={studio.run_ids()['broken']}")
    page.until(lambda: "config.json" in page.text(".details"))


def test_a_report_opens_from_a_run(page: Page, studio: OpenStudio) -> None:
    page.open(f"runs?ids={studio.run_ids()['sweep/first']}")
    page.until(lambda: page.all(".details a"))
    assert page.find(".details a").text == "Report"
    page.driver.get(page.find(".details a").get_attribute("href"))
    assert page.driver.title == "A report"


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


def test_keys_open_views_and_switch_the_colours(page: Page) -> None:
    page.open("runs")
    page.until(lambda: page.all(".runs li"))
    page.press("2")
    page.find(".view-tokenizer h1")
    page.find("textarea").send_keys("3")  # in a text, a digit is a digit
    assert page.all(".view-tokenizer h1")
    page.find("#nav a").send_keys(Keys.ENTER)
    page.find(".view-runs h1")
    page.press("t", "t")
    assert page.script("return document.documentElement.dataset.theme") == "dark"
    page.driver.refresh()
    page.until(lambda: page.script("return document.documentElement.dataset.theme") == "dark")
    page.press(Keys.TAB)
    assert page.script("return document.activeElement.className") == "skip"


def test_the_page_asks_for_the_key(driver: Any, folder: Path) -> None:
    with open_studio(folder, api_key=KEY) as studio:
        page = Page(driver, studio.url)
        page.open("runs")
        page.find("dialog input[type=password]").send_keys("wrong", Keys.ENTER)
        page.until(lambda: page.text("dialog .error"))
        page.find("dialog input[type=password]").send_keys(KEY, Keys.ENTER)
        page.until(lambda: len(page.all(".runs li")) == 4)
        driver.get("about:blank")
    # The browser reports the rejected requests.
    assert [message for message in page.messages() if "401" not in message] == []


def test_a_lost_server_is_reported(driver: Any, folder: Path) -> None:
    with open_studio(folder) as studio:
        page = Page(driver, studio.url)
        page.open("runs")
        page.until(lambda: page.all(".runs li"))
    page.until(lambda: "lost" in page.text(".view > header"))
    driver.get("about:blank")
    page.messages()
