"""Home, tracks, registry, audit."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from promotion import permissions, selectors
from promotion.models import Track
from promotion.services import tracks as track_services
from promotion.services.gating import APPROVAL_GATE
from promotion.web import champions
from promotion.web.download import stream_export
from promotion.web.forms import (
    AuditFilter,
    CandidateFilter,
    EntryFilter,
    PolicyFilter,
    ReadersForm,
    TrackCandidateFilter,
    TrackFilter,
)
from promotion.web.glass import glass_behind
from promotion.web.home import home_of
from promotion.web.review import allowed
from rollouts import selectors as rollout_selectors
from rollouts.models import AuditEvent
from rollouts.web.http import acts, reads
from rollouts.web.lists import filtered

TRACK_SORTS = {
    "name": "name",
    "created": "-pk",
    "policy": "-policy_version",
    "open": "-open_count",
    "review": "-review_count",
}
CANDIDATE_SORTS = {
    "submitted": "-pk",
    "name": "name",
    "track": "track__name",
    "state": "state",
    "base": "base__name",
    "submitter": "submitted_by__username",
}
POLICY_SORTS = {
    "saved": "-created_at",
    "track": "track__name",
    "version": "-version",
    "locked": "-locked_at",
    "writer": "created_by__username",
}
ENTRY_SORTS = {
    "promoted": "-pk",
    "track": "track__name",
    "number": "-number",
    "candidate": "candidate__name",
    "size": "-gguf__size_bytes",
}
# what stands in a candidate's way first
OUTCOMES = ("failed", "error", "not_evaluated", "waived", "passed")
THEMES = ("light", "dark", "auto")


@reads
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "promotion/home.html", {"home": home_of(request.user)})


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """A cookie, so that the server renders the choice and nothing flashes. Open to all: sign-in has it."""
    wanted, back = request.POST.get("theme", ""), request.POST.get("next", "/")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts=None) and back.startswith("/")
    response = redirect(back if safe else "/")
    if wanted in THEMES:
        response.set_cookie(
            "theme", wanted, max_age=365 * 86400, samesite="Lax", httponly=True, secure=settings.PRODUCTION
        )
    return response


def not_offered(request: HttpRequest, **_: str) -> HttpResponse:
    """Pages of django-allauth that have no use here: sign-up, e-mail, codes, password reset by mail."""
    raise Http404("This is not offered here.")


@reads
def tracks(request: HttpRequest) -> HttpResponse:
    form = TrackFilter(request.GET)
    page = filtered(form, partial(selectors.tracks, request.user), request, sorts=TRACK_SORTS)
    may_create = allowed(permissions.require_can_create_track, request.user)
    context = {"area": "tracks", "page": page, "form": form, "may_create": may_create}
    return render(request, "promotion/tracks.html", context, status=page.status)


@reads
def track(request: HttpRequest, name: str) -> HttpResponse:
    return _render_track(request, selectors.track_by_name(name, request.user))


def _render_track(
    request: HttpRequest, found: Track, *, readers: ReadersForm | None = None, status: int = 200
) -> HttpResponse:
    form = TrackCandidateFilter(request.GET)
    page = filtered(
        form,
        partial(selectors.candidates_where, request.user, track=found.name),
        request,
        sorts=CANDIDATE_SORTS,
    )
    groups = sorted(found.readers.values_list("name", flat=True))
    moves = list(selectors.champion_history(found)[: champions.MOST + 1])
    context = {
        "area": "tracks",
        "track": found,
        "champion": selectors.champion_entry(found),
        "champions": champions.history(moves, request.GET.get("chart", "")),
        "glass_behind": glass_behind(move.new for move in moves),
        "policies": list(selectors.policies_of(found)[:20]),
        "page": page,
        "form": form,
        "verdicts": selectors.verdicts_of(page.rows, without=APPROVAL_GATE),
        "outcomes": OUTCOMES,
        "may_submit": allowed(permissions.require_can_submit, request.user),
        "may_edit_policy": allowed(permissions.require_can_edit_policy, request.user),
        "readers": groups,
        "readers_form": readers or _readers_form(request, groups),
    }
    return render(
        request, "promotion/track.html", context, status=status if page.status == 200 else page.status
    )


def _readers_form(request: HttpRequest, groups: list[str]) -> ReadersForm | None:
    """For those who may say who sees the track."""
    may = allowed(permissions.require_can_set_readers, request.user)
    return ReadersForm(initial={"readers": groups}) if may else None


@acts(permissions.require_can_set_readers)
def track_readers(request: HttpRequest, name: str) -> HttpResponse:
    found, form = selectors.track_by_name(name, request.user), ReadersForm(request.POST)
    if not form.is_valid():
        return _render_track(request, found, readers=form, status=422)
    track_services.set_readers(track=found, groups=form.cleaned_data["readers"], by=request.user)
    messages.success(request, "Saved: who may see this track and all of it, its eval runs included.")
    return redirect("promotion:track", name)


@reads
def candidates(request: HttpRequest) -> HttpResponse:
    form = CandidateFilter(request.GET)
    rows = partial(selectors.candidates_where, request.user)
    page = filtered(form, rows, request, sorts=CANDIDATE_SORTS)
    verdicts = selectors.verdicts_of(page.rows, without=APPROVAL_GATE)
    context = {"area": "candidates", "page": page, "form": form, "verdicts": verdicts, "outcomes": OUTCOMES}
    return render(request, "promotion/candidates.html", context, status=page.status)


@reads
def policies(request: HttpRequest) -> HttpResponse:
    form = PolicyFilter(request.GET)
    page = filtered(form, partial(selectors.policies_where, request.user), request, sorts=POLICY_SORTS)
    context = {"area": "tracks", "page": page, "form": form}
    return render(request, "promotion/policies.html", context, status=page.status)


@reads
def registry(request: HttpRequest) -> HttpResponse:
    form = EntryFilter(request.GET)
    page = filtered(form, partial(selectors.entries_where, request.user), request, sorts=ENTRY_SORTS)
    context = {"area": "registry", "page": page, "form": form}
    return render(request, "promotion/registry.html", context, status=page.status)


@reads
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return stream_export(selectors.published_export(pk, request.user))


@reads
def audit(request: HttpRequest) -> HttpResponse:
    form = AuditFilter(request.GET)

    def events(**chosen: Any) -> QuerySet[AuditEvent]:
        return rollout_selectors.events_where(request.user, **form.filters(chosen))

    page = filtered(form, events, request, sorts={"number": "-pk"})
    context = {"area": "audit", "page": page, "form": form}
    return render(request, "promotion/audit.html", context, status=page.status)
