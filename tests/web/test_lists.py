"""Every list sorts, filters and pages in its address."""

from __future__ import annotations

import html as markup
import re
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from promotion.models import Candidate, Policy, Track
from rollouts.errors import InvalidInput
from rollouts.models import EvalRun, Rollout
from rollouts.services import datasets
from rollouts.web.lists import page_of
from tests import factories
from tests.web import test_queries as grown
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
Sorted = tuple[str, tuple[Any, ...], tuple[str, ...]]
LISTS: list[Sorted] = [
    ("promotion:tracks", (), ("name", "policy", "open", "review")),
    ("promotion:track", ("toolcaller",), ("name", "state", "base", "submitter", "submitted")),
    ("promotion:candidates", (), ("name", "track", "state", "base", "submitter", "submitted")),
    ("promotion:policies", (), ("version", "track", "writer", "saved", "locked")),
    ("promotion:registry", (), ("number", "candidate", "size", "promoted")),
    ("promotion:audit", (), ("number",)),
    (
        "rollouts:runs",
        (),
        ("label", "state", "suite", "planned", "scored", "masked", "unscored", "backend", "started"),
    ),
    ("rollouts:suites", (), ("name", "cases", "scorer", "source", "sealed")),
    ("rollouts:suite", ("named", 1), ("position", "key")),
    ("rollouts:datasets", (), ("name", "rows", "prompts", "source", "registered")),
    ("rollouts:backends", (), ("name", "kind", "saved")),
    ("rollouts:bases", (), ("name", "architecture", "size", "registered")),
]
ids = [name for name, _, _ in LISTS]


@pytest.fixture
def world(house: factories.House) -> factories.House:
    house.evaluated("measured", wrong=2, masked=1)
    grown.grow_tracks(house, range(60))
    grown.grow_candidates(house, range(60))
    grown.grow_policies(house, range(60))
    grown.grow_runs(house, range(60))
    grown.grow_rollouts(house, range(120))
    datasets.register(name="bulk", data=b'{"prompt": "Play it."}', by=house.engineer)
    return house


@pytest.fixture
def reader(house: factories.House) -> Client:
    return signed_in(house.auditor)


def heads(page: str) -> dict[str, str]:
    """Column -> the address that its head leads to."""
    links = re.findall(r'<th scope="col"[^>]*><a class="sort" href="\?([^"]*)">', page)
    return {parse_qs(markup.unescape(link))["sort"][0].lstrip("-"): markup.unescape(link) for link in links}


def column(page: str, cell: str) -> list[str]:
    return re.findall(cell, page.split("<tbody>")[1])


def walked(client: Client, address: str, cell: str) -> list[str]:
    """What a column says on all pages, by following Next page."""
    found: list[str] = []
    while address:
        page = html(client.get(address))
        found += column(page, cell)
        following = re.search(r'href="(\?[^"]*)">Next page', page)
        address = urlsplit(address).path + markup.unescape(following[1]) if following else ""
    return found


# sorting


@pytest.mark.parametrize(("name", "arguments", "columns"), LISTS, ids=ids)
def test_every_column_that_sorts_has_a_head_that_leads_there_both_ways(
    reader: Client, world: factories.House, name: str, arguments: tuple[Any, ...], columns: tuple[str, ...]
) -> None:
    address = reverse(name, args=arguments)
    page = html(reader.get(address))
    assert set(columns) <= set(heads(page))
    for column_name in columns:
        for sort, order in ((column_name, "ascending"), (f"-{column_name}", "descending")):
            sorted_page = html(reader.get(address, {"sort": sort}))
            assert sorted_page.count("aria-sort=") == 1
            assert f'aria-sort="{order}"><a class="sort"' in sorted_page
            turned = parse_qs(heads(sorted_page)[column_name])["sort"][0]
            assert turned == (f"-{column_name}" if order == "ascending" else column_name)


@pytest.mark.parametrize(("name", "arguments", "columns"), LISTS, ids=ids)
@pytest.mark.parametrize(
    "wrong", ["sort=nothing", "sort=pk", "sort=--name", "sort=%00", "cursor=x", "cursor=1.2.%00"]
)
def test_an_order_or_a_cursor_that_the_list_does_not_have_is_refused_by_its_name(
    reader: Client, house: factories.House, name: str, arguments: tuple[Any, ...], columns: Any, wrong: str
) -> None:
    response = reader.get(f"{reverse(name, args=arguments)}?{wrong}")
    assert response.status_code == 400
    assert f"{wrong.split('=')[0]}: " in html(response)


@pytest.mark.parametrize("sort", ["name", "-name", "state", "-state", "submitted", "submitter"])
def test_pages_have_every_row_once_and_in_order(reader: Client, world: factories.House, sort: str) -> None:
    paths = {"name": "name", "state": "state", "submitted": "pk", "submitter": "submitted_by__username"}
    path, down = paths[sort.lstrip("-")], "-" if sort.startswith("-") else ""
    expected = Candidate.objects.order_by(f"{down}{path}", f"{down}pk").values_list("name", flat=True)
    found = walked(
        reader, f"{reverse('promotion:candidates')}?sort={sort}", r'<th scope="row"><a[^>]*>([^<]*)</a>'
    )
    assert found == list(expected)


def test_rows_that_come_in_between_are_neither_skipped_nor_doubled(
    reader: Client, world: factories.House
) -> None:
    address = f"{reverse('promotion:candidates')}?sort=name"
    first = html(reader.get(address))
    row = r'<th scope="row"><a[^>]*>([^<]*)</a>'
    seen = column(first, row)
    Candidate.objects.filter(name="grown-0").update(name="aaa")  # goes before what was shown
    following = re.search(r'href="(\?[^"]*)">Next page', first)
    assert following
    rest = column(html(reader.get(reverse("promotion:candidates") + markup.unescape(following[1]))), row)
    assert not set(seen) & set(rest)
    everything = set(Candidate.objects.exclude(name="aaa").values_list("name", flat=True))
    assert set(seen + rest) - {"grown-0"} == everything


@pytest.mark.parametrize("sort", ["latency", "-latency"])
def test_what_has_no_value_comes_last_whichever_way_it_goes(world: factories.House, sort: str) -> None:
    run = EvalRun.objects.get(label="measured")
    sorts, cursor, found = {"plan": "pk", "latency": "-latency_ms"}, "", []
    while cursor is not None:
        request = RequestFactory().get("/", {"sort": sort, "cursor": cursor})
        page = page_of(run.rollouts.all(), request, sorts=sorts, size=7, keys_first=True)
        found += [(rollout.pk, rollout.latency_ms) for rollout in page.rows]
        cursor = page.next  # type: ignore[assignment]
    empty = [pk for pk, latency in found if latency is None]
    assert empty and {pk for pk, _ in found[-len(empty) :]} == set(empty)
    measured = [latency for _, latency in found if latency is not None]
    assert measured == sorted(measured, reverse=sort.startswith("-"))
    assert len(found) == len({pk for pk, _ in found}) == run.rollouts.count()


@pytest.mark.parametrize(
    ("sort", "cursor"),
    [
        ("name", ""),
        ("version", "1.x"),
        ("version", "1.99999999999999999999"),
        ("saved", "1.2026-11-30"),
        ("saved", "1.0001-01-01T00:00:00+23:59"),
        ("saved", "1.yesterday"),
        ("number", "1.5"),
        ("number", "-1"),
        ("number", "9" * 25),
        ("name", "x" * 500),
    ],
)
def test_a_cursor_is_read_as_the_column_is(sort: str, cursor: str) -> None:
    sorts = {"name": "track__name", "version": "version", "saved": "created_at", "number": "pk"}
    request = RequestFactory().get("/", {"sort": sort, "cursor": cursor})
    if not cursor:
        assert page_of(Policy.objects.all(), request, sorts=sorts).first
        return
    with pytest.raises(InvalidInput, match="cursor"):
        page_of(Policy.objects.all(), request, sorts=sorts)


def test_a_cursor_says_in_words_where_the_page_ends(world: factories.House) -> None:
    request = RequestFactory().get("/", {"sort": "-saved"})
    page = page_of(Policy.objects.all(), request, sorts={"saved": "-created_at"}, size=1)
    assert page.next is not None
    key, _, moment = page.next.partition(".")
    assert int(key) == page.rows[0].pk
    assert datetime.fromisoformat(moment) == page.rows[0].created_at


# what stays


def test_filters_stay_where_the_order_is_turned_and_the_order_where_it_is_filtered_or_paged(
    reader: Client, world: factories.House
) -> None:
    page = html(reader.get(reverse("promotion:candidates"), {"state": "blocked", "sort": "-name"}))
    assert parse_qs(heads(page)["track"]) == {"state": ["blocked"], "sort": ["track"]}
    assert '<input type="hidden" name="sort" value="-name">' in page
    following = re.search(r'href="\?([^"]*)">Next page', page)
    assert following
    onwards = parse_qs(markup.unescape(following[1]))
    assert (onwards["state"], onwards["sort"]) == (["blocked"], ["-name"])
    assert onwards["cursor"]
    second = html(
        reader.get(reverse("promotion:candidates"), {key: value[0] for key, value in onwards.items()})
    )
    assert "cursor" not in parse_qs(heads(second)["track"])  # another order begins at its beginning


# the new lists


def named_rows(client: Client, name: str, **filters: str) -> list[str]:
    return walked(
        client,
        f"{reverse(name)}?" + "&".join(f"{k}={v}" for k, v in filters.items()),
        r'<th scope="row"><a[^>]*>([^<]*)</a>',
    )


def test_the_list_of_candidates_is_filtered_by_track_state_submitter_and_ones_own(
    reader: Client, world: factories.House
) -> None:
    second = factories.tracks.create(name="second", purpose="p", by=world.administrator)
    other = factories.person("other", "engineer")
    factories.built_candidate(second, world.base, other, name="theirs")
    assert named_rows(reader, "promotion:candidates", track="second") == ["theirs"]
    assert named_rows(reader, "promotion:candidates", submitter="other") == ["theirs"]
    assert named_rows(signed_in(other), "promotion:candidates", mine="on") == ["theirs"]
    assert named_rows(reader, "promotion:candidates", state="promoted") == ["first"]
    page = html(reader.get(reverse("promotion:candidates"), {"track": "nowhere"}))
    assert "No candidate matches." in page
    assert reader.get(reverse("promotion:candidates"), {"state": "sleeping"}).status_code == 400


def test_the_list_of_candidates_says_how_many_gates_had_which_outcome_but_for_the_signatures(
    reader: Client, house: factories.House
) -> None:
    candidate = house.evaluated("measured", wrong=40)
    results = candidate.evidence.first().gate_results.exclude(gate="human_approval_record")
    failed = results.filter(outcome="failed").count()
    page = html(reader.get(reverse("promotion:candidates"), {"name": "measured"}))
    assert failed
    assert re.search(rf'<span class="tag fail">.*?failed</span> <span class="num">{failed}</span>', page)
    baseline = html(reader.get(reverse("promotion:candidates"), {"name": "first"}))
    assert "none asked" in baseline


def test_the_list_of_policies_has_drafts_and_locked_versions(reader: Client, house: factories.House) -> None:
    track = factories.tracks.create(name="second", purpose="p", by=house.administrator)
    Policy.objects.create(
        track=track,
        version=1,
        document=house.policy.document,
        digest="d" * 64,
        created_at=timezone.now(),
        created_by=house.administrator,
    )
    drafts = html(reader.get(reverse("promotion:policies"), {"state": "draft"}))
    locked = html(reader.get(reverse("promotion:policies"), {"state": "locked"}))
    assert "/tracks/second/policies/1/" in drafts and "/tracks/toolcaller/" not in drafts
    assert "/tracks/toolcaller/policies/1/" in locked and "/tracks/second/" not in locked


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"state": "masked"}, {"state": "masked"}),
        ({"kind": "server"}, {"failure_kind": "server"}),
        ({"wrong": "decision"}, {"decision": False}),
        ({"family": "nobodies"}, {"case__family": "nobodies"}),
    ],
)
def test_rollouts_are_filtered_in_every_order(
    reader: Client, world: factories.House, filters: dict[str, str], kept: dict[str, Any]
) -> None:
    run = EvalRun.objects.get(label="measured")
    expected = set(Rollout.objects.filter(run=run, **kept).values_list("pk", flat=True))
    for sort in ("plan", "-latency", "state"):
        asked = "&".join(f"{key}={value}" for key, value in (filters | {"sort": sort}).items())
        address = f"{reverse('rollouts:rollouts', args=[run.pk])}?{asked}"
        if not expected:
            assert "No rollout matches." in html(reader.get(address))
            continue
        found = walked(reader, address, r'<a href="/rollouts/(\d+)/">')
        assert len(found) == len(expected) and {int(pk) for pk in found} == expected


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("promotion:tracks", {"name": "zzz"}),
        ("rollouts:backends", {"name": "zzz"}),
        ("rollouts:backends", {"kind": "scripted"}),
        ("rollouts:bases", {"name": "zzz"}),
        ("rollouts:datasets", {"source": "zzz"}),
        ("rollouts:suites", {"scorer": "judge"}),
        ("promotion:policies", {"track": "zzz"}),
    ],
)
def test_a_filter_that_nothing_matches_says_so_and_how_to_see_all(
    reader: Client, house: factories.House, name: str, filters: dict[str, str]
) -> None:
    page = html(reader.get(reverse(name), filters))
    assert re.search(r"No \w[\w ]* matches\. <a", page)


def test_an_order_alone_is_no_filter(reader: Client, db: None) -> None:
    Track.objects.filter(candidates__isnull=True).delete()
    page = html(reader.get(reverse("rollouts:datasets"), {"sort": "name"}))
    assert "No dataset is registered yet." in page
