"""Hostile text, filters, downloads, live progress, and what every page owes the browser."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from django.urls import reverse

from promotion.models import Export
from promotion.services.registry import export_path
from rollouts.models import EvalRun, ModelCall, Rollout
from tests import factories
from tests.web import world
from tests.web.conftest import html, signed_in
from tests.web.test_access import pages_of, status_of

pytestmark = pytest.mark.django_db

INLINE = re.compile(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|javascript:", re.IGNORECASE)


def test_no_page_holds_inline_script_or_style_and_every_page_is_guarded(house: factories.House) -> None:
    client = signed_in(house.engineer)
    for address in [*pages_of(house), reverse("rollouts:new-run")]:
        response = client.get(address)
        policy = response["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response["X-Content-Type-Options"] == "nosniff"
        if response["Content-Type"].startswith("text/html"):
            assert not INLINE.search(html(response)), address
            assert len(re.findall(r"<h1[ >]", html(response))) == 1, address
        if response.streaming:
            b"".join(response)


# hostile text


@pytest.fixture
def hostile(house: factories.House) -> Rollout:
    return world._hostile(house)


def test_hostile_text_is_text_on_every_page_that_shows_it(house: factories.House, hostile: Rollout) -> None:
    client, run = signed_in(house.engineer), hostile.run
    addresses = [
        reverse("rollouts:runs"),
        reverse("rollouts:run", args=[run.pk]),
        reverse("rollouts:rollouts", args=[run.pk]),
        reverse("rollouts:rollout", args=[hostile.pk]),
        reverse("rollouts:suites"),
        reverse("rollouts:suite", args=["hostile", 1]),
        reverse("rollouts:case", args=[hostile.case_id]),
        reverse("promotion:home"),
    ]
    for address in addresses:
        page = html(client.get(address))
        for raw in (
            "<script>alert",
            "<img src=x",
            "<b>evil",
            "<b>hostile",
            "\u202e",
            "\x1b",
            "\u200b",
            "\x07",
        ):
            assert raw not in page, (address, raw)
    assert "⟦U+202E⟧" in html(client.get(reverse("rollouts:rollout", args=[hostile.pk])))


def test_a_megabyte_is_cut_with_a_way_to_the_whole(house: factories.House, hostile: Rollout) -> None:
    client = signed_in(house.engineer)
    page = html(client.get(reverse("rollouts:rollout", args=[hostile.pk])))
    assert len(page) < 60_000
    address = reverse("rollouts:answer", args=[hostile.pk])
    assert f'href="{address}"' in page
    raw = client.get(address)
    assert len(raw.content) > 1_000_000
    assert raw["Content-Type"] == "text/plain; charset=utf-8"
    assert raw["Content-Disposition"].startswith("attachment")
    assert raw["X-Content-Type-Options"] == "nosniff"


def test_call_bodies_are_given_out_byte_for_byte(house: factories.House, hostile: Rollout) -> None:
    client, call = signed_in(house.auditor), ModelCall.objects.get(state="answered")
    raw = client.get(reverse("rollouts:response", args=[call.pk])).getvalue()
    assert hashlib.sha256(raw).hexdigest() == call.response_id
    raw = client.get(reverse("rollouts:request", args=[call.pk])).getvalue()
    assert hashlib.sha256(raw).hexdigest() == call.request_id
    ModelCall.objects.filter(pk=call.pk).update(state="lost", response=None, status=None)
    assert client.get(reverse("rollouts:response", args=[call.pk])).status_code == 404


def test_failed_calls_are_shown_beside_the_answered_one(house: factories.House, hostile: Rollout) -> None:
    page = html(signed_in(house.auditor).get(reverse("rollouts:rollout", args=[hostile.pk])))
    assert "turn 1, attempt 1" in page
    assert "server: The provider failed (503)." in page
    assert "turn 1, attempt 2" in page


# filters and pages


def test_runs_are_filtered_in_the_address(house: factories.House) -> None:
    house.evaluated("one")
    client, address = signed_in(house.auditor), reverse("rollouts:runs")
    digest = EvalRun.objects.get(label="one").subject.digest
    for params, found in [
        ({"label": "one"}, True),
        ({"label": "nothing like it"}, False),
        ({"state": "scored", "suite": "named"}, True),
        ({"state": "running"}, False),
        ({"suite": "other"}, False),
        ({"subject": digest[:10]}, True),
        ({"subject": "0123456789"}, False),
    ]:
        page = html(client.get(address, params))
        assert ("<bdi>one</bdi>" in page) is found, params
        assert ("No run matches" in page) is not found


def test_rollouts_are_filtered_in_the_address(house: factories.House) -> None:
    house.evaluated("one", wrong=2, masked=3)
    run = EvalRun.objects.get(label="one")
    client, address = signed_in(house.auditor), reverse("rollouts:rollouts", args=[run.pk])
    for params, n in [
        ({"wrong": "decision"}, 2),
        ({"state": "masked"}, 3),
        ({"kind": "server"}, 3),
        ({"family": "declines"}, 20),
        ({"key": "call-1"}, 11),
        ({"family": "declines", "wrong": "safe"}, 0),
    ]:
        assert html(client.get(address, params)).count('<th scope="row">') == n, params


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("rollouts:runs", {"state": "nonsense"}),
        ("rollouts:runs", {"subject": "xyz"}),
        ("rollouts:runs", {"label": "a\x00b"}),
        ("rollouts:runs", {"cursor": "abc"}),
        ("rollouts:runs", {"cursor": "9" * 40}),
        ("promotion:audit", {"since": "yesterday"}),
        ("promotion:audit", {"action": "drop table"}),
    ],
)
def test_a_wrong_filter_is_refused_by_name(house: factories.House, name: str, params: dict[str, str]) -> None:
    response = signed_in(house.auditor).get(reverse(name), params)
    assert response.status_code == 400
    assert next(iter(params)) in html(response)


def test_the_audit_history_is_filtered_and_paged(house: factories.House) -> None:
    client, address = signed_in(house.auditor), reverse("promotion:audit")

    def rows(**params: str) -> int:
        return html(client.get(address, params)).count('<tr id="e')

    assert rows(action="candidate.promoted") == 1
    assert rows(actor="approver") == 2
    assert rows(subject="toolcaller/first") >= 4
    assert rows(since="2999-01-01") == 0
    assert rows(until="2000-01-01") == 0
    assert rows(since="2000-01-01", until="2999-01-01") == rows()


def test_pages_of_a_list_join_without_a_gap(house: factories.House) -> None:
    run = EvalRun.objects.create(**_run_values(house, 0))
    rows = [Rollout(run=run, case_id=case, sample_index=n) for n in range(3) for case in _cases(house)]
    Rollout.objects.bulk_create(rows)
    client, address, seen = signed_in(house.auditor), reverse("rollouts:rollouts", args=[run.pk]), []
    params: dict[str, Any] = {}
    while True:
        page = html(client.get(address, params))
        seen += re.findall(r'href="/rollouts/(\d+)/"', page)
        following = re.search(r'href="\?cursor=(\d+)"', page)
        if following is None:
            break
        params = {"cursor": following.group(1)}
    assert len(seen) == len(set(seen)) == len(rows)


def _cases(house: factories.House) -> list[int]:
    return list(house.suite.cases.values_list("pk", flat=True))


def _run_values(house: factories.House, n: int) -> dict[str, Any]:
    from tests.web.test_queries import run_values

    return run_values(house, n)


# downloads


def test_a_published_export_is_given_out_with_its_digest(house: factories.House) -> None:
    export = Export.objects.get()
    response = signed_in(house.auditor).get(reverse("promotion:export", args=[export.pk]))
    body = b"".join(response.streaming_content)
    assert hashlib.sha256(body).hexdigest() == export.artifact_id
    assert response["Content-Disposition"] == 'attachment; filename="first-f16.gguf"'
    assert response["ETag"] == f'"{export.artifact_id}"'
    assert response["Content-Type"] == "application/octet-stream"


def test_an_unpublished_gguf_has_no_address(house: factories.House) -> None:
    candidate = house.evaluated()
    page = html(signed_in(house.engineer).get(reverse("promotion:candidate", args=[candidate.pk])))
    assert "/exports/" not in page
    assert Export.objects.count() == 1


def test_an_export_whose_file_is_gone_or_changed_is_not_given_out(house: factories.House) -> None:
    export, client = Export.objects.get(), signed_in(house.engineer)
    path, address = export_path(export.entry.candidate), reverse("promotion:export", args=[export.pk])
    path.write_bytes(b"other bytes")
    assert status_of(client, address) == 404
    path.unlink()
    assert status_of(client, address) == 404


def test_what_failed_is_run_again_by_those_who_may(house: factories.House) -> None:
    house.evaluated("one", masked=2)
    run = EvalRun.objects.get(label="one")
    address = reverse("rollouts:run", args=[run.pk])
    assert "Run again what failed" not in html(signed_in(house.auditor).get(address))
    client = signed_in(house.engineer)
    assert "Run again what failed" in html(client.get(address))
    assert client.post(reverse("rollouts:again", args=[run.pk])).status_code == 302
    run.refresh_from_db()
    assert run.state == "queued"
    assert client.post(reverse("rollouts:again", args=[run.pk])).status_code == 409


def test_an_empty_house_says_what_to_do_next(db: None) -> None:
    client = signed_in(factories.person("boss", "administrator"))
    for address, says in [
        ("/", "create_track"),
        ("/tracks/", "create_track"),
        ("/runs/", "start its evaluation"),
        ("/suites/", "seal_suite"),
        ("/backends/", "save_backend"),
        ("/bases/", "register_base"),
        ("/registry/", "Nothing is promoted yet"),
    ]:
        assert says in html(client.get(address)), address
