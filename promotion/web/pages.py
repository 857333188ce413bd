"""Home, tracks, registry, audit."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from promotion import permissions, selectors
from promotion.web.download import stream_export
from promotion.web.forms import AuditFilter, CandidateFilter, EntryFilter
from promotion.web.home import home_of
from promotion.web.review import allowed
from rollouts import selectors as rollout_selectors
from rollouts.web.http import chosen, page_of, reads

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
    page = page_of(selectors.tracks(), request, by="pk")
    may_create = allowed(permissions.require_can_create_track, request.user)
    return render(
        request, "promotion/tracks.html", {"area": "tracks", "page": page, "may_create": may_create}
    )


@reads
def track(request: HttpRequest, name: str) -> HttpResponse:
    found, form = selectors.track_by_name(name), CandidateFilter(request.GET)
    context = {
        "area": "tracks",
        "track": found,
        "champion": selectors.champion_entry(found),
        "moves": selectors.champion_history(found)[:20],
        "policies": list(selectors.policies_of(found)[:20]),
        "page": page_of(selectors.candidates_where(track=found, **chosen(form)), request),
        "form": form,
        "may_submit": allowed(permissions.require_can_submit, request.user),
        "may_edit_policy": allowed(permissions.require_can_edit_policy, request.user),
    }
    return render(request, "promotion/track.html", context)


@reads
def registry(request: HttpRequest) -> HttpResponse:
    form = EntryFilter(request.GET)
    page = page_of(selectors.entries_where(**chosen(form)), request)
    return render(request, "promotion/registry.html", {"area": "registry", "page": page, "form": form})


@reads
def entry(request: HttpRequest, name: str, number: int) -> HttpResponse:
    found = selectors.entry_by_number(name, number)
    return render(request, "promotion/entry.html", {"area": "registry", "entry": found})


@reads
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return stream_export(selectors.published_export(pk))


@reads
def audit(request: HttpRequest) -> HttpResponse:
    form = AuditFilter(request.GET)
    events = rollout_selectors.events_where(**form.filters(chosen(form)))
    page = page_of(events, request, by="-sequence")
    return render(request, "promotion/audit.html", {"area": "audit", "page": page, "form": form})
