"""The page of one case of the evidence: both answers side by side, where they part, and the ways on from there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion.models import Candidate
from rollouts.models import Case, EvalRun, Rollout
from tests import factories
from tests.evidence_pages.conftest import asked, captured, said
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate(house: factories.House) -> Candidate:
    """The first six cases, where a call is right, are lost; the champion has all right."""
    return house.evaluated("cand", wrong=6, masked=1)


def rollouts(candidate: Candidate, case: Case) -> tuple[Rollout, Rollout]:
    """The champion's and the candidate's."""
    rows = {
        rollout.run.label: rollout
        for rollout in Rollout.objects.filter(case=case).select_related("run", "case")
    }
    ours = rows.pop(candidate.name)
    [theirs] = rows.values()
    return theirs, ours


def cases(candidate: Candidate) -> list[Case]:
    return list(EvalRun.objects.filter(label=candidate.name)[0].suite.cases.order_by("position"))


def page(client: Client, candidate: Candidate, case: Case, **params: Any) -> str:
    response = client.get(reverse("promotion:case", args=[candidate.pk, case.pk]), params)
    assert response.status_code == 200
    return html(response)


def test_both_answers_stand_side_by_side_and_the_place_where_they_part_is_marked(
    house: factories.House, candidate: Candidate
) -> None:
    first = cases(candidate)[0]
    shown = page(signed_in(house.approver), candidate, first)
    assert shown.count('id="divergence"') == 1
    assert 'href="#divergence"' in shown
    assert "Here they part" in shown
    for rollout in rollouts(candidate, first):
        assert reverse("rollouts:rollout", args=[rollout.pk]) in shown
    # the answers are JSON: what differs is given by path
    assert "<code>tool</code></th><td>removed</td>" in shown
    assert "<code>decision</code></th><td>changed</td>" in shown


def test_where_both_did_the_same_nothing_parts(house: factories.House, candidate: Candidate) -> None:
    shown = page(signed_in(house.approver), candidate, cases(candidate)[-1])
    assert 'id="divergence"' not in shown
    assert "Both did the same." in shown


def test_the_case_can_be_left_for_the_next_a_dispute_and_a_comment(
    house: factories.House, candidate: Candidate
) -> None:
    one, two, three = cases(candidate)[:3]
    shown = page(signed_in(house.approver), candidate, two)
    for key, link in (
        ("k", reverse("promotion:case", args=[candidate.pk, one.pk])),
        ("j", reverse("promotion:case", args=[candidate.pk, three.pk])),
        ("d", reverse("promotion:dispute-new", args=[candidate.pk, two.pk])),
        ("c", reverse("promotion:candidate", args=[candidate.pk]) + f"?comment=case:{two.pk}#threads"),
    ):
        [tag] = [part for part in shown.split("<a ") if f'data-key="{key}"' in part.split(">")[0]]
        assert f'href="{link}"' in tag


def test_next_goes_through_all_that_is_not_right_lost_first_and_back_again(
    house: factories.House, candidate: Candidate
) -> None:
    client, lost = signed_in(house.approver), cases(candidate)[:6]
    masked = cases(candidate)[6]
    seen, at = [], lost[0].pk
    while at is not None:
        seen.append(at)
        place = client.get(reverse("promotion:case", args=[candidate.pk, at])).context["place"]
        assert place.previous == (seen[-2] if len(seen) > 1 else None)
        at = place.next
    assert seen == [*(case.pk for case in lost), masked.pk]
    place = client.get(reverse("promotion:case", args=[candidate.pk, lost[2].pk])).context["place"]
    assert (place.turn, place.number, place.total) == ("lost", 3, 6)


def test_cases_where_a_call_is_wrong_come_first_and_turns_follow_each_other_both_ways(
    house: factories.House,
) -> None:
    lost = {f"named-{kind}-{n}": "wrong" for kind in ("call", "decline") for n in (0, 1)}
    candidate = house.evaluated("both", {**lost, "named-call-2": "masked", "named-decline-2": "unscored"})
    by_key = {case.key: case.pk for case in cases(candidate)}
    order = [
        "named-decline-0",
        "named-decline-1",
        "named-call-0",
        "named-call-1",
        "named-decline-2",
        "named-call-2",
    ]
    client, places = signed_in(house.auditor), []
    for key in order:
        response = client.get(reverse("promotion:case", args=[candidate.pk, by_key[key]]))
        places.append(response.context["place"])
    pks = [by_key[key] for key in order]
    assert [place.next for place in places] == [*pks[1:], None]
    assert [place.previous for place in places] == [None, *pks[:-1]]
    assert [(place.turn, place.number, place.total) for place in places] == [
        *(("lost", number, 4) for number in (1, 2, 3, 4)),
        *(("missing", number, 2) for number in (1, 2)),
    ]


def test_a_case_of_another_suite_is_not_there(house: factories.House, candidate: Candidate) -> None:
    other = factories.suite(house.engineer, name="other", calls=1).cases.get()
    client = signed_in(house.approver)
    for case_pk in (other.pk, 10**9):
        assert client.get(reverse("promotion:case", args=[candidate.pk, case_pk])).status_code == 404
    fresh = house.candidate("fresh")
    case = cases(candidate)[0]
    assert client.get(reverse("promotion:case", args=[fresh.pk, case.pk])).status_code == 404


def test_turns_of_a_dialogue_are_aligned_and_calls_are_compared_by_path(
    house: factories.House, candidate: Candidate
) -> None:
    case = cases(candidate)[0]
    opening = [{"role": "system", "content": "Decide."}, {"role": "user", "content": "Book it."}]
    call = {"id": "c0", "function": {"name": "find", "arguments": "{}"}}
    more = [*opening, {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c0", "content": '{"rooms": 3}'}
    for rollout, arguments in zip(
        rollouts(candidate, case),
        ('{"nights": 2, "who": "ada"}', '{"who": "ada", " nights": 2}'),
        strict=True,
    ):
        captured(
            rollout,
            [
                (asked(*opening), said(None, ("find", "{}"), finish="tool_calls")),
                (asked(*more, result), said("Now I book.", ("book", arguments), finish="tool_calls")),
            ],
        )
    shown = page(signed_in(house.approver), candidate, case)
    assert shown.count("Now I book.") == 1
    assert shown.count("result of <code>find</code>") == 1
    assert shown.count("called <code>find</code>") == 1
    parted = shown[shown.index('id="divergence"') :]
    assert "<code>nights</code></th><td>removed</td>" in parted
    assert "<code>[&quot; nights&quot;]</code></th><td>added</td>" in parted
    assert "<code>who</code>" not in parted


def test_every_sample_can_be_chosen_and_the_first_that_is_wrong_is_shown_first(
    house: factories.House, candidate: Candidate
) -> None:
    case = cases(candidate)[-1]
    for rollout in rollouts(candidate, case):
        for sample in (1, 2):
            values = {
                name: getattr(rollout, name) for name in ("decision", "tool", "exact", "safe", "json_valid")
            }
            wrong = sample == 2 and rollout.run.label == candidate.name
            values |= {name: False for name in ("decision", "exact", "safe") if wrong}
            Rollout.objects.create(
                run=rollout.run, case=case, sample_index=sample, state="scored",
                answer=f"sample {sample} of {rollout.run.label}", **values,
            )  # fmt: skip
    client = signed_in(house.approver)
    shown = page(client, candidate, case)
    assert '?sample=2#beside" aria-current="true"' in shown
    assert '<pre dir="ltr">sample 2 of ' in shown
    assert "sample 1 of cand" not in shown
    for wanted, index in (("0", 0), ("1", 1), ("9", 2), ("x", 2), ("٣", 2)):
        assert f'?sample={index}#beside" aria-current="true"' in page(client, candidate, case, sample=wanted)


def test_the_reason_of_the_scorer_stands_under_each_side(
    house: factories.House, candidate: Candidate
) -> None:
    case = cases(candidate)[0]
    for rollout in rollouts(candidate, case):
        Rollout.objects.filter(pk=rollout.pk).update(details={"reason": f"because of {rollout.run.label}"})
    shown = page(signed_in(house.auditor), candidate, case)
    scores = shown[shown.index('id="scores-h"') :]
    assert "because of cand" in scores
    assert scores.count("because of ") == 2


def test_a_masked_rollout_shows_how_it_failed(house: factories.House, candidate: Candidate) -> None:
    shown = page(signed_in(house.approver), candidate, cases(candidate)[6])
    assert "attempt failed: server" in shown
    assert "No score: it is masked." in shown


def test_an_amended_case_shows_what_was_sealed_and_what_counts(
    house: factories.House, candidate: Candidate
) -> None:
    case = cases(candidate)[0]
    Case.objects.filter(pk=case.pk).update(amended_expected={"decision": "no_tool"})
    shown = page(signed_in(house.approver), candidate, case)
    assert "As it was sealed" in shown
    assert "Since it was amended: this counts, for both sides" in shown


def test_a_safety_flip_is_marked_as_read_from_its_page(house: factories.House) -> None:
    candidate = house.evaluated("flips", outcomes={"named-decline-0": "wrong"})
    case = next(case for case in cases(candidate) if case.key == "named-decline-0")
    approver = signed_in(house.approver)
    shown = page(approver, candidate, case)
    assert "This case must be opened before signing" in shown
    [form] = [part for part in shown.split("<form ") if 'data-key="v"' in part]
    key = form.split('name="panel" value="')[1].split('"')[0]
    address = reverse("promotion:case", args=[candidate.pk, case.pk])
    response = approver.post(
        reverse("promotion:opened", args=[candidate.pk]), {"panel": key, "next": address}
    )
    assert (response.status_code, response["Location"]) == (302, address)
    assert "You have read this case" in page(approver, candidate, case)
    assert 'data-key="v"' not in page(signed_in(house.auditor), candidate, case)


def test_hostile_answers_are_text_on_both_sides(house: factories.House, candidate: Candidate) -> None:
    case = cases(candidate)[0]
    theirs, ours = rollouts(candidate, case)
    captured(theirs, [(asked({"role": HOSTILE, "content": HOSTILE}), said(HOSTILE, (HOSTILE, HOSTILE)))])
    lone = said("half \ud800 of a pair").replace(b"\\\\", b"\\")
    captured(ours, [(asked({"role": "user", "content": "x\x00y"}), lone)])
    Rollout.objects.filter(pk=ours.pk).update(details={"reason": HOSTILE, HOSTILE: HOSTILE})
    shown = page(signed_in(house.approver), candidate, case)
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert "\u202e" not in shown
    assert "⟦U+202E⟧" in shown
    assert "⟦U+D800⟧" in shown
    assert "⟦NUL⟧" in shown


def test_answers_of_a_megabyte_are_compared_where_they_part_and_cut(
    house: factories.House, candidate: Candidate
) -> None:
    case = cases(candidate)[0]
    theirs, ours = rollouts(candidate, case)
    text = "word " * 200_000
    Rollout.objects.filter(pk=theirs.pk).update(answer=text)
    Rollout.objects.filter(pk=ours.pk).update(answer=text[:600_000] + "OTHER" + text[600_000:])
    shown = page(signed_in(house.approver), candidate, case)
    assert "599,400 equal characters before" in shown
    assert "OTHER" in shown
    assert len(shown) < 100_000


def test_the_number_of_queries_does_not_grow_with_samples_cases_and_turns(house: factories.House) -> None:
    client = signed_in(house.approver)

    def queries(candidate: Candidate, case: Case) -> int:
        page(client, candidate, case)
        with CaptureQueriesContext(connection) as captured_queries:
            page(client, candidate, case)
        return len(captured_queries)

    few = house.evaluated("few", wrong=2)
    one = cases(few)[0]
    for rollout in rollouts(few, one):
        captured(rollout, [(asked({"role": "user", "content": "x"}), said("y"))])
    before = queries(few, one)
    for rollout in Rollout.objects.filter(case=one):
        captured(rollout, [(asked({"role": "user", "content": f"x{n}"}), said(f"y{n}")) for n in range(30)])
    assert queries(few, one) == before
    assert before <= 32


def test_json_that_differs_only_in_writing_is_the_same(house: factories.House, candidate: Candidate) -> None:
    case = cases(candidate)[0]
    arguments = {"a": 1, "b": [2]}
    for rollout, text in zip(
        rollouts(candidate, case), (json.dumps(arguments), '{"b":[2],"a":1}'), strict=True
    ):
        captured(rollout, [(asked({"role": "user", "content": "x"}), said(None, ("book", text)))])
    assert "Both did the same." in page(signed_in(house.approver), candidate, case)


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (False, False, "; both are wrong all the same"),
        (True, True, "; both are right all the same"),
        (True, False, ""),
    ],
)
def test_where_both_are_equally_right_or_wrong_their_parting_is_no_alarm(
    house: factories.House, candidate: Candidate, theirs: bool, ours: bool, says: str
) -> None:
    case = cases(candidate)[0]
    for rollout, right in zip(rollouts(candidate, case), (theirs, ours), strict=True):
        Rollout.objects.filter(pk=rollout.pk).update(exact=right, decision=right)
    shown = page(signed_in(house.approver), candidate, case)
    assert f">Here they part{says}</h3>" in shown
    assert ('class="turn parting"' in shown) is not bool(says)


def test_what_was_asked_stands_beside_what_is_expected_and_the_trail_leads_to_all_tracks(
    house: factories.House, candidate: Candidate
) -> None:
    shown = page(signed_in(house.approver), candidate, cases(candidate)[0])
    beside = shown[shown.index("Asked and expected") : shown.index('id="beside"')]
    assert beside.index("The user asks") < beside.index(">Expected<")
    assert '<p class="crumbs"><a href="/tracks/">Tracks</a>' in shown
    assert '<a href="/candidates/" aria-current="true">' in shown
