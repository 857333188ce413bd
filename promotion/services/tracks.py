"""Tracks, and who may see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from promotion import permissions
from promotion.models import Candidate, Track
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.models import EvalRun
from rollouts.services import readers as run_readers
from rollouts.services.names import require_slug


def create(*, name: str, purpose: str, by: User, readers: Collection[str] = ()) -> Track:
    """`readers` are names of groups; none: everybody with a role may see the track."""
    permissions.require_can_create_track(by)
    require_slug("name", name)
    if not purpose.strip():
        raise InvalidInput("purpose", "must say in a sentence what the track's models are for.")
    groups = _groups(readers)
    try:
        with transaction.atomic():
            track = Track.objects.create(
                name=name, purpose=purpose.strip(), created_at=timezone.now(), created_by=by
            )
            track.readers.set(groups)
            seen_by = {"readers": [group.name for group in groups]} if groups else {}
            audit.record("track.created", subject=track, actor=by, purpose=track.purpose, **seen_by)
    except IntegrityError as error:
        # names are unique over all tracks, so that this answer tells of one that the person may not see too
        raise Conflict(f"A track named {name} exists already. Choose another name.") from error
    return track


def set_readers(*, track: Track, groups: Collection[str], by: User) -> Track:
    """Let only these groups (by name), auditors and administrators see the track and all of it; none: everybody with a role.

    The eval runs of its candidates follow. Setting what is set already writes nothing.
    """
    permissions.require_can_set_readers(by)
    wanted = _groups(groups)
    with transaction.atomic():
        locked = Track.objects.select_for_update(no_key=True).filter(pk=track.pk).first()
        if locked is None:
            raise NotFound("There is no such track.")
        # as a promotion takes them: an evaluation that begins meanwhile waits, and then plans runs for the new readers
        candidates = Candidate.objects.select_for_update(no_key=True).filter(track=locked).order_by("pk")
        ggufs = {gguf for gguf in candidates.values_list("gguf", flat=True) if gguf}
        before = sorted(locked.readers.values_list("name", flat=True))
        after = [group.name for group in wanted]
        if before == after:
            return locked
        locked.readers.set(wanted)
        share_runs(ggufs)
        audit.record("track.readers_changed", subject=locked, actor=by, before=before, after=after)
    return locked


def share_runs(ggufs: Iterable[str | None]) -> None:
    """Eval runs of these GGUF files are read by all readers of the tracks that have them as candidates.

    Where one of these tracks has no readers, everybody with a role reads them.
    """
    readers: dict[str, set[int | None]] = defaultdict(set)
    known = {gguf for gguf in ggufs if gguf}
    rows = Candidate.objects.filter(gguf__in=known).values_list("gguf", "track__readers")
    for gguf, group in rows.order_by().distinct():
        readers[gguf].add(group)
    alike: dict[frozenset[int], list[str]] = defaultdict(list)
    for gguf, groups in readers.items():
        alike[frozenset() if None in groups else frozenset(groups)].append(gguf)  # type: ignore[arg-type]
    for groups_alike, files in alike.items():
        run_readers.set_readers(EvalRun.objects.filter(subject__adapter__in=files), groups=groups_alike)


def _groups(names: Collection[str]) -> list[Group]:
    """In alphabetical order. Raises `InvalidInput` with those that are not there."""
    found = list(Group.objects.filter(name__in=names).order_by("name"))
    unknown = sorted(set(names) - {group.name for group in found})
    if unknown:
        known = ", ".join(Group.objects.order_by("name").values_list("name", flat=True)) or "none yet"
        raise InvalidInput("readers", f"there is no group {', '.join(unknown)} (there are: {known}).")
    return found
