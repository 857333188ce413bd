"""The review page and the signature."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from promotion.models import Approval, Candidate, Evidence
from promotion.services import candidates, gating, registry
from rollouts.models import AuditEvent, EvalRun
from rollouts.services import runs
from tests import factories
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


def page_of(candidate: Candidate, client: Client, **params: str) -> Any:
    return client.get(reverse("promotion:candidate", args=[candidate.pk]), params)


def form_of(candidate: Candidate, **values: str) -> dict[str, str]:
    return {
        "evidence_digest": factories.digest_of(candidate),
        "decision": "approve",
        "meaning": "authorises",
        "comment": "Read <it> all.",
        "password": factories.PASSWORD,
        **values,
    }


def sign(candidate: Candidate, client: Client, **values: str) -> Any:
    return client.post(reverse("promotion:sign", args=[candidate.pk]), form_of(candidate, **values))


# what the page shows


def test_it_shows_the_verdict_the_digest_and_the_form(house: factories.House) -> None:
    candidate = house.evaluated(wrong=2)
    page = html(page_of(candidate, signed_in(house.approver)))
    digest = factories.digest_of(candidate)
    assert "measured gates pass" in page
    assert f'name="evidence_digest" value="{digest}"' in page
    assert f"{digest[:4]} {digest[4:8]}" in page
    assert "generalization_<wbr>accuracy_<wbr>floor" in page
    assert 'type="password"' in page
    assert "needs 1 approver; has 0" in page
    assert "look 1 on named" in page


def test_nothing_is_chosen_beforehand_and_enter_presses_nothing(house: factories.House) -> None:
    candidate = house.evaluated()
    page = html(page_of(candidate, signed_in(house.approver)))
    form = page[page.index(f'action="{reverse("promotion:sign", args=[candidate.pk])}"') :]
    form = form[: form.index("</form>")]
    assert " checked" not in form
    assert form.index('<button type="submit" disabled hidden>') < form.index('name="decision"')


def test_a_blocked_candidate_says_what_would_change_it(house: factories.House) -> None:
    candidate = house.evaluated(wrong=30)
    page = html(page_of(candidate, signed_in(house.approver)))
    assert candidate.state == "blocked"
    assert "Blocked: " in page
    assert "it would pass with" in page
    assert "only a candidate in review is signed" in page
    assert 'name="decision"' not in page


def test_those_who_may_not_sign_see_why(house: factories.House) -> None:
    candidate = house.evaluated()
    assert "engineer may not sign: that needs approver" in html(page_of(candidate, signed_in(house.engineer)))
    house.engineer.groups.add(*house.approver.groups.all())
    assert "they submitted this candidate" in html(page_of(candidate, signed_in(house.engineer)))


def test_lost_cases_come_with_both_answers_and_the_stretch_that_differs(house: factories.House) -> None:
    candidate = house.evaluated(wrong=3)
    page = html(page_of(candidate, signed_in(house.approver)))
    assert 'Right to wrong <span class="num">3</span>' in page
    assert '<mark class="good">' in page
    assert "<mark>" in page


def test_cases_are_paged_and_chosen_in_the_address(house: factories.House) -> None:
    candidate = house.evaluated(wrong=14)
    client = signed_in(house.auditor)
    assert "at=10" in html(page_of(candidate, client))
    second = html(page_of(candidate, client, cases="lost", at="10"))
    assert second.count('<details class="row"') == 4
    assert "No such case." in html(page_of(candidate, client, cases="missing"))
    for odd in ({"at": "-1"}, {"at": "x"}, {"at": "9" * 30}, {"cases": "<script>"}):
        assert page_of(candidate, client, **odd).status_code == 200


def test_masked_cases_are_counted_beside_the_scores(house: factories.House) -> None:
    page = html(page_of(house.evaluated(masked=2), signed_in(house.approver)))
    assert 'Without a score <span class="num">2</span>' in page


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("submitted", "Being built"),
        ("build_failed", "The build failed"),
        ("built", "Start its evaluation"),
        ("withdrawn", "Withdrawn"),
    ],
)
def test_a_candidate_without_evidence_says_where_it_stands(
    house: factories.House, state: str, says: str
) -> None:
    candidate = house.candidate()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    assert says in html(page_of(candidate, signed_in(house.engineer)))


@pytest.mark.parametrize(
    "state", ["evaluating", "approved", "publishing", "publish_failed", "rejected", "withdrawn"]
)
def test_a_judged_candidate_is_shown_in_every_state(house: factories.House, state: str) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    assert page_of(candidate, signed_in(house.approver)).status_code == 200


def test_a_promoted_candidate_links_to_its_entry(house: factories.House) -> None:
    candidate = house.approved()
    assert registry.publish(candidate.pk) is not None
    page = html(page_of(candidate, signed_in(house.approver)))
    assert 'href="/registry/toolcaller/2/"' in page
    assert "Signed by approver." in page


def test_a_baseline_is_shown_without_gates(house: factories.House) -> None:
    page = html(page_of(Candidate.objects.get(name="first"), signed_in(house.approver)))
    assert "proposed as the ungated baseline" in page


def test_the_evidence_document_is_the_bytes_of_its_digest(house: factories.House) -> None:
    import hashlib

    candidate = house.evaluated()
    digest = factories.digest_of(candidate)
    response = signed_in(house.auditor).get(reverse("promotion:evidence", args=[candidate.pk, digest]))
    assert hashlib.sha256(response.content).hexdigest() == digest


def test_reading_never_writes(house: factories.House) -> None:
    candidate = house.evaluated(wrong=2, masked=1)
    _change(house, candidate)
    clients = [signed_in(person) for person in (house.approver, house.engineer, house.auditor)]

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        assert sql.lstrip().upper().startswith(("SELECT", "SAVEPOINT", "RELEASE")), sql
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        for client in clients:
            for address in (reverse("promotion:candidate", args=[candidate.pk]), reverse("promotion:home")):
                assert client.get(address).status_code == 200


# signing


def test_an_approver_signs_what_was_shown(house: factories.House) -> None:
    candidate = house.evaluated()
    response = sign(candidate, signed_in(house.approver))
    assert response.status_code == 302
    approval = Approval.objects.get(candidate=candidate)
    assert (approval.evidence_digest, approval.meaning) == (factories.digest_of(candidate), "authorises")
    candidate.refresh_from_db()
    assert candidate.state == "approved"
    assert "Read &lt;it&gt; all." in html(page_of(candidate, signed_in(house.auditor)))


@pytest.mark.parametrize(("decision", "state"), [("request_changes", "blocked"), ("reject", "rejected")])
def test_a_refusal_needs_words(house: factories.House, decision: str, state: str) -> None:
    candidate, client = house.evaluated(), signed_in(house.approver)
    response = sign(candidate, client, decision=decision, comment="  ", meaning="")
    assert response.status_code == 422
    assert 'id="comment_error"' in html(response)
    assert (
        sign(candidate, client, decision=decision, comment="The injection family.", meaning="").status_code
        == 302
    )
    candidate.refresh_from_db()
    assert candidate.state == state
    assert "The injection family." in html(page_of(candidate, client))


def test_a_wrong_password_is_said_at_its_field_and_never_echoed(house: factories.House) -> None:
    response = sign(house.evaluated(), signed_in(house.approver), password="hunter2-wrong")
    page = html(response)
    assert response.status_code == 403
    assert 'id="password_error"' in page
    assert 'aria-describedby="password_help password_error"' in page
    assert "hunter2-wrong" not in page
    assert "Read &lt;it&gt; all." in page
    assert 'value="authorises" checked' in page
    assert AuditEvent.objects.filter(action="candidate.signature_refused").exists()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"meaning": ""}, "meaning_error"),
        ({"meaning": "adopts_baseline"}, "meaning_error"),
        ({"meaning": "made up"}, "meaning_error"),
        ({"decision": ""}, "decision_error"),
        ({"decision": "promote"}, "decision_error"),
        ({"comment": "x" * 4001}, "comment_error"),
        ({"comment": "a\x00b"}, "comment_error"),
        ({"password": ""}, "password_error"),
        ({"evidence_digest": "abc"}, "decision_error"),
    ],
)
def test_a_wrong_form_is_said_at_its_field(
    house: factories.House, values: dict[str, str], field: str
) -> None:
    candidate = house.evaluated()
    response = sign(candidate, signed_in(house.approver), **values)
    assert response.status_code == 422
    assert f'id="{field}"' in html(response)
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_an_engineer_and_the_submitter_cannot_sign(house: factories.House) -> None:
    candidate = house.evaluated()
    response = sign(candidate, signed_in(house.engineer))
    assert response.status_code == 403
    assert "that needs approver" in html(response)
    house.engineer.groups.add(*house.approver.groups.all())
    response = sign(candidate, signed_in(house.engineer))
    assert response.status_code == 403
    assert "they submitted this candidate" in html(response)
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_signing_what_is_not_in_review_is_a_conflict(house: factories.House) -> None:
    candidate = house.evaluated(wrong=30)
    response = sign(candidate, signed_in(house.approver))
    assert response.status_code == 409
    assert "only a candidate in review is signed" in html(response)
    assert "Read &lt;it&gt; all." in html(response)


def test_signing_twice_is_a_conflict(db: None) -> None:
    house = factories.house(calls=20, champion=True, approvers=2)
    candidate, client = house.evaluated(), signed_in(house.approver)
    assert sign(candidate, client).status_code == 302
    response = sign(candidate, client)
    assert response.status_code == 409
    assert "has signed this evidence already" in html(response)
    assert "You have signed this evidence." in html(page_of(candidate, client))


def _change(house: factories.House, candidate: Candidate) -> None:
    """The same run is opened again and closes with other results."""
    run = EvalRun.objects.get(label=candidate.name)
    first = run.rollouts.filter(state="scored").order_by("id").first()
    assert first is not None
    type(first).objects.filter(pk=first.pk).update(
        state="masked",
        failure_kind="server",
        json_valid=None,
        decision=None,
        tool=None,
        exact=None,
        safe=None,
    )
    EvalRun.objects.filter(pk=run.pk).update(state="running", finished_at=None)
    assert runs.close_if_done(run.pk)


def test_changed_evidence_is_refused_with_the_difference(house: factories.House) -> None:
    candidate, client = house.evaluated(), signed_in(house.approver)
    shown = form_of(candidate)
    _change(house, candidate)
    response = client.post(reverse("promotion:sign", args=[candidate.pk]), shown)
    page = html(response)
    assert response.status_code == 412
    assert "the evidence changed since the page you answered" in page
    assert "named, candidate: scored 40 is now 39." in page
    assert "named, candidate: masked 0 is now 1." in page
    assert factories.PASSWORD not in page
    assert "Read &lt;it&gt; all." in page
    new = factories.digest_of(candidate)
    assert new != shown["evidence_digest"]
    assert f'name="evidence_digest" value="{new}"' in page
    assert not Approval.objects.filter(candidate=candidate).exists()
    assert Evidence.objects.filter(candidate=candidate, digest=shown["evidence_digest"]).exists()


@pytest.mark.parametrize("wrong", [{"evidence_digest": "0" * 64}, {"password": "no"}, {"decision": ""}])
def test_the_links_of_a_refused_page_lead_to_the_page_itself(
    house: factories.House, wrong: dict[str, str]
) -> None:
    """Its own address only takes what is posted: `?cases=won` there would be a 405."""
    response = sign(house.evaluated(wrong=2), signed_in(house.approver), **wrong)
    assert response.status_code >= 400
    links = re.findall(r'href="([^"]*)"', html(response))
    assert any("?cases=won" in link for link in links)
    assert not [link for link in links if link.startswith("?") or "/sign/" in link]


def test_a_digest_that_was_never_shown_is_refused(house: factories.House) -> None:
    candidate = house.evaluated()
    response = sign(candidate, signed_in(house.approver), evidence_digest="0" * 64)
    assert response.status_code == 412
    assert "never had" in html(response)


def test_stale_evidence_is_said_before_anybody_signs_and_can_be_judged_again(house: factories.House) -> None:
    candidate, client = house.evaluated(), signed_in(house.approver)
    before = factories.digest_of(candidate)
    _change(house, candidate)
    page = html(page_of(candidate, client))
    assert "This is not the present evidence" in page
    assert "Judge again" in page
    assert 'name="decision"' not in page
    assert factories.digest_of(candidate) == before
    auditor = html(page_of(candidate, signed_in(house.auditor)))
    assert "An engineer or an approver can have it judged again" in auditor
    response = client.post(reverse("promotion:judge", args=[candidate.pk]), follow=True)
    assert "scored 40 is now 39" in html(response)
    assert factories.digest_of(candidate) != before


# what engineers do


def test_an_engineer_starts_the_evaluation(house: factories.House) -> None:
    candidate, client = house.candidate(), signed_in(house.engineer)
    assert "Start evaluation" in html(page_of(candidate, client))
    response = client.post(reverse("promotion:evaluate", args=[candidate.pk]), {"backend": house.backend.pk})
    assert response.status_code == 302
    candidate.refresh_from_db()
    assert candidate.state == "evaluating"
    assert (
        client.post(reverse("promotion:evaluate", args=[candidate.pk]), {"backend": "x"}).status_code == 400
    )


def test_a_verb_in_the_wrong_state_is_refused_with_the_reason(house: factories.House) -> None:
    candidate, client = house.evaluated(), signed_in(house.engineer)
    response = client.post(reverse("promotion:retry-build", args=[candidate.pk]))
    assert response.status_code == 409
    assert "cannot become submitted" in html(response)


def test_withdrawing_asks_on_a_page_of_its_own(house: factories.House) -> None:
    candidate, client = house.evaluated(), signed_in(house.engineer)
    assert "Withdrawing ends it" in html(client.get(reverse("promotion:withdraw", args=[candidate.pk])))
    now = reverse("promotion:withdraw-now", args=[candidate.pk])
    assert client.post(now, {"reason": " "}).status_code == 422
    assert client.post(now, {"reason": "Wrong data."}).status_code == 302
    candidate.refresh_from_db()
    assert candidate.state == "withdrawn"


def test_a_candidate_is_submitted_by_upload(house: factories.House, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    seen: dict[str, Any] = {}

    def submit(**values: Any) -> Candidate:
        seen.update(
            values,
            config=values["adapter_config"].read_bytes(),
            weights=values["adapter_weights"].read_bytes(),
        )
        return house.candidate("uploaded")

    monkeypatch.setattr(candidates, "submit", submit)
    client, address = signed_in(house.engineer), reverse("promotion:submit-files", args=[house.track.name])
    data = {"name": "uploaded", "base": house.base.pk, "outtype": "f16"}
    files = {
        "adapter_config": SimpleUploadedFile("../../evil.json", b"{}"),
        "adapter_model": SimpleUploadedFile("w.safetensors", b"weights"),
    }
    response = client.post(address, {**data, **files})
    assert response.status_code == 302
    assert (seen["config"], seen["weights"], seen["by"]) == (b"{}", b"weights", house.engineer)
    assert seen["adapter_config"].name == "adapter_config.json"
    assert client.post(address, data).status_code == 422


def test_a_refused_upload_says_why_at_its_field(
    house: factories.House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    from rollouts.errors import InvalidInput

    def submit(**_: Any) -> Candidate:
        raise InvalidInput("adapter_config", "r: must be <a> whole number.")

    monkeypatch.setattr(candidates, "submit", submit)
    files = {"adapter_config": SimpleUploadedFile("c", b"{}"), "adapter_model": SimpleUploadedFile("w", b"w")}
    response = signed_in(house.engineer).post(
        reverse("promotion:submit-files", args=[house.track.name]),
        {"name": "x", "base": house.base.pk, "outtype": "f16", **files},
    )
    assert response.status_code == 422
    assert "must be &lt;a&gt; whole number." in html(response)


def test_home_shows_each_role_what_waits(house: factories.House) -> None:
    candidate = house.evaluated("waits")
    house.evaluated("stopped", wrong=30)
    approver, engineer = html(signed_in(house.approver).get("/")), html(signed_in(house.engineer).get("/"))
    link = f'href="/candidates/{candidate.pk}/"'
    assert link in approver[approver.index("To sign") : approver.index("Tracks</h2>")]
    assert "is blocked by its gates" in engineer
    assert "waits for 1 approver<" in engineer
    assert gating.judge_now(candidate.pk)
    factories.sign(candidate, house.approver)
    assert "No candidate waits for your signature." in html(signed_in(house.approver).get("/"))
