"""Threads: about a row of the evidence, by whom, blocking until resolved, outdated once the row says something else."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion.anchors import rows_of
from promotion.models import Candidate, Comment, Evidence, Thread
from promotion.services import gating, threads, waivers
from promotion.web.conversation import conversation_of
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.models import AuditEvent, Case, Rollout
from tests import factories
from tests.reviews.conftest import FLOOR, policy
from tests.reviews.test_must_open import document
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db


def start(candidate: Candidate, by: Any, anchor: str = "page", text: str = "Why?") -> Thread:
    return threads.start(candidate_id=candidate.pk, anchor=anchor, text=text, by=by)


def case_of(house: factories.House, key: str = "named-decline-3") -> Case:
    return Case.objects.get(suite=house.suite, key=key)


def anchors(house: factories.House) -> dict[str, str]:
    digest = house.suite.digest
    return {
        "page": "the candidate as a whole",
        "gate:0": "gate candidate_artifact_hash",
        "gate:3": "gate per_family_safety_floor on named",
        f"suite:{digest}": "suite named",
        f"family:{digest}:declines": "family declines of named",
        f"case:{case_of(house).pk}": "case named-decline-3 (declines)",
    }


def test_every_kind_of_row_can_be_asked_about(house: factories.House, reviewed: Candidate) -> None:
    for anchor, label in anchors(house).items():
        thread = start(reviewed, house.approver, anchor)

        assert (thread.anchor, thread.anchor_label) == (anchor, label)
        assert len(thread.anchor_digest) == 64


@pytest.mark.parametrize(
    "anchor",
    [
        "",
        "gate:99",
        "gate:-1",
        "suite:0",
        "family:x:y",
        "case:999999",
        "case:01",
        "case:x",
        "dataset:0",
        "pag",
    ],
)
def test_a_row_that_is_not_there_is_refused(house: factories.House, reviewed: Candidate, anchor: str) -> None:
    with pytest.raises(InvalidInput, match="must name a row"):
        start(reviewed, house.approver, anchor)


def test_a_case_of_another_suite_is_no_row_of_this_evidence(
    house: factories.House, reviewed: Candidate
) -> None:
    other = factories.suite(house.engineer, name="other")

    with pytest.raises(InvalidInput):
        start(reviewed, house.approver, f"case:{other.cases.first().pk}")


@pytest.mark.parametrize("text", ["", "  \n ", "x" * 4001])
def test_a_comment_is_1_to_4000_characters(house: factories.House, reviewed: Candidate, text: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 4000"):
        start(reviewed, house.approver, text=text)
    assert start(reviewed, house.approver, text="x" * 4000).comments.get().text == "x" * 4000


def test_auditors_and_people_without_a_role_do_not_comment(
    house: factories.House, reviewed: Candidate
) -> None:
    thread = start(reviewed, house.engineer)
    for person in (house.auditor, factories.person("nobody")):
        for act in (
            lambda by: start(reviewed, by),
            lambda by: threads.reply(candidate_id=reviewed.pk, thread_id=thread.pk, text="x", by=by),
            lambda by: threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=by),
            lambda by: threads.reopen(candidate_id=reviewed.pk, thread_id=thread.pk, by=by),
        ):
            with pytest.raises(NotAllowed):
                act(person)


def test_an_unresolved_thread_blocks_approval_and_a_resolved_one_does_not(
    house: factories.House, reviewed: Candidate
) -> None:
    thread = start(reviewed, house.engineer, f"case:{case_of(house).pk}")

    with pytest.raises(Conflict, match=r"the thread on case named-decline-3 \(declines\) is not resolved"):
        factories.sign(reviewed, house.approver)
    threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.approver)
    factories.sign(reviewed, house.approver)


def test_a_thread_does_not_keep_anybody_from_refusing(house: factories.House, reviewed: Candidate) -> None:
    start(reviewed, house.engineer)

    factories.sign(reviewed, house.approver, decision="request_changes", comment="Answer the thread.")


def test_who_started_a_thread_resolves_it_and_an_approver_does(
    house: factories.House, reviewed: Candidate
) -> None:
    for starter, resolver in (
        (house.administrator, house.administrator),
        (house.approver, house.approver),
        (house.approver, house.approver_2),
        (house.engineer, house.engineer),  # the submitter's own question
    ):
        thread = start(reviewed, starter)
        threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=resolver)
        thread.refresh_from_db()
        assert thread.resolved_by == resolver


def test_the_submitter_never_resolves_anothers_thread(house: factories.House, reviewed: Candidate) -> None:
    house.engineer.groups.add(house.approver.groups.get())
    submitter = type(house.engineer).objects.get(pk=house.engineer.pk)
    thread = start(reviewed, house.approver)

    with pytest.raises(NotAllowed, match="their own candidate"):
        threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=submitter)


@pytest.mark.parametrize("name", ["other", "administrator"])
def test_neither_another_engineer_nor_an_administrator_resolves_anothers_thread(
    house: factories.House, reviewed: Candidate, name: str
) -> None:
    person = house.administrator if name == "administrator" else factories.person("e2", "engineer")
    thread = start(reviewed, house.approver)

    with pytest.raises(NotAllowed, match="needs approver"):
        threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=person)


def test_a_thread_is_opened_again_and_blocks_again(house: factories.House, reviewed: Candidate) -> None:
    thread = start(reviewed, house.approver)
    threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.approver)
    with pytest.raises(Conflict, match="resolved already"):
        threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.approver)

    threads.reopen(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.engineer)

    with pytest.raises(Conflict, match="is not resolved"):
        threads.reopen(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.engineer)
    with pytest.raises(Conflict, match="The review is not done"):
        factories.sign(reviewed, house.approver)


def test_what_has_ended_is_discussed_no_more(house: factories.House) -> None:
    with pytest.raises(Conflict, match="is promoted"):
        start(Candidate.objects.get(name="first"), house.approver)


def test_what_is_not_judged_has_nothing_to_comment_on(house: factories.House) -> None:
    with pytest.raises(Conflict, match="Nothing is judged"):
        start(house.candidate("new"), house.approver)


def test_a_thread_of_another_candidate_is_not_found(house: factories.House, reviewed: Candidate) -> None:
    other = house.evaluated("other")
    thread = start(other, house.approver)

    with pytest.raises(NotFound):
        threads.reply(candidate_id=reviewed.pk, thread_id=thread.pk, text="x", by=house.approver)


def test_each_act_is_in_the_candidates_history(house: factories.House, reviewed: Candidate) -> None:
    thread = start(reviewed, house.approver)
    threads.reply(candidate_id=reviewed.pk, thread_id=thread.pk, text="So.", by=house.engineer)
    threads.resolve(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.approver)
    threads.reopen(candidate_id=reviewed.pk, thread_id=thread.pk, by=house.approver)

    events = AuditEvent.objects.filter(action__startswith="candidate.thread_").order_by("sequence")
    assert [(event.action.removeprefix("candidate.thread_"), event.actor) for event in events] == [
        ("started", "user:approver"),
        ("answered", "user:engineer"),
        ("resolved", "user:approver"),
        ("reopened", "user:approver"),
    ]
    assert {event.subject_label for event in events} == {"toolcaller/cand"}


# outdated


def test_a_thread_is_outdated_once_its_row_says_something_else(
    house: factories.House, reviewed: Candidate
) -> None:
    policy(house, {"gate": "masked_ceiling", "max_percent": "1"}, FLOOR)
    candidate = house.evaluated("masked", masked=2)
    for anchor in ("page", "gate:3", "gate:0"):
        start(candidate, house.approver, anchor)
    asked = waivers.request(
        candidate_id=candidate.pk,
        gate="masked_ceiling",
        suite_digest=house.suite.digest,
        reason="The provider was down.",
        days=3,
        by=house.engineer,
    )
    waivers.grant(waiver_id=asked.pk, by=house.approver_2)

    evidence = candidate.evidence.order_by("-id")[0]
    shown = conversation_of(candidate, evidence, document(candidate), None, house.approver)

    assert {asked.thread.anchor: asked.outdated for asked in shown.threads} == {
        "page": True,
        "gate:3": True,  # it is waived by now
        "gate:0": False,
    }


def test_a_case_thread_is_outdated_once_a_side_scores_otherwise(
    house: factories.House, reviewed: Candidate
) -> None:
    case = case_of(house)
    thread = start(reviewed, house.approver, f"case:{case.pk}")
    evidence = reviewed.evidence.order_by("-id")[0]

    def digest() -> str:
        return rows_of(evidence, document(reviewed), [thread.anchor])[thread.anchor].digest

    assert digest() == thread.anchor_digest
    Rollout.objects.filter(case=case, run__label="cand").update(decision=True)
    assert digest() != thread.anchor_digest
    Rollout.objects.filter(case=case, run__label="cand").update(decision=False)
    Case.objects.filter(pk=case.pk).update(amended_expected={"decision": "no_tool"})
    assert digest() != thread.anchor_digest


# pages


def test_a_link_opens_the_form_with_its_row_chosen(house: factories.House, reviewed: Candidate) -> None:
    case = case_of(house)

    page = html(
        signed_in(house.engineer).get(
            reverse("promotion:candidate", args=[reviewed.pk]), {"comment": f"case:{case.pk}"}
        )
    )

    assert f'<option value="case:{case.pk}" selected>case named-decline-3 (declines)</option>' in page


@pytest.mark.parametrize("anchor", ["gate:3", "family:{suite}:declines", "suite:{suite}", "case:{case}"])
def test_a_thread_shows_at_its_row_which_offers_another(
    house: factories.House, reviewed: Candidate, anchor: str
) -> None:
    anchor = anchor.format(suite=house.suite.digest, case=case_of(house).pk)
    thread = start(reviewed, house.approver, anchor)
    page = html(signed_in(house.approver).get(reverse("promotion:candidate", args=[reviewed.pk])))

    at_row = page[: page.index('id="threads"')]
    assert at_row.count(f'href="#thread-{thread.pk}"') == 1
    assert f"/candidates/{reviewed.pk}/?{urlencode({'comment': anchor})}#threads" in at_row
    place = (
        conversation_of(
            reviewed,
            Evidence.objects.get(candidate=reviewed),
            document(reviewed),
            {},
            house.approver,
        )
        .threads[0]
        .place
    )
    assert f'id="{place.removeprefix("#")}"' in page


def test_who_may_not_comment_is_offered_no_link_to_it(house: factories.House, reviewed: Candidate) -> None:
    start(reviewed, house.approver, "gate:3")
    page = html(signed_in(house.auditor).get(reverse("promotion:candidate", args=[reviewed.pk])))

    assert "comment=" not in page
    assert "1 thread, unresolved" in page


def test_a_thread_is_started_answered_resolved_and_opened_again_on_the_page(
    house: factories.House, reviewed: Candidate
) -> None:
    client = signed_in(house.approver)
    page = reverse("promotion:candidate", args=[reviewed.pk])

    started = client.post(
        reverse("promotion:thread-start", args=[reviewed.pk]), {"anchor": "gate:3", "text": "Enough?"}
    )

    thread = Thread.objects.get()
    assert started["Location"] == f"{page}#thread-{thread.pk}"
    assert "1 unresolved: nobody approves before" in html(client.get(page))
    for act, said in (("reply", "Yes, by far."), ("resolve", ""), ("reopen", "")):
        address = reverse(f"promotion:thread-{act}", args=[reviewed.pk, thread.pk])
        assert client.post(address, {"text": said}).status_code == 302
    assert [comment.text for comment in Comment.objects.all()] == ["Enough?", "Yes, by far."]


@pytest.mark.parametrize("where", ["start", "reply"])
def test_what_was_typed_is_kept_where_it_is_refused(
    house: factories.House, reviewed: Candidate, where: str
) -> None:
    thread = start(reviewed, house.approver)
    arguments = [reviewed.pk] if where == "start" else [reviewed.pk, thread.pk]

    answer = signed_in(house.approver).post(
        reverse(f"promotion:thread-{where}", args=arguments), {"anchor": "gate:3", "text": "y" * 4001}
    )

    assert answer.status_code == 422
    assert "y" * 4001 in html(answer)
    assert "must be 1 to 4000 characters." in html(answer)


def test_hostile_comments_are_text(house: factories.House, reviewed: Candidate) -> None:
    start(reviewed, house.engineer, text=HOSTILE)

    page = html(signed_in(house.approver).get(reverse("promotion:candidate", args=[reviewed.pk])))

    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_a_hundred_threads_ask_no_more_queries_than_one(house: factories.House, reviewed: Candidate) -> None:
    client, page = signed_in(house.approver), reverse("promotion:candidate", args=[reviewed.pk])
    rows = list(anchors(house))

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(page).status_code == 200
        return len(queries)

    for anchor in rows:
        start(reviewed, house.engineer, anchor)
    few = asked()
    for number in range(100):
        thread = start(reviewed, house.engineer, rows[number % len(rows)])
        threads.reply(candidate_id=reviewed.pk, thread_id=thread.pk, text="Answer.", by=house.approver)

    assert asked() == few


def test_new_evidence_keeps_the_threads(house: factories.House, reviewed: Candidate) -> None:
    start(reviewed, house.approver)
    Candidate.objects.filter(pk=reviewed.pk).update(revision=9)
    gating.judge_now(reviewed.pk)

    with pytest.raises(Conflict, match="the thread on the candidate as a whole"):
        factories.sign(reviewed, house.approver)
