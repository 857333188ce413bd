"""An act of signing that was refused: where the sentence stands on the page, and what changed meanwhile."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from promotion import evidence as evidence_module
from promotion import selectors
from promotion.models import Candidate, Evidence
from promotion.services import gating
from promotion.web import compare
from promotion.web.forms import SignForm
from promotion.web.review import JUDGED, is_stale
from rollouts.errors import AssayError, InvalidInput, StaleEvidence

RETURNED = "returned_act"
FIELD_OF = {
    "wrong_password": "password",
    "too_many_tries": "password",
    "act_refused": "method",
    "passkey_refused": "method",
    "sso_refused": "method",
}


def field_error(error: AssayError) -> tuple[str, str]:
    """The form's field that the refusal is about, and its sentence."""
    if isinstance(error, InvalidInput) and error.field in SignForm.base_fields:
        return error.field, error.message.removeprefix(f"{error.field}: ")
    return FIELD_OF.get(error.code, "decision"), error.message


def form_of(words: dict[str, str], method: str) -> SignForm:
    """The form as it was sent before the person went elsewhere to prove who they are."""
    form = SignForm({**words, "method": method})
    form.is_valid()
    return form


def judged_now(found: Candidate) -> Candidate:
    """The candidate with evidence as it is now, for the page that answers. Both documents are kept."""
    if found.state in JUDGED and is_stale(found, selectors.latest_evidence(found)):
        gating.judge_now(found.pk)
        found.refresh_from_db()
    return found


def what_changed(found: Candidate, shown_digest: str) -> dict[str, Any]:
    shown, current = selectors.evidence_of(found, shown_digest), selectors.latest_evidence(found)
    return {"changed": changes_between(shown, current), "shown": shown, "stale_post": True}


def changes_between(shown: Evidence | None, current: Evidence | None) -> list[str]:
    if shown is None or current is None:
        return ["The form named evidence that this candidate never had."]
    return compare.changes(evidence_module.document_of(shown), evidence_module.document_of(current))


def keep(
    request: HttpRequest, found: Candidate, words: dict[str, str], method: str, error: AssayError
) -> None:
    """For the review page, which shows it once: what was written comes back with the person."""
    field, sentence = field_error(error)
    request.session[RETURNED] = {
        "candidate": found.pk,
        "words": words,
        "method": method,
        "field": field,
        "sentence": sentence,
        "stale": isinstance(error, StaleEvidence),
    }


def returned(request: HttpRequest, found: Candidate) -> dict[str, Any]:
    """What the page shows of an act that came back unsigned; empty mostly."""
    kept = request.session.get(RETURNED)
    if kept is None or kept["candidate"] != found.pk:
        return {}
    del request.session[RETURNED]
    form = form_of(kept["words"], kept["method"])
    if kept["stale"]:
        return {"form": form, **what_changed(found, kept["words"]["evidence_digest"])}
    form.add_error(kept["field"], kept["sentence"])
    return {"form": form}
