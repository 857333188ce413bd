"""Links and filters name nothing of a track that one may not see."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from rollouts import overview
from rollouts.clusters import pack
from rollouts.models import EvalRun, Rollout
from tests.visibility.conftest import Hidden
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
NOBODY = 999_999


def grouped(hidden: Hidden) -> tuple[EvalRun, str]:
    """The hidden run with a miss in a group, and what the group did."""
    answer = '{"decision": "unsupported", "reason_code": "no_matching_tool"}'
    Rollout.objects.filter(pk=hidden.rollout.pk).update(
        state="scored", exact=False, decision=False, answer=answer, answer_class="ok", failure_kind=""
    )
    run = hidden.run
    EvalRun.objects.filter(pk=run.pk).update(overview=overview.as_stored(overview.run_summary(run)))
    run.refresh_from_db()
    return run, run.overview["clusters"][0]["did"]


def test_a_group_of_a_hidden_run_is_not_there_for_those_outside(hidden: Hidden) -> None:
    run, did = grouped(hidden)
    asked = urlencode({"cluster": did})
    hidden.restrict()
    for client in hidden.clients("inside").values():
        assert did in html(client.get(f"/runs/{run.pk}/rollouts/?{asked}"))
    for client in hidden.clients("outside").values():
        found = client.get(f"/runs/{run.pk}/rollouts/?{asked}")
        nothing = client.get(f"/runs/{NOBODY}/rollouts/?{asked}")
        assert found.status_code == nothing.status_code == 404
        assert did not in html(found)
        said = html(found).replace(f"/runs/{run.pk}/", "-"), html(nothing).replace(f"/runs/{NOBODY}/", "-")
        assert len({re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", text) for text in said}) == 1


def test_a_group_lists_rollouts_of_its_run_alone_whatever_its_members_say(hidden: Hidden) -> None:
    run, did = grouped(hidden)
    other = EvalRun.objects.exclude(pk=run.pk).exclude(label=run.label).order_by("pk")[0]
    theirs = list(other.rollouts.values_list("pk", flat=True)[:3])
    run.overview["clusters"][0]["members"] = pack([hidden.rollout.pk, *theirs])
    run.save(update_fields=["overview"])
    shown = html(
        signed_in(hidden.house.auditor).get(f"/runs/{run.pk}/rollouts/?{urlencode({'cluster': did})}")
    )
    assert f'href="/rollouts/{hidden.rollout.pk}/"' in shown
    for pk in theirs:
        assert f'href="/rollouts/{pk}/"' not in shown


def test_a_run_that_one_may_see_names_no_candidate_of_a_hidden_track(hidden: Hidden) -> None:
    hidden.restrict()
    for client in hidden.clients("outside").values():
        for address in (f"/runs/{hidden.run.pk}/", f"/rollouts/{hidden.rollout.pk}/"):
            assert client.get(address).status_code == 404
    hidden.run.readers.clear()  # as if an open track had the same model
    for client in hidden.clients("outside").values():
        for address in (f"/runs/{hidden.run.pk}/", f"/rollouts/{hidden.rollout.pk}/"):
            response = client.get(address)
            assert response.status_code == 200
            main = html(response).split("<main")[1]
            assert f"/candidates/{hidden.candidate.pk}/" not in main
            assert hidden.house.track.name not in main
