"""Threads, checklist and risk summary over REST: the services' rules, no verb that ticks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from promotion.models import Candidate, RiskSummary, Thread
from promotion.services import threads
from tests import factories
from tests.api.conftest import Api, token_of
from tests.factories import digest_of
from tests.reviews.conftest import CHECKLIST, FLOOR, policy

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(settings: Any, tmp_path: Path) -> Iterator[None]:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    yield
    cache.clear()


def api_of(person: Any) -> Api:
    return Api(token_of(person))


def test_a_thread_is_started_answered_resolved_and_opened_again(
    house: factories.House, reviewed: Candidate
) -> None:
    api, address = api_of(house.approver), f"candidates/{reviewed.pk}/threads"

    made = api.post(address, {"anchor": f"family:{house.suite.digest}:declines", "text": "Enough?"})
    replied = api_of(house.engineer).post(f"{made['url']}/reply", {"text": "Yes."}, status=200)
    resolved = api.post(f"{made['url']}/resolve", status=200)
    reopened = api.post(f"{made['url']}/reopen", status=200)

    assert made["anchor_label"] == "family declines of named"
    assert made["outdated"] is False
    assert [(said["written_by"], said["text"]) for said in replied["comments"]] == [
        ("approver", "Enough?"),
        ("engineer", "Yes."),
    ]
    assert (resolved["resolved_by"], reopened["resolved_by"]) == ("approver", None)
    assert api.get(made["url"]) == reopened
    assert api.get(f"{address}?resolved=false")["results"] == [reopened]
    assert api.get(f"{address}?resolved=true")["results"] == []


def test_a_key_starts_one_thread(house: factories.House, reviewed: Candidate) -> None:
    api, address = api_of(house.approver), f"candidates/{reviewed.pk}/threads"

    first = api.post(address, {"anchor": "page", "text": "Why?"}, Idempotency_Key="k1")
    again = api.post(address, {"anchor": "page", "text": "Why?"}, Idempotency_Key="k1")

    assert first == again
    assert Thread.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"anchor": "gate:99", "text": "x"}, "anchor"),
        ({"anchor": "page", "text": "  "}, "text"),
        ({"anchor": "page", "text": "x" * 4001}, "text"),
        ({"anchor": "page"}, "text"),
        ({"anchor": "page", "text": "x", "by": "me"}, "by"),
    ],
)
def test_what_is_wrong_is_named(
    house: factories.House, reviewed: Candidate, body: dict[str, str], field: str
) -> None:
    found = api_of(house.approver).problem(400, "POST", f"candidates/{reviewed.pk}/threads", body)

    assert found["field"] == field


def test_the_submitter_may_not_resolve_anothers_thread(house: factories.House, reviewed: Candidate) -> None:
    made = api_of(house.approver).post(
        f"candidates/{reviewed.pk}/threads", {"anchor": "page", "text": "Why?"}
    )

    api_of(house.engineer).problem(403, "POST", f"{made['url']}/resolve")
    api_of(house.auditor).problem(403, "POST", f"{made['url']}/reply", {"text": "x"})


def test_a_thread_of_another_candidate_is_404(house: factories.House, reviewed: Candidate) -> None:
    thread = threads.start(candidate_id=reviewed.pk, anchor="page", text="x", by=house.approver)
    other = house.evaluated("other")

    for verb in ("GET", "POST"):
        path = f"candidates/{other.pk}/threads/{thread.pk}{'/resolve' if verb == 'POST' else ''}"
        api_of(house.approver).problem(404, verb, path)


def test_a_page_of_threads_asks_the_same_number_of_queries_whatever_its_length(
    house: factories.House, reviewed: Candidate
) -> None:
    api, address = api_of(house.auditor), f"candidates/{reviewed.pk}/threads?page_size=100"
    case = house.suite.cases.order_by("id").first().pk

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            api.get(address)
        return len(queries)

    for anchor in ("page", f"case:{case}"):
        threads.start(candidate_id=reviewed.pk, anchor=anchor, text="x", by=house.approver)
    few = asked()
    for number in range(40):
        anchor = f"case:{case}" if number % 2 else "gate:0"
        threads.start(candidate_id=reviewed.pk, anchor=anchor, text="x", by=house.approver)

    assert asked() == few


def test_the_checklist_is_read_and_not_ticked(house: factories.House) -> None:
    policy(house, FLOOR, checklist=CHECKLIST)
    candidate = house.evaluated("cand")
    api, address = api_of(house.approver), f"candidates/{candidate.pk}/checklist"

    found = api.get(address)

    assert found["evidence"] == digest_of(candidate)
    assert [(item["key"], item["answer"]) for item in found["items"]] == [
        ("read-flips", False),
        ("no-waivers", True),
        ("data", False),
    ]
    api.problem(405, "POST", address, {})


def test_what_is_not_judged_has_neither_checklist_nor_summary(house: factories.House) -> None:
    candidate = house.candidate("new")

    for what in ("checklist", "risk-summary"):
        api_of(house.approver).problem(404, "GET", f"candidates/{candidate.pk}/{what}")


def test_the_submitter_writes_the_risk_summary(house: factories.House, reviewed: Candidate) -> None:
    api, address = api_of(house.engineer), f"candidates/{reviewed.pk}/risk-summary"
    made = api.get(address)
    assert (made["text"], made["written_by"]) == (None, None)

    body = {"text": "Two cases are lost.", "evidence": made["evidence"]}
    written = api.post(address, body, status=200)

    assert (written["text"], written["written_by"]) == ("Two cases are lost.", "engineer")
    assert written["evidence"] == digest_of(reviewed) != made["evidence"]
    assert api.problem(412, "POST", address, body)["code"] == "stale_evidence"
    api.post(address, body | {"evidence": written["evidence"]}, status=200)
    assert RiskSummary.objects.count() == 1
    api_of(house.approver).problem(403, "POST", address, body)
