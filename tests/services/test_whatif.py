"""Another policy over stored evidence: the same policy says the same, another one says where it differs."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion import evidence as evidence_module
from promotion import whatif
from promotion.gates import OPENS
from promotion.models import Evidence, GateResult, Policy
from promotion.services import policies, tracks
from promotion.services.gating import APPROVAL_GATE
from rollouts.errors import InvalidInput, NotFound
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> None:
    """Nothing is sent; whitenoise warns where its folder is missing."""
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


@pytest.fixture
def house(db: None) -> factories.House:
    """Two candidates: `good` has 19 of 20 right and passes a bound of 0.60, `bad` has 8 of 20 and does not."""
    house = factories.house(calls=20, champion=True)
    house.evaluated("good", wrong=1)
    house.evaluated("bad", wrong=12)
    return house


def document(house: factories.House, **gate: Any) -> dict[str, Any]:
    """The policy in force, its one floor changed."""
    changed = copy.deepcopy(house.policy.document)
    for entry in changed["gates"]:
        if entry["gate"] == "generalization_accuracy_floor":
            entry.update(gate)
    return changed


def rows(replay: whatif.Replay) -> dict[str, whatif.Row]:
    return {row.candidate.name: row for row in replay.rows}


# the same


def test_the_policy_in_force_gives_the_verdicts_that_were_stored(house: factories.House) -> None:
    for replay in (whatif.replay_policy(house.track, 1), whatif.replay(house.track, house.policy.document)):
        assert rows(replay).keys() == {"good", "bad", "first"}
        for name in ("good", "bad"):
            row = rows(replay)[name]
            assert row.differences == []
            assert row.now == row.then
            stored = GateResult.objects.filter(evidence=row.evidence).exclude(gate=APPROVAL_GATE)
            opens = all(result.outcome in OPENS for result in stored)
            assert row.then == ("passes" if opens else "blocked")
            under = whatif.under(evidence_module.document_of(row.evidence), house.policy.document)
            assert under["suites"] == evidence_module.document_of(row.evidence)["suites"]
        assert (replay.same, replay.opened, replay.closed, replay.unknown) == (2, 0, 0, 1)
    assert {row.now for row in replay.rows} == {"passes", "blocked", None}


def test_a_baseline_has_no_verdict_to_compare(house: factories.House) -> None:
    row = rows(whatif.replay_policy(house.track))["first"]
    assert (row.now, row.then) == (None, None)
    assert "without gates" in row.why_not


# another


def test_a_looser_floor_opens_and_a_stricter_one_closes(house: factories.House) -> None:
    loose = whatif.replay(house.track, document(house, min="0.10"))
    assert (loose.opened, loose.closed, loose.same) == (1, 0, 1)
    row = rows(loose)["bad"]
    assert (row.now, row.then, row.turned) == ("blocked", "passes", True)
    assert [(part.gate, part.suite, part.now, part.then) for part in row.differences] == [
        ("generalization_accuracy_floor", "named", "failed", "passed")
    ]
    strict = whatif.replay(house.track, document(house, min="0.95"))
    assert (strict.opened, strict.closed, strict.same) == (0, 1, 1)
    assert rows(strict)["good"].differences[0].then == "failed"


def test_a_gate_that_only_one_policy_asks_is_said_so(house: factories.House) -> None:
    more = copy.deepcopy(house.policy.document)
    more["gates"].insert(-1, {"gate": "rollback_artifact_availability"})
    row = rows(whatif.replay(house.track, more))["good"]
    assert [(part.gate, part.now, part.then) for part in row.differences] == [
        ("rollback_artifact_availability", "", "passed")
    ]
    less = copy.deepcopy(house.policy.document)
    less["gates"] = [entry for entry in less["gates"] if entry["gate"] != "generalization_accuracy_floor"]
    row = rows(whatif.replay(house.track, less))["bad"]
    assert (row.then, row.differences[0].now, row.differences[0].then) == ("passes", "failed", "")


def test_a_former_name_of_a_gate_is_no_difference(house: factories.House) -> None:
    renamed = copy.deepcopy(house.policy.document)
    for entry in renamed["gates"]:
        if entry["gate"] == "evaluated_artifact":
            entry["gate"] = "deployed_artifact_gauntlet"
    assert rows(whatif.replay(house.track, renamed))["good"].differences == []


def test_a_document_that_could_never_be_locked_is_judged_all_the_same(house: factories.House) -> None:
    vacuous = document(house, min="0")
    assert policies.unlockable_reasons(vacuous)
    row = rows(whatif.replay(house.track, vacuous))["good"]
    assert row.then == "blocked"
    assert row.differences[0].then == "error"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples": 3}, "samples 1, and this asks for 3"),
        ({"sampling": {"temperature": 1, "max_tokens": 64}}, "temperature 0"),
    ],
)
def test_evidence_of_other_answers_cannot_tell(
    house: factories.House, change: dict[str, Any], says: str
) -> None:
    replay = whatif.replay(house.track, {**house.policy.document, **change})
    row = rows(replay)["good"]
    assert (row.now, row.then, row.differences) == ("passes", None, [])
    assert says in row.why_not
    assert replay.unknown == 3


def test_a_suite_that_was_not_measured_cannot_be_told(house: factories.House) -> None:
    other = factories.suite(house.engineer, name="other")
    changed = copy.deepcopy(house.policy.document)
    changed["suites"].append({"digest": other.digest})
    row = rows(whatif.replay(house.track, changed))["good"]
    assert row.then is None
    assert other.digest[:12] in row.why_not


def test_the_draft_is_taken_before_the_policy_in_force(house: factories.House) -> None:
    assert whatif.replay_policy(house.track).version == 1
    policies.draft(track=house.track, document=document(house, min="0.80"), by=house.administrator)
    assert whatif.replay_policy(house.track).version == 2
    assert whatif.replay_policy(house.track, 1).version == 1
    assert rows(whatif.replay_policy(house.track))["good"].policy_version == 1


def test_what_is_no_policy_is_refused(house: factories.House) -> None:
    with pytest.raises(NotFound):
        whatif.replay_policy(house.track, 9)
    empty = tracks.create(name="empty", purpose="Nothing yet.", by=house.administrator)
    with pytest.raises(NotFound, match="no policy yet"):
        whatif.replay_policy(empty)
    for wrong in ({}, [], {**house.policy.document, "extra": 1}, {**house.policy.document, "gates": []}):
        with pytest.raises(InvalidInput):
            whatif.replay(house.track, wrong)


def test_evidence_whose_bytes_were_changed_is_not_judged(house: factories.House) -> None:
    from rollouts import append_only

    found = Evidence.objects.filter(candidate__name="good").latest("id")
    with append_only.lifted(connection):
        Evidence.objects.filter(pk=found.pk).update(document=b"{}")
    row = rows(whatif.replay_policy(house.track))["good"]
    assert (row.now, row.then) == (None, None)
    assert "other bytes" in row.why_not


def test_it_writes_nothing_and_asks_the_same_number_of_questions_for_more_candidates(
    house: factories.House,
) -> None:
    def asked() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            whatif.replay_policy(house.track)
        assert all(query["sql"].lstrip().upper().startswith("SELECT") for query in captured)
        return len(captured)

    few = asked()
    for index in range(3):
        house.evaluated(f"more-{index}", wrong=index)
    assert asked() == few


# the command, the API, the page


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("what_if", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_says_which_candidates_turn(house: factories.House, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document(house, min="0.10")))
    said = run("toolcaller", "--file", str(file))
    assert "bad: blocked under policy 1, passes then." in said
    assert "generalization_accuracy_floor on named: failed -> passed." in said
    assert "1 the same, 1 would open, 0 would close, 1 cannot be told." in said
    assert "2 the same, 0 would open" in run("toolcaller")
    with pytest.raises(CommandError, match="no such policy"):
        run("toolcaller", "--policy", "7")
    file.write_text("{")
    with pytest.raises(CommandError):
        run("toolcaller", "--file", str(file))


def client_of(house: factories.House) -> Client:
    client = Client()
    client.force_login(house.auditor, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_the_api_gives_the_same_table(house: factories.House) -> None:
    from tests.api.conftest import Api, token_of

    api = Api(token_of(house.auditor))
    answer = api.send("POST", "/api/v1/tracks/toolcaller/what-if", {"document": document(house, min="0.10")})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["same"], body["opened"], body["closed"], body["unknown"]) == (1, 1, 0, 1)
    by_name = {row["candidate"]: row for row in body["candidates"]}
    assert (by_name["bad"]["now"], by_name["bad"]["then"]) == ("blocked", "passes")
    assert by_name["bad"]["differences"][0]["gate"] == "generalization_accuracy_floor"
    assert by_name["first"]["then"] is None
    stored = api.send("POST", "/api/v1/tracks/toolcaller/what-if", {"policy": 1}).json()
    assert (stored["policy"], stored["same"]) == (1, 2)
    assert api.send("POST", "/api/v1/tracks/toolcaller/what-if", {}).json() == stored
    for body, status in (
        ({"policy": 1, "document": {}}, 400),
        ({"document": {}}, 400),
        ({"policy": 9}, 404),
        ({"policy": "1"}, 400),
        ({"extra": 1}, 400),
    ):
        assert api.send("POST", "/api/v1/tracks/toolcaller/what-if", body).status_code == status, body
    assert api.send("POST", "/api/v1/tracks/nowhere/what-if", {}).status_code == 404


def test_the_page_shows_the_table_and_tries_a_document(house: factories.House) -> None:
    client, address = client_of(house), reverse("promotion:what-if", args=["toolcaller"])
    page = client.get(address).content.decode()
    assert "What policy 1 would have said" in page
    assert "2 the same, none would open, none would close, 1 cannot be told." in page
    tried = client.post(f"{address}try/", {"document": json.dumps(document(house, min="0.10"))})
    shown = tried.content.decode()
    assert tried.status_code == 200
    assert "<strong>1 would open</strong>" in shown
    assert "failed &rarr; passed" in shown
    for wrong in ("", "{", '{"a": NaN}', "[]", "<script>alert(1)</script>"):
        refused = client.post(f"{address}try/", {"document": wrong})
        assert refused.status_code == 422, wrong
        assert "<script>alert" not in refused.content.decode()
    assert client.get(address, {"policy": "9"}).status_code == 404
    assert client.get(address, {"policy": "x"}).status_code == 400
    assert Policy.objects.count() == 1


def test_a_track_without_a_policy_or_candidate_has_a_page_too(house: factories.House) -> None:
    tracks.create(name="empty", purpose="Nothing yet.", by=house.administrator)
    page = client_of(house).get(reverse("promotion:what-if", args=["empty"]))
    assert page.status_code == 200
    assert "no policy yet" in page.content.decode()


def test_whoever_may_not_read_may_not_ask(house: factories.House) -> None:
    client = Client()
    client.force_login(factories.person("nobody"), backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("promotion:what-if", args=["toolcaller"])
    assert client.get(address).status_code == 403
    assert client.post(f"{address}try/", {"document": "{}"}).status_code == 403
