"""The checklist and break-glass as a policy says them: stored, edited, shown, and which of their changes loosens."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse

from promotion.services.policies import diff, loosening, problems
from tests import factories
from tests.reviews.conftest import CHECKLIST, policy
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


def with_approval(house: factories.House, **approval: Any) -> dict[str, Any]:
    document = factories.policy_document([house.suite])
    document["approval"] |= approval
    return document


@pytest.mark.parametrize(
    ("before", "after", "said", "loosens"),
    [
        ([], CHECKLIST[:1], "added checklist: read-flips (I read every lost case. (reviewer))", False),
        (CHECKLIST[:1], [], "removed checklist: read-flips (I read every lost case. (reviewer))", True),
        (
            CHECKLIST[:1],
            [{**CHECKLIST[0], "text": "I read some."}],
            "loosened checklist: read-flips: I read every lost case. (reviewer) is now I read some. (reviewer)",
            True,
        ),
        (
            CHECKLIST[1:2],
            [{**CHECKLIST[1], "answered_by": "reviewer"}],
            "loosened checklist: no-waivers: No gate is waived. (no_waivers) is now No gate is waived. (reviewer)",
            True,
        ),
        (
            CHECKLIST[:2],
            CHECKLIST[1::-1],
            "changed order of the checklist: none is now none",
            False,
        ),
    ],
)
def test_each_change_of_the_checklist_has_its_direction(
    house: factories.House, before: Any, after: Any, said: str, loosens: bool
) -> None:
    old, new = with_approval(house, checklist=before), with_approval(house, checklist=after)

    assert [str(change) for change in diff(old, new)] == [said]
    assert bool(loosening(old, new)) is loosens


def test_to_allow_breaking_the_glass_loosens_and_to_forbid_it_tightens(house: factories.House) -> None:
    off, on = with_approval(house), with_approval(house, break_glass=True)

    assert [change.kind for change in loosening(off, on)] == ["loosened"]
    assert [change.kind for change in diff(on, off)] == ["tightened"]
    assert loosening(on, off) == []


def test_a_key_that_is_used_twice_is_found(house: factories.House) -> None:
    wrong = problems(with_approval(house, checklist=[CHECKLIST[0], CHECKLIST[0]]))

    assert [problem.field for problem in wrong] == ["document.approval.checklist"]


def fields_of(page: str) -> dict[str, str]:
    """What the editor's form would send, without its buttons."""
    form = page[page.index('<form class="editor"') :]
    found = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))
    found |= dict(re.findall(r'<input name="([^"]+)" id="[^"]+" value="([^"]*)"', form))
    found |= dict.fromkeys(re.findall(r'<input type="checkbox" name="([^"]+)"[^>]* checked', form), "yes")
    for name, options in re.findall(r'<select name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        found |= {name: chosen[1]} if chosen else {}
    return found


def test_the_editor_adds_changes_and_removes_items(house: factories.House) -> None:
    client = signed_in(house.administrator)
    edit, change = (
        reverse(f"promotion:{name}", args=[house.track.name]) for name in ("policy-edit", "policy-change")
    )

    added = html(client.post(change, fields_of(html(client.get(edit))) | {"do": "add-item"}))
    filled = fields_of(added) | {
        "item-0-key": "read-flips",
        "item-0-text": "I read every lost case.",
        "break_glass": "yes",
    }
    saved = client.post(change, filled | {"do": "save-form"})

    assert saved.status_code == 302
    draft = house.track.policies.order_by("-version")[0]
    assert draft.document["approval"]["checklist"] == CHECKLIST[:1]
    assert draft.document["approval"]["break_glass"] is True
    again = fields_of(html(client.get(edit)))
    assert (again["item-0-answered_by"], again["break_glass"]) == ("reviewer", "yes")
    del again["break_glass"]
    without = html(client.post(change, again | {"do": "remove-item:0"}))
    assert "item-0-key" not in without
    assert client.post(change, fields_of(without) | {"do": "save-form"}).status_code == 302
    approval = house.track.policies.order_by("-version")[0].document["approval"]
    assert "checklist" not in approval
    assert "break_glass" not in approval


def test_what_is_wrong_with_an_item_stands_at_its_field(house: factories.House) -> None:
    client = signed_in(house.administrator)
    address = reverse("promotion:policy-change", args=[house.track.name])
    edit = html(client.get(reverse("promotion:policy-edit", args=[house.track.name])))
    added = html(client.post(address, fields_of(edit) | {"do": "add-item"}))

    wrong = client.post(
        address, fields_of(added) | {"item-0-key": "Not A Key", "item-0-text": "x", "do": "save-form"}
    )

    assert wrong.status_code == 422
    assert '<a href="#id_item-0-key">key: String should match pattern' in html(wrong)


def test_the_policys_page_shows_checklist_and_break_glass(house: factories.House) -> None:
    policy(house, checklist=CHECKLIST, break_glass=True)

    page = html(
        signed_in(house.auditor).get(
            reverse("promotion:policy", args=[house.track.name, house.policy.version])
        )
    )

    assert "I read every lost case." in page
    assert "answered by the evidence: datasets declared" in page
    assert "an administrator may promote without these signatures" in page
