"""What another policy would have said of past candidates: a stored version, or a document that somebody tries."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from promotion import permissions, selectors, whatif
from promotion.models import Track
from rollouts.api.strict_json import parse_json
from rollouts.errors import InvalidInput
from rollouts.web.http import acts, reads

MOST_VERSIONS = 50
MAX_DOCUMENT = 200_000


class TryForm(forms.Form):
    document = forms.CharField(
        max_length=MAX_DOCUMENT,
        widget=forms.Textarea(attrs={"rows": 12, "spellcheck": "false"}),
        label="A policy document (JSON)",
        help_text="It is not saved. It may hold what could not be locked, such as a floor of 0.",
    )


@reads
def what_if(request: HttpRequest, name: str) -> HttpResponse:
    track = selectors.track_by_name(name, request.user)
    wanted = request.GET.get("policy", "")
    if wanted and (not wanted.isascii() or not wanted.isdigit() or len(wanted) > 9):
        raise InvalidInput("policy", "must be the number of a version.")
    has_policy = selectors.policies_of(track).exists()
    replay = whatif.replay_policy(track, int(wanted) if wanted else None) if has_policy or wanted else None
    return _render(request, track, replay, TryForm())


@acts(permissions.require_can_read)
def try_document(request: HttpRequest, name: str) -> HttpResponse:
    """Reads only: the document is judged and forgotten."""
    track, form = selectors.track_by_name(name, request.user), TryForm(request.POST)
    replay = None
    if form.is_valid():
        try:
            replay = whatif.replay(track, parse_json(form.cleaned_data["document"].encode()))
        except InvalidInput as error:
            form.add_error("document", error.message)
    return _render(request, track, replay, form, 200 if replay else 422)


def _render(
    request: HttpRequest, track: Track, replay: whatif.Replay | None, form: TryForm, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {
        "area": "tracks",
        "track": track,
        "replay": replay,
        "form": form,
        "versions": selectors.policies_of(track)[:MOST_VERSIONS],
    }
    return render(request, "promotion/whatif_page.html", context, status=status)
