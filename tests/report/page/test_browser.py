"""Reports in a real browser: Debian's Chromium without a window and without a network."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.report.page.content import document
from setpoint.report.page.html import html_of, write_page
from setpoint.report.page.run_data import read_run

from .records import EVENTS, setting, train_row, write_run

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--disable-extensions", "--window-size=1280,900",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (Path(CHROMIUM).exists() and Path(DRIVER).exists()),
    reason="Chromium and its driver are not installed (apt-get install chromium chromium-driver)",
)


class Browser:
    def __init__(self, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.get("about:blank")
        self.complaints()  # of the page that the browser itself begins with

    def open(self, path: Path, width: int = 1280, theme: str = "light") -> None:
        """Open a page anew, in a window of this width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.cdp("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.cdp("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.as_uri())
        self.drawn()

    def cdp(self, command: str, arguments: dict[str, Any]) -> None:
        """A command of the developer tools."""
        self.driver.execute_cdp_cmd(command, arguments)

    def drawn(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script of the test returns."""
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """The texts of elements."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)",
            selector,
        )

    def complaints(self) -> list[str]:
        """Errors of the console, and requests that are neither the page nor data in it."""
        import json

        console = [each["message"] for each in self.driver.get_log("browser")]
        messages = [
            json.loads(each["message"])["message"] for each in self.driver.get_log("performance")
        ]
        asked = [
            each["params"]["request"]["url"]
            for each in messages
            if each["method"] == "Network.requestWillBeSent"
        ]
        return console + [url for url in asked if not url.startswith(("file://", "data:,"))]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse at a place of the window."""
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1} | more
        self.cdp("Input.dispatchMouseEvent", event)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.driver.quit()


def report(folder: Path, *runs: Path, title: str = "a report") -> Path:
    """A report of runs."""
    path = folder / "report.html"
    content = document([read_run(run, run.name) for run in runs], title)
    write_page(html_of(content), path)
    return path


def sweep(folder: Path, count: int = 12) -> list[Path]:
    """Runs that differ in a rate, which matters, and a seed, which does not."""
    draw = random.Random(0)
    runs = []
    for place in range(count):
        lr = 10 ** draw.uniform(-4, -1)
        settings = {"optimizer.lr": setting(lr), "seed": setting(place % 3),
                    "optimizer.type": setting("adamw" if place % 2 else "lion")}  # fmt: skip
        last = math.nan if place == 5 else abs(math.log10(lr) + 2)
        rows = [train_row(step, 3 + last / step) for step in range(1, 6)]
        rows.append({"kind": "evaluation", "step": 5, "tokens": 500, "held_out_loss": last})
        runs.append(write_run(folder / f"point-{place}-of-the-sweep", rows, settings))
    return runs


def place(browser: Browser, title: str) -> dict[str, float]:
    """Where the drawing of a chart is, scrolled into view."""
    return browser.run(
        "const chart = document.querySelector(`[data-chart='${arguments[0]}'] > svg`);"
        "chart.scrollIntoView({block: 'center'});"
        "const box = chart.getBoundingClientRect();"
        "return {x: box.x, y: box.y, width: box.width, height: box.height}",
        title,
    )


def axis(browser: Browser) -> list[float]:
    """The numbers below the first chart."""
    return [float(text) for text in browser.texts("[data-chart='Loss'] .x-tick")]


def test_hover_zoom_keys_and_search(browser: Browser, tmp_path: Path) -> None:
    settings = {"optimizer.lr": setting(0.003, "job.toml:7", "file"), "seed": setting(1)}
    rows = [train_row(step, 5.0 - step / 4, own=step, seconds_forward=3, seconds_data=1)
            for step in range(1, 11)]  # fmt: skip
    browser.open(report(tmp_path, write_run(tmp_path / "run", rows, settings)))
    box = place(browser, "Loss")
    left, right = box["x"] + 56, box["x"] + box["width"] - 12
    # Step 4 lies a third of the way from 1 to 10; hovering a little aside finds it.
    browser.mouse("mouseMoved", left + (right - left) / 3 + 5, box["y"] + 60)
    [tip] = [text for text in browser.texts(".tip") if text]
    assert tip == "step 4mean loss4"
    before = axis(browser)
    for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.7), ("mouseReleased", 0.8)):
        x = left + share * (right - left)
        browser.mouse(kind, x, box["y"] + 60, buttons=int(kind != "mouseReleased"))
    browser.drawn()
    zoomed = axis(browser)
    assert min(before) <= 2 and max(before) == 10
    assert min(zoomed) >= 5.5 and max(zoomed) <= 8.2 and len(zoomed) > 1
    assert browser.texts("[data-chart='Learning rate'] .x-tick") == browser.texts(
        "[data-chart='Loss'] .x-tick"
    )
    # With the keyboard: back, then from value to value.
    browser.run("document.querySelector(\"[data-chart='Loss'] > svg\").focus()")
    for key in ("0", "End", "ArrowLeft"):
        for kind in ("keyDown", "keyUp"):
            browser.cdp("Input.dispatchKeyEvent", {"type": kind, "key": key})
        browser.drawn()
    assert axis(browser) == before
    assert browser.texts("[data-chart='Loss'] .live") == ["step 9: mean loss 2.75"]
    # The mean of the first two losses with weights 1/3 and 2/3: a bias of the start is taken out.
    browser.run(
        "const box = document.querySelector('input[type=range]');"
        "box.value = 0.5; box.dispatchEvent(new Event('input'))"
    )
    browser.drawn()
    browser.mouse("mouseMoved", left + (right - left) / 9, box["y"] + 60)
    assert [text for text in browser.texts(".tip") if text] == ["step 2mean loss4.5 ~4.583"]
    assert "of a step" in browser.texts("#time th")
    assert "75.0 %" in browser.texts("#time td")
    for wanted, found in (("OPTIMIZER.L", ["optimizer.lr"]), ("job.toml", ["optimizer.lr"]),
                          ("", ["optimizer.lr", "seed"]), ("nothing", [])):  # fmt: skip
        browser.run(
            "const box = document.querySelector('#configuration input[type=search]');"
            "box.value = arguments[0]; box.dispatchEvent(new Event('input'))",
            wanted,
        )
        assert browser.texts("#configuration td.path") == found
    browser.run("document.getElementById('more-metrics').open = true")
    browser.drawn()
    assert (
        browser.run("return document.querySelectorAll(\"[data-chart='own'] .curve\").length") == 2
    )
    assert browser.complaints() == []


def test_light_and_dark_follow_the_system_and_the_switch(browser: Browser, tmp_path: Path) -> None:
    path = report(tmp_path, write_run(tmp_path / "run"))

    def brightness() -> int:
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        return int(colour.removeprefix("rgb(").split(",")[0])

    browser.open(path, theme="light")
    assert brightness() > 200
    browser.run("document.querySelector('.switch [data-value=dark]').click()")
    assert brightness() < 60
    browser.open(path, theme="dark")
    assert brightness() < 60
    browser.run("document.querySelector('.switch [data-value=light]').click()")
    assert brightness() > 200
    assert browser.texts(".switch [aria-pressed=true]") == ["light"]


def test_a_sweep_on_a_phone_and_on_a_desk(browser: Browser, tmp_path: Path) -> None:
    path = report(tmp_path, *sweep(tmp_path))
    browser.open(path, width=360)
    assert browser.run("return document.documentElement.scrollWidth") == 360
    browser.open(path)
    assert len(browser.texts("#sweep path.curve")) == 12
    assert browser.texts("#sweep tbody th")[0] == "optimizer.lr"
    points = "#sweep table.points tbody tr"
    assert "not finite" in browser.texts(points)[-1]
    # Dragging along an axis fades the runs outside, and takes them out of the curves.
    drawn = "return document.querySelectorAll(\"[data-chart='Loss'] .curve\").length"
    whole = browser.run(drawn)
    faded = (
        "return [...document.querySelectorAll('#sweep path.curve')]"
        ".filter((path) => path.style.opacity < .5).length"
    )
    box = browser.run(
        "const all = document.querySelectorAll('#sweep svg rect');"
        "all[0].scrollIntoView({block: 'center'}); const box = all[0].getBoundingClientRect();"
        "return {x: box.x + box.width / 2, y: box.y, height: box.height}"
    )
    assert browser.run(faded) == 0
    for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.9), ("mouseReleased", 0.98)):
        browser.mouse(kind, box["x"], box["y"] + share * box["height"],
                      buttons=int(kind != "mouseReleased"))  # fmt: skip
    assert 0 < browser.run(faded) < 12
    browser.drawn()
    assert whole == 24 > browser.run(drawn) == 2 * (12 - browser.run(faded))
    browser.mouse("mouseMoved", 5, 5)
    assert browser.complaints() == []


PLANTED = "</script><img src=x onerror=planted()><script>planted()</script>\u2028<!--"


def test_hostile_values_show_as_text(browser: Browser, tmp_path: Path) -> None:
    bad = PLANTED
    rows: list[dict[str, Any]] = [
        train_row(1, 1.0, **{bad: 1.0, f"sequences_{bad}": 3, f"seconds_{bad}": 1}),
        {"kind": bad, "step": 2, bad: "NaN"},
        {"kind": "sample", "step": 1, "prompt": bad, "text": bad, bad: bad},
    ]
    caution = {"path": bad, "message": bad, "code": bad}
    events = [{**EVENTS[0], "cautions": [caution], bad: bad}, {"event": bad, "deep": {bad: [bad]}},
              *EVENTS[1:]]  # fmt: skip
    runs = []
    for name in ("<img src=x onerror=planted()>", "b"):
        entry = setting(f"{name}{bad}", bad, bad)
        entry["layers"] *= 2
        environment = {bad: bad, "command": [bad, name], "code": {"user": {"revision": bad}}}
        settings = {bad: entry | {"role": bad}}
        run = write_run(tmp_path / name, rows, settings, events, environment)
        (run / "labels.json").write_text(f'{{"tags": ["<b>{name}"], "note": "<i>note"}}')
        runs.append(run)
    for chosen in (runs[:1], runs):
        browser.open(report(tmp_path, *chosen, title=bad))
        browser.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
        browser.drawn()
        count = "return document.querySelectorAll(arguments[0]).length"
        assert browser.run(count, "img, b, i, iframe, script:not(:is(#data, #data + script))") == 0
        assert browser.run("return typeof planted") == "undefined"
        for section in ("remarks", "curves", "time", "data", "samples", "events", "configuration",
                        "environment"):  # fmt: skip
            text = browser.run("return document.getElementById(arguments[0]).textContent", section)
            assert "onerror=planted()" in text, section
        assert browser.texts("h1") == [bad] and browser.driver.title.startswith("</script>")
        assert browser.complaints() == []
