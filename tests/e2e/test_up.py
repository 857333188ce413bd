"""The whole road against `manage.py up`: REST and browser from outside, real adapters, real llama.cpp."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from promotion.demo import DATA
from tests.conftest import base_gguf
from tests.e2e.conftest import WATCH, Tab

pytestmark = [pytest.mark.chromium, pytest.mark.llama]

PASSWORD = "correct horse battery staple"
PEOPLE = {"ada": "engineer", "grace": "administrator", "bob": "approver", "carol": "approver"}
CASES = 40


class Site:
    """An Assay of its own, with database and broker in a folder, started as a user starts it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.bind = f"127.0.0.1:{free.getsockname()[1]}"
        self.base = f"http://{self.bind}"
        unset = {"DATABASE_URL", "REDIS_URL"}
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in unset},
            "ASSAY_VAR": str(folder),
            "ASSAY_NEW_PASSWORD": PASSWORD,
        }
        self.token = ""

    def command(self, *args: str) -> list[str]:
        return [sys.executable, str(settings.BASE_DIR / "manage.py"), *args]

    def run(self, *args: str) -> None:
        done = subprocess.run(
            self.command(*args), env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def call(self, path: str, data: bytes | None = None, kind: str = "application/json") -> Any:
        headers = {"Content-Type": kind, "Idempotency-Key": str(uuid.uuid4())}
        if self.token:
            headers["Authorization"] = f"Token {self.token}"
        request = urllib.request.Request(f"{self.base}/api/v1/{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def post(self, path: str, **values: Any) -> Any:
        return self.call(path, json.dumps(values).encode())

    def upload(self, path: str, files: dict[str, Path], **values: str) -> Any:
        boundary = uuid.uuid4().hex
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
            for k, v in values.items()
        ]
        for name, file in files.items():
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file.name}"\r\n\r\n'
            parts.append(head.encode() + file.read_bytes() + b"\r\n")
        body = b"".join(parts) + f"--{boundary}--\r\n".encode()
        return self.call(path, body, f"multipart/form-data; boundary={boundary}")

    def wait(self, path: str, until: Callable[[Any], bool], seconds: float = 400) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            found = self.call(path)
            if until(found):
                return found
            assert time.monotonic() < deadline, f"{path} is still {found}"
            time.sleep(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("up"))
    made.run("migrate", "--verbosity", "0")
    for name, role in PEOPLE.items():
        made.run("create_user", name, "--role", role)
    log = (Path(made.environment["ASSAY_VAR"]) / "up.log").open("wb")
    process = subprocess.Popen(
        made.command("up", "--bind", made.bind), env=made.environment, stdout=log, stderr=log
    )
    try:
        _wait_until_healthy(made)
        yield made
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _wait_until_healthy(site: Site) -> None:
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{site.base}/healthz", timeout=20) as answer:
                assert json.loads(answer.read()) == {"status": "ok"}
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError("manage.py up does not answer")


def _signed_in(chromium: Any, site: Site, name: str, path: str) -> Tab:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(WATCH)
    view = Tab(context.new_page(), site.base)
    view.go(path)
    view.page.get_by_label("User name").fill(name)
    view.page.get_by_label("Password").fill(PASSWORD)
    view.page.get_by_role("button", name="Sign in").click()
    return view


def _sign(view: Tab, meaning: str) -> None:
    view.page.get_by_label(meaning).check()
    view.page.locator("#id_comment").fill("Read and found in order.")
    unopened = view.page.get_by_label("Why you left these unopened")
    if unopened.count():
        view.page.locator("#unopened > summary").click()
        unopened.fill("What is lost here is known from the round before.")
    view.page.get_by_label("Password").fill(PASSWORD)
    view.page.locator("button[value=approve]").click()
    view.page.get_by_text("Recorded: you signed").wait_for()


def _cases() -> bytes:
    rows = [json.loads(line) for line in (DATA / "suites" / "generalization.jsonl").read_bytes().splitlines()]
    return b"\n".join(json.dumps(row).encode() for row in [row for row in rows if row["explicit"]][:CASES])


def _set_up(site: Site) -> None:
    """Base model, backend, suite, track and locked policy, over REST."""
    site.token = site.post("auth/token", username="grace", password=PASSWORD)["token"]
    model = base_gguf()
    assert model is not None
    site.upload("bases", {"file": model}, name="smollm2")
    site.post("backends", name="local", kind="llama_cpp", config={})
    digest = site.call("suites?name=named", _cases(), "application/x-ndjson")["digest"]
    site.post("tracks", name="toolcaller", purpose="Chooses the tool that a request names.")
    tool = {"suite": digest, "metric": "tool"}
    document = {
        "format": 1,
        "suites": [{"digest": digest}],
        "samples": 1,
        "sampling": {"temperature": 0, "max_tokens": 80},
        "spend_alpha": False,
        "gates": [
            {"gate": "candidate_artifact_hash"},
            {"gate": "sealed_eval_hash", "suite": digest},
            {"gate": "deployed_artifact_gauntlet", "suite": digest},
            {"gate": "generalization_accuracy_floor", "min": "0.70", **tool},
            {"gate": "arena_max_regression", "max_drop": "0.05", **tool},
            {"gate": "human_approval_record"},
        ],
        "approval": {
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
    }
    policy = site.post("policies", track="toolcaller", document=document)
    site.post(f"policies/{policy['id']}/lock")
    site.token = site.post("auth/token", username="ada", password=PASSWORD)["token"]


def _submit(site: Site, name: str, **values: str) -> int:
    folder = DATA / "adapters" / name
    files = {
        "adapter_config": folder / "adapter_config.json",
        "adapter_model": folder / "adapter_model.safetensors",
    }
    made = site.upload("candidates", files, track="toolcaller", base="smollm2", name=name, **values)
    return int(made["id"])


def test_an_adapter_travels_from_upload_to_download_and_a_bad_one_does_not(site: Site, chromium: Any) -> None:
    _set_up(site)
    r1, r3, r2 = _submit(site, "r1", baseline="true"), _submit(site, "r3"), _submit(site, "r2")

    # the first champion, by two signatures in the browser
    site.wait(f"candidates/{r1}", lambda found: found["state"] == "in_review")
    for name in ("bob", "carol"):
        view = _signed_in(chromium, site, name, f"/candidates/{r1}/")
        _sign(view, "I adopt this model as the ungated baseline")
        view.check()
    site.wait(f"candidates/{r1}", lambda found: found["state"] == "promoted")

    # evaluations are started over REST and watched in the browser
    for candidate in (r3, r2):
        site.wait(f"candidates/{candidate}", lambda found: found["state"] == "built")
        site.post(f"candidates/{candidate}/evaluate", backend="local")
    run = next(found for found in site.call("runs")["results"] if found["label"] == "r3")
    view = _signed_in(chromium, site, "ada", f"/runs/{run['id']}/")
    view.page.get_by_text(f"{CASES} of {CASES} rollouts have ended.").wait_for(timeout=300_000)
    view.check()

    # the submitter cannot sign; the approver can
    assert (
        site.wait(f"candidates/{r3}", lambda found: found["state"] not in {"built", "evaluating"})["state"]
        == "in_review"
    )
    view.go(f"/candidates/{r3}/")
    assert view.page.get_by_text("ada may not sign").is_visible()
    view = _signed_in(chromium, site, "bob", f"/candidates/{r3}/")
    _sign(view, "I authorise the release")
    site.wait(f"candidates/{r3}", lambda found: found["state"] == "promoted")

    # the export is what was evaluated
    entry = next(found for found in site.call("registry")["results"] if found["number"] == 2)
    view.go("/registry/toolcaller/2/")
    with view.page.expect_download() as download:
        view.page.get_by_role("link", name="r3-f16.gguf").click()
    assert hashlib.sha256(Path(download.value.path()).read_bytes()).hexdigest() == entry["gguf_sha256"]
    view.check()

    # r2 learned to refuse whatever is named: it is refused itself, and leaves nothing
    refused = site.wait(f"candidates/{r2}", lambda found: found["state"] not in {"built", "evaluating"})
    assert refused["state"] == "blocked"
    assert len(site.call("registry")["results"]) == 2
    assert [found["name"] for found in site.call("exports")["results"]] == ["r3-f16.gguf", "r1-f16.gguf"]
    site.run("verify_audit")
