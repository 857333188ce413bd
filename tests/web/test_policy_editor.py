"""The policy's pages: a form and JSON that are one document, what it changes, and the lock."""

from __future__ import annotations

import copy
import html as escapes
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from promotion.models import Policy, Track
from promotion.services import policies, tracks
from promotion.web import policy_form
from promotion.web.policy_form import document_from, form_of
from rollouts.hashing import sha256_json
from rollouts.models import Suite
from tests import factories
from tests.factories import floor
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db
ROLES = ("engineer", "approver", "auditor", "administrator")


@pytest.fixture
def editor(house: factories.House) -> Client:
    return signed_in(house.administrator)


def edit(track: Track) -> str:
    return reverse("promotion:policy-edit", args=[track.name])


def change(track: Track) -> str:
    return reverse("promotion:policy-change", args=[track.name])


def fields_of(response: Any) -> dict[str, str]:
    """What a browser would send of the editor's form, without a button."""
    page = html(response)
    form = page[
        page.index('<form class="editor"') : page.index("</form>", page.index('<form class="editor"'))
    ]
    found = {}
    for tag in re.findall(r"<input [^>]*>", form):
        name, value = (re.search(rf'\b{key}="([^"]*)"', tag) for key in ("name", "value"))
        if name and (" checked" in tag or 'type="checkbox"' not in tag):
            found[name.group(1)] = escapes.unescape(value.group(1)) if value else ""
    for name, body in re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', form, re.S):
        found[name] = escapes.unescape(body)
    for name, body in re.findall(r'<select name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        options = re.findall(r'<option value="([^"]*)"( selected)?', body)
        found[name] = next((value for value, chosen in options if chosen), options[0][0])
    return found


def press(client: Client, track: Track, do: str, **changes: str) -> Any:
    """Open the editor, change fields, press a button."""
    fields = fields_of(client.get(edit(track)))
    return client.post(change(track), fields | {"do": do} | changes)


def shown_json(response: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(fields_of(response)["json"])
    return document


def whole(suite: Suite) -> dict[str, Any]:
    digest = suite.digest
    return factories.policy_document(
        [suite],
        extra=[
            floor("generalization_accuracy_floor", digest, "decision", "0.6"),
            {"gate": "masked_ceiling", "suite": digest, "max_percent": "2"},
            {"gate": "latency_memory_budget", "suite": digest, "max_p95_ms": 900},
            {"gate": "look_budget", "suite": digest, "max_looks": 5},
            {"gate": "frozen_group_split", "max_near": 3},
            {"gate": "export_parity"},
        ],
    )


# who


@pytest.mark.parametrize("role", ROLES)
def test_only_an_administrator_gets_the_editor(house: factories.House, role: str) -> None:
    client = signed_in(getattr(house, role))
    may = role == "administrator"

    page = html(client.get(reverse("promotion:track", args=["toolcaller"])))
    assert ("write a version" in page) is may
    assert client.get(edit(house.track)).status_code == (200 if may else 403)
    fields = fields_of(signed_in(house.administrator).get(edit(house.track)))
    answer = client.post(change(house.track), fields | {"do": "save-form", "note": "New."})
    assert answer.status_code == (302 if may else 403)
    assert Policy.objects.filter(locked_at=None).exists() is may
    page = html(client.get(reverse("promotion:policy", args=["toolcaller", 1])))
    assert ("Write a new version" in page) is may


@pytest.mark.parametrize("role", ROLES)
def test_only_approvers_and_administrators_lock(house: factories.House, role: str) -> None:
    draft = policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite]),
        by=factories.person("writer", "administrator"),
    )
    client = signed_in(getattr(house, role))
    may = role in ("approver", "administrator")

    page = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 2])))
    assert ("policies/2/lock/" in page) is may
    answer = client.post(reverse("promotion:policy-lock", args=["toolcaller", 2]), {"digest": draft.digest})
    assert answer.status_code == (302 if may else 403)
    draft.refresh_from_db()
    assert (draft.locked_at is not None) is may


def test_strangers_are_sent_to_sign_in(house: factories.House) -> None:
    for address in (edit(house.track), change(house.track)):
        response = Client().post(address) if address.endswith("change/") else Client().get(address)
        assert response.status_code == 302 and response["Location"].startswith(reverse("account_login"))


def test_a_change_is_no_address_to_visit(house: factories.House, editor: Client) -> None:
    assert editor.get(change(house.track)).status_code == 405
    assert editor.get(reverse("promotion:policy-lock", args=["toolcaller", 1])).status_code == 405
    assert editor.post(edit(house.track)).status_code == 405


# one document


def test_the_form_and_the_json_begin_as_the_policy_in_force(house: factories.House, editor: Client) -> None:
    response = editor.get(edit(house.track))

    assert shown_json(response) == house.policy.document
    assert "begins from version 1, which is in force" in html(response)


def test_a_track_without_a_policy_begins_with_a_skeleton_and_no_complaints(
    house: factories.House, editor: Client
) -> None:
    track = tracks.create(name="new", purpose="p", by=house.administrator)

    response = editor.get(edit(track))

    assert shown_json(response) == policy_form.SKELETON
    assert "the first version" in html(response) and 'role="alert"' not in html(response)


def test_what_the_form_says_of_a_document_is_the_document(house: factories.House, editor: Client) -> None:
    document = whole(house.suite) | {"note": "Two\nlines, ümlaut & <b>."}
    policies.draft(track=house.track, document=document, by=house.administrator)

    response = press(editor, house.track, "form")

    assert response.status_code == 200 and "It fits" in html(response)
    assert shown_json(response) == document


@pytest.mark.parametrize("spend", [True, False])
def test_every_gate_goes_through_the_form_unchanged(
    house: factories.House, editor: Client, spend: bool
) -> None:
    document = whole(house.suite) | {"spend_alpha": spend}
    document["approval"]["separation_of_duties"] = not spend
    policies.draft(track=house.track, document=document, by=house.administrator)

    response = press(editor, house.track, "save-form")

    assert response.status_code == 302
    assert Policy.objects.get(locked_at=None).document == document


def test_the_button_says_whether_form_or_json_counts(house: factories.House, editor: Client) -> None:
    typed = copy.deepcopy(house.policy.document) | {"note": "By JSON."}

    by_form = press(editor, house.track, "form", note="By form.", json=json.dumps(typed))
    by_json = press(editor, house.track, "json", note="By form.", json=json.dumps(typed))

    assert shown_json(by_form)["note"] == fields_of(by_form)["note"] == "By form."
    assert shown_json(by_json)["note"] == fields_of(by_json)["note"] == "By JSON."
    assert not Policy.objects.filter(locked_at=None).exists(), "nothing is saved by looking"


def test_json_that_was_edited_and_did_not_count_is_not_lost(house: factories.House, editor: Client) -> None:
    typed = json.dumps(house.policy.document | {"note": "By JSON."})

    edited = press(editor, house.track, "form", note="By form.", json=typed)
    untouched = press(editor, house.track, "form", note="By form.")

    assert "The JSON had been edited" in html(edited) and "By JSON." in html(edited)
    assert "The JSON had been edited" not in html(untouched)


def test_saving_either_makes_the_draft(house: factories.House, editor: Client) -> None:
    typed = json.dumps(house.policy.document | {"note": "By JSON."})

    assert press(editor, house.track, "save-json", note="By form.", json=typed).status_code == 302
    assert Policy.objects.get(locked_at=None).document["note"] == "By JSON."
    saved = press(editor, house.track, "save-form", note="By form.")
    assert saved["Location"] == reverse("promotion:policy", args=["toolcaller", 2])
    draft = Policy.objects.get(locked_at=None)
    assert (draft.document["note"], draft.created_by) == ("By form.", house.administrator)


def test_a_draft_that_somebody_else_saved_meanwhile_is_not_overwritten(
    house: factories.House, editor: Client
) -> None:
    fields = fields_of(editor.get(edit(house.track)))
    other = policies.draft(
        track=house.track, document=factories.policy_document([house.suite]), by=house.administrator
    )

    response = editor.post(change(house.track), fields | {"do": "save-form", "note": "Mine."})

    assert response.status_code == 409
    assert "Somebody saved or locked the draft since you opened it" in html(response)
    assert fields_of(response)["note"] == "Mine.", "what was typed is still there"
    other.refresh_from_db()
    assert other.document["note"] == ""
    # a button that saves nothing does not make the old page count as the new one
    again = editor.post(change(house.track), fields_of(response) | {"do": "form"})
    assert editor.post(change(house.track), fields_of(again) | {"do": "save-form"}).status_code == 409


# rows


def test_a_suite_comes_with_the_gates_that_it_must_have(house: factories.House, editor: Client) -> None:
    other = factories.suite(house.engineer, name="other", calls=30)

    response = press(editor, house.track, "add-suite", **{"add-suite-which": other.digest})

    document = shown_json(response)
    assert [part["digest"] for part in document["suites"]] == [house.suite.digest, other.digest]
    assert [entry["gate"] for entry in document["gates"] if entry.get("suite") == other.digest] == [
        "sealed_eval_hash",
        "deployed_artifact_gauntlet",
    ]
    assert document["gates"][-1] == {"gate": "human_approval_record"}
    assert policies.unlockable_reasons(document) == []


def test_a_suite_goes_with_the_gates_that_are_about_it(house: factories.House, editor: Client) -> None:
    other = factories.suite(house.engineer, name="other", calls=30)
    document = factories.policy_document([house.suite, other])
    policies.draft(track=house.track, document=document, by=house.administrator)

    response = press(editor, house.track, "remove-suite:0")

    assert shown_json(response) == factories.policy_document([other])


def test_a_suite_that_a_judge_scores_is_not_offered(house: factories.House, editor: Client) -> None:
    factories.suite(house.engineer, name="judged", calls=3)
    Suite.objects.filter(name="judged").update(scorer="judge")

    assert "judged v1" not in html(editor.get(edit(house.track)))


def test_a_gate_is_added_before_the_signature_and_removed(house: factories.House, editor: Client) -> None:
    added = press(editor, house.track, "add-gate", **{"add-gate-which": "paired_non_inferiority"})

    gates = shown_json(added)["gates"]
    # about the only suite, with its defaults; what it must be given is not yet complained of
    assert gates[-2] == {"gate": "paired_non_inferiority", "suite": house.suite.digest, "alpha": "0.05"}
    assert added.status_code == 200 and 'role="alert"' not in html(added)
    index = len(gates) - 2
    removed = editor.post(change(house.track), fields_of(added) | {"do": f"remove-gate:{index}"})
    assert shown_json(removed) == house.policy.document


def test_groups_of_approvers_are_added_and_removed(house: factories.House, editor: Client) -> None:
    added = press(editor, house.track, "add-approver")
    fields = fields_of(added) | {"approver-1-group": "auditor", "approver-1-count": "2"}

    applied = editor.post(change(house.track), fields | {"do": "form"})
    removed = editor.post(change(house.track), fields_of(applied) | {"do": "remove-approver:0"})

    assert shown_json(applied)["approval"]["approvers"] == [
        {"group": "approver", "count": 1},
        {"group": "auditor", "count": 2},
    ]
    assert shown_json(removed)["approval"]["approvers"] == [{"group": "auditor", "count": 2}]


@pytest.mark.parametrize(
    "do", ["remove-gate:99", "remove-suite:-1", "remove-suite:x", "add-gate", "nothing:9"]
)
def test_buttons_of_rows_that_are_not_there_change_nothing(
    house: factories.House, editor: Client, do: str
) -> None:
    response = press(editor, house.track, do, **{"add-gate-which": "beauty"})

    assert response.status_code == 200 and shown_json(response) == house.policy.document


def test_the_signature_cannot_be_taken_out_or_added_twice(house: factories.House, editor: Client) -> None:
    page = html(editor.get(edit(house.track)))
    count = len(house.policy.document["gates"])

    assert f'value="remove-gate:{count - 1}"' not in page and f'value="remove-gate:{count - 2}"' in page
    twice = press(editor, house.track, "add-gate", **{"add-gate-which": "human_approval_record"})
    assert shown_json(twice) == house.policy.document


# what is wrong


def test_what_is_wrong_stands_at_its_field_with_the_arithmetic(
    house: factories.House, editor: Client
) -> None:
    index = [entry["gate"] for entry in house.policy.document["gates"]].index("generalization_accuracy_floor")

    response = press(editor, house.track, "save-form", **{f"gate-{index}-min": "0.99"})

    page = html(response)
    assert response.status_code == 422
    sentence = "a 0.99 bound at alpha 0.05 needs at least 299 of 299, and there are 40 distinct prompts"
    at_field = page[page.index(f'id="id_gate-{index}-min"') :][:700]
    assert 'aria-invalid="true"' in at_field and sentence in at_field
    summary = page[page.index('role="alert"') :][:1500]
    assert f'href="#id_gate-{index}-min"' in summary and sentence in summary
    assert fields_of(response)[f"gate-{index}-min"] == "0.99"
    assert not Policy.objects.filter(locked_at=None).exists()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("samples", "many", "valid integer"),
        ("samples", "0", "greater than or equal to 1"),
        ("samples", "", "Field required"),
        ("temperature", "hot", "valid integer"),
        ("temperature", "2.5", "less than or equal to 2"),
        ("temperature", "nan", "valid integer"),
        ("max_tokens", "1.5", "valid integer"),
        ("expires", "9999", "less than or equal to 365"),
        ("approver-0-count", "-1", "greater than or equal to 1"),
        ("approver-0-group", "", "match pattern"),
    ],
)
def test_every_field_says_what_is_wrong_with_it(
    house: factories.House, editor: Client, field: str, value: str, sentence: str
) -> None:
    response = press(editor, house.track, "form", **{field: value})

    page = html(response)
    assert response.status_code == 422
    assert sentence in page[page.index(f'id="id_{field}"') :][:900]
    assert fields_of(response)[field] == value


def test_what_belongs_to_no_field_stands_at_its_part_of_the_page(
    house: factories.House, editor: Client
) -> None:
    document = copy.deepcopy(house.policy.document)
    del document["gates"][0]
    document["colour"] = "red"
    shapeless = press(editor, house.track, "json", json=json.dumps(document))
    del document["colour"]
    incomplete = press(editor, house.track, "json", json=json.dumps(document))
    odd = press(
        editor,
        house.track,
        "json",
        json=json.dumps(document | {"gates": [{"gate": "beauty", "colour": 1}, *document["gates"]]}),
    )

    assert "colour: Extra inputs are not permitted" in html(shapeless)
    assert 'href="#at_gates"' in html(incomplete)
    assert "must hold candidate_artifact_hash" in html(incomplete)
    assert 'href="#row_gates_0"' in html(odd) and "is not a gate" in html(odd)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[]", "must be an object"),
        ('{"samples": NaN}', "NaN is not a JSON number"),
        ('{"samples": 1, "samples": 2}', "stands twice"),
        ('{"note": "\\u0000"}', "NUL"),
        ('{"note": "\\ud800"}', "surrogate"),
        ('{"samples": 99999999999999999999}', "beyond 2**53 - 1"),
        ("[" * 70 + "]" * 70, "nested deeper"),
    ],
)
def test_json_that_cannot_be_read_stays_as_it_was_typed(
    house: factories.House, editor: Client, text: str, sentence: str
) -> None:
    for do in ("json", "save-json"):
        response = press(editor, house.track, do, json=text, note="Typed in the form.")
        assert response.status_code == 422
        assert sentence in html(response)
        assert fields_of(response)["json"] == text
        assert fields_of(response)["note"] == "Typed in the form."


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"suites": "x", "gates": 7, "approval": [], "sampling": None},
        {
            "suites": [1, {"digest": 5}],
            "gates": [None, {"gate": []}, {"suite": {}}],
            "approval": {"approvers": 1},
        },
        {"gates": [{"gate": "look_budget", "suite": ["a"], "max_looks": {}}], "note": 5},
    ],
)
def test_a_document_of_any_shape_is_shown_and_named_wrong(
    house: factories.House, editor: Client, document: Any
) -> None:
    response = press(editor, house.track, "save-json", json=json.dumps(document))

    assert response.status_code == 422
    assert json.loads(fields_of(response)["json"]) == document
    assert "to mend" in html(response)


def test_a_document_with_more_gates_than_the_form_shows_is_left_to_the_json(
    house: factories.House, editor: Client
) -> None:
    document = copy.deepcopy(house.policy.document)
    document["gates"][-1:-1] = [{"gate": "export_parity"}] * 160

    response = press(editor, house.track, "json", json=json.dumps(document))

    assert "more gates than the form can show" in html(response)
    assert 'value="save-form"' not in html(response)
    saved = editor.post(change(house.track), fields_of(response) | {"do": "save-json"})
    assert saved.status_code == 302
    assert Policy.objects.get(locked_at=None).document == document


def test_hostile_text_is_text(house: factories.House, editor: Client) -> None:
    document = copy.deepcopy(house.policy.document) | {"note": HOSTILE.replace("\x07", "")}
    # what no JSON reader refuses may stand in a policy
    draft = policies.draft(track=house.track, document=document, by=house.administrator)

    edited = editor.get(edit(house.track))
    pages = [
        html(edited),
        *(
            html(editor.get(reverse(f"promotion:{name}", args=["toolcaller", 2])))
            for name in ("policy", "policy-diff")
        ),
    ]

    for page in pages:
        assert "<script>alert" not in page and "<img src=x" not in page
    assert "{% csrf_token %}" in escapes.unescape(pages[1])
    assert json.loads(fields_of(edited)["json"]) == draft.document
    assert "\u202e" not in fields_of(edited)["json"] and "\\u202e" in fields_of(edited)["json"]
    assert "characters that nobody sees" in pages[0]
    assert "⟦U+202E⟧" in pages[1] and "⟦U+202E⟧" in pages[2]


def test_control_characters_of_a_form_are_refused_where_no_database_takes_them(
    house: factories.House, editor: Client
) -> None:
    response = press(editor, house.track, "save-form", note="a\x00b")

    assert response.status_code == 422
    assert "NUL" in html(response)


def test_a_form_is_read_for_what_it_is() -> None:
    """Rows end where the numbers end; unknown gates keep their name, so that they can be found wrong."""
    from django.http import QueryDict

    posted = QueryDict(
        "samples=3&suite-0=abc&gate-0=beauty&gate-0-colour=red&gate-1=look_budget&gate-1-max_looks=x"
    )

    document = document_from(posted)

    assert document["gates"] == [
        {"gate": "beauty"},
        {"gate": "look_budget", "suite": "", "max_looks": "x"},
    ]
    assert document["samples"] == 3 and document["suites"] == [{"digest": "abc"}]
    assert form_of(document, policies.problems(document), named={}, offered=[], groups=[]).wrong


# what it changes


def test_the_editor_shows_what_is_loosened_before_anything_is_saved(
    house: factories.House, editor: Client
) -> None:
    index = [entry["gate"] for entry in house.policy.document["gates"]].index("generalization_accuracy_floor")

    response = press(editor, house.track, "form", expires="60", **{f"gate-{index}-min": "0.70"})

    page = html(response)
    assert "What this changes of version 1" in page and "1 could let more pass" in page
    assert page.index("a signature expires") < page.index("generalization_accuracy_floor, decision: min")


def test_the_policys_page_shows_what_it_changes(house: factories.House) -> None:
    draft = policies.draft(
        track=house.track, document=factories.policy_document([house.suite]), by=house.administrator
    )

    page = html(signed_in(house.auditor).get(reverse("promotion:policy", args=["toolcaller", 2])))

    assert "What it changes of version 1" in page and "1 of 1 could let more pass" in page
    assert "removed" in page and "generalization_accuracy_floor, decision" in page
    assert draft.locked_at is None and "not locked" in page


def test_two_versions_of_ones_choice_are_compared(house: factories.House) -> None:
    policies.draft(
        track=house.track, document=factories.policy_document([house.suite]), by=house.administrator
    )
    client = signed_in(house.auditor)

    there = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 2])))
    back = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 1]) + "?with=2"))

    assert "1 of 1 change could let more pass" in there
    assert "Compared with version 2, a draft" in back and "none of 1 could let more pass" in back
    assert client.get(reverse("promotion:policy-diff", args=["toolcaller", 2]) + "?with=9").status_code == 404
    for odd in ("x", "-1", "1" * 30, "١"):
        address = reverse("promotion:policy-diff", args=["toolcaller", 2])
        assert client.get(address, {"with": odd}).status_code == 400, odd


def test_a_first_version_is_compared_with_nothing(house: factories.House) -> None:
    page = html(signed_in(house.auditor).get(reverse("promotion:policy-diff", args=["toolcaller", 1])))

    assert "The first version" in page and "none is loosened" in page


# the lock


@pytest.fixture
def looser(house: factories.House) -> Policy:
    return policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite]),
        by=factories.person("writer", "administrator"),
    )


def test_a_lock_is_confirmed_on_the_page_that_shows_the_changes(
    house: factories.House, looser: Policy
) -> None:
    client, address = signed_in(house.approver), reverse("promotion:policy-lock", args=["toolcaller", 2])
    page = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 2])))
    assert "1 of its changes could let more pass than version 1 does" in page
    assert f'name="digest" value="{looser.digest}"' in page

    assert client.post(address, {"digest": looser.digest}).status_code == 302

    looser.refresh_from_db()
    assert looser.locked_by == house.approver
    assert client.post(address, {"digest": looser.digest}).status_code == 409


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_a_lock_without_the_digest_that_was_shown_is_refused(
    house: factories.House, looser: Policy, digest: str
) -> None:
    response = signed_in(house.approver).post(
        reverse("promotion:policy-lock", args=["toolcaller", 2]), {"digest": digest}
    )

    assert response.status_code == 409
    assert "Read its changes again" in html(response) and "Not locked" in html(response)
    looser.refresh_from_db()
    assert looser.locked_at is None


def test_a_draft_that_changed_since_its_page_was_shown_is_not_locked(
    house: factories.House, looser: Policy
) -> None:
    shown = looser.digest
    policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite], approvers=2),
        by=factories.person("writer-2", "administrator"),
    )

    response = signed_in(house.approver).post(
        reverse("promotion:policy-lock", args=["toolcaller", 2]), {"digest": shown}
    )

    assert response.status_code == 409 and "changed since it was shown" in html(response)
    assert "tightened" in html(response), "the page shows the changes as they are by now"


def test_whoever_wrote_it_is_told_that_somebody_else_locks(house: factories.House, looser: Policy) -> None:
    assert looser.created_by is not None
    client = signed_in(looser.created_by)

    page = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 2])))
    response = client.post(
        reverse("promotion:policy-lock", args=["toolcaller", 2]), {"digest": looser.digest}
    )

    assert "A changed policy is locked by somebody else" in page and "policies/2/lock/" not in page
    assert response.status_code == 409 and "needs a second person" in html(response)


def test_comparing_with_another_version_is_no_place_to_lock(house: factories.House, looser: Policy) -> None:
    """Otherwise a draft could be locked on a page that shows other changes than the lock makes."""
    policies.lock(policy_id=looser.pk, by=house.approver)
    policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite], approvers=2),
        by=house.administrator,
    )
    client = signed_in(house.approver)

    usual = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 3])))
    other = html(client.get(reverse("promotion:policy-diff", args=["toolcaller", 3]) + "?with=1"))

    assert "policies/3/lock/" in usual and "policies/3/lock/" not in other


def test_what_a_locked_policy_loosened_is_on_the_review_page(house: factories.House, looser: Policy) -> None:
    candidate = house.evaluated("before")
    client = signed_in(house.approver_2)
    address = reverse("promotion:candidate", args=[candidate.pk])
    assert "Exceptions" not in html(client.get(address))

    policies.lock(policy_id=looser.pk, by=house.approver)
    page = html(client.get(reverse("promotion:candidate", args=[house.evaluated("after").pk])))

    assert "Policy 2 could let more pass than version 1 did" in page
    section = page[page.index('id="exceptions-h"') :][:3000]
    assert "Written by <bdi>writer</bdi>, locked by <bdi>approver</bdi>" in section
    assert "removed" in section and "generalization_accuracy_floor, decision" in section


def test_a_policy_that_only_tightens_is_no_exception(house: factories.House) -> None:
    document = copy.deepcopy(house.policy.document)
    document["approval"]["approvers"][0]["count"] = 2
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver)

    page = html(signed_in(house.approver_2).get(reverse("promotion:candidate", args=[house.evaluated().pk])))

    assert "Exceptions" not in page


# the table of gates


def test_the_policys_page_says_what_each_gate_needs(house: factories.House) -> None:
    policies.draft(track=house.track, document=whole(house.suite), by=house.administrator)

    page = html(signed_in(house.auditor).get(reverse("promotion:policy", args=["toolcaller", 2])))

    for needs in ("bound ≥ 0.6", "masked ≤ 2 %", "p95 ≤ 900 ms", "look ≤ 5", "near ≤ 3"):
        assert needs in page, needs


def test_no_page_of_a_policy_asks_more_of_the_database_for_more_gates(
    house: factories.House, editor: Client, django_assert_max_num_queries: Any
) -> None:
    document = whole(house.suite)
    document["gates"][-1:-1] = [{"gate": "export_parity"}] * 100
    policies.draft(track=house.track, document=document, by=house.administrator)

    for name in ("policy", "policy-diff"):
        with django_assert_max_num_queries(14):
            assert editor.get(reverse(f"promotion:{name}", args=["toolcaller", 2])).status_code == 200
    with django_assert_max_num_queries(14):
        assert editor.get(edit(house.track)).status_code == 200


def test_the_draft_that_is_shown_is_the_one_that_is_hashed(house: factories.House, editor: Client) -> None:
    press(editor, house.track, "save-form", note="New.")

    draft = Policy.objects.get(locked_at=None)
    assert draft.digest == sha256_json(shown_json(editor.get(edit(house.track))))


def test_a_refusal_is_read_as_it_was_written(house: factories.House, editor: Client) -> None:
    """Quotes in it are escaped once."""
    page = html(press(editor, house.track, "form", samples="many"))

    assert "got &#x27;many&#x27;" in page and "&amp;#x27;" not in page
