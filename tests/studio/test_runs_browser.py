"""The view Runs in Chromium, used with mouse and keyboard, wide and narrow.

Needs selenium, Chromium and its driver (Debian: chromium, chromium-driver); skipped without them.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser_pages import CSS, Keys, Page, open_browser, open_clean_page
from bytewright.model import ModelConfig, TransformerLM
from bytewright.storage.json_reader import dump_json, read_json, with_checksum, without_checksum
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.run_model import write_imported_model
from studios import (
    OpenStudio,
    append_records,
    make_record,
    open_studio,
    write_floor,
    write_run,
    write_runs_and_tokenizers,
    write_tokenizer,
)

NONE = "\u2013"
"""What the comparison of runs shows for a setting that a run does not have."""


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


@pytest.mark.parametrize("width", [390, 1400])
def test_the_first_evaluation_of_a_run_moves_nothing(driver: Any, tmp_path: Path, width: int) -> None:
    """The distance to the floor is then known, and the title of the chart becomes longer."""
    path = write_run(tmp_path / "run", end=10)
    write_floor(tmp_path, 0.4)
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open("runs", width=width)
        page.until(lambda: page.text(".chart figcaption").startswith("Training loss"))
        assert not page.find(".controls .check input").is_enabled()
        assert page.text(".controls .check") == "floor unknown"
        append_records(path, range(20, 31, 10))
        page.until(lambda: "above the entropy floor" in page.text(".chart figcaption"))
        assert page.text(".controls .check") == "distance to the floor"
        assert page.layout_shift() < 0.002
        driver.get("about:blank")
    assert page.messages() == []


def test_a_page_in_the_background_follows_no_runs(page: Page, studio: OpenStudio) -> None:
    page.open("runs")
    page.until(lambda: studio.server.studio.num_streams == 1)
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.until(lambda: studio.server.studio.num_streams == 0)
    page.driver.close()
    page.driver.switch_to.window(first)
    page.until(lambda: studio.server.studio.num_streams == 1)
    page.until(lambda: page.all(".runs li.selected"))


def test_runs_that_are_opened_in_the_background_are_not_followed(page: Page, studio: OpenStudio) -> None:
    page.open("calculator")
    page.until(lambda: page.figure("Parameters"))
    page.script(
        """
        const send = window.fetch;
        window.fetch = (path, options) => {
          localStorage.requests = `${localStorage.requests ?? ""} ${path}`;
          return send(path, options);
        };
        document.addEventListener("visibilitychange", () => { location.hash = "#/runs"; }, { once: true });
        """
    )
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open("calculator")
    requests = "return localStorage.requests ?? ''"
    page.until(lambda: "/settings" in page.script(requests))  # the last request of the view
    assert "/events" not in page.script(requests)
    page.driver.close()
    page.driver.switch_to.window(first)
    page.until(lambda: "/events" in page.script(requests))
    page.until(lambda: page.all(".runs li.selected"))


def test_a_broken_run_shows_its_reason_as_text(page: Page, studio: OpenStudio) -> None:
    page.open(f"runs?ids={studio.run_ids()['broken']}")
    page.until(lambda: "config.json" in page.text(".details"))


def test_a_broken_or_diverged_run_hides_nothing_of_the_others(driver: Any, tmp_path: Path) -> None:
    for name, lr in (("first", 1e-3), ("second", 3e-3), ("diverged", 9.0), ("broken", 2.0)):
        write_run(tmp_path / "sweep" / name, lr=lr)
    (tmp_path / "sweep" / "broken" / "config.json").write_text("{")
    path = tmp_path / "sweep" / "diverged" / "metrics.jsonl"
    log = MetricsLog(path, path.stat().st_size)
    log.write(make_record(110, loss=9e5, validation_loss=9e5))
    log.write({"event": "ended", "ending": "diverged", "step": 110})
    log.close()
    write_floor(tmp_path / "sweep", 0.4)
    with open_studio(tmp_path) as studio:
        page, ids = Page(driver, studio.url), studio.run_ids()
        page.open(f"runs?ids={','.join(ids.values())}")
        page.until(lambda: len(page.all(".chart path.line")) == 6)  # no curves of the broken run
        assert "above the entropy floor" in page.text(".chart figcaption")
        for distance in (True, False):
            labels = [each.text for each in page.all(".chart text[text-anchor=end]")]
            ticks = [float(label.replace(" k", "e3")) for label in labels if label[0].isdigit()]
            assert max(ticks) < 10, distance
            page.find(".controls .check input").click()
        settings = page.all(".compare tbody")[1].find_elements(CSS, "tr")
        assert [row.text.split()[0] for row in settings[1:]] == ["optimizer.lr"]
        heads = [each.text for each in page.all(".compare thead span")[1:]]
        assert sorted(heads) == ["broken", "diverged", "first", "second"]  # without their common folder
        assert len(page.all(".runs .reason")) == 1
        assert page.text(".runs .reason").startswith("config.json")
        # A selected run is removed.
        shutil.rmtree(tmp_path / "sweep" / "broken")
        page.until(lambda: len(page.all(".runs li.selected")) == 3)
        page.until(lambda: ids["sweep/broken"] not in page.driver.current_url)
        driver.get("about:blank")
    assert page.messages() == []


def test_an_imported_model_is_compared_in_the_settings_that_it_has(driver: Any, tmp_path: Path) -> None:
    vocabulary = write_tokenizer(tmp_path / "sweep" / "tokenizer", 270).vocabulary
    config = ModelConfig(vocab_size=300, context_length=16, d_model=16, num_layers=2, num_heads=2)
    for name, lr in (("first", 1e-3), ("second", 3e-3)):
        write_run(tmp_path / "sweep" / name, lr=lr)
    write_imported_model(tmp_path / "sweep" / "imported", TransformerLM(config), vocabulary, source=tmp_path)
    recorded = tmp_path / "sweep" / "first" / "config.json"
    fields = without_checksum(read_json(recorded), recorded)
    fields["loss"] = {"name": "my_loss", "options": {"gamma": 2}}
    del fields["norms_every"]  # as if the run had been written by an earlier version
    recorded.write_bytes(dump_json(with_checksum(fields)))
    with open_studio(tmp_path) as studio:
        page, ids = Page(driver, studio.url), studio.run_ids()
        names = [f"sweep/{name}" for name in ("first", "second", "imported")]
        page.open(f"runs?ids={','.join(ids[name] for name in names)}")
        page.until(lambda: len(page.all(".compare tbody")) == 2)
        heads = [each.text for each in page.all(".compare thead span")[1:]]
        rows = page.all(".compare tbody")[1].find_elements(CSS, "tr")[1:]
        found = {}
        for row in rows:
            values = [each.text for each in row.find_elements(CSS, "td")]
            found[row.find_element(CSS, "th").text] = dict(zip(heads, values, strict=True))
        driver.get("about:blank")
    assert page.messages() == []
    assert re.fullmatch("[0-9a-f]{12}…", found["init.sha256"]["imported"])
    assert found["init.source"] == {"first": NONE, "second": NONE, "imported": str(tmp_path)}
    assert {name: values for name, values in found.items() if not name.startswith("init.")} == {
        "model.num_layers": {"first": "1", "second": "1", "imported": "2"},
        "optimizer.lr": {"first": "0.001", "second": "0.003", "imported": NONE},
        "loss.name": {"first": "my_loss", "second": "cross_entropy", "imported": NONE},
        "loss.options.gamma": {"first": "2", "second": NONE, "imported": NONE},
    }


def test_settings_without_a_value_are_compared_by_the_sizes_that_they_mean(
    driver: Any, tmp_path: Path
) -> None:
    for name, d_ff in (("default", None), ("same", 64), ("other", 128)):
        recorded = write_run(tmp_path / name, steps=100 if name == "default" else 90) / "config.json"
        fields = without_checksum(read_json(recorded), recorded)
        fields["model"]["d_ff"] = d_ff
        fields["threads"] = 2 if name == "other" else None
        recorded.write_bytes(dump_json(with_checksum(fields)))
    with open_studio(tmp_path) as studio:
        page, ids = Page(driver, studio.url), studio.run_ids()
        differing = {}
        for name in ("same", "other"):
            page.open(f"runs?ids={ids['default']},{ids[name]}")
            page.until(lambda: len(page.all(".compare tbody")) == 2)
            rows = page.all(".compare tbody")[1].find_elements(CSS, "tr")[1:]
            differing[name] = [row.text for row in rows]
        driver.get("about:blank")
    assert page.messages() == []
    assert differing == {
        "same": ["budget.steps 100 90"],
        "other": ["model.d_ff 64 128", "budget.steps 100 90", f"threads {NONE} 2"],
    }


def test_a_chart_labels_its_ticks_with_all_digits(driver: Any, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", end=0)
    log = MetricsLog(path / "metrics.jsonl", (path / "metrics.jsonl").stat().st_size)
    for step in range(11):
        log.write(make_record(step, tokens=160_000 * step, lr=3e-4 * step))
    log.close()
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open("runs?metric=lr&x=tokens")
        page.until(lambda: page.all(".chart path.line[d^=M]"))
        assert page.text(".controls .check") == "distance to the floor"
        rows = [each.text for each in page.all(".chart text[text-anchor=end]")]
        columns = [each.text for each in page.all(".chart text[text-anchor=middle]")]
        driver.get("about:blank")
    assert rows[:-1] == ["0", "5e\N{MINUS SIGN}4", "0.001", "0.0015", "0.002", "0.0025", "0.003"]
    assert columns == [
        "0",
        *(f"{tokens} k" for tokens in (200, 400, 600, 800)),
        "1 M",
        "1.2 M",
        "1.4 M",
        "1.6 M",
    ]
    assert page.messages() == []


def test_the_position_of_a_cursor_does_not_cover_the_title_of_the_axis(page: Page) -> None:
    page.open("runs")
    page.until(lambda: page.all(".chart path.line[d^=M]"))
    page.script("document.querySelector('.chart svg').focus()")
    found = []
    for key in (Keys.HOME, Keys.END):
        page.press(key)
        title = next(each for each in page.all(".chart text") if each.get_attribute("textContent") == "steps")
        label = page.all(".chart text.halo")[-1]
        found.append(title.is_displayed())
        assert not title.is_displayed() or label.rect["x"] + label.rect["width"] < title.rect["x"]
    assert found == [True, False]


def test_an_address_selects_no_more_runs_than_there_are_colours(driver: Any, tmp_path: Path) -> None:
    for number in range(10):
        write_run(tmp_path / f"run{number}")
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open(f"runs?ids={','.join(studio.run_ids().values())}")
        page.until(lambda: len(page.all(".legend li")) == 8)
        assert len(page.all(".runs li.selected")) == 8
        marks = page.script(
            "return [...document.querySelectorAll('.legend li')].map((it) => it.style.cssText)"
        )
        assert len(set(marks)) == 8
        driver.get("about:blank")
    assert page.messages() == []


def test_an_empty_studio_names_commands_that_write_to_its_folder(driver: Any, tmp_path: Path) -> None:
    folder = tmp_path / "it's empty"
    folder.mkdir()
    found = {}
    with open_studio(folder) as studio:
        page = Page(driver, studio.url)
        for view in ("runs", "tokenizer", "write", "inside"):
            page.open(view, width=390)
            found[view] = shlex.split(page.text(".view code"))
            assert page.overflowing() == []
            assert page.script("return document.documentElement.scrollWidth") <= 390
        driver.get("about:blank")
    assert page.messages() == []
    assert found["runs"] == ["bytewright", "train", "tiny", "--make-data", "--out", f"{folder}/tiny"]
    assert found["tokenizer"][4:6] == ["--out", f"{folder}/stories-10k"]
    assert found["write"] == found["inside"] == ["bytewright", "demo", "--out", f"{folder}/demo"]


def test_runs_with_different_floors_share_none(driver: Any, tmp_path: Path) -> None:
    for name, floor in (("first", 0.4), ("second", 0.5)):
        write_run(tmp_path / name / "run")
        write_floor(tmp_path / name, floor)
    write_run(tmp_path / "third" / "run")
    with open_studio(tmp_path) as studio:
        page, ids = Page(driver, studio.url), studio.run_ids()

        def open_runs(*names: str) -> str:
            page.open(f"runs?ids={','.join(ids[f'{name}/run'] for name in names)}")
            page.until(lambda: len(page.all(".chart path.line[d^=M]")) == 2 * len(names))
            return page.text(".controls .check")

        assert open_runs("first") == "distance to the floor"
        assert open_runs("third") == open_runs("first", "third") == "floor unknown"
        assert open_runs("first", "second") == "different floors"
        assert "above the floor" in page.text(".compare")
        for name in page.all(".runs li.selected"):
            name.click()
        page.until(lambda: not page.all(".runs li.selected"))
        assert page.text(".controls .check") == ""
        driver.get("about:blank")
    assert page.messages() == []


def test_a_run_without_records_does_not_hide_the_floor_of_another(driver: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    write_run(tmp_path / "started", end=0)
    write_floor(tmp_path, 0.4)
    with open_studio(tmp_path) as studio:
        page = Page(driver, studio.url)
        page.open(f"runs?ids={','.join(studio.run_ids().values())}")
        page.until(lambda: page.all(".compare"))
        page.until(lambda: "above the entropy floor" in page.text(".chart figcaption"))
        driver.get("about:blank")
    assert page.messages() == []


def test_settings_that_cannot_be_fetched_are_reported_until_a_retry_succeeds(
    page: Page, studio: OpenStudio
) -> None:
    page.open("calculator")
    page.until(lambda: page.figure("Parameters"))
    page.script(
        f"""
        const send = window.fetch;
        window.isFailing = true;
        window.fetch = (path, options) => {{
          if (!window.isFailing || !path.endsWith("/settings")) return send(path, options);
          return Promise.resolve(new Response("", {{ status: 503 }}));
        }};
        location.hash = "#/runs?ids={studio.run_ids()["sweep/first"]}";
        """
    )
    page.until(lambda: "settings of sweep/first" in page.text(".content .problem"))
    page.click(".content .problem button")
    page.until(lambda: "settings of sweep/first" in page.text(".content .problem"))
    assert not page.all(".details summary")
    page.script("window.isFailing = false")
    page.click(".content .problem button")
    page.until(lambda: page.text(".details summary").startswith("Settings"))
    assert not page.all(".problem")


def test_a_report_opens_from_a_run(page: Page, studio: OpenStudio) -> None:
    page.open(f"runs?ids={studio.run_ids()['sweep/first']}")
    page.until(lambda: page.all(".details a"))
    assert page.find(".details a").text == "Report"
    page.driver.get(page.find(".details a").get_attribute("href"))
    assert page.driver.title == "A report"
