"""What people do on a review page besides signing: open, tick, ask, answer, mark as read, summarise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from promotion import comparing, permissions, selectors
from promotion import evidence as evidence_module
from promotion.services import reviews, risk_summaries, threads
from promotion.web.candidates import _render_review
from promotion.web.conversation import Conversation, attention_of
from rollouts.api.strict_json import check_text
from rollouts.errors import AssayError, Conflict, InvalidInput
from rollouts.web.http import acts

# what openings.js sends along: it wants the part of the page, not the page
SCRIPT = "fetch"


def _by_script(request: HttpRequest) -> bool:
    return request.headers.get("X-Requested-With") == SCRIPT


def _status(error: AssayError) -> int:
    return 422 if isinstance(error, InvalidInput) else error.status


def _typed(request: HttpRequest, *names: str) -> dict[str, str]:
    """What was typed, unchecked, so that it can be shown again: `_check` it before a service gets it."""
    return {name: request.POST.get(name, "") for name in names}


def _check(typed: Mapping[str, str]) -> None:
    """Raises `InvalidInput` for what no database takes. These pages have no forms that would look for it."""
    for name, text in typed.items():
        check_text(name, text)


def _back(request: HttpRequest, pk: int, place: str) -> HttpResponse:
    """To the page that a form names, as long as it is one of ours; else to the place on the review page."""
    wanted = request.POST.get("next", "")
    if wanted.startswith("/") and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return redirect(wanted)
    return redirect(f"{reverse('promotion:candidate', args=[pk])}#{place}")


def _again(request: HttpRequest, pk: int, error: AssayError, **typed: Any) -> HttpResponse:
    """The review page with the sentence where it belongs, and with what was typed."""
    text = error.message.removeprefix(f"{getattr(error, 'field', '')}: ")
    found = selectors.candidate_by_id(pk, request.user)
    return _render_review(request, found, status=_status(error), failed={"error": text, **typed})


@acts(permissions.require_can_read)
def opened(request: HttpRequest, pk: int) -> HttpResponse:
    """Records that a part was opened. The script gets the list anew, a form goes back to it."""
    try:
        reviews.open_panel(candidate_id=pk, panel=request.POST.get("panel", ""), by=request.user)
    except (InvalidInput, Conflict) as error:
        if _by_script(request):
            return HttpResponse(error.message, status=_status(error), content_type="text/plain")
        return _again(request, pk, error, where="attention")
    if not _by_script(request):
        return _back(request, pk, "attention")
    found = selectors.candidate_by_id(pk, request.user)
    evidence = selectors.latest_evidence(found)
    assert evidence is not None, "a part of it was just opened"
    document = evidence_module.document_of(evidence)
    attention = attention_of(found, document, comparing.comparisons_of(document), request.user, may_open=True)
    context = {"candidate": found, "conversation": Conversation(attention=attention)}
    return render(request, "promotion/review_attention.html", context)


@acts(permissions.require_can_read)
def checklist(request: HttpRequest, pk: int) -> HttpResponse:
    """Ticks or unticks one item, as the button says."""
    given = _typed(request, "item", "digest", "note")
    try:
        _check(given)
        if request.POST.get("do") == "untick":
            reviews.untick(candidate_id=pk, item=given["item"], digest=given["digest"], by=request.user)
        else:
            reviews.tick(candidate_id=pk, by=request.user, **given)
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, error, where="checklist", **given)
    return _back(request, pk, "checklist")


@acts(permissions.require_can_mark_seen)
def seen(request: HttpRequest, pk: int) -> HttpResponse:
    """What came in after the page was made is still new next time."""
    given = _typed(request, "digest", "shown_at")
    _check(given)
    moment = _moment(given["shown_at"])
    reviews.mark_seen(candidate_id=pk, digest=given["digest"], by=request.user, shown_at=moment)
    if _by_script(request):
        return HttpResponse(status=204)
    return _back(request, pk, "news")


def _moment(text: str) -> datetime | None:
    """In UTC, as it is stored: near the ends of the calendar a moment of another zone has no place there."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


@acts(permissions.require_can_comment)
def thread_start(request: HttpRequest, pk: int) -> HttpResponse:
    given = _typed(request, "anchor", "text")
    try:
        _check(given)
        made = threads.start(candidate_id=pk, by=request.user, **given)
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, error, where="thread", **given)
    messages.success(request, "Asked. Nobody approves before the thread is resolved.")
    return _back(request, pk, f"thread-{made.pk}")


@acts(permissions.require_can_comment)
def thread_reply(request: HttpRequest, pk: int, thread: int) -> HttpResponse:
    given = _typed(request, "text")
    try:
        _check(given)
        threads.reply(candidate_id=pk, thread_id=thread, by=request.user, **given)
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, error, where="reply", thread=thread, **given)
    return _back(request, pk, f"thread-{thread}")


def _moves(act: Callable[..., Any]) -> Callable[..., HttpResponse]:
    @acts(permissions.require_can_comment)
    def view(request: HttpRequest, pk: int, thread: int) -> HttpResponse:
        act(candidate_id=pk, thread_id=thread, by=request.user)
        return _back(request, pk, f"thread-{thread}")

    return view


thread_resolve, thread_reopen = _moves(threads.resolve), _moves(threads.reopen)


@acts(permissions.require_can_comment)
def risk_summary(request: HttpRequest, pk: int) -> HttpResponse:
    given = _typed(request, "text", "digest")
    try:
        _check(given)
        written = risk_summaries.write(candidate_id=pk, by=request.user, **given)
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, error, where="risk", text=given["text"])
    said = (
        "Written. It stands in the evidence, so that signatures given so far no longer count."
        if written
        else "Nothing was changed: these are the words that stand there already."
    )
    messages.success(request, said)
    return _back(request, pk, "risk")
