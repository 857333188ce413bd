"""Tracks."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from promotion import permissions
from promotion.models import Track
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput
from rollouts.services.names import require_slug


def create(*, name: str, purpose: str, by: User) -> Track:
    permissions.require_can_create_track(by)
    require_slug("name", name)
    if not purpose.strip():
        raise InvalidInput("purpose", "must say in a sentence what the track's models are for.")
    try:
        with transaction.atomic():
            track = Track.objects.create(
                name=name, purpose=purpose.strip(), created_at=timezone.now(), created_by=by
            )
            audit.record("track.created", subject=track, actor=by, purpose=track.purpose)
    except IntegrityError as error:
        raise Conflict(f"A track named {name} exists already. Choose another name.") from error
    return track
