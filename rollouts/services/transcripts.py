"""Recorded transcripts: stored by digest, replayed by backends of kind `scripted`, made from the calls of a run."""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from rollouts import audit, permissions, store
from rollouts.backends.transcript import MAX_TRANSCRIPT_BYTES, Transcript, parse_transcript
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.models import Artifact, AuditEvent, CallPurpose, CallState, EvalRun, ModelCall, Payload

# what a plug-in was asked never went over HTTP
REPLAYABLE_DIALECT = "openai.chat"
PAYLOADS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    artifact: Artifact
    rows: int
    replies: int

    @property
    def digest(self) -> str:
        return self.artifact.pk


class _Exchange(NamedTuple):
    """A call: the digests of its request and response (None where nothing came), its HTTP status, how it failed."""

    request: str
    response: str | None
    status: int | None
    error_kind: str


def save(*, data: bytes, by: User) -> StoredTranscript:
    """Store a transcript; the same bytes again are the one there is. Raises `InvalidInput` with line and key."""
    permissions.require_can_register(by)
    parsed = parse_transcript(data)
    artifact = store.put([data])
    with transaction.atomic():
        # the row is the lock: of two who store the same at once, one records it
        Artifact.objects.select_for_update().get(pk=artifact.pk)
        if not _is_recorded(artifact):
            audit.record("transcript.saved", subject=artifact, actor=by, rows=len(parsed.rows))
    return _stored(artifact, parsed)


def _stored(artifact: Artifact, parsed: Transcript) -> StoredTranscript:
    return StoredTranscript(artifact, len(parsed.rows), sum(len(row.replies) for row in parsed.rows))


def _is_recorded(artifact: Artifact) -> bool:
    return AuditEvent.objects.filter(
        action="transcript.saved", subject_type=Artifact._meta.label, subject_id=artifact.pk
    ).exists()


def read(sha256: str) -> StoredTranscript:
    """Raises `NotFound`, in the same words where something else is stored under the digest.

    A candidate's file may belong to a track that the person may not see, so nobody is told that it is there.
    """
    missing = NotFound("There is no such transcript.")
    artifact = Artifact.objects.filter(pk=sha256).first()
    if artifact is None or artifact.size_bytes > MAX_TRANSCRIPT_BYTES:  # such as a base model: it is not read
        raise missing
    try:
        parsed = parse_transcript(store.path_of(sha256).read_bytes())
    except InvalidInput:
        raise missing from None
    return _stored(artifact, parsed)


def export(run: EvalRun, *, purpose: str = CallPurpose.POLICY) -> Iterator[str]:
    """The rows of a transcript that answers as the run was answered, one JSON text each, in the order of first requests.

    Calls whose answers the run reused from other runs are among them. A call that was never answered (still open, or
    its worker was lost) is left out. Raises `Conflict` for calls of a plug-in, which scripted cannot replay.
    """
    answers = defaultdict[str, list[_Exchange]](list)
    for exchange in _exchanges(run, purpose):
        answers[exchange.request].append(exchange)
    requests = list(answers)
    for start in range(0, len(requests), PAYLOADS_AT_ONCE):
        group = requests[start : start + PAYLOADS_AT_ONCE]
        bodies = _bodies({exchange.response for request in group for exchange in answers[request]})
        for request in group:
            replies = [_reply(exchange, bodies) for exchange in answers[request]]
            yield json.dumps({"request_sha256": request, "replies": replies})


def _exchanges(run: EvalRun, purpose: str) -> Iterator[_Exchange]:
    own = Q(invocation__rollout__run=run)
    reused = Q(invocation__in=run.rollouts.filter(answered_by__isnull=False).values("answered_by"))
    calls = ModelCall.objects.filter(
        own | reused, purpose=purpose, state__in=[CallState.ANSWERED, CallState.FAILED]
    )
    other = calls.exclude(dialect=REPLAYABLE_DIALECT).first()
    if other is not None:
        raise Conflict(
            f"Call {other.pk} has the dialect {other.dialect}, which a scripted backend cannot replay."
        )
    rows = calls.order_by("id").values_list("request_id", "response_id", "status", "error_kind")
    return (_Exchange(*row) for row in rows.iterator(chunk_size=2000))


def _bodies(digests: set[str | None]) -> dict[str, bytes]:
    rows = Payload.objects.filter(pk__in=[digest for digest in digests if digest is not None])
    return {payload.pk: zlib.decompress(bytes(payload.data)) for payload in rows}


def _reply(exchange: _Exchange, bodies: dict[str, bytes]) -> dict[str, Any]:
    if exchange.status is None:
        return {"drop": True}
    body = bodies[exchange.response] if exchange.response is not None else b""
    reply: dict[str, Any] = {"status": exchange.status}
    if exchange.error_kind in ("truncated_stream", "timeout", "connection") and exchange.status == 200:
        # what came is sent again, and then the connection is closed before the end that was promised
        reply["cut_after"] = len(body)
        body += b"\n"
    try:
        return {**reply, "body": body.decode()}
    except UnicodeDecodeError:
        return {**reply, "body_base64": base64.b64encode(body).decode()}
