"""A real browser on a live server, with every complaint of the browser kept."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings

from tests import factories
from tests.web import world

# 320 is what 400 % zoom leaves of a window 1280 wide
DESKTOP, PHONE, NARROW = (1280, 900), (390, 844), (320, 640)
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
WATCH = """window.__violations = [];
document.addEventListener('securitypolicyviolation',
  e => window.__violations.push(e.violatedDirective + ' ' + e.blockedURI));"""
RULES = """axe.run({
  runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
  rules: {'target-size': {enabled: true}}, resultTypes: ['violations'],
}).then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).join(', ')))"""


def axe_script() -> str:
    """axe-core as the PyPI package carries it, for the debugger to evaluate: the page's CSP blocks it."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def _static_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The live server lives as long as the session; whitenoise warns where its folder is missing."""
    with override_settings(STATIC_ROOT=tmp_path_factory.mktemp("static")):
        yield


@pytest.fixture(autouse=True)
def _nothing_is_sent(sent: list[Any]) -> None:
    """No broker is needed."""


@pytest.fixture(scope="module", autouse=True)
def _database_beside_a_loop() -> Iterator[None]:
    """Playwright's synchronous interface keeps a loop in this thread, which Django takes for async code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@pytest.fixture(scope="module")
def chromium(_database_beside_a_loop: None) -> Iterator[Any]:
    """A browser for a module: while it is open no other test could start a loop of its own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if "chromium" in os.environ.get("ASSAY_REQUIRE", ""):
            raise
        pytest.skip("playwright is not installed (pip install -e '.[test]')")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM)
        yield browser
        browser.close()


class Tab:
    """A page of the browser. `complaints` collects console errors, failed scripts and CSP violations."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("console", self._console)

    def _console(self, message: Any) -> None:
        # the answer's own status is no fault of the page: a refused form is a 403, 412 or 422
        if message.type == "error" and "the server responded with a status of 4" not in message.text:
            self.complaints.append(f"{self.page.url}: {message.text}")

    def go(self, path: str) -> Any:
        return self.page.goto(self.base + path)

    def check(self) -> None:
        """Nothing was blocked by the CSP and nothing went wrong in the console."""
        assert self.page.evaluate("window.__violations") == []
        assert self.complaints == []

    def axe(self) -> list[str]:
        self.page.evaluate(axe_script())
        found: list[str] = self.page.evaluate(RULES)
        return found


def _until_the_server_is_idle(seconds: float = 30) -> None:
    """Waits for every request that a closed tab left behind: it must not meet a database that is being emptied."""
    end = time.monotonic() + seconds
    while busy := [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]:
        assert time.monotonic() < end, f"the live server still answers after {seconds} s: {busy}"
        busy[0].join(0.1)


@pytest.fixture
def scene(transactional_db: None) -> world.World:
    return world.build()


@pytest.fixture
def road(transactional_db: None) -> world.World:
    """The scene without its widest track, which takes longest to make."""
    return world.build(full=False)


@pytest.fixture
def tab(chromium: Any, live_server: Any) -> Iterator[Callable[..., Tab]]:
    """Opens a tab, signed in as `person` without the form, in a colour scheme and a window size."""
    contexts = []

    def open_tab(
        person: Any = None, *, scheme: str = "light", size: tuple[int, int] = DESKTOP, script: bool = True
    ) -> Tab:
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.add_init_script(WATCH)
        cookies = [{"name": "theme", "value": scheme, "url": live_server.url}]
        if person is not None:
            client = Client()
            client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
            cookies.append(
                {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}
            )
        context.add_cookies(cookies)
        return Tab(context.new_page(), live_server.url)

    yield open_tab
    for context in contexts:
        context.close()
    _until_the_server_is_idle()


PASSWORD = factories.PASSWORD
