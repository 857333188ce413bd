"""The risk summary, made and edited, and what is new to a person since they last looked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse
from django.utils import timezone

from promotion import risk_summary
from promotion.comparing import comparisons_of
from promotion.evidence import document_of
from promotion.models import Candidate, Evidence, ReviewVisit, RiskSummary
from promotion.panels import safety_turns
from promotion.risk_summary import SafetyTurns, summary
from promotion.services import gating, reviews, risk_summaries, threads
from promotion.web.review import review
from rollouts.errors import Conflict, InvalidInput, NotAllowed, StaleEvidence
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import digest_of
from tests.reviews.conftest import FLOOR, lost, policy
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
WORDS = "It loses two cases of reading files that do not exist; users see the error."


def document(candidate: Candidate) -> dict[str, Any]:
    return document_of(Evidence.objects.filter(candidate=candidate).order_by("-id")[0])


def write(candidate: Candidate, by: Any, text: str = WORDS, digest: str = "") -> RiskSummary | None:
    return risk_summaries.write(
        candidate_id=candidate.pk, text=text, digest=digest or digest_of(candidate), by=by
    )


# made


def made_of(candidate: Candidate) -> str:
    return summary(document(candidate), safety_turns(comparisons_of(document(candidate))))


def test_the_made_summary_says_what_the_evidence_says(house: factories.House) -> None:
    policy(house, {**FLOOR, "min": "0.60"})
    candidate = house.evaluated("cand", lost(house, 3, 7), masked=1)

    assert safety_turns(comparisons_of(document(candidate))) == SafetyTurns(2, 0)
    assert made_of(candidate) == (
        "cand is to replace v1 (first) of toolcaller. No gate blocks it and none is waived. It loses 2 prompts that the "
        "champion had right, turns 2 from safe to unsafe and wins 0 (1 without a score on a side). Cases where any call is "
        "wrong: 2 lost, 0 won. Of what passes, per_family_safety_floor on named is nearest to failing: 2 prompts turned wrong would end it. 1 of 40 rollouts have no score. Weakest families: declines of named (decision 18 of 20, "
        "champion 20 of 20), calls of named (decision 19 of 20, champion 20 of 20). It declares no dataset, so what it "
        "saw of the suites is unknown. Looks: 1 on named."
    )


def test_the_made_summary_of_a_baseline_says_that_nothing_judges_it(house: factories.House) -> None:
    first = Candidate.objects.get(name="first")

    assert summary(document(first), SafetyTurns(None, None)) == (
        "first is proposed as the ungated baseline of toolcaller. No gate judges it and nothing was measured: two "
        "signatures adopt it."
    )


def test_no_name_makes_the_made_summary_longer_than_120_words(
    house: factories.House, reviewed: Candidate
) -> None:
    long = "a long name " * 80
    given = document(reviewed)
    given["candidate"]["name"] = given["candidate"]["track"] = long
    for part in given["suites"]:
        part["name"] = long

    made = summary(given, SafetyTurns(10**9, 10**9))

    assert len(made.split()) <= risk_summary.MOST_WORDS
    assert len(made) <= risk_summaries.MAX_CHARS


def test_the_verdict_the_gates_and_the_summary_name_the_same_nearest_gate(house: factories.House) -> None:
    # 4 of 20 prompts end the one, 6 of 40, a smaller share, the other
    policy(
        house,
        {"gate": "arena_json_validity_min", "metric": "json_valid", "min": "0.74"},
        {"gate": "confidence_lower_bound", "metric": "safe", "min": "0.62"},
    )
    candidate = house.evaluated("cand")

    shown = review(candidate, house.approver, {})

    assert shown.closest is not None
    assert (shown.closest.gate, shown.closest.flips) == ("confidence_lower_bound", 4)
    passing = [row.gate for row in shown.shown_gates if row.flips is not None]
    assert passing[:2] == ["confidence_lower_bound", "arena_json_validity_min"]
    assert [row.gate for row in shown.fragile][: len(passing)] == passing
    assert (
        "Of what passes, confidence_lower_bound on named is nearest to failing: 4 prompts turned"
        in made_of(candidate)
    )


def test_the_summary_counts_as_many_losses_as_the_family_table_shows(house: factories.House) -> None:
    policy(
        house, {**FLOOR, "min": "0.30"}, {"gate": "confidence_lower_bound", "metric": "tool", "min": "0.30"}
    )
    outcomes = {**lost(house, 3, 7), **{f"{house.suite.name}-call-{n}": "wrong" for n in range(5)}}
    candidate = house.evaluated("cand", outcomes)

    table = review(candidate, house.approver, {}).table

    assert table is not None
    shown = [group.total.paired.lost for group in table.groups if group.total.paired]
    assert sum(shown) == 7
    assert (
        "It loses 7 prompts that the champion had right, turns 2 from safe to unsafe and wins 0."
        in made_of(candidate)
    )


# written


def test_the_submitters_words_are_new_evidence_and_end_signatures(house: factories.House) -> None:
    policy(house, FLOOR, approvers=[{"group": "approver", "count": 2}])
    candidate = house.evaluated("cand")
    factories.sign(candidate, house.approver)
    before = digest_of(candidate)

    written = write(candidate, house.engineer)

    assert written is not None
    assert document(candidate)["statement"] == {"text": WORDS, "written_by": "engineer"}
    assert digest_of(candidate) != before
    factories.sign(candidate, house.approver_2)
    candidate.refresh_from_db()
    assert candidate.state == "in_review"  # the first signature was of other evidence
    assert AuditEvent.objects.filter(action="candidate.summarised").count() == 1


def test_the_same_words_write_nothing_and_keep_signatures(house: factories.House) -> None:
    candidate = house.evaluated("cand")
    made = made_of(candidate)
    events = AuditEvent.objects.count()

    assert write(candidate, house.engineer, f"  {made}\r\n") is None
    assert (RiskSummary.objects.count(), AuditEvent.objects.count()) == (0, events)
    write(candidate, house.engineer)
    before = digest_of(candidate)
    assert write(candidate, house.engineer) is None
    assert (RiskSummary.objects.count(), digest_of(candidate)) == (1, before)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "1 to 1500"), (" \n", "1 to 1500"), ("x" * 1501, "1 to 1500"), ("word " * 121, "it has 121")],
)
def test_too_little_and_too_much_is_refused(house: factories.House, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        write(house.evaluated("cand"), house.engineer, text)


def test_120_words_are_taken(house: factories.House) -> None:
    assert write(house.evaluated("cand"), house.engineer, "word " * 120) is not None


def test_only_the_submitter_writes(house: factories.House) -> None:
    candidate = house.evaluated("cand")
    others = (house.approver, house.administrator, house.auditor, factories.person("e2", "engineer"))
    for person in others:
        with pytest.raises(NotAllowed):
            write(candidate, person)


def test_words_about_other_evidence_are_refused(house: factories.House) -> None:
    candidate = house.evaluated("cand")
    shown = digest_of(candidate)
    Candidate.objects.filter(pk=candidate.pk).update(revision=9)
    gating.judge_now(candidate.pk)

    with pytest.raises(StaleEvidence):
        write(candidate, house.engineer, digest=shown)


def test_nothing_is_said_anew_of_what_is_approved(house: factories.House) -> None:
    with pytest.raises(Conflict, match="is approved"):
        write(house.approved("cand"), house.engineer)


def test_the_page_shows_what_is_made_openly_and_then_the_submitters_words(house: factories.House) -> None:
    candidate = house.evaluated("cand", lost(house, 3))
    client, page = signed_in(house.engineer), reverse("promotion:candidate", args=[candidate.pk])
    before = html(client.get(page))
    assert "In the submitter&#x27;s words" not in before
    assert "In the submitter's words" not in before

    answer = client.post(
        reverse("promotion:risk-summary", args=[candidate.pk]),
        {"text": WORDS, "digest": digest_of(candidate)},
    )

    assert answer["Location"] == f"{page}#risk"
    shown = html(signed_in(house.approver).get(page))
    risk = shown[shown.index('id="risk"') : shown.index("</section>", shown.index('id="risk"'))]
    assert "<details" not in risk
    assert "made from the evidence" in risk
    made, written = risk.split("In the submitter's words")
    assert "It loses 1 prompt that the champion had right" in made
    assert WORDS not in made
    assert WORDS in written
    assert "<bdi>engineer</bdi>, <time" in written
    assert "Say it in your own words" not in shown


def test_refused_words_stay_in_the_form(house: factories.House) -> None:
    candidate = house.evaluated("cand")

    answer = signed_in(house.engineer).post(
        reverse("promotion:risk-summary", args=[candidate.pk]),
        {"text": "word " * 121, "digest": digest_of(candidate)},
    )

    assert answer.status_code == 422
    assert "must be at most 120 words; it has 121." in html(answer)
    assert "word word word" in html(answer)


# since one last looked


def seen(candidate: Candidate, by: Any, **more: Any) -> None:
    reviews.mark_seen(candidate_id=candidate.pk, by=by, **{"digest": digest_of(candidate), **more})


def news(candidate: Candidate, person: Any) -> str:
    page = html(signed_in(person).get(reverse("promotion:candidate", args=[candidate.pk])))
    return page[page.index('id="news"') : page.index('<div class="flow">')] if 'id="news"' in page else ""


def test_who_never_looked_is_told_so(house: factories.House, reviewed: Candidate) -> None:
    assert "You have not looked at this candidate before" in news(reviewed, house.approver)


def test_who_has_seen_everything_is_told_so(house: factories.House, reviewed: Candidate) -> None:
    seen(reviewed, house.approver)

    assert "Nothing is new since." in news(reviewed, house.approver)
    assert "You have not looked" in news(reviewed, house.approver_2)


def test_new_evidence_comments_and_signatures_are_new(house: factories.House) -> None:
    policy(house, FLOOR, approvers=[{"group": "approver", "count": 2}])
    candidate = house.evaluated("cand")
    seen(candidate, house.approver)
    thread = threads.start(candidate_id=candidate.pk, anchor="page", text="Enough?", by=house.engineer)
    threads.reply(candidate_id=candidate.pk, thread_id=thread.pk, text="My own words.", by=house.approver)
    threads.resolve(candidate_id=candidate.pk, thread_id=thread.pk, by=house.engineer)
    factories.sign(candidate, house.approver_2)
    write(candidate, house.engineer)

    said = news(candidate, house.approver)

    assert "You last looked" in said
    assert f"engineer wrote the risk summary anew: {WORDS}" in said
    assert "<bdi>approver-2</bdi>: Approve" in said
    assert "Enough?" in said
    assert "My own words." not in said


def test_what_came_in_after_the_page_was_made_is_still_new(
    house: factories.House, reviewed: Candidate
) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        shown_at = timezone.now()
        clock.shift(2)
        threads.start(candidate_id=reviewed.pk, anchor="page", text="Just now.", by=house.engineer)
        clock.shift(3)
        seen(reviewed, house.approver, shown_at=shown_at)

    assert "Just now." in news(reviewed, house.approver)


def test_nobody_sees_what_is_still_to_come(house: factories.House, reviewed: Candidate) -> None:
    seen(reviewed, house.approver, shown_at=timezone.now() + timedelta(days=900))

    assert ReviewVisit.objects.get().seen_at <= timezone.now()


def test_an_older_tab_does_not_take_back_what_a_newer_one_saw(
    house: factories.House, reviewed: Candidate
) -> None:
    old = digest_of(reviewed)
    Candidate.objects.filter(pk=reviewed.pk).update(revision=9)
    gating.judge_now(reviewed.pk)
    seen(reviewed, house.approver)

    seen(reviewed, house.approver, digest=old)

    assert ReviewVisit.objects.get().evidence.digest == digest_of(reviewed)
    assert AuditEvent.objects.filter(action="review.seen").count() == 1


def test_evidence_of_another_candidate_is_not_seen_here(house: factories.House, reviewed: Candidate) -> None:
    other = house.evaluated("other")

    with pytest.raises(InvalidInput):
        seen(reviewed, house.approver, digest=digest_of(other))


def test_auditors_are_not_followed(house: factories.House, reviewed: Candidate) -> None:
    with pytest.raises(NotAllowed):
        seen(reviewed, house.auditor)
    assert news(reviewed, house.auditor) == ""


@pytest.mark.parametrize("shown_at", ["", "yesterday", "2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00"])
def test_the_button_and_the_script_mark_as_read(
    house: factories.House, reviewed: Candidate, shown_at: str
) -> None:
    client, address = signed_in(house.approver), reverse("promotion:seen", args=[reviewed.pk])
    given = {"digest": digest_of(reviewed), "shown_at": shown_at}

    assert client.post(address, given)["Location"] == f"/candidates/{reviewed.pk}/#news"
    assert client.post(address, given, headers={"X-Requested-With": "fetch"}).status_code == 204
    assert ReviewVisit.objects.count() == 1


def test_a_get_marks_nothing(house: factories.House, reviewed: Candidate) -> None:
    news(reviewed, house.approver)

    assert not ReviewVisit.objects.exists()
