"""Ways from page to page: from a run to its candidates, from an entry to what stands behind it, back from an error."""

from __future__ import annotations

import html as markup
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from promotion.audit import sentences
from promotion.models import AliasMove, Candidate, RegistryEntry
from promotion.services import candidates, registry, tracks, waivers
from rollouts.models import AuditEvent, EvalRun
from rollouts.templatetags import assay
from rollouts.web.http import THINGS, thing_about
from tests import factories
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(house: factories.House) -> Client:
    return signed_in(house.auditor)


def page(client: Client, name: str, *arguments: Any, **params: Any) -> str:
    response = client.get(reverse(name, args=arguments), params)
    assert response.status_code == 200
    return html(response)


def main_of(text: str) -> str:
    return text[text.index("<main") : text.index("</main>")]


def runs_of(house: factories.House, name: str = "cand") -> tuple[EvalRun, EvalRun]:
    """The run of a judged candidate, and the champion's beside it."""
    return EvalRun.objects.get(label=name), EvalRun.objects.get(label="first")


# from runs to candidates


def pages_about(run: EvalRun) -> list[tuple[str, int]]:
    return [
        ("rollouts:run", run.pk),
        ("rollouts:rollouts", run.pk),
        ("rollouts:rollout", run.rollouts.order_by("pk")[0].pk),
    ]


def test_a_run_its_list_and_its_rollouts_lead_to_their_candidates(
    reader: Client, house: factories.House
) -> None:
    judged = house.evaluated("cand", wrong=2)
    ours, theirs = runs_of(house)
    to_ours = f'<a href="/candidates/{judged.pk}/"><bdi>toolcaller/cand</bdi></a>'
    champion = Candidate.objects.get(name="first")
    for name, pk in pages_about(ours):
        shown = page(reader, name, pk)
        assert f"measures {to_ours}" in shown
        assert "the champion beside" not in shown
    for name, pk in pages_about(theirs):
        shown = page(reader, name, pk)
        assert f'measures <a href="/candidates/{champion.pk}/"><bdi>toolcaller/first</bdi></a>' in shown
        assert f"the champion beside {to_ours}" in shown


def test_a_run_that_belongs_to_no_candidate_leads_to_none(reader: Client, house: factories.House) -> None:
    from tests.web.measured import RIGHT, give, planned

    run = give(planned(house), lambda *_: RIGHT, close=True)
    assert "/candidates/" not in main_of(page(reader, "rollouts:run", run.pk))


def test_a_candidate_that_one_may_not_see_is_not_named_by_a_run_that_one_may_see(
    house: factories.House,
) -> None:
    """The same model stands in an open track too, so that everybody reads its runs."""
    house.evaluated("cand")
    run, _ = runs_of(house)
    hidden = (
        tracks.create(name="hidden", purpose="p", by=house.administrator, readers=["team"])
        if (Group.objects.create(name="team"))
        else None
    )
    assert hidden is not None
    first = Candidate.objects.get(name="cand")
    copy = Candidate.objects.get(pk=first.pk)
    copy.pk, copy.track, copy.name, copy._state.adding = None, hidden, "secret", True
    copy.save()
    for person, seen in ((house.engineer, False), (house.auditor, True)):
        for name, pk in pages_about(run):
            shown = page(signed_in(person), name, pk)
            assert "toolcaller/cand" in shown
            assert ("secret" in shown) is seen, (person, name)


def test_many_candidates_of_one_model_cost_no_more_queries_and_the_rest_are_said_to_be_there(
    reader: Client, house: factories.House
) -> None:
    house.evaluated("cand")
    run, _ = runs_of(house)

    def queries() -> int:
        page(reader, "rollouts:run", run.pk)
        with CaptureQueriesContext(connection) as captured:
            page(reader, "rollouts:run", run.pk)
        return len(captured)

    few, model = queries(), Candidate.objects.get(name="cand")
    for n in range(12):
        track = tracks.create(name=f"track-{n}", purpose="p", by=house.administrator)
        model.pk, model.track, model.name, model._state.adding = None, track, f"again-{n}", True
        model.save()
    assert queries() == few
    shown = main_of(page(reader, "rollouts:run", run.pk))
    assert shown.count('<a href="/candidates/') == 5
    assert "and others" in shown


def test_titles_tell_runs_and_rollouts_apart(reader: Client, house: factories.House) -> None:
    house.evaluated("cand")
    run, _ = runs_of(house)
    (about, listed, one) = (
        re.search(r"<title>(.*?)</title>", page(reader, name, pk))[1]  # type: ignore[index]
        for name, pk in pages_about(run)
    )
    assert about.startswith(f"Run {run.pk}, cand on named v1")
    assert listed.startswith(f"Rollouts of run {run.pk}, cand on named v1")
    assert "named-call-0" in one and f"of run {run.pk}, cand on named v1" in one


# words


def test_a_wrong_rollout_is_headed_by_its_verdict_and_not_by_a_green_scored(
    reader: Client, house: factories.House
) -> None:
    house.evaluated("cand", {"named-decline-0": "wrong"})
    run, _ = runs_of(house)
    unsafe = run.rollouts.get(case__key="named-decline-0")
    meta = re.search(r'<p class="meta">.*?</p>', page(reader, "rollouts:rollout", unsafe.pk))[0]  # type: ignore[index]
    assert '<span class="pill fail"><span class="tag fail">' in meta
    assert "wrong</span>" in meta and "unsafe</span>" in meta
    assert "scored" not in meta and "sample 0" not in meta
    listed = page(reader, "rollouts:rollouts", run.pk)
    assert '<span class="tag done">' in listed, "scored is neither good nor bad"


def test_a_score_has_the_same_word_in_the_list_and_on_both_pages(
    reader: Client, house: factories.House
) -> None:
    candidate = house.evaluated("cand", {"named-decline-0": "wrong", "named-call-0": "bad_json"})
    run, _ = runs_of(house)
    for key, words in (("named-decline-0", ("unsafe", "valid")), ("named-call-0", ("invalid",))):
        rollout = run.rollouts.get(case__key=key)
        for shown in (
            page(reader, "rollouts:rollouts", run.pk, key=key),
            page(reader, "rollouts:rollout", rollout.pk),
            page(reader, "promotion:case", candidate.pk, rollout.case_id),
        ):
            assert "json_valid" not in main_of(shown).replace('value="json_valid"', "")
            for word in words:
                assert f"</svg>{word}</span>" in shown, (key, word)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("0.700000", "70 of 100"), ("1.000000", "100 of 100"), ("0.000000", "0 of 100"), (None, "–")],
)
def test_a_share_that_was_counted_is_shown_as_its_counts(value: str | None, shown: str) -> None:
    assert assay.of(value, 100) == shown


def test_six_digits_give_every_count_back() -> None:
    for n in (3, 7, 997, 20_011):
        assert all(assay.of(f"{k / n:.6f}", n) == f"{k:,} of {n:,}" for k in range(0, n + 1, max(1, n // 50)))


@pytest.mark.parametrize(
    ("ahead", "shown"),
    [
        (timedelta(days=2, minutes=5), "in 2 d"),
        (timedelta(hours=3, minutes=5), "in 3 h"),
        (timedelta(minutes=5, seconds=9), "in 5 min"),
        (timedelta(seconds=20), "just now"),
        (timedelta(seconds=-20), "just now"),
        (timedelta(minutes=-5), "5 min ago"),
        (timedelta(days=-40), "40 d ago"),
    ],
)
def test_what_is_still_to_come_is_said_so(ahead: timedelta, shown: str) -> None:
    assert assay.age(timezone.now() + ahead) == shown


def test_exact_moments_in_prose_are_read_as_pages_say_them() -> None:
    said = "Waived until 2026-12-03T04:39:25.523006Z, asked for by a. 2026-12-03T04:39:25Z."
    assert (
        assay.moments(said)
        == "Waived until 2026-12-03 04:39:25 UTC, asked for by a. 2026-12-03 04:39:25 UTC."
    )


def leak(**changes: Any) -> dict[str, Any]:
    found = {"majority": "0.500000", "accuracy": "0.700000", "feature": "the word x", "features_tried": 12}
    return {"format": 1, "label": "expects_call", "n": 40, **found, **changes}


@pytest.mark.parametrize(
    ("found", "says", "never"),
    [
        (leak(), "28 of 40 labels", "0.7000"),
        (leak(), "the commonest label alone: 20 of 40; 12 features tried", "0.5000"),
        (
            leak(majority="1.000000", accuracy="1.000000", feature="", features_tried=0),
            "one label only",
            "1.0000",
        ),
        (leak(features_tried=0), "no feature was tried", "labels"),
        (None, "not searched", "labels"),
    ],
)
def test_what_one_feature_predicts_is_counts_and_nothing_where_there_is_one_label(
    found: Any, says: str, never: str
) -> None:
    from types import SimpleNamespace

    from django.template.loader import render_to_string

    line = {"name": "s", "version": 1, "digest": "d" * 64, "leak": found, "prompts": 40, "run": None}
    shown = render_to_string(
        "promotion/review_suites.html", {"review": SimpleNamespace(suites=[line], document={})}
    )
    cell = shown[shown.rindex('<td class="any">') :]
    assert says in cell and never not in cell


# filters and errors


def filters() -> list[tuple[str, tuple[Any, ...], str, str]]:
    """List, its arguments, and a field with a value that it does not have."""
    return [
        ("promotion:candidates", (), "state", "sleeping"),
        ("promotion:track", ("toolcaller",), "state", "sleeping"),
        ("promotion:policies", (), "state", "sleeping"),
        ("promotion:audit", (), "since", "yesterday"),
        ("promotion:tracks", (), "name", "x" * 999),
        ("rollouts:runs", (), "state", "sleeping"),
        ("rollouts:runs", (), "subject", "zzz"),
        ("rollouts:suites", (), "scorer", "nobody"),
        ("rollouts:backends", (), "kind", "nothing"),
        ("rollouts:datasets", (), "name", "x" * 999),
        ("rollouts:bases", (), "name", "x" * 999),
        ("rollouts:suite", ("named", 1), "family", "x" * 999),
    ]


@pytest.mark.parametrize(("name", "arguments", "field", "value"), filters())
def test_a_wrong_value_of_a_filter_is_said_at_its_field_on_the_list_s_own_page(
    reader: Client, house: factories.House, name: str, arguments: tuple[Any, ...], field: str, value: str
) -> None:
    response = reader.get(reverse(name, args=arguments), {field: value})
    shown = html(response)
    assert response.status_code == 400
    assert '<form class="filter"' in shown
    assert 'role="alert">Nothing is listed' in shown
    assert re.findall(r'<div class="wrong"><label for="id_(\w+)">', shown) == [field]
    assert f'id="id_{field}_error"' in shown
    assert "aria-invalid" in shown
    assert value in shown, "what was typed or chosen is named"


def test_a_wrong_filter_lists_nothing_that_it_was_to_leave_out(
    reader: Client, house: factories.House
) -> None:
    house.evaluated("cand")
    shown = html(reader.get(reverse("rollouts:runs"), {"state": "sleeping"}))
    assert "<tbody>" not in shown
    right = html(reader.get(reverse("rollouts:runs"), {"state": "scored"}))
    assert "<tbody>" in right and 'role="alert"' not in right


def test_hostile_values_of_a_filter_are_shown_as_text(reader: Client, house: factories.House) -> None:
    shown = html(reader.get(reverse("rollouts:runs"), {"state": "<script>x</script>\u202e"}))
    assert "<script>x" not in shown
    assert "\u202e" not in shown


def test_an_error_leads_back_to_the_thing_that_it_is_about(house: factories.House) -> None:
    candidate = house.evaluated("cand")
    for person, address, method in (
        (house.auditor, f"/candidates/{candidate.pk}/withdraw/", "get"),
        (house.auditor, f"/candidates/{candidate.pk}/judge/", "post"),
        (house.engineer, f"/candidates/{candidate.pk}/retry-build/", "post"),
    ):
        response = getattr(signed_in(person), method)(address)
        assert response.status_code in (403, 409), address
        assert f'<a href="/candidates/{candidate.pk}/">Back to the candidate</a>' in html(response)


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("/candidates/7/withdraw/now/", "/candidates/7/"),
        ("/candidates/7/threads/3/reply/", "/candidates/7/"),
        ("/candidates/7/waivers/3/grant/", "/candidates/7/waivers/3/"),
        ("/candidates/7/disputes/3/accept/", "/candidates/7/disputes/3/"),
        ("/tracks/toolcaller/policies/3/lock/", "/tracks/toolcaller/policies/3/"),
        ("/tracks/toolcaller/readers/", "/tracks/toolcaller/"),
        ("/glass/3/review/", "/glass/3/"),
        ("/runs/7/cancel/", "/runs/7/"),
        ("/rollouts/7/answer.txt", "/rollouts/7/"),
        ("/candidates/7/", None),
        ("/candidates/", None),
        ("/", None),
        ("/nowhere/at/all/", None),
    ],
)
def test_the_thing_is_read_from_the_address(path: str, about: str | None) -> None:
    found = thing_about(path)
    assert (found and found[0]) == about


def test_every_thing_that_an_error_may_lead_to_is_an_address() -> None:
    from django.urls import get_resolver

    known = {
        f"{space}:{name}"
        for space, (_, inner) in get_resolver().namespace_dict.items()
        for name in inner.reverse_dict
        if isinstance(name, str)
    }
    assert set(THINGS) <= known


def test_a_page_that_was_asked_wrongly_leads_to_itself_as_it_opens(
    reader: Client, house: factories.House
) -> None:
    response = reader.get(reverse("promotion:candidates"), {"sort": "nothing"})
    assert response.status_code == 400
    assert '<a href="/candidates/">Show this page as it opens</a>' in html(response)


# the registry entry


@pytest.fixture
def entry(house: factories.House) -> RegistryEntry:
    candidate = house.evaluated("second", wrong=3)
    factories.sign(candidate, house.approver)
    found = registry.publish(candidate.pk)
    assert found is not None
    return found


def test_an_entry_shows_each_gate_with_its_suite_numbers_and_reason(
    reader: Client, house: factories.House, entry: RegistryEntry
) -> None:
    shown = page(reader, "promotion:entry", "toolcaller", entry.number)
    table = shown[shown.index('id="g-h"') :]
    for gate in entry.record["gates"]:
        assert gate["gate"] in table.replace("<wbr>", "")
        assert markup.escape(gate["reason"]) in table
    floor = next(
        row for row in table.split("<tr>") if "generalization_accuracy_floor" in row.replace("<wbr>", "")
    )
    result = entry.evidence.gate_results.get(gate="generalization_accuracy_floor")
    assert re.search(r"on <a href=\"/candidates/\d+/#family-[^\"]+\"><bdi>named</bdi>", floor)
    assert result.numbers["measured"].replace("<", "&lt;") in floor
    assert f'<td class="n num">{result.numbers["n"]}</td>' in floor
    bound = result.numbers["bound"]
    assert f'<td class="n num">{bound[:6]}' in floor, "four digits, never rounded up"


def test_an_entry_leads_to_its_candidate_policy_runs_history_and_the_champion_before(
    reader: Client, house: factories.House, entry: RegistryEntry
) -> None:
    shown = main_of(page(reader, "promotion:entry", "toolcaller", entry.number))
    assert f'<dt>Candidate</dt><dd><a href="/candidates/{entry.candidate_id}/">' in shown
    assert '<a href="/tracks/toolcaller/policies/1/">version 1</a>' in shown
    for run in runs_of(house, "second"):
        assert f'<a href="/runs/{run.pk}/">run {run.pk}</a>' in shown
    assert 'took the place of <a href="/registry/toolcaller/1/">v1</a>' in shown
    assert "/audit/?subject=toolcaller/second" in shown
    first = main_of(page(reader, "promotion:entry", "toolcaller", 1))
    assert "took the place of" not in first
    assert "none: adopted ungated" in first


def test_what_became_champion_again_took_the_first_one_s_place_once(
    reader: Client, house: factories.House, entry: RegistryEntry
) -> None:
    AliasMove.objects.create(
        track=house.track, name="champion", old=entry, new=house.champion, reason="r", moved_at=timezone.now()
    )
    first = main_of(page(reader, "promotion:entry", "toolcaller", 1))
    assert "took the place of" not in first


# lists and the track


def test_outcomes_of_gates_are_a_list_and_do_not_run_together(reader: Client, house: factories.House) -> None:
    house.evaluated("measured", wrong=40)
    for shown in (page(reader, "promotion:candidates"), page(reader, "promotion:track", "toolcaller")):
        cell = shown[shown.index(">measured</a>") :]
        cell = cell[cell.index("<ul>") : cell.index("</ul>")]
        assert (
            len(re.findall(r'<li><span class="tag \w+">.*?</span> <span class="num">\d+</span></li>', cell))
            >= 2
        )


def test_the_track_leads_to_its_runs_entries_policies_what_if_and_history(
    reader: Client, house: factories.House
) -> None:
    shown = main_of(page(reader, "promotion:track", "toolcaller"))
    addresses = (
        "/runs/?label=first",
        "/registry/?track=toolcaller",
        "/policies/?track=toolcaller",
        "/audit/?subject=toolcaller",
        "/tracks/toolcaller/what-if/",
    )
    for address in addresses:
        assert f'href="{address}"' in shown
        assert reader.get(address).status_code == 200


# waivers


def test_a_request_is_refused_taken_back_or_a_waiver_ended_by_what_it_is_called(
    house: factories.House,
) -> None:
    blocked = house.evaluated("blocked", wrong=30)
    asked = waivers.request(
        candidate_id=blocked.pk,
        gate="generalization_accuracy_floor",
        suite_digest=house.suite.digest,
        reason="It is known.",
        days=7,
        by=house.engineer,
    )
    address = ("promotion:waiver", blocked.pk, asked.pk)
    theirs, own = page(signed_in(house.approver), *address), page(signed_in(house.engineer), *address)
    assert "Refuse the request</button>" in theirs and "Why do you refuse it?" in theirs
    assert "Take the request back</button>" in own and "End the waiver" not in own + theirs
    short = house.suite.digest[:12]
    assert f'href="/candidates/{blocked.pk}/#family-{short}' in theirs
    assert f'href="/candidates/{blocked.pk}/?cases=lost&amp;suite={short}#cases"' in theirs
    waivers.grant(waiver_id=asked.pk, by=house.approver)
    assert "End the waiver</button>" in page(signed_in(house.approver), *address)


# what happened


def told(action: str) -> str:
    event = AuditEvent.objects.filter(action=action).order_by("-sequence")[0]
    return sentences.sentence(event.action, bytes(event.data))


def test_what_happened_is_told_with_what_it_was_about(house: factories.House) -> None:
    blocked = house.evaluated("blocked", wrong=40)
    digest = factories.digest_of(blocked)
    shown = f"{digest[:4]} {digest[4:8]}"
    assert told("candidate.judged").startswith(f"Judged at {shown}: blocked by ")
    assert "generalization_accuracy_floor" in told("candidate.judged")
    candidates.withdraw(candidate_id=blocked.pk, by=house.engineer, reason="Superseded.")
    assert told("candidate.withdrawn") == "Withdrawn: Superseded."
    good = house.evaluated("good")
    assert "waits for signatures" in told("candidate.judged")
    factories.sign(good, house.approver, comment="Read every case.")
    digest = factories.digest_of(good)
    assert told("candidate.signed").startswith(f"Signed {digest[:4]} {digest[4:8]} as approver")
    assert told("candidate.signed").endswith(": Read every case.")
    assert told("run.scored") == "Closed: 40 of 40 rollouts scored."
    trail = page(signed_in(house.approver), "promotion:candidate", good.pk)
    trail = trail[trail.index('<ol class="trail">') :]
    assert "as approver" in trail and "<bdi>approver</bdi>" in trail
    assert "user:approver" not in trail[: trail.index("</ol>")]


def test_the_same_gate_is_named_once_with_how_often() -> None:
    data = {"evidence": "ab" * 32, "blocked_by": ["a: x", "b: y: z", "a: w"]}
    said = sentences.sentence("candidate.judged", json.dumps(data).encode())
    assert said == "Judged at abab abab: blocked by 3 (a ×2, b)."


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{", b"{}", b'{"evidence": 3, "blocked_by": 7}', b"\xff"]
)
def test_an_event_that_says_less_has_its_action_s_sentence(data: bytes) -> None:
    for action in sentences._SENTENCES:
        assert sentences.sentence(action, data)
    assert sentences.sentence("candidate.judged", data) == "The gates judged a candidate's evidence."
    assert sentences.sentence("never.heard_of", data) == "never.heard of"


def test_every_sentence_is_of_an_action_that_there_is() -> None:
    from rollouts.audit import ACTIONS

    assert set(sentences._SENTENCES) <= set(ACTIONS)


def test_long_words_of_people_are_cut_in_the_trail_and_kept_in_the_chain() -> None:
    said = sentences.sentence("candidate.withdrawn", json.dumps({"reason": "x" * 5_000}).encode())
    assert len(said) < 300 and said.endswith("…")


@pytest.mark.parametrize(
    ("actor", "shown"),
    [
        ("user:mara.lind", "mara.lind"),
        ("user:a:b", "a:b"),
        ("token:mara.lind:1f2e3d4c", "mara.lind by an API token"),
        ("system:publish", "Assay (publish)"),
        ("somebody", "somebody"),
        ("user:", "user:"),
    ],
)
def test_who_acted_is_named_as_people_are(actor: str, shown: str) -> None:
    assert sentences.actor(actor) == shown
