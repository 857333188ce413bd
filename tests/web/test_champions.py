"""The champion over time: which suite the steps are compared on, and what a version's number comes from."""

from __future__ import annotations

import pytest
from django.utils import timezone

from promotion import selectors
from promotion.models import AliasMove, RegistryEntry
from promotion.services import policies, registry
from promotion.web.champions import MOST, history
from tests import factories
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


def shown(house: factories.House) -> object:
    return history(list(selectors.champion_history(house.track)[: MOST + 1]))


def promote(house: factories.House, name: str, **outcomes: int) -> RegistryEntry:
    candidate = house.evaluated(name, **outcomes)
    factories.sign(candidate, house.approver)
    entry = registry.publish(candidate.pk)
    assert entry is not None
    return entry


def go_back(house: factories.House, old: RegistryEntry, new: RegistryEntry) -> None:
    AliasMove.objects.create(
        track=house.track, name="champion", old=old, new=new, reason="Complaints.", moved_at=timezone.now()
    )


def test_a_baseline_alone_has_a_move_and_no_number() -> None:
    found = shown(factories.house(champion=True))
    assert len(found.moves) == 1
    assert found.moves[0].lower is None
    assert found.chart is None


def test_each_version_has_its_own_counts_and_the_baseline_those_of_its_challenge() -> None:
    house = factories.house(champion=True)
    promote(house, "second", wrong=3)
    found = shown(house)
    assert [(move.move.new.number, move.counts.successes, move.counts.n) for move in found.moves] == [
        (1, 20, 20),
        (2, 17, 20),
    ]
    assert found.suite == "named"
    assert found.moves[0].lower > found.moves[1].lower


def test_a_move_to_an_earlier_version_is_a_move_back() -> None:
    house = factories.house(champion=True)
    entry = promote(house, "second")
    go_back(house, entry, house.champion)
    found = shown(house)
    assert [move.back for move in found.moves] == [False, False, True]
    page = html(signed_in(house.auditor).get("/tracks/toolcaller/"))
    assert "1 move back to an earlier version" in page
    assert "moved back" in page
    assert "20/20" in page


def test_no_more_than_the_last_fifty_moves_are_drawn_and_the_page_says_so() -> None:
    house = factories.house(champion=True)
    entry = promote(house, "second")
    for at in range(MOST):
        pair = (entry, house.champion) if at % 2 == 0 else (house.champion, entry)
        go_back(house, *pair)
    found = shown(house)
    assert len(found.moves) == MOST
    assert found.more
    assert "the last 50 moves" in html(signed_in(house.auditor).get("/tracks/toolcaller/"))


# which suite


def test_the_reader_chooses_the_suite_of_the_chart_and_an_unknown_one_is_the_first() -> None:
    house = factories.house(champion=True)
    other = factories.suite(house.engineer, name="other", calls=10)
    document = factories.policy_document(
        [house.suite, other],
        extra=[
            factories.floor("generalization_accuracy_floor", house.suite.digest, "decision", "0.60"),
            factories.floor("confidence_lower_bound", other.digest, "exact", "0.30"),
        ],
        approvers=1,
    )
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=factories.person("second", "administrator"))
    promote(house, "second", wrong=1)
    moves = list(selectors.champion_history(house.track))

    names = {name: key for key, name, _ in history(moves).suites}
    assert set(names) == {"named", "other"}
    for wanted, suite in (
        (names["other"], "other"),
        (names["named"], "named"),
        ("zzz", history(moves).suite),
    ):
        found = history(moves, wanted)
        assert found.suite == suite
        assert [name for _, name, shown in found.suites if shown] == [suite]
    assert history(moves, names["other"]).rule.metric == "exact"
    assert history(moves, names["other"]).moves[-1].counts.n == 10

    page = html(signed_in(house.auditor).get("/tracks/toolcaller/", {"chart": names["other"]}))
    assert f'href="?chart={names["named"]}#champions"' in page
    assert f'href="?chart={names["other"]}#champions" aria-current="true"' in page


def test_one_suite_leaves_nothing_to_choose() -> None:
    house = factories.house(champion=True)
    promote(house, "second")
    page = html(signed_in(house.auditor).get("/tracks/toolcaller/"))
    assert "?chart=" not in page
