"""Pages of a studio in Chromium. Importing this module skips a test module without browser or selenium."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not BROWSER or not DRIVER:
    pytest.skip(
        "Chromium or its driver is not installed (Debian: chromium, chromium-driver)", allow_module_level=True
    )
REASON = "selenium is not installed: pip install selenium"
webdriver = pytest.importorskip("selenium.webdriver", reason=REASON)
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason=REASON).Keys
ui = pytest.importorskip("selenium.webdriver.support.ui", reason=REASON)
errors = pytest.importorskip("selenium.common.exceptions", reason=REASON)

CSS = "css selector"
HANG_SECONDS = 120
LAYOUT_SHIFT = """
const done = arguments[0];
const watch = new PerformanceObserver((list) => {
  const moves = list.getEntries().filter((entry) => !entry.hadRecentInput);
  done(moves.reduce((sum, entry) => sum + entry.value, 0));
});
watch.observe({ type: "layout-shift", buffered: true });
setTimeout(() => done(0), 500);
"""
LOW_CONTRAST = """
const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function resolve(colour) {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
}
const blend = (front, back) => [0, 1, 2].map((i) => (front[i] * front[3] + back[i] * (255 - front[3])) / 255);
function background(element) {
  const below = element.parentElement ? background(element.parentElement) : [255, 255, 255];
  return blend(resolve(getComputedStyle(element).backgroundColor), below);
}
function luminance(colour) {
  const linear = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = colour.map((x) => linear(x / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const found = [];
for (const element of document.querySelectorAll("body *:not(.hidden, .hidden *, .skip, :disabled)")) {
  const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
  const text = texts.map((node) => node.data.trim()).join("");
  if (!text || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const isDrawn = element.namespaceURI.endsWith("svg");
  const back = background(isDrawn ? element.closest("svg") : element);
  const front = blend(resolve(isDrawn ? style.fill : style.color), back);
  const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
  const isLow = (high + 0.05) / (low + 0.05) < 4.5;
  if (isLow) found.push(`${element.tagName}.${element.getAttribute("class")}: ${text}`);
}
return found;
"""
OVERFLOWING = """
const found = [];
const all = document.querySelectorAll("body *:not(.hidden, .hidden *, option, svg *, textarea)");
for (const element of all) {
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const texts = [...element.childNodes].filter(isText);
  if (!texts.length || !element.checkVisibility()) continue;
  const range = document.createRange();
  range.selectNodeContents(element);
  const block = element.closest("dd, dt, small, th, td, p, label, button, li, h1, h2, h3");
  if (!block || getComputedStyle(block).overflowX !== "visible") continue;
  const [inner, outer] = [range.getBoundingClientRect(), block.getBoundingClientRect()];
  const isOver = inner.right > outer.right + 1 || inner.left < outer.left - 1;
  if (isOver) found.push(`${block.tagName}: ${element.textContent}`);
}
return found;
"""


class Page:
    """The page of a studio at an address, in a browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, address: str = "", *, width: int = 1400, scheme: str = "light") -> None:
        """Open a view at a width, on a system with light or dark colours."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#/{address}")

    def all(self, css: str) -> list[Any]:
        """Return all elements of a selector."""
        return list(self.driver.find_elements(CSS, css))

    def find(self, css: str) -> Any:
        """Return the first element of a selector, as soon as there is one."""
        return self.until(lambda: self.all(css))[0]

    def click(self, css: str, index: int = 0) -> None:
        """Click an element, as soon as there is one, in the middle of the page."""
        element = self.until(lambda: self.all(css)[index:])[0]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the first true value of a condition; elements may be replaced meanwhile."""
        ignored = [errors.StaleElementReferenceException]
        wait = ui.WebDriverWait(self.driver, HANG_SECONDS, 0.05, ignored_exceptions=ignored)
        return wait.until(lambda driver: condition())

    def text(self, css: str) -> str:
        """Return the text of an element as the page shows it."""
        return str(self.find(css).text)

    def figure(self, name: str) -> str:
        """Return the value of a figure of the page, or an empty text if there is none."""
        for entry in self.all("dl.figures > div"):
            lines = entry.text.split("\n")
            if lines and lines[0] == name:
                return str(lines[1])
        return ""

    def press(self, *keys: str) -> None:
        """Press keys, which the focused element gets."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def script(self, source: str) -> Any:
        """Return the value of a script."""
        return self.driver.execute_script(source)

    def layout_shift(self) -> float:
        """Return how much has moved since the page was opened without an action of the user.

        It is the sum of the scores of the Layout Instability API; below 0.1 is regarded as good.
        """
        return float(self.driver.execute_async_script(LAYOUT_SHIFT))

    def low_contrast(self) -> list[str]:
        """Return the visible texts with a contrast below 4.5, the minimum of WCAG AA for normal text."""
        return list(self.script(LOW_CONTRAST))

    def overflowing(self) -> list[str]:
        """Return the visible texts that are wider than their element and may cover others."""
        return list(self.script(OVERFLOWING))

    def messages(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium without a window, and end it with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def open_clean_page(driver: Any, url: str) -> Iterator[Page]:
    """Yield the page; at the end its console must be empty, and its storage is cleared."""
    page = Page(driver, url)
    yield page
    messages = page.messages()
    page.open("calculator")  # a report has no storage
    page.script("localStorage.clear()")
    driver.get("about:blank")
    assert messages == []
    page.messages()
