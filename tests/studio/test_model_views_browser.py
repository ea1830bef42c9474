"""The views Write and Inside in Chromium, used with mouse and keyboard on a wide and a narrow page.

Needs selenium, Chromium and its driver (Debian: chromium, chromium-driver); skipped without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser_pages import Keys, Page, open_browser
from bytewright.model import TransformerLM
from bytewright.studio import write
from bytewright.train.run import Run
from bytewright.train.run_model import write_imported_model
from story_runs import train_on_stories
from studios import USER, OpenStudio, open_studio, write_chat_model

NUM_TOKENS = 20


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStudio]:
    folder: Path = tmp_path_factory.mktemp("browser")
    run = Run(train_on_stories(folder, context_length=128))
    model, vocabulary = run.load_model(), run.tokenizer.vocabulary
    many_heads = TransformerLM(replace(model.config, num_heads=8))
    write_imported_model(folder / "many_heads", many_heads, vocabulary)
    write_imported_model(folder / "imported", model, vocabulary)
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
    assert page.messages() == []


def run_id(studio: OpenStudio, name: str) -> str:
    runs = studio.get("/api/write/runs").json()["runs"]
    return next(str(run["id"]) for run in runs if run["name"] == name)


def open_write(page: Page, studio: OpenStudio, *, run: str = "run", **options: Any) -> None:
    page.open(f"write?run={run_id(studio, run)}&prompt=Once+upon&length={NUM_TOKENS}&seed=3", **options)


def num_pieces(page: Page) -> int:
    return len(page.all(".piece:not(.next-piece)"))


def wait_for_text(page: Page) -> int:
    """Wait until a text is complete; return the number of its tokens."""
    page.until(lambda: page.find(".write-form button:nth-of-type(2)").get_attribute("disabled"))
    page.until(lambda: page.text(".write-status") not in ("", "Reading the text…", "Writing…"))
    return num_pieces(page)


def figures(page: Page) -> dict[str, str]:
    texts = [entry.text.split("\n") for entry in page.all(".write-figures > div")]
    return {lines[0]: lines[1] for lines in texts}


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
@pytest.mark.parametrize("view", ["write", "inside"])
def test_a_view_fits_the_page(page: Page, studio: OpenStudio, view: str, width: int, scheme: str) -> None:
    run = run_id(studio, "run" if view == "write" else "many_heads")
    page.open(f"{view}?run={run}", width=width, scheme=scheme)
    page.find(f".view-{view} h1")
    page.until(lambda: page.all(".write-buttons" if view == "write" else ".lens td"))
    assert page.layout_shift() < 0.1
    if view == "write":
        page.click(".write-form .primary")
        wait_for_text(page)
    assert page.script("return document.documentElement.scrollWidth") <= width
    assert page.low_contrast() == []
    assert page.overflowing() == []


@pytest.mark.parametrize("width", [390, 1000, 1400])
def test_true_probabilities_that_arrive_move_nothing(page: Page, studio: OpenStudio, width: int) -> None:
    open_write(page, studio, width=width)
    page.find(".distribution")
    places = """
        scrollTo(0, 0);  // an element of the page is sticky
        const parts = document.querySelectorAll(".write-text > *, .write-text h2, .write-result > .card");
        return [...parts].map((each) => each.getBoundingClientRect().top);
    """
    before = page.script(places)
    page.click(".write-form .primary")
    wait_for_text(page)
    assert "In the grammar" in figures(page)
    assert page.script(places) == pytest.approx(before, abs=0.5)


def test_a_text_is_written_and_branched(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.click(".write-form .primary")
    count = wait_for_text(page)
    assert "".join(piece.get_attribute("textContent") for piece in page.all(".piece")[:6]).startswith(
        "↵\nOnce"
    )
    assert 3 <= count <= NUM_TOKENS + 10
    found = figures(page)
    assert set(found) == {
        "Tokens",
        "Model, bits",
        "True, bits",
        "Excess, bits",
        "Expected excess",
        "In the grammar",
    }
    assert found["Tokens"] == str(count)
    model, true, excess = (
        float(found[f"{name}, bits"].replace("\N{MINUS SIGN}", "-")) for name in ("Model", "True", "Excess")
    )
    assert model - true == pytest.approx(excess, abs=0.16)  # rounded to 0.1
    assert page.all(".chart .line")

    page.click(".piece", 2)  # the candidates at this token
    assert page.find(".piece[aria-selected=true]").get_attribute("id") == "token-2"
    candidates = page.all(".candidate")
    assert len(candidates) >= 10
    other = next(each for each in candidates if not each.get_attribute("aria-current"))
    wanted = other.find_element("css selector", "code").text
    other.click()
    page.until(lambda: len(page.all(".branch")) == 2)
    wait_for_text(page)
    assert page.all(".piece")[2].get_attribute("title").startswith(f"{wanted}:")

    page.click(".branch", 0)  # back to the first text
    page.until(lambda: num_pieces(page) == count)
    assert [each.get_attribute("aria-pressed") for each in page.all(".branch")] == ["true", "false"]


def test_the_same_seed_writes_the_same_text_and_sliders_change_it(page: Page, studio: OpenStudio) -> None:
    texts = []
    for move in (False, False, True):
        open_write(page, studio)
        slider = page.find(".slider input")
        if move:
            slider.send_keys(*[Keys.LEFT] * 20)  # temperature 0
            page.until(lambda: "temperature=0" in page.script("return location.hash"))
            assert "likeliest" in page.text(".slider output")
        page.click(".write-form .primary")
        wait_for_text(page)
        texts.append("".join(piece.get_attribute("textContent") for piece in page.all(".piece")))
    assert texts[0] == texts[1] != texts[2]


def test_write_can_be_used_with_the_keyboard(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.find(".write-form textarea").send_keys(" a time")
    page.script("document.querySelector('.write-form .primary').focus()")
    page.press(Keys.ENTER)
    wait_for_text(page)
    page.script("document.querySelector('.story').focus()")
    page.press(Keys.HOME, Keys.RIGHT, Keys.RIGHT, Keys.RIGHT)  # the fourth token
    assert page.find(".piece[aria-selected=true]").get_attribute("id") == "token-3"
    page.press(Keys.ENTER, Keys.DOWN, Keys.DOWN)
    assert page.script("return document.activeElement.classList.contains('candidate')")
    page.press(Keys.ENTER)
    page.until(lambda: len(page.all(".branch")) == 2)
    wait_for_text(page)
    assert page.script("return document.activeElement.className") == "story"
    page.script("document.querySelector('.branch').focus()")
    page.press(Keys.ENTER)
    page.until(lambda: page.find(".branch").get_attribute("aria-pressed") == "true")
    assert page.script("return document.activeElement === document.querySelector('.branch')")


@pytest.mark.parametrize("width", [390, 1400])
def test_tab_moves_through_write_from_top_to_bottom(page: Page, studio: OpenStudio, width: int) -> None:
    open_write(page, studio, width=width)
    page.click(".write-buttons button", 3)  # score only
    page.until(lambda: page.all(".next-piece"))
    cards = page.script(
        """
        scrollTo(0, 0);
        document.querySelector(".write-form select").focus();
        return [...document.querySelectorAll(".write-grid .card")].map((card) => {
          const box = card.getBoundingClientRect();
          return [Math.round(box.top), Math.round(box.left)];
        });
        """
    )
    visited: list[int] = []
    find = "return [...document.querySelectorAll('.card')].indexOf(document.activeElement.closest('.card'))"
    while (card := page.script(find)) >= 0:
        if visited[-1:] != [card]:
            visited.append(card)
        page.press(Keys.TAB)
    assert len(visited) == len(cards) == 5
    assert visited == sorted(visited, key=lambda index: cards[index])


def test_a_candidate_in_focus_stays_while_a_text_is_written(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.click(".write-form .primary")
    page.until(lambda: num_pieces(page) > 3)
    page.script("document.querySelector('.candidate').focus()")
    wait_for_text(page)
    assert page.script("return document.activeElement.classList.contains('candidate')")


def test_a_text_can_be_scored_continued_and_stopped(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.click(".write-buttons button", 3)  # score only
    page.until(lambda: page.all(".next-piece"))
    before = num_pieces(page)
    assert page.text(".distribution h2").startswith(f"Token {before + 1}")
    page.click(".write-buttons button", 2)  # continue
    page.until(lambda: num_pieces(page) > before)
    page.script("document.querySelectorAll('.write-buttons button')[1].click()")  # stop
    page.until(lambda: page.find(".write-buttons button:nth-of-type(2)").get_attribute("disabled"))


def test_a_text_that_the_server_ends_is_not_complete(driver: Any, studio: OpenStudio) -> None:
    with open_studio(studio.server.studio.folder.path) as ending:
        page = Page(driver, ending.url)
        open_write(page, ending)
        page.click(".write-buttons button", 3)  # score only
        page.until(lambda: page.all(".next-piece"))
        ending.server.studio.end_streams()
        page.click(".write-buttons button", 2)  # continue
        page.until(lambda: "server ended" in page.text(".write-status"))
        assert page.find(".write-buttons button:nth-of-type(3)").is_enabled()
        driver.get("about:blank")
        page.messages()


def test_a_branch_with_a_special_token_is_complete(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = write_chat_model(tmp_path / "chat")
    monkeypatch.setattr(write, "NUM_CANDIDATES", tokenizer.vocab_size)
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        open_write(page, studio, run="chat")
        page.click(".write-buttons button", 3)  # score only
        page.until(lambda: page.all(".next-piece"))
        page.script(
            f"""
            const codes = [...document.querySelectorAll(".candidate code")];
            codes.find((code) => code.textContent.includes("{USER}")).click();
            """
        )
        page.until(lambda: len(page.all(".branch")) == 2)
        assert "complete" in page.text(".write-status")
        assert not page.find(".write-buttons button:nth-of-type(3)").is_enabled()  # continue
        assert page.text(".piece:last-child") == page.text(".candidate[aria-current] code")
        driver.get("about:blank")
    assert page.messages() == []


def test_a_model_of_another_text_has_no_true_probabilities_unless_requested(
    page: Page, studio: OpenStudio
) -> None:
    open_write(page, studio, run="imported")
    page.click(".write-form .primary")
    wait_for_text(page)
    assert set(figures(page)) == {"Tokens", "Model, bits"}
    assert not page.all(".bar.truth")
    assert "storybook only" in page.text(".write-text")


def test_colours_show_the_excess(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.click(".write-form .primary")
    wait_for_text(page)
    heats = [piece.get_attribute("style") for piece in page.all(".piece")]
    page.click(".choice label", 2)
    page.until(lambda: [piece.get_attribute("style") for piece in page.all(".piece")] != heats)


def test_a_wrong_prompt_is_answered_with_a_sentence(page: Page, studio: OpenStudio) -> None:
    open_write(page, studio)
    page.find(".write-form textarea")
    page.script("document.querySelector('.write-form textarea').value = 'word '.repeat(500)")
    page.click(".write-form .primary")
    page.until(lambda: page.all(".write-status.error"))
    assert "context" in page.text(".write-status")
    assert len(page.messages()) == 1  # Chromium itself reports the status 400


def test_inside_selects_heads_tokens_and_layers(page: Page, studio: OpenStudio) -> None:
    page.open(f"inside?run={run_id(studio, 'run')}")
    page.until(lambda: len(page.all(".head")) == 4)
    assert page.script("return document.querySelector('.head canvas').width") > 10
    painted = "return document.querySelector('.map canvas').getContext('2d').getImageData(0, 0, 1, 1).data[3]"
    assert page.script(painted) == 255  # the first token attends to itself only
    page.click(".head", 3)
    page.until(lambda: page.all(".head")[3].get_attribute("aria-pressed") == "true")
    assert "head=1" in page.script("return location.hash")
    page.click(".piece", 4)
    assert "token 5" in page.text(".inside-note")
    page.click(".lens td[data-index='6'][data-column='1']")
    note = page.all(".inside-note")[-1].text
    assert "token 7" in note
    assert "layer 0" in note
    page.press(Keys.DOWN, Keys.RIGHT)
    note = page.all(".inside-note")[-1].text
    assert "token 8" in note
    assert "layer 1" in note
    assert len(page.all(".chart .line")) == 3  # embeddings and two layers


@pytest.mark.parametrize("selector", [".map canvas", ".lens td"])
def test_a_token_selected_in_a_part_of_inside_does_not_scroll_the_page(
    page: Page, studio: OpenStudio, selector: str
) -> None:
    page.open(f"inside?run={run_id(studio, 'run')}", width=390)
    page.until(lambda: page.all(".lens td"))
    place = f"const place = document.querySelector('{selector}').getBoundingClientRect();"
    page.script(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    before = page.script(f"{place} return place.top")
    page.script(
        f"""
        {place}
        const pointer = {{ bubbles: true, clientX: place.left + 2, clientY: place.top + 2 }};
        document.querySelector("{selector}").dispatchEvent(new MouseEvent("click", pointer));
        """
    )
    assert page.find(".inside-story [aria-selected=true]").get_attribute("id") == "inside-0"
    # The sentence above can have another number of lines.
    assert page.script(f"{place} return place.top") == pytest.approx(before, abs=80)


def test_a_cell_of_the_lens_in_focus_is_visible(page: Page, studio: OpenStudio) -> None:
    page.open(f"inside?run={run_id(studio, 'run')}", width=390)
    page.until(lambda: page.all(".lens td"))
    page.script("document.querySelector('.map').focus()")
    for keys in ([Keys.TAB], [Keys.LEFT] * 2, [Keys.UP] * 15):
        page.press(*keys)
        row, head, cell, area = page.script(
            """
            const cell = document.activeElement;
            const [table, area] = [cell.closest("table"), cell.closest(".scroll")];
            const all = [cell.parentElement.firstChild, table.tHead, cell, area];
            return all.map((each) => each.getBoundingClientRect());
            """
        )
        assert row["right"] <= cell["left"] <= cell["right"] <= area["right"]
        assert head["bottom"] <= cell["top"] <= cell["bottom"] <= area["bottom"]


def test_inside_reads_another_text_and_run(page: Page, studio: OpenStudio) -> None:
    page.open(f"inside?run={run_id(studio, 'run')}")
    page.until(lambda: page.all(".lens td"))
    area = page.find(".inside-form textarea")
    area.clear()
    area.send_keys("<b>Two</b> words")
    page.click(".inside-form .primary")
    page.until(lambda: "<b>" in page.text(".story"))
    assert not page.all(".story b")
    select = page.find(".inside-form select")
    select.send_keys("imp")
    page.until(lambda: run_id(studio, "imported") in page.script("return location.hash"))
    page.until(lambda: "words" in page.text(".story"))


def test_an_error_of_inside_hides_the_results_of_the_text_before(driver: Any, studio: OpenStudio) -> None:
    with open_studio(studio.server.studio.folder.path) as ending:
        page = Page(driver, ending.url)
        page.open(f"inside?run={run_id(ending, 'run')}")
        page.until(lambda: page.all(".lens td"))
    assert page.find(".map canvas").is_displayed()
    page.click(".inside-form .primary")
    page.until(lambda: page.all(".inside-status.error"))
    assert not page.find(".map canvas").is_displayed()
    page.press("t")
    page.until(lambda: page.script("return document.documentElement.dataset.theme") == "light")
    page.script("localStorage.clear()")
    driver.get("about:blank")
    assert all("ERR_CONNECTION_REFUSED" in message for message in page.messages())


def test_views_are_reached_by_keys_and_a_stream_ends_when_its_view_is_left(
    page: Page, studio: OpenStudio
) -> None:
    open_write(page, studio)
    page.click(".write-form .primary")
    page.script("document.activeElement.blur()")
    page.press("4")
    page.find(".view-inside h1")
    page.until(lambda: studio.server.studio.num_streams == 0)
