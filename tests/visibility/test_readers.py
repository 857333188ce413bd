"""Who may see a track, what follows it, and who may say so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion import selectors
from promotion.models import Candidate, Track
from promotion.services import gating, tracks
from rollouts.errors import Conflict, InvalidInput, NotAllowed
from rollouts.models import AuditEvent, EvalRun, ModelCall, Rollout
from tests import factories
from tests.api.conftest import Api, token_of
from tests.visibility.conftest import TEAM, Hidden
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
LISTS = [
    "promotion:home",
    "promotion:tracks",
    "promotion:candidates",
    "promotion:policies",
    "promotion:registry",
    "promotion:audit",
    "promotion:preflight",
    "rollouts:runs",
]
API_LISTS = [
    "tracks",
    "policies",
    "candidates",
    "waivers",
    "registry",
    "aliases",
    "alias_moves",
    "exports",
    "runs",
    "audit",
]


def readers_of(run: EvalRun) -> set[str]:
    return set(run.readers.values_list("name", flat=True))


# lists


@pytest.mark.parametrize("name", LISTS)
def test_lists_do_not_have_what_one_may_not_see(hidden: Hidden, name: str) -> None:
    address, track = reverse(name), hidden.house.track.name
    hidden.restrict()
    for role, client in hidden.clients("outside").items():
        assert track not in html(client.get(address)), role
    insiders = [html(client.get(address)) for client in hidden.clients("inside").values()]
    assert name == "rollouts:runs" or any(track in page for page in insiders)


def test_the_list_of_runs_has_only_those_that_one_may_see(hidden: Hidden) -> None:
    hidden.restrict()
    here = f'href="/runs/{hidden.run.pk}/"'
    by_hand = EvalRun.objects.get(label__startswith="evil")
    for client in hidden.clients("outside").values():
        page = html(client.get(reverse("rollouts:runs")))
        assert here not in page
        assert f'href="/runs/{by_hand.pk}/"' in page
    assert all(here in html(c.get(reverse("rollouts:runs"))) for c in hidden.clients("inside").values())


@pytest.mark.parametrize("path", API_LISTS)
def test_lists_of_the_api_do_not_have_what_one_may_not_see(hidden: Hidden, path: str) -> None:
    assert Api(token_of(hidden.house.engineer)).get(f"{path}?page_size=200")["results"]
    hidden.restrict()
    track = hidden.house.track.name
    ids = {str(run.pk) for run in EvalRun.objects.filter(readers__isnull=False)}
    assert ids
    for person in hidden.outsiders.values():
        found = Api(token_of(person)).get(f"{path}?page_size=200")["results"]
        assert track not in json.dumps(found)
        if path == "runs":
            assert ids.isdisjoint(str(row["id"]) for row in found)
        elif path == "audit":
            assert not [
                row for row in found if row["subject_type"] == "rollouts.EvalRun" and row["subject_id"] in ids
            ]
        elif path != "tracks":
            assert found == []
    assert Api(token_of(hidden.house.engineer)).get(f"{path}?page_size=200")["results"]


@pytest.mark.parametrize("filters", ["subject=toolcaller", "actor=approver", "action=candidate.judged"])
def test_no_filter_of_the_audit_history_finds_events_about_what_one_may_not_see(
    hidden: Hidden, filters: str
) -> None:
    hidden.restrict()
    address = f"{reverse('promotion:audit')}?{filters}"
    for client in hidden.clients("outside").values():
        page = html(client.get(address))
        assert "No event matches" in page or "toolcaller/" not in page
        assert "candidate.judged</" not in page.split("<tbody>")[-1] if "<tbody>" in page else True
    assert "toolcaller" in html(hidden.clients("inside")["engineer"].get(address))


def test_auditors_administrators_and_superusers_see_every_track(hidden: Hidden) -> None:
    hidden.restrict()
    root = User.objects.create_superuser("root", password=factories.PASSWORD)
    for person in (hidden.house.auditor, hidden.house.administrator, root):
        client = signed_in(person)
        assert client.get(reverse("promotion:candidate", args=[hidden.candidate.pk])).status_code == 200
        assert client.get(reverse("rollouts:rollout", args=[hidden.rollout.pk])).status_code == 200
        assert "toolcaller/cand" in html(client.get(reverse("promotion:audit")))


def test_a_reader_of_the_group_without_a_role_still_sees_nothing(hidden: Hidden) -> None:
    hidden.restrict()
    nobody = factories.person("nobody")
    nobody.groups.add(Group.objects.get(name=TEAM))
    page = signed_in(nobody).get(reverse("promotion:track", args=["toolcaller"]))
    assert page.status_code == 403


def test_an_approver_who_cannot_see_a_candidate_cannot_sign_it(hidden: Hidden) -> None:
    hidden.restrict()
    digest = factories.digest_of(hidden.candidate)
    words = {"evidence_digest": digest, "decision": "approve", "meaning": "reviewed"}
    address = reverse("promotion:sign", args=[hidden.candidate.pk])
    before = AuditEvent.objects.count()
    sent = hidden.clients("outside")["approver"].post(address, words | {"password": factories.PASSWORD})
    assert sent.status_code == 404
    assert AuditEvent.objects.count() == before
    assert not hidden.candidate.approvals.exists()


# what follows a track


def test_eval_runs_of_the_candidates_of_a_track_follow_its_readers(hidden: Hidden) -> None:
    runs = EvalRun.objects.filter(subject__adapter__in=Candidate.objects.values("gguf"))
    assert runs.count() >= 2  # the champion's too
    hidden.restrict()
    assert all(readers_of(run) == {TEAM} for run in runs)
    tracks.set_readers(track=hidden.house.track, groups=[], by=hidden.house.administrator)
    assert all(readers_of(run) == set() for run in runs)


def test_runs_that_are_planned_later_are_read_by_the_readers_of_the_track(hidden: Hidden) -> None:
    hidden.restrict()
    later = hidden.house.candidate("later")
    started = gating.start_evaluation(
        candidate_id=later.pk, backend=hidden.house.backend, by=hidden.house.engineer
    )
    assert started
    assert all(readers_of(run) == {TEAM} for run in started)


def test_a_run_of_a_candidate_that_is_started_over_rest_is_read_by_the_readers_of_the_track(
    hidden: Hidden,
) -> None:
    hidden.restrict()
    body = {
        "candidate": hidden.candidate.pk,
        "backend": "local",
        "suite": hidden.house.suite.digest,
        "samples": 2,
    }
    made = Api(token_of(hidden.house.engineer)).post("runs", body, status=202)
    assert readers_of(EvalRun.objects.get(pk=made["id"])) == {TEAM}


def test_a_run_started_by_hand_on_a_base_model_is_everybodys(hidden: Hidden) -> None:
    hidden.restrict()
    body = {"base": hidden.house.base.name, "backend": "local", "suite": hidden.house.suite.digest}
    made = Api(token_of(hidden.house.engineer)).post("runs", body, status=202)
    assert readers_of(EvalRun.objects.get(pk=made["id"])) == set()


@pytest.mark.parametrize(("others", "expected"), [([], set()), (["second-team"], {TEAM, "second-team"})])
def test_runs_of_bytes_that_two_tracks_have_are_read_by_the_readers_of_both(
    hidden: Hidden, others: list[str], expected: set[str]
) -> None:
    house = hidden.house
    for name in others:
        Group.objects.create(name=name)
    second = tracks.create(name="second", purpose="The same.", by=house.administrator, readers=others)
    twin = factories.built_candidate(second, house.base, house.engineer, name="twin")
    Candidate.objects.filter(pk=twin.pk).update(gguf=hidden.candidate.gguf)
    hidden.restrict()
    assert readers_of(hidden.run) == expected


# saying so


def test_setting_readers_is_kept_in_the_audit_history_and_setting_them_again_writes_nothing(
    hidden: Hidden,
) -> None:
    hidden.restrict()
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert event.action == "track.readers_changed"
    assert json.loads(bytes(event.data)) == {"before": [], "after": [TEAM]}
    hidden.restrict()
    assert AuditEvent.objects.order_by("-sequence")[0] == event


@pytest.mark.parametrize("role", ["engineer", "approver", "auditor"])
def test_only_administrators_say_who_may_see_a_track(hidden: Hidden, role: str) -> None:
    person = getattr(hidden.house, role)
    with pytest.raises(NotAllowed):
        tracks.set_readers(track=hidden.house.track, groups=[TEAM], by=person)
    address = reverse("promotion:track-readers", args=["toolcaller"])
    assert signed_in(person).post(address, {"readers": [TEAM]}).status_code == 403
    assert address not in html(signed_in(person).get(reverse("promotion:track", args=["toolcaller"])))
    assert not hidden.house.track.readers.exists()


def test_readers_are_set_on_the_page_of_the_track(hidden: Hidden) -> None:
    client: Client = signed_in(hidden.house.administrator)
    address = reverse("promotion:track", args=["toolcaller"])
    assert "Everybody with a role" in html(client.get(address))
    sent = client.post(reverse("promotion:track-readers", args=["toolcaller"]), {"readers": [TEAM]})
    assert sent.status_code == 302
    page = html(client.get(address))
    assert f"Only <bdi>{TEAM}</bdi>" in page
    wrong = client.post(reverse("promotion:track-readers", args=["toolcaller"]), {"readers": ["nobodies"]})
    assert wrong.status_code == 422
    assert {group.name for group in hidden.house.track.readers.all()} == {TEAM}


def test_readers_are_set_over_rest_and_shown_there(hidden: Hidden) -> None:
    api = Api(token_of(hidden.house.administrator))
    assert api.post("tracks/toolcaller/readers", {"readers": [TEAM]}, status=200)["readers"] == [TEAM]
    assert api.get("tracks/toolcaller")["readers"] == [TEAM]
    found = api.problem(400, "POST", "tracks/toolcaller/readers", {"readers": ["nobodies"]})
    assert found["field"] == "readers"
    made = api.post("tracks", {"name": "quiet", "purpose": "Quiet.", "readers": [TEAM]})
    assert made["readers"] == [TEAM]


def test_a_track_is_created_with_readers_on_the_command_line(hidden: Hidden, capsys: Any) -> None:
    call_command("create_track", "quiet", "--purpose", "p", "--readers", TEAM, "--as", "administrator")
    assert [group.name for group in Track.objects.get(name="quiet").readers.all()] == [TEAM]


def test_readers_must_be_groups_that_there_are(hidden: Hidden) -> None:
    with pytest.raises(InvalidInput, match="there is no group nobodies"):
        tracks.set_readers(track=hidden.house.track, groups=["nobodies"], by=hidden.house.administrator)


def test_a_taken_name_is_said_to_be_taken_even_where_the_track_is_hidden(hidden: Hidden) -> None:
    hidden.restrict()
    with pytest.raises(Conflict, match="exists already"):
        tracks.create(name="toolcaller", purpose="Mine.", by=hidden.house.administrator)


# what it costs


def test_what_one_may_see_is_part_of_the_question_and_takes_no_further_query(hidden: Hidden) -> None:
    hidden.restrict()
    person = User.objects.get(username="outside-engineer")
    person_groups = {group.name for group in person.groups.all()}
    assert person_groups == {"engineer"}
    assert not selectors.tracks(person).exists()  # reads the person's groups
    for rows in (
        Track.objects.visible_to(person),
        Candidate.objects.visible_to(person),
        Rollout.objects.visible_to(person).filter(run=hidden.run),
        ModelCall.objects.visible_to(person),
        AuditEvent.objects.visible_to(person),
    ):
        with CaptureQueriesContext(connection) as captured:
            list(rows)
        assert len(captured) == 1
