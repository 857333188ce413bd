"""Makes the pictures of the review page in docs/images: `python -m tests.e2e.screenshots [folder]`.

A scratch database gets the demo's recorded results under invented names; the verification's figures are made up.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SHOTS = {
    "review-light": ("light", (1360, 900)),
    "review-dark": ("dark", (1360, 900)),
    "review-phone": ("light", (390, 844)),
}
COLOURS = 128
ENGINEER, APPROVER, APPROVER_2, ADMINISTRATOR = "mara.lind", "t.oduya", "j.brandt", "s.ferro"


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="assay-pictures-") as scratch:
        _set_up(Path(scratch))
        candidate, approver = _world()
        with _server() as address:
            _shoot(address, approver, f"/candidates/{candidate.pk}/", folder)


def _set_up(scratch: Path) -> None:
    """A database and folders of their own, before anything reads the settings."""
    os.environ |= {
        "ASSAY_VAR": str(scratch),
        "DATABASE_URL": f"sqlite:///{scratch / 'pictures.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "promotion.settings",
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",  # playwright keeps a loop in this thread
    }
    import django
    from celery.app.task import Task
    from django.core.management import call_command

    django.setup()
    Task.apply_async = lambda *_, **__: None  # no worker: what it would do is done here
    call_command("migrate", verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)


def _world() -> tuple[Any, Any]:
    """A champion of yesterday, and a candidate that was judged two hours ago and waits for a signature."""
    import time_machine

    from promotion import demo
    from rollouts.services import suites
    from tests import factories
    from tests.web import world

    factories.built_candidate = _with_real_adapter(factories.built_candidate)
    now = datetime.now(UTC)
    with time_machine.travel(now - timedelta(days=3)):
        engineer, administrator = (
            factories.person(ENGINEER, "engineer"),
            factories.person(ADMINISTRATOR, "administrator"),
        )
        house = factories.House(
            engineer=engineer,
            approver=factories.person(APPROVER, "approver"),
            approver_2=factories.person(APPROVER_2, "approver"),
            administrator=administrator,
            auditor=factories.person("auditor", "auditor"),
            base=factories.base_model(engineer, name=demo.BASE_NAME),
            backend=factories.local_backend(engineer),
            suite=None,  # type: ignore[arg-type]
            track=None,  # type: ignore[arg-type]
            policy=None,  # type: ignore[arg-type]
        )
        sealed = {
            name: suites.seal(name=name, data=data, by=engineer, source=source)
            for name, data, source in demo._suite_files(False)
        }
        track = world._track(house, "smollm2-toolcaller", sealed)
    with time_machine.travel(now - timedelta(days=1)):
        world._baseline(house, track)
    with time_machine.travel(now - timedelta(hours=2)):
        return world._measured(house, track, "r3"), house.approver


def _with_real_adapter(built: Any) -> Any:
    """The demo's adapters instead of a test's few bytes; the GGUF is not built, its size is that of the weights."""
    from promotion import demo
    from promotion.models import Candidate
    from rollouts import store

    def make(*arguments: Any, name: str, **more: Any) -> Any:
        files = demo.DATA / "adapters" / name
        weights = (files / "adapter_model.safetensors").read_bytes()
        candidate = built(*arguments, name=name, gguf=b"GGUF" + weights, **more)
        candidate.adapter_weights = store.put([weights])
        candidate.adapter_config = store.put([(files / "adapter_config.json").read_bytes()])
        candidate.save(update_fields=["adapter_weights", "adapter_config"])
        return Candidate.objects.get(pk=candidate.pk)

    return make


@contextmanager
def _server() -> Iterator[str]:
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.test.testcases import LiveServerThread

    thread = LiveServerThread("127.0.0.1", StaticFilesHandler)
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    if thread.error:
        raise thread.error
    yield f"http://127.0.0.1:{thread.port}"
    thread.terminate()


def _shoot(address: str, person: Any, path: str, folder: Path) -> None:
    from django.test import Client
    from playwright.sync_api import sync_playwright

    from tests.conftest import _chromium
    from tests.e2e.conftest import CHROMIUM

    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    session = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=CHROMIUM)
        for name, (scheme, (width, height)) in SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height})
            context.add_cookies([session, {"name": "theme", "value": scheme, "url": address}])
            page = context.new_page()
            page.goto(address + path)
            page.wait_for_load_state("networkidle")
            # as tall as the page, so that the rail, which is no taller than the window, is shown whole
            page.set_viewport_size({"width": width, "height": page.evaluate("document.body.scrollHeight")})
            file = folder / f"{name}.png"
            page.screenshot(path=file, full_page=True)
            _shrink(file)
            print(f"{file} {file.stat().st_size / 1000:.0f} kB")
        browser.close()


def _shrink(file: Path) -> None:
    """Few colours: text on flat ground stays sharp at a third of the bytes."""
    from PIL import Image

    with Image.open(file) as image:
        palette = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    palette.save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
