"""Every field of every form x text that no database takes, or far too much of it: refused, and never an error of ours.

SQLite takes a NUL where PostgreSQL fails, so that only a run on PostgreSQL proves the first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse
from django.utils import timezone

from promotion.models import ReviewVisit
from rollouts.models import Dataset
from tests import factories
from tests.reviews.conftest import CHECKLIST, FLOOR, policy
from tests.web import test_permission_table as table
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db

NUL, LONG = "Read as \x00 nothing.", "x" * 300_000
# stand for digests of the scene
EVIDENCE, SUITE, DATASET = "evidence", "suite", "dataset"
# what a POST takes as text, by its name; each field in turn is written into, with the others as they are here
FIELDS: dict[str, dict[str, str]] = {
    "theme": {},
    "track-readers": {"readers": "approver"},
    "opened": {"panel": "family:x"},
    "checklist": {"item": "data", "digest": EVIDENCE, "note": "Read."},
    "seen": {"digest": EVIDENCE},
    "risk-summary": {"text": "It may call twice.", "digest": EVIDENCE},
    "thread-start": {"anchor": "page", "text": "Why?"},
    "thread-reply": {"text": "Why?"},
    "thread-resolve": {},
    "thread-reopen": {},
    "sign": {"evidence_digest": EVIDENCE, "decision": "approve", "meaning": "reviewed", "comment": "Read."}
    | {"unopened_reason": "Read before.", "method": "password", "password": factories.PASSWORD},
    "sign-passkey-confirm": {"credential": "{}"},
    "sso-login": {},
    "sso-confirm-start": {},
    "judge": {},
    "evaluate": {"backend": "1"},
    "retry-build": {},
    "retry-publish": {},
    "withdraw-now": {"reason": "Another is better."},
    "submit-files": {"name": "r9", "base": "1", "outtype": "f16", "train": DATASET, "eval": DATASET},
    "attach-datasets": {"train": DATASET, "eval": DATASET},
    "preflight-check": {"train": DATASET, "eval": DATASET, "policy": "1"},
    "register-dataset": {"name": "r9", "source": "A supplier."},
    "policy-change": {"suite-0": SUITE, "gate-0": "masked_rate", "gate-0-suite": SUITE, "note": "A note."}
    | {"approver-0-group": "approver", "item-0-text": "Read it.", "item-0-key": "read"},
    "policy-lock": {"digest": "0"},
    "waiver-request": {"gate": "masked_rate", "reason": "The provider was away.", "days": "3"},
    "waiver-grant": {},
    "waiver-end": {"reason": "It is measured now."},
    "dispute-raise": {"evidence_digest": EVIDENCE, "expected": "{}", "reason": "The request names no file."},
    "dispute-accept": {"resolution": "It names none."},
    "dispute-decline": {"resolution": "It names one."},
    "dispute-withdraw": {},
    "what-if-try": {"document": "{}"},
    "withdraw-signature-now": {"reason": "I read it wrongly."},
    "break-glass-now": {"evidence_digest": EVIDENCE, "reason": "The old one is broken, badly."}
    | {"method": "password", "password": factories.PASSWORD},
    "break-glass-passkey-confirm": {"credential": "{}"},
    "glass-review": {"verdict": "upheld", "comment": "I looked."},
    "cancel": {},
    "again": {},
    "rescore": {},
    "start-run": {"suite": SUITE, "base": "base", "model": "m", "label": "l", "backend": "local"}
    | {"samples": "1", "judge_backend": "local", "judge_model": "m"},
}
# fields that say where to go or what to do: another value is not refused, it only does nothing
LENIENT = {
    "theme": {"theme": "light", "next": "/"},
    "opened": {"next": "/"},
    "checklist": {"do": "untick", "item": "data", "digest": EVIDENCE},
    "seen": {"shown_at": "2026-01-01T00:00:00+00:00", "digest": EVIDENCE},
    "sso-login": {"next": "/"},
    "sso-confirm-start": {"next": "/"},
    "policy-change": {
        "do": "add-suite",
        "add-suite-which": SUITE,
        "add-gate-which": "masked_rate",
        "json": "{}",
    }
    | {"replaces": "", "shown": ""},
}
WHO = ("engineer", "approver", "administrator")


@pytest.fixture
def known(house: factories.House, tmp_path: Path) -> dict[str, dict[str, Any]]:
    policy(house, FLOOR, checklist=CHECKLIST)
    return table._known(house, tmp_path)


@pytest.mark.parametrize("text", [NUL, LONG], ids=["nul", "long"])
def test_a_field_with_text_that_no_database_takes_is_refused(
    house: factories.House, known: dict[str, dict[str, Any]], text: str
) -> None:
    wrong = [
        (*about, status) for *about, status in _walked(house, known, FIELDS, text) if not 400 <= status < 500
    ]

    assert not wrong, wrong


@pytest.mark.parametrize("text", [NUL, LONG], ids=["nul", "long"])
def test_no_word_of_a_form_makes_an_error_of_ours(
    house: factories.House, known: dict[str, dict[str, Any]], text: str
) -> None:
    wrong = [about for about in _walked(house, known, LENIENT, text) if about[2] >= 500]

    assert not wrong, wrong


def _walked(
    house: factories.House, known: dict[str, dict[str, Any]], forms: dict[str, dict[str, str]], text: str
) -> list[tuple[str, str, int]]:
    """(form, field, status) of each field of each form, by each of `WHO`."""
    clients = [signed_in(getattr(house, role)) for role in WHO]
    digests = {EVIDENCE: known["candidates"]["digest"], SUITE: house.suite.digest}
    digests |= {DATASET: Dataset.objects.get().digest}
    found = []
    for pattern in _posts():
        name, address = str(pattern.name), table._address(pattern, known)
        typed = {field: digests.get(value, value) for field, value in forms.get(name, {}).items()}
        for field in typed:
            for client in clients:
                found.append((name, field, _posted(client, address, {**typed, field: text}).status_code))
    return found


def _posts() -> list[URLPattern]:
    found = [pattern for pattern in table._patterns() if table._posts(pattern)]
    assert {pattern.name for pattern in found} == FIELDS.keys(), "say in FIELDS what a new form takes"
    return found


def _posted(client: Client, address: str, data: dict[str, str]) -> Any:
    client.raise_request_exception = False
    with transaction.atomic():  # nothing that a request does is left for the next one
        answer = client.post(address, data)
        transaction.set_rollback(True)
    return answer


@pytest.mark.parametrize(
    ("name", "role", "field"),
    [
        ("thread-start", "approver", "text"),
        ("thread-reply", "engineer", "text"),
        ("risk-summary", "engineer", "text"),
        ("checklist", "approver", "note"),
    ],
)
def test_what_was_typed_beside_a_nul_is_still_there(
    house: factories.House, known: dict[str, dict[str, Any]], name: str, role: str, field: str
) -> None:
    typed = {
        key: known["candidates"]["digest"] if key == "digest" else value
        for key, value in FIELDS[name].items()
    }
    pattern = next(pattern for pattern in _posts() if pattern.name == name)
    answer = _posted(signed_in(getattr(house, role)), table._address(pattern, known), {**typed, field: NUL})

    assert answer.status_code == 422
    assert "holds a NUL character." in html(answer)
    assert re.search(f'<textarea name="{field}"[^>]*>\\s*Read as ', html(answer))


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00", "now", ""]
)
def test_a_moment_that_has_no_place_in_the_calendar_is_now(
    house: factories.House, known: dict[str, dict[str, Any]], moment: str
) -> None:
    digest = known["candidates"]["digest"]
    before = timezone.now()
    address = reverse("promotion:seen", args=[known["candidates"]["pk"]])

    assert signed_in(house.approver).post(address, {"digest": digest, "shown_at": moment}).status_code == 302
    assert ReviewVisit.objects.get().seen_at >= before
