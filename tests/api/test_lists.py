"""Cursor pages and filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollouts.models import (
    EvalRun,
)
from tests import factories


def pages(api: Any, path: str) -> list[list[Any]]:
    found = []
    following: str | None = path
    while following:
        answer = api.get(following.removeprefix("http://testserver"))
        found.append(answer["results"])
        following = answer["next"]
    return found


def test_pages_follow_one_another_without_gap_or_double(engineer: Any, house: Any):
    for number in range(7):
        factories.suite(house.engineer, name=f"s{number}", calls=1)
    found = pages(engineer, "suites?page_size=3")
    assert [len(page) for page in found] == [3, 3, 2]
    assert [suite["name"] for page in found for suite in page] == [f"s{n}" for n in range(6, -1, -1)] + [
        "named"
    ]


def test_a_row_that_comes_in_between_moves_no_page(engineer: Any, house: Any):
    for number in range(4):
        factories.suite(house.engineer, name=f"s{number}", calls=1)
    first = engineer.get("suites?page_size=3")
    factories.suite(house.engineer, name="late", calls=1)
    second = engineer.get(first["next"].removeprefix("http://testserver"))
    assert [suite["name"] for suite in first["results"] + second["results"]] == [
        "s3",
        "s2",
        "s1",
        "s0",
        "named",
    ]


def test_the_next_page_keeps_the_filters(engineer: Any, house: Any):
    run = EvalRun.objects.first() or house.measure(house.candidate())[0]
    found = pages(engineer, f"rollouts?run={run.pk}&state=scored&page_size=8")
    assert [len(page) for page in found] == [8, 8, 4]


@pytest.mark.parametrize("cursor", ["x", "a2k", "azE", "k5", "a" * 190, "azk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"])
def test_a_foreign_cursor_is_refused(engineer: Any, cursor: str):
    found = engineer.send("GET", f"runs?cursor={cursor}")
    if found.status_code != 200:  # "azE" is a cursor: k1
        assert found.json()["field"] == "cursor"


@pytest.mark.parametrize("size", ["0", "201", "-1", "abc", "1.5", ""])
def test_a_page_size_out_of_range_is_refused(engineer: Any, size: str):
    assert engineer.problem(400, "GET", f"runs?page_size={size}")["field"] == "page_size"


LISTS = [
    "backends",
    "suites",
    "runs",
    "audit",
    "bases",
    "tracks",
    "policies",
    "candidates",
    "registry",
    "aliases",
    "alias_moves",
    "exports",
    "gates",
    "auth/tokens",
]


@pytest.mark.parametrize("path", LISTS)
def test_an_unknown_parameter_is_refused_by_its_name(engineer: Any, path: str):
    found = engineer.problem(400, "GET", f"{path}?stat=scored")
    assert found["field"] == "stat"


def test_a_detail_takes_no_parameters(engineer: Any, house: Any):
    assert engineer.problem(400, "GET", f"tracks/{house.track.name}?x=1")["field"] == "x"


def test_a_parameter_given_twice_is_refused(engineer: Any):
    assert engineer.problem(400, "GET", "runs?state=scored&state=failed")["field"] == "state"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("runs?state=done", "state"),
        ("runs?suite=abc", "suite"),
        ("rollouts", "run"),
        ("rollouts?run=x", "run"),
        ("rollouts?run=1&metric=luck", "metric"),
        ("rollouts?run=1&value=true", "value"),
        ("rollouts?run=1&metric=safe&value=1", "value"),
        ("calls", "run"),
        ("calls?run=1&rollout=1", "run"),
        ("audit?action=no.such", "action"),
        ("audit?from=yesterday", "from"),
        ("policies?locked=yes", "locked"),
        ("evidence", "candidate"),
        ("candidates?state=ready", "state"),
        ("backends?kind=abacus", "kind"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_by_its_name(engineer: Any, path: str, field: str):
    assert engineer.problem(400, "GET", path)["field"] == field


@pytest.mark.parametrize(
    "path", ["rollouts?run=999", "calls?run=999", "calls?rollout=999", "evidence?candidate=999"]
)
def test_the_list_of_what_is_not_there_is_a_404(engineer: Any, path: str):
    engineer.problem(404, "GET", path)


def test_rollouts_are_filtered_by_state_family_and_metric(engineer: Any, house: Any):
    sealed = factories.suite(house.engineer, name="mixed", calls=4, declines=3)
    body = {"suite": sealed.digest, "backend": house.backend.name, "base": house.base.name}
    run = EvalRun.objects.get(pk=engineer.post("runs", body, status=202)["id"])
    factories.finish_run(run, {"mixed-call-0": "wrong", "mixed-call-1": "masked", "mixed-decline-0": "wrong"})
    path = f"rollouts?run={run.pk}"
    count = {
        "": 7,
        "&state=masked": 1,
        "&family=declines": 3,
        "&metric=tool": 3,
        "&metric=tool&value=false": 1,
        "&metric=safe&value=true": 2,
        "&family=calls&metric=decision&value=true": 2,
    }
    assert {query: len(engineer.get(path + query)["results"]) for query in count} == count


def test_audit_is_filtered_exactly(engineer: Any, house: Any):
    everything = engineer.get("audit?page_size=200")["results"]
    promoted = engineer.get("audit?action=candidate.promoted")["results"]
    assert [event["action"] for event in promoted] == ["candidate.promoted"]
    event = promoted[0]
    subject = f"subject_type={event['subject_type']}&subject_id={event['subject_id']}"
    assert event in engineer.get(f"audit?{subject}")["results"]
    assert {found["actor"] for found in engineer.get("audit?actor=user:approver")["results"]} == {
        "user:approver"
    }
    at = datetime.fromisoformat(event["at"]).astimezone(UTC)
    start = at.isoformat().replace("+00:00", "Z")
    end = (at + timedelta(microseconds=1)).isoformat().replace("+00:00", "Z")
    assert engineer.get(f"audit?from={start}&to={end}&action=candidate.promoted")["results"] == [event]
    assert engineer.get(f"audit?to={start}&action=candidate.promoted")["results"] == []
    assert len(everything) > 10
