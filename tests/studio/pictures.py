"""Make the pictures of the studio for the handbook.

    bytewright demo
    bytewright train tiny --make-data
    python tests/studio/pictures.py .

The folder contains `demo` and `runs`. The picture of Runs shows all runs on the text of the demo. Like the
tests of the pages, this needs selenium, Chromium and its driver.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser_pages import Page, open_browser, webdriver  # noqa: E402
from studios import open_studio  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
WIDTH = 1400


def main(folder: Path) -> None:
    """Open each view, bring it into a typical state, and write its picture."""
    with open_studio(folder) as studio, open_browser() as driver:
        page = Page(driver, studio.url)
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        runs = {run["name"]: run for run in studio.get("/api/runs").json()["runs"]}
        demo = runs["demo/run"]
        same_text = [run["id"] for run in runs.values() if run.get("floor") == demo["floor"]]
        page.open(f"runs?ids={','.join(sorted(same_text, key=lambda id: id != demo['id']))}")
        page.until(lambda: page.all(".samples"))
        save(page, "runs", 900)

        page.open("tokenizer")
        dragon = page.until(lambda: [each for each in page.all(".token") if each.text.strip() == "dragon"])[0]
        webdriver.ActionChains(driver).move_to_element(dragon).perform()
        page.until(lambda: page.all(".token.same"))
        save(page, "tokenizer", 900)

        page.open(f"write?run={demo['id']}&length=300&seed=1")
        page.click(".write-form .primary")
        wait_for_text(page, 1)
        page.click(".piece", 12)
        page.until(lambda: page.find("#token-12[aria-selected=true]"))
        other = page.until(lambda: page.all(".candidate:not([aria-current])"))[0]
        other.click()
        wait_for_text(page, 2)
        page.click(".piece", 10)
        page.script("scrollTo(0, 0); document.querySelector('.story').scrollTop = 0")
        save(page, "write", 1000)

        page.open(f"inside?run={demo['id']}&layer=1&head=1")
        page.until(lambda: page.all(".lens td"))
        page.click(".inside-story .piece", 13)
        webdriver.ActionChains(driver).move_to_element(page.find(".brand")).perform()
        page.script("scrollTo(0, document.querySelector('.inside-story').parentElement.offsetTop - 70)")
        save(page, "inside", 1000)

        page.open("calculator")
        page.until(lambda: page.figure("Parameters"))
        save(page, "calculator", 960)


def wait_for_text(page: Page, num_branches: int) -> None:
    """Wait until the last branch of Write is complete."""
    page.until(lambda: len(page.all(".branch")) == num_branches)
    page.until(lambda: page.text(".write-status") not in ("", "Reading the text…", "Writing…"))


def save(page: Page, name: str, height: int) -> None:
    """Write the picture of the page at a height."""
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.script("return new Promise((done) => setTimeout(done, 500))")  # charts follow the size
    picture = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    (PICTURES / f"studio-{name}.png").write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
