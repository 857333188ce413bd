"""Rollouts without a score on the review page: counts by kind, and the model calls that failed, ten at a time."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from promotion.models import Candidate
from rollouts.models import Claim, EvalRun, Invocation, ModelCall, Rollout
from rollouts.services import runs as run_services
from tests import factories
from tests.evidence_pages.conftest import payload
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db


def failed_call(
    rollout: Rollout, *, attempt: int = 1, body: bytes = b"upstream is down", text: str = "down"
) -> None:
    now = timezone.now()
    invocation = rollout.invocations.first()
    if invocation is None:
        claim = Claim.objects.create(
            run_id=rollout.run_id, worker="w:1", created_at=now, lease_expires_at=now, ended_at=now
        )
        invocation = Invocation.objects.create(
            rollout=rollout, claim=claim, state="finished", started_at=now, finished_at=now
        )
    ModelCall.objects.create(
        invocation=invocation, attempt=attempt, dialect="openai.chat", state="failed", status=503,
        error_kind="server", error_text=text, request=payload(b'{"messages": []}'), response=payload(body),
        response_headers={"retry-after": "7", "x-<b>": HOSTILE}, created_at=now, latency_ms=31.0,
    )  # fmt: skip


def section(client: Client, candidate: Candidate, **params: object) -> str:
    shown = html(client.get(reverse("promotion:candidate", args=[candidate.pk]), params))
    found = re.search(r'<section[^>]*id="masked">.*?</section>', shown, re.DOTALL)
    return found[0] if found else ""


def masked(candidate: Candidate) -> list[Rollout]:
    return list(Rollout.objects.filter(run__label=candidate.name, state="masked").order_by("-id"))


def test_kinds_are_counted_with_what_they_mean_and_whose_they_are(house: factories.House) -> None:
    candidate = house.evaluated("cand", masked=3, unscored=1)
    shown = section(signed_in(house.approver), candidate)
    text = " ".join(re.sub(r"<[^>]+>", " ", shown).split())
    assert "4 rollouts" in text
    assert re.search(r"server .*? candidate, named masked 3", text)
    assert re.search(r"worker lost .*? candidate, named unscored 1", text)
    run = EvalRun.objects.get(label="cand")
    assert f"/runs/{run.pk}/rollouts/?kind=server&amp;state=masked" in shown


def test_a_failed_call_shows_status_kind_attempts_latency_headers_and_bodies(house: factories.House) -> None:
    candidate = house.evaluated("cand", masked=1)
    [rollout] = masked(candidate)
    failed_call(rollout, body=b"e" * 5000)
    failed_call(rollout, attempt=2, text="still down")
    shown = section(signed_in(house.approver), candidate)
    for text in (
        "attempt 1",
        "attempt 2",
        "503",
        "server: still down",
        "31 ms",
        "retry-after",
        "upstream is down",
    ):
        assert text in shown
    assert "e" * 2000 + "<" in shown
    assert "e" * 2001 not in shown
    assert "The first 2,000 of 5,000 bytes." in shown
    for call in ModelCall.objects.all():
        assert reverse("rollouts:response", args=[call.pk]) in shown
    assert reverse("promotion:case", args=[candidate.pk, rollout.case_id]) in shown


def test_ten_are_shown_at_a_time_and_each_once(house: factories.House) -> None:
    candidate = house.evaluated("cand", masked=23)
    client, seen, cursor = signed_in(house.auditor), [], None
    sizes = []
    while True:
        shown = section(client, candidate, **({"masked": cursor} if cursor else {}))
        found = re.findall(r">rollout (\d+)</a>", shown)
        sizes.append(len(found))
        seen += found
        following = re.findall(r"\?masked=(\d+)#masked", shown)
        if not following:
            break
        [cursor] = following
    assert sizes == [10, 10, 3]
    assert seen == [str(rollout.pk) for rollout in masked(candidate)]
    assert ">First ones</a>" in shown


@pytest.mark.parametrize("given", ["x", "-1", "9" * 40, "<script>", "٣"])
def test_a_place_that_no_page_gave_is_the_first_page(house: factories.House, given: str) -> None:
    candidate = house.evaluated("cand", masked=2)
    assert section(signed_in(house.auditor), candidate, masked=given).count(">rollout ") == 2


def test_without_such_a_rollout_the_section_is_not_there(house: factories.House) -> None:
    assert section(signed_in(house.auditor), house.evaluated("cand", wrong=1)) == ""


def test_kinds_that_are_not_counted_yet_are_said_to_be_counted(house: factories.House) -> None:
    candidate = house.evaluated("cand", masked=2)
    EvalRun.objects.update(overview=None)
    client = signed_in(house.auditor)
    assert "2 of the candidate's run on named: their kinds are being counted." in html_text(
        section(client, candidate)
    )
    run_services.sweep()
    assert "being counted" not in section(client, candidate)


def html_text(shown: str) -> str:
    return re.sub(r"<[^>]+>", "", shown).replace("&#x27;", "'")


def test_the_number_of_queries_does_not_grow_with_failures_and_their_calls(house: factories.House) -> None:
    client = signed_in(house.auditor)

    def queries(candidate: Candidate) -> int:
        section(client, candidate)
        with CaptureQueriesContext(connection) as found:
            section(client, candidate)
        return len(found)

    candidate = house.evaluated("cand", masked=15)
    first, *others = masked(candidate)
    failed_call(first)
    few = queries(candidate)
    for rollout in others:
        for attempt in range(1, 8):
            failed_call(rollout, attempt=attempt, body=f"{rollout.pk} {attempt}".encode())
    assert queries(candidate) == few


def test_hostile_failures_are_text(house: factories.House) -> None:
    candidate = house.evaluated("cand", masked=1)
    [rollout] = masked(candidate)
    Rollout.objects.filter(pk=rollout.pk).update(failure_reason=HOSTILE)
    failed_call(rollout, body=HOSTILE.encode() + b"\xff\x00", text=HOSTILE)
    shown = section(signed_in(house.approver), candidate)
    assert "<script>alert" not in shown
    assert "x-<b>" not in shown
    assert "\u202e" not in shown
    assert "⟦U+202E⟧" in shown
    assert "⟦NUL⟧" in shown
