"""The pages on which the glass is broken and reviewed, and a signature taken back; what others show of it; the API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from promotion.models import Approval, BrokenGlass, Candidate, CandidateState
from promotion.services import registry
from rollouts.models import AuditEvent
from tests import factories
from tests.api.conftest import Api, token_of
from tests.factories import House, sign
from tests.rule.worlds import REASON, break_glass, breakable, breaker, state_of
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> Iterator[None]:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def house() -> House:
    return breakable(champion=True)


@pytest.fixture
def admin(house: House) -> User:
    return breaker()


def review_page(candidate: Candidate, person: User) -> str:
    return html(signed_in(person).get(reverse("promotion:candidate", args=[candidate.pk])))


def post_break(client: Client, candidate: Candidate, **changes: Any) -> Any:
    data = {
        "evidence_digest": factories.digest_of(candidate),
        "reason": REASON,
        "method": "password",
        "password": factories.PASSWORD,
        **changes,
    }
    return client.post(reverse("promotion:break-glass-now", args=[candidate.pk]), data)


# breaking


def test_the_review_page_leads_only_those_there_who_may(house: House, admin: User) -> None:
    candidate = house.evaluated()
    link = reverse("promotion:break-glass", args=[candidate.pk])

    assert link in review_page(candidate, admin)
    for other in (house.approver, house.engineer, house.auditor, house.administrator):
        assert link not in review_page(candidate, other)


def test_the_page_says_what_will_happen_and_what_is_missing(house: House, admin: User) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)

    page = html(signed_in(admin).get(reverse("promotion:break-glass", args=[candidate.pk])))

    assert "Waits for 1 more approver" in page and "72 hours" in page
    assert factories.digest_of(candidate)[:8] in page
    assert page.index('<button type="submit" disabled hidden>') < page.index('class="btn danger"')


@pytest.mark.parametrize("who", ["engineer", "approver", "auditor", "administrator"])
def test_nobody_else_gets_the_page(house: House, who: str) -> None:
    candidate = house.evaluated()

    answer = signed_in(getattr(house, who)).get(reverse("promotion:break-glass", args=[candidate.pk]))

    assert answer.status_code == 403


def test_a_post_breaks_it(house: House, admin: User) -> None:
    candidate = house.evaluated()

    answer = post_break(signed_in(admin), candidate)

    assert answer.status_code == 302 and BrokenGlass.objects.get().broken_by == admin
    assert state_of(candidate) == CandidateState.APPROVED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"reason": "too short"}, 422),
        ({"reason": ""}, 422),
        ({"password": ""}, 422),
        ({"password": "wrong"}, 403),
        ({"method": ""}, 422),
        ({"method": "passkey"}, 422),
        ({"evidence_digest": "x"}, 422),
    ],
)
def test_what_is_wrong_with_the_form_stands_on_the_page(
    house: House, admin: User, changes: dict[str, str], status: int
) -> None:
    candidate = house.evaluated()

    answer = post_break(signed_in(admin), candidate, **changes)

    assert answer.status_code == status and "Nothing was changed" in html(answer)
    assert factories.PASSWORD not in html(answer)
    assert not BrokenGlass.objects.exists()


def test_a_stale_page_is_answered_with_what_changed(house: House, admin: User) -> None:
    candidate = house.evaluated()
    shown = factories.digest_of(candidate)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    answer = post_break(signed_in(admin), candidate, evidence_digest=shown)

    assert answer.status_code == 412 and "the evidence changed since the page you answered" in html(answer)
    assert REASON in html(answer) and factories.digest_of(candidate) != shown
    assert not BrokenGlass.objects.exists()


def test_evidence_that_is_no_longer_current_has_no_form(house: House, admin: User) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    page = html(signed_in(admin).get(reverse("promotion:break-glass", args=[candidate.pk])))

    assert "The evidence changed since it was judged" in page
    assert reverse("promotion:break-glass-now", args=[candidate.pk]) not in page


def test_a_refused_attempt_by_post_is_in_the_history(house: House) -> None:
    candidate = house.evaluated()

    assert post_break(signed_in(house.approver), candidate).status_code == 403

    assert AuditEvent.objects.order_by("-sequence")[0].action == "candidate.glass_refused"


def test_there_is_no_way_with_a_token(house: House, admin: User) -> None:
    candidate = house.evaluated()
    api = Api(token_of(admin))

    for path in ("break-glass", "break_glass", "glass"):
        assert api.send("POST", f"candidates/{candidate.pk}/{path}", {"reason": REASON}).status_code == 404
    # nor does the page take one
    answer = Client(headers={"Authorization": f"Token {token_of(admin)}"}).post(
        reverse("promotion:break-glass-now", args=[candidate.pk])
    )
    assert answer.status_code == 302 and not BrokenGlass.objects.exists()


# the alarm on pages


@pytest.fixture
def broken(house: House, admin: User) -> BrokenGlass:
    return break_glass(house.evaluated(), admin)


@pytest.mark.parametrize(
    ("who", "sees"), [("approver", True), ("administrator", True), ("auditor", True), ("engineer", False)]
)
def test_the_first_page_of_those_who_must_know_says_it(
    house: House, broken: BrokenGlass, who: str, sees: bool
) -> None:
    page = html(signed_in(getattr(house, who)).get("/"))

    assert ("The glass was broken" in page) is sees
    assert (reverse("promotion:glass", args=[broken.pk]) in page) is sees


def test_the_alarm_turns_worse_when_it_is_overdue_and_ends_with_the_review(
    house: House, broken: BrokenGlass
) -> None:
    assert "review overdue" not in html(signed_in(house.auditor).get("/"))
    with time_machine.travel(broken.review_due_at + timedelta(minutes=1), tick=False):
        assert "review overdue" in html(signed_in(house.auditor).get("/"))
        assert "Its review is overdue" in review_page(broken.candidate, house.auditor)

    review(signed_in(house.approver), broken)

    assert "The glass was broken" not in html(signed_in(house.auditor).get("/"))


def test_who_may_not_see_the_track_sees_no_alarm_and_no_page(house: House, broken: BrokenGlass) -> None:
    house.track.readers.add(Group.objects.create(name="team-a"))
    client = signed_in(house.approver)

    assert "The glass was broken" not in html(client.get("/"))
    assert client.get(reverse("promotion:glass", args=[broken.pk])).status_code == 404
    assert review(client, broken).status_code == 404


def test_the_candidates_page_says_it(house: House, broken: BrokenGlass) -> None:
    page = review_page(broken.candidate, house.engineer)

    assert "broke the glass" in page and "glass broken, not reviewed" in page
    assert "Somebody else must look at it by" in page


def test_the_home_page_asks_as_often_whatever_the_number(house: House, admin: User) -> None:
    client = signed_in(house.auditor)
    client.get("/")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            client.get("/")
        return len(seen)

    break_glass(house.evaluated("one"), admin)
    first = queries()
    for name in ("two", "three"):
        break_glass(house.evaluated(name), admin)

    assert queries() == first


# the review afterwards


def review(client: Client, broken: BrokenGlass, **changes: str) -> Any:
    data = {"verdict": "condemned", "comment": "It could have waited.", **changes}
    return client.post(reverse("promotion:glass-review", args=[broken.pk]), data)


def test_condemned_stands_beside_the_version_everywhere(house: House, broken: BrokenGlass) -> None:
    entry = registry.publish(broken.candidate_id)
    assert entry is not None
    client = signed_in(house.approver)

    assert review(client, broken).status_code == 302

    own = html(client.get(reverse("promotion:glass", args=[broken.pk])))
    assert "condemned" in own and "Nothing is rolled back by itself" in own
    for url in (
        reverse("promotion:entry", args=[house.track.name, entry.number]),
        reverse("promotion:track", args=[house.track.name]),
        reverse("promotion:candidate", args=[broken.candidate_id]),
    ):
        assert "condemned" in html(client.get(url)), url
    found = Api(token_of(house.auditor)).get(f"registry/{entry.pk}")
    assert found["broken_glass"]["verdict"] == "condemned" and found["ungated"] is False
    assert found["broken_glass"]["broken_by"] == "breaker"
    assert found["record"]["broken_glass"]["reason"] == REASON


def test_an_entry_that_was_signed_says_nothing_of_it(house: House) -> None:
    entry = registry.publish(house.approved().pk)
    assert entry is not None

    page = html(
        signed_in(house.auditor).get(reverse("promotion:entry", args=[house.track.name, entry.number]))
    )

    assert "broke the glass" not in page
    assert Api(token_of(house.auditor)).get(f"registry/{entry.pk}")["broken_glass"] is None


@pytest.mark.parametrize("changes", [{"verdict": ""}, {"verdict": "fine"}, {"comment": ""}])
def test_a_verdict_without_its_parts_is_asked_again(
    house: House, broken: BrokenGlass, changes: dict[str, str]
) -> None:
    answer = review(signed_in(house.approver), broken, **changes)

    assert answer.status_code == 422 and "Nothing was changed" in html(answer)


@pytest.mark.parametrize("who", ["engineer", "administrator", "auditor"])
def test_others_read_it_and_do_not_judge_it(house: House, broken: BrokenGlass, who: str) -> None:
    client = signed_in(getattr(house, who))

    page = html(client.get(reverse("promotion:glass", args=[broken.pk])))

    assert REASON in page and reverse("promotion:glass-review", args=[broken.pk]) not in page
    assert review(client, broken).status_code == 403


def test_a_second_verdict_is_a_conflict(house: House, broken: BrokenGlass) -> None:
    review(signed_in(house.approver), broken)

    answer = review(signed_in(house.approver_2), broken, verdict="upheld")

    assert answer.status_code == 409 and "reviewed already and is condemned" in html(answer)


# taking a signature back


def test_beside_ones_own_signature_stands_the_way_to_take_it_back(house: House) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    link = reverse("promotion:withdraw-signature", args=[candidate.pk])

    assert link in review_page(candidate, house.approver)
    assert link not in review_page(candidate, house.approver_2)


def test_a_signature_is_taken_back_on_a_page_of_its_own(house: House) -> None:
    candidate, client = house.evaluated(), signed_in(house.approver)
    sign(candidate, house.approver)
    url = reverse("promotion:withdraw-signature", args=[candidate.pk])
    assert "Withdraw your signature" in html(client.get(url))

    assert client.post(f"{url}now/", {"reason": ""}).status_code == 422
    assert client.post(f"{url}now/", {"reason": "I misread."}).status_code == 302

    assert Approval.objects.filter(candidate=candidate).latest("id").withdrawn_reason == "I misread."
    assert client.get(url).status_code == 409
    assert client.post(f"{url}now/", {"reason": "again"}).status_code == 409


def test_the_api_takes_ones_own_signature_back_and_no_other(house: House) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    path = f"candidates/{candidate.pk}/withdraw-signature"

    other = Api(token_of(house.approver_2)).problem(409, "POST", path, {"reason": "r"})
    assert other["code"] == "conflict"
    Api(token_of(house.approver)).problem(400, "POST", path, {})
    found = Api(token_of(house.approver)).post(path, {"reason": "I misread."}, status=200)

    assert found["approvals"][0]["withdrawn_reason"] == "I misread."
    assert found["approvals"][0]["withdrawn_at"] <= timezone.now().isoformat()
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert event.action == "candidate.signature_withdrawn" and event.actor.startswith("token:approver:")


def test_the_same_key_takes_it_back_once(house: House) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    api, path = Api(token_of(house.approver)), f"candidates/{candidate.pk}/withdraw-signature"

    first = api.send("POST", path, {"reason": "r"}, Idempotency_Key="k-1")
    again = api.send("POST", path, {"reason": "r"}, Idempotency_Key="k-1")

    assert (first.status_code, again.status_code) == (200, 200)
    assert again["Idempotency-Replayed"] == "true"
