"""What every signature says, the page it was given on, and what a program is told of a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from promotion.models import Approval, Candidate
from promotion.services import registry
from promotion.signature_record import signature_record
from promotion.web import template_version as versions
from promotion.web.template_version import template_version
from rollouts.hashing import sha256_file, sha256_json
from tests import factories
from tests.auth.conftest import client_of, page_text, sign_url, words
from tests.factories import House
from tests.web.conftest import html

pytestmark = pytest.mark.django_db


def sign(house: House, candidate: Candidate, **more: Any) -> Any:
    sent = {**words(candidate), "password": factories.PASSWORD}
    return client_of(house.approver).post(sign_url(candidate), sent, **more)


def test_a_password_signs_at_once_with_the_version_of_the_page(house: House, candidate: Candidate) -> None:
    assert sign(house, candidate).status_code == 302

    approval = Approval.objects.get(candidate=candidate)
    assert (approval.method, approval.template_version) == ("password", template_version())


@pytest.mark.parametrize("wanted", ["application/problem+json", "application/json"])
def test_a_program_is_told_what_changed(house: House, candidate: Candidate, wanted: str) -> None:
    sent = {**words(candidate), "password": factories.PASSWORD}
    factories.sign(candidate, house.approver_2, decision="request_changes", meaning="", comment="Look again.")
    factories.gating.judge_now(candidate.pk)

    response = client_of(house.approver).post(sign_url(candidate), sent, headers={"accept": wanted})

    assert (response.status_code, response["Content-Type"]) == (412, "application/problem+json")
    problem = response.json()
    assert (problem["code"], problem["facts"]["shown"]) == ("stale_evidence", sent["evidence_digest"])
    assert problem["facts"]["current"] == factories.digest_of(candidate)
    assert any("revision went from" in sentence for sentence in problem["facts"]["changed"])


@pytest.mark.parametrize("wanted", ["", "*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "image/png"])
def test_a_person_gets_the_page(house: House, candidate: Candidate, wanted: str) -> None:
    sent = {**words(candidate), "evidence_digest": "0" * 64, "password": factories.PASSWORD}

    response = client_of(house.approver).post(sign_url(candidate), sent, headers={"accept": wanted})

    assert response.status_code == 412 and "the evidence changed since" in html(response)


def test_a_program_is_told_other_refusals_too(house: House, candidate: Candidate) -> None:
    sent = {**words(candidate), "password": "wrong"}
    response = client_of(house.approver).post(
        sign_url(candidate), sent, headers={"accept": "application/json"}
    )

    assert (response.status_code, response.json()["code"]) == (403, "wrong_password")


SAID = ("I authorise the release", "Ann Approver", "approver", "confirmed by password", "UTC", "Fit for use.")


def test_every_copy_of_a_signature_says_the_same(house: House, candidate: Candidate) -> None:
    house.approver.first_name, house.approver.last_name = "Ann", "Approver"
    house.approver.save(update_fields=["first_name", "last_name"])
    sign(house, candidate)
    Approval.objects.filter(candidate=candidate).update(
        panels_opened=["a", "b"], panels_unopened=["c"], unopened_reason="Known from before."
    )
    factories.sign(candidate, house.approver_2)
    entry = registry.publish(candidate.pk)
    assert entry is not None

    copies = [
        page_text(client_of(house.auditor), candidate),
        html(client_of(house.auditor).get(reverse("promotion:entry", args=[house.track.name, entry.number]))),
    ]

    digest = Approval.objects.filter(candidate=candidate)[0].evidence_digest
    for page in copies:
        for part in (*SAID, f"{digest[:4]} {digest[4:8]}", "opened 2 of 3 parts", "Known from before."):
            assert part in page, part
    mine = signature_record(Approval.objects.get(candidate=candidate, approver=house.approver))
    assert entry.record["signatures"][0] == mine
    assert mine["authenticated_at"] <= mine["signed_at"]


def test_a_signature_of_before_that_was_recorded_with_less_is_still_shown(
    house: House, candidate: Candidate
) -> None:
    from django.template.loader import render_to_string

    old = {
        "person": "ann",
        "printed_name": "Ann",
        "role": "approver",
        "meaning": "I authorise the release",
        "comment": "",
        "method": "password",
        "signed_at": "2026-01-02T03:04:05+00:00",
        "evidence_digest": "0" * 64,
    }
    shown = render_to_string("promotion/signature.html", {"signature": old})
    assert "confirmed by password" in shown and "opened" not in shown


def test_the_version_is_of_every_template_of_the_page_and_its_style(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "templates" / "promotion"
    folder.mkdir(parents=True)
    (folder / "review.html").write_text('{% include "promotion/part.html" %}')
    (folder / "review_sign.html").write_text("sign")
    (folder / "part.html").write_text("part")
    (folder / "other.html").write_text("other")
    style = tmp_path / "review.css"
    style.write_text("a {}")
    settings.BASE_DIR = tmp_path
    monkeypatch.setattr(versions, "STYLE", style)

    def now() -> str:
        template_version.cache_clear()
        return template_version()

    try:
        first = now()
        named = {
            f"promotion/{name}": sha256_file(folder / name)
            for name in ("review.html", "review_sign.html", "part.html")
        }
        assert first == sha256_json({**named, "review.css": sha256_file(style)})
        (folder / "other.html").write_text("changed")
        assert now() == first
        seen = {first}
        for file in (folder / "part.html", folder / "review_sign.html", style):
            file.write_text("changed")
            seen.add(now())
        assert len(seen) == 4
    finally:
        template_version.cache_clear()


def test_the_real_page_is_read_whole() -> None:
    assert len(template_version()) == 64
