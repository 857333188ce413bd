"""The tables of the review page: which family decides, one sign for differences, and the way from a row to its cases."""

from __future__ import annotations

import html as entities
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion import evidence as evidence_module
from promotion.attention import row_id
from promotion.models import Candidate, Evidence
from promotion.web import families
from promotion.web.review_gates import confidence, shown_difference, summary_of
from rollouts.services import suites
from tests import factories
from tests.web.conftest import html, signed_in
from tests.web.test_review_verdict import between, gate_policy

pytestmark = pytest.mark.django_db
DIFFERENT = ["named-call-1", "named-call-2", "named-decline-1"]


def get(candidate: Candidate, client: Client, query: str = "") -> str:
    response = client.get(reverse("promotion:candidate", args=[candidate.pk]) + query)
    assert response.status_code == 200
    return html(response)


def document_of(candidate: Candidate) -> dict[str, Any]:
    return evidence_module.document_of(Evidence.objects.filter(candidate=candidate).latest("id"))


def row(page: str, id_: str) -> str:
    return between(page, f'<tr id="{id_}"', "</tr>")


def gate_rows(page: str) -> str:
    return between(page, 'aria-label="Table of gates"', "</table>")


def family_rows(page: str) -> str:
    return between(page, 'aria-label="Table of families"', "</table>")


def text(markup: str) -> str:
    return " ".join(entities.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def tabs(page: str) -> dict[str, int]:
    found = re.findall(
        r'cases=(\w+)[^"]*#cases"[^>]*>[^<]*<span class="num">(\d+)',
        between(page, 'aria-label="Which cases"', "</nav>"),
    )
    return {key: int(n) for key, n in found}


def cases_shown(page: str) -> int:
    return page.count('<details class="row" id="case-')


# gates


def per_family(house: factories.House) -> Candidate:
    """All calls are right; declines are not, and one of them has no score."""
    gate_policy(house, {"gate": "per_family_safety_floor", "metric": "decision", "min": "0.70"})
    wrong = {f"named-decline-{n}": "wrong" for n in range(3)} | {"named-decline-9": "masked"}
    return house.evaluated(outcomes=wrong)


def test_a_gate_that_judges_each_family_shows_the_one_that_decides(house: factories.House) -> None:
    candidate = per_family(house)
    page = get(candidate, signed_in(house.approver))
    shown = row(page, "gate-4")
    place = row_id(house.suite.digest, "declines")
    found = document_of(candidate)["suites"][0]["candidate"]["families"]["declines"]["decision"]
    assert found == {"successes": 16, "failures": 3, "missing": 1}
    assert (
        f'16/20<small class="of">in <a href="#{place}"><bdi>declines</bdi></a>; 1 of 2 families pass' in shown
    )
    # the bound is of these 20 prompts, and so are n and masked
    assert row(page, place).count("16/20") == 1
    bound = re.search(r"0\.\d{4}", between(shown, 'data-label="Bound"', "</td>"))
    assert bound and bound[0] in row(page, place)
    assert '<td class="n num" data-label="n">20</td><td class="n num" data-label="Masked">1</td>' in shown


def test_the_family_that_fails_whatever_its_missing_prompts_are_decides(house: factories.House) -> None:
    """`mail` has the lower bound, but only `files` fails for certain."""
    from promotion.web.review_gates import _decided_by

    part = {"needs": ">= 0.60", "n": 20, "masked": 0, "measured": "10/20"}
    found = {
        "mail": {**part, "bound": "0.300000", "best_bound": "0.800000"},
        "files": {**part, "bound": "0.400000", "best_bound": "0.400000"},
    }
    numbers = {"families": found, "bound": "0.300000", "best_bound": "0.400000"}
    family, shown = _decided_by(numbers, {"min": "0.60"})
    assert (family, shown["bound"], shown["best_bound"]) == ("files", "0.400000", "0.400000")
    assert _decided_by({"families": found}, {"min": "0.20"})[0] == "mail"


def test_a_difference_has_the_sign_of_the_family_table_in_both_tables(house: factories.House) -> None:
    gate_policy(
        house,
        {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"},
        {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.25"},
    )
    page = get(house.evaluated(outcomes=dict.fromkeys(DIFFERENT, "wrong")), signed_in(house.approver))
    gates, total = gate_rows(page), family_rows(page)
    assert "−0.0750" in between(gates, "arena_<wbr>max", "</tr>")
    assert "≥ −0.20" in between(gates, "arena_<wbr>max", "</tr>")
    assert "−0.0750" in between(total, 'data-label="Difference"', "</td>")
    # no pair was won: gate and table ask for the exact bound as well
    (bound,) = re.findall(r"bound (−0\.\d{4})", between(total, 'data-label="Difference"', "</td>"))
    paired = between(gates, "paired_<wbr>non", "</tr>")
    assert f'data-label="Bound">{bound}<small class="of">of the difference' in paired
    assert "≥ −0.25" in paired
    assert "drop ≤" not in gates and "drop &le;" not in total


def test_the_bound_of_the_difference_is_taken_at_the_alpha_of_the_gate_that_compares(
    house: factories.House,
) -> None:
    gate_policy(
        house, {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.40", "alpha": "0.001"}
    )
    page = get(house.evaluated(outcomes=dict.fromkeys(DIFFERENT, "wrong")), signed_in(house.approver))
    (bound,) = re.findall(
        r"bound (−0\.\d{4})", between(family_rows(page), 'data-label="Difference"', "</td>")
    )
    assert f'data-label="Bound">{bound}<' in between(gate_rows(page), "paired_<wbr>non", "</tr>")


@pytest.mark.parametrize(
    ("drop", "shown"),
    [
        ("+0.257984", "−0.2580"),
        ("-0.026667", "+0.0266"),
        ("+0.000001", "−0.0001"),
        ("-0.000001", "0.0000"),
        ("+0.000000", "0.0000"),
        (None, "–"),
    ],
)
def test_a_difference_is_rounded_against_the_candidate(drop: str | None, shown: str) -> None:
    assert shown_difference(drop) == shown


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"gate": "generalization_accuracy_floor", "metric": "tool", "min": "0.80"},
            "Share with the right tool on held-out tools: at least 0.80 with 95 % confidence.",
        ),
        (
            {"gate": "per_family_safety_floor", "metric": "safe", "min": "0.70", "alpha": "0.01"},
            "Share with no call made in every family by itself: at least 0.70 with 99 % confidence; "
            "none may be missing.",
        ),
        (
            {"gate": "paired_non_inferiority", "metric": "exact", "margin": "0.05"},
            "Share with the exact answer less the champion's, prompt by prompt: at least −0.05 with 95 % confidence.",
        ),
        ({"gate": "look_budget", "max_looks": 4}, "This is one of the first 4 looks at the sealed suite"),
        ({"gate": "masked_ceiling", "max_percent": "5"}, "At most 5 % of the candidate's rollouts"),
        ({"gate": "latency_memory_budget", "max_p95_ms": 900}, "took at most 900 ms."),
        (
            {"gate": "latency_memory_budget", "max_p95_ms": 900, "max_memory_mib": 512},
            "900 ms, and the server never held more than 512 MiB.",
        ),
        ({"gate": "confidence_lower_bound"}, "The exact lower bound of metric reaches min."),
        ({"gate": "gone"}, ""),
    ],
)
def test_the_sentence_of_a_gate_names_what_the_entry_asks(entry: dict[str, Any], said: str) -> None:
    assert said in summary_of(entry, None, spent=False)


@pytest.mark.parametrize(
    ("alpha", "said"),
    [
        ("0.05", "95 %"),
        ("0.025", "97.5 %"),
        ("0.00416667", "99.58 %"),
        ("0.000001", "99.99 %"),
        ("x", "unknown"),
    ],
)
def test_confidence_is_never_rounded_up(alpha: str, said: str) -> None:
    assert confidence(alpha) == said


def test_a_spent_alpha_is_named_or_said_to_be_at_most_the_entrys() -> None:
    entry = {"gate": "confidence_lower_bound", "metric": "safe", "min": "0.8"}
    assert "with 97.5 % confidence" in summary_of(entry, "0.025", spent=True)
    assert "with at least 95 % confidence" in summary_of(entry, None, spent=True)


def test_gates_lead_to_rows_that_are_there_and_rows_to_the_gate(house: factories.House) -> None:
    page = get(per_family(house), signed_in(house.approver))
    places = re.findall(r'href="#((?:family|gate)-[^"]+)"', gate_rows(page) + family_rows(page))
    assert any(place.startswith("family-") for place in places)
    assert any(place.startswith("gate-") for place in places)
    assert [place for place in places if f'id="{place}"' not in page] == []


def test_no_row_is_named_that_the_family_table_lacks(house: factories.House) -> None:
    document = document_of(house.evaluated())
    (part,), policy = document["suites"], document["policy"]["document"]
    table = families.table(document, {}, None)
    assert table is not None
    there = {shown.id for group in table.groups for shown in (group.total, *group.rows)}
    assert families.place(policy, part) in there
    assert families.place(policy, part, "calls") in there
    assert families.place(policy, part, "nobody's") == ""
    assert families.place(policy, {**part, "candidate": None}) == ""


# families


def test_a_row_behind_the_champion_is_marked_with_a_sign_and_a_word(house: factories.House) -> None:
    page = get(house.evaluated(outcomes={"named-call-1": "wrong"}), signed_in(house.approver))
    worse, same = (row(page, row_id(house.suite.digest, name)) for name in ("calls", "declines"))
    assert "▼" in text(worse).replace("&#9660;", "▼") and "worse" in text(worse)
    assert "worse" not in text(same)


def test_the_outcome_stands_beside_the_name_and_the_head_says_what_counts(house: factories.House) -> None:
    table = family_rows(get(house.evaluated(), signed_in(house.approver)))
    heads = [text(head) for head in re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", table)]
    assert heads[:3] == ["Suite, family", "Outcome", "Right / n"]
    assert "right: the right decision" in text(table)


MANY = [f"missing-argument-{n}" for n in range(6)]


def many_families() -> factories.House:
    """A second sealed suite of six families that a floor judges as a whole."""
    house = factories.house(calls=20, champion=True)
    rows = [factories.call_case(f"{family}-{n}", family=family) for family in MANY for n in range(4)]
    sealed = suites.seal(name="wide", data=factories.jsonl(rows), by=house.engineer, source="wide")
    document = factories.policy_document(
        [house.suite, sealed],
        extra=[
            factories.floor("generalization_accuracy_floor", sealed.digest, "decision", "0.60"),
            {
                "gate": "arena_max_regression",
                "suite": sealed.digest,
                "metric": "json_valid",
                "max_drop": "0.2",
            },
        ],
        approvers=1,
    )
    from promotion.services import policies

    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver_2)
    house.suite = sealed
    return house


def test_many_rows_that_nobody_judges_are_folded_and_what_lost_is_not(db: None) -> None:
    house = many_families()
    candidate = house.evaluated(outcomes={"missing-argument-1-2": "wrong"})
    page = get(candidate, signed_in(house.approver))
    assert "5 other families that no gate judges, none lost" in page
    assert 'class="quiet' not in row(page, row_id(house.suite.digest, "missing-argument-1"))
    assert 'class="quiet unjudged"' in row(page, row_id(house.suite.digest, "missing-argument-2"))


def test_rows_of_a_suite_that_a_gate_judges_by_family_are_never_folded(db: None) -> None:
    house = many_families()
    gate_policy_on(house, {"gate": "per_family_safety_floor", "metric": "exact", "min": "0.10"})
    assert "quiet" not in family_rows(get(house.evaluated(), signed_in(house.approver)))


def gate_policy_on(house: factories.House, *gates: dict[str, Any]) -> None:
    house.policy = house.track.policies.latest("version")
    gate_policy(house, *gates)


# from a row to its cases


def test_lost_and_won_lead_to_exactly_those_cases(house: factories.House) -> None:
    client = signed_in(house.auditor)
    candidate = house.evaluated(outcomes=dict.fromkeys(DIFFERENT, "wrong"))
    page = get(candidate, client)
    links = re.findall(r'<a class="turn[^"]*" href="([^"]*)">(\d+)<', family_rows(page))
    assert sorted(int(n) for _, n in links) == [1, 2, 3]
    for href, n in links:
        shown = get(candidate, client, entities.unescape(href)[entities.unescape(href).index("?") :])
        assert cases_shown(shown) == tabs(shown)["lost"] == int(n)


def test_won_cases_are_linked_too(house: factories.House) -> None:
    gate_policy(house, {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"})
    candidate = house.candidate("cand")
    from promotion.services import gating
    from tests.factories import finish_run

    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer):
        finish_run(run, {} if run.label == "cand" else dict.fromkeys(DIFFERENT, "wrong"))
    gating.judge_if_measured(candidate.pk)
    page = get(candidate, signed_in(house.auditor))
    digest = house.suite.digest[:12]
    assert f"cases=won&amp;suite={digest}&amp;family=calls#cases" in page
    shown = get(candidate, signed_in(house.auditor), f"?cases=won&suite={digest}&family=calls")
    assert cases_shown(shown) == tabs(shown)["won"] == 2


def test_tabs_and_pages_keep_what_the_address_narrows_to(house: factories.House) -> None:
    candidate = house.evaluated(wrong=14)
    client = signed_in(house.auditor)
    query = f"?cases=lost&suite={house.suite.digest}&family=calls"
    page = get(candidate, client, query)
    assert tabs(page) == {"lost": 14, "wrong": 0, "missing": 0, "won": 0}
    assert cases_shown(page) == 10
    kept = f"suite={house.suite.digest}&amp;family=calls"
    section = between(page, 'id="cases"', "</section>")
    for link in re.findall(r'href="(\?[^"]*|/candidates/\d+/\?[^"]*)#cases"', section):
        assert kept in link or "family" not in link
    assert f"{kept}&amp;at=10#cases" in section
    assert cases_shown(get(candidate, client, f"{query}&at=10")) == 4
    assert tabs(get(candidate, client, "?family=declines"))["lost"] == 0
    assert "Only family <bdi>calls</bdi> of suite <bdi>named</bdi>." in section


@pytest.mark.parametrize(
    "query",
    [
        "suite=000000000000",
        "suite=x&family=calls",
        "suite=",
        "family=nobody",
        "family=%00",
        "family=" + "x" * 3000,
        "suite={short}",
    ],
)
def test_what_is_not_there_shows_no_case_and_a_way_back(house: factories.House, query: str) -> None:
    candidate = house.evaluated(wrong=3)
    asked = query.format(short=house.suite.digest[:11])
    page = get(candidate, signed_in(house.auditor), f"?cases=lost&{asked}")
    if asked == "suite=":
        assert cases_shown(page) == 3
        return
    assert cases_shown(page) == 0 and set(tabs(page).values()) == {0}
    back = re.search(r'class="narrowed">.*?href="([^"]*)"', page)
    assert back and back[1].endswith("?cases=lost#cases")


def test_a_narrowed_page_asks_one_question_more(house: factories.House) -> None:
    candidate, client = house.evaluated(wrong=14), signed_in(house.auditor)
    get(candidate, client)

    def queries(query: str) -> int:
        with CaptureQueriesContext(connection) as found:
            get(candidate, client, query)
        return len(found)

    plain = queries("?cases=lost")
    assert queries(f"?cases=lost&suite={house.suite.digest}") == plain
    assert queries("?cases=lost&family=calls") == plain + 1


def test_where_cases_repeat_prompts_the_links_say_how_many_cases_there_are(db: None) -> None:
    """One prompt in three cases is one pair, and three cases are listed."""
    house = factories.house(calls=20, champion=True)
    rows = [factories.call_case(f"twin-{n}", family="twins") for n in range(3)]
    rows = [{**one, "messages": rows[0]["messages"]} for one in rows]
    rows += [factories.call_case(f"other-{n}", family="others") for n in range(30)]
    sealed = suites.seal(name="twins", data=factories.jsonl(rows), by=house.engineer, source="twins")
    document = factories.policy_document(
        [house.suite, sealed],
        extra=[
            factories.floor("generalization_accuracy_floor", sealed.digest, "decision", "0.60"),
            {"gate": "arena_max_regression", "suite": sealed.digest, "metric": "decision", "max_drop": "0.2"},
        ],
        approvers=1,
    )
    from promotion.services import policies

    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver_2)
    candidate = house.evaluated(outcomes={f"twin-{n}": "wrong" for n in range(3)})
    client = signed_in(house.auditor)
    total = between(get(candidate, client), f'id="{row_id(sealed.digest)}"', "</tr>")
    assert "1 / 0 cases: 3" in text(between(total, 'data-label="Lost / won"', "</td>"))
    shown = get(candidate, client, f"?cases=lost&suite={sealed.digest[:12]}")
    assert tabs(shown)["lost"] == cases_shown(shown) == 3


def test_the_links_of_a_refused_page_keep_their_rows(house: factories.House) -> None:
    candidate = house.evaluated(wrong=2)
    response = signed_in(house.approver).post(
        reverse("promotion:sign", args=[candidate.pk]), {"evidence_digest": "0" * 64, "decision": "approve"}
    )
    assert response.status_code >= 400
    links = re.findall(r'<a class="turn[^"]*" href="([^"]*)"', html(response))
    home = reverse("promotion:candidate", args=[candidate.pk])
    assert links and all(link.startswith(f"{home}?") for link in links)


# what would change an outcome


def test_only_families_that_change_an_outcome_are_named(house: factories.House) -> None:
    steady = between(
        get(house.evaluated("one", wrong=2), signed_in(house.approver)), 'id="fragility"', "</table>"
    )
    assert "no family changes it" in steady and "without <bdi>" not in steady
    wrong = {f"named-decline-{index}": "wrong" for index in range(18)}
    page = get(house.evaluated("two", wrong), signed_in(house.approver))
    hanging = between(page, 'id="fragility"', "</table>")
    assert "without <bdi>declines</bdi> (20) <strong>passed</strong>; no other family changes it" in hanging
    assert "<bdi>calls</bdi>" not in hanging


def test_one_is_not_written_as_several(house: factories.House) -> None:
    gate_policy(house, {"gate": "masked_ceiling", "max_percent": "3"})
    fragile = between(get(house.evaluated(masked=1), signed_in(house.approver)), 'id="fragility"', "</table>")
    assert "1 rollout</td>" in fragile and "1 rollouts" not in fragile
