"""The usual scene of the pages, and rollouts with many or large captured calls."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from django.utils import timezone

from rollouts.hashing import sha256_bytes
from rollouts.models import CallState, Claim, Invocation, InvocationState, ModelCall, Payload, Rollout
from tests import factories
from tests.web.conftest import _surroundings as _surroundings


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(calls=20, declines=20, champion=True)


def payload(body: bytes) -> Payload:
    made, _ = Payload.objects.get_or_create(
        sha256=sha256_bytes(body), defaults={"size_bytes": len(body), "data": zlib.compress(body, 1)}
    )
    return made


def said(text: str | None, *calls: tuple[str, str], finish: str = "stop", **more: Any) -> bytes:
    """An answer's body: text and tool calls of (name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()


def asked(*messages: dict[str, Any]) -> bytes:
    return json.dumps({"messages": list(messages)}).encode()


def captured(rollout: Rollout, exchanges: list[tuple[bytes, bytes | None]], **values: Any) -> Invocation:
    """One invocation with a call a turn; without a response the call failed. It is what the rollout was answered by."""
    now = timezone.now()
    claim = Claim.objects.create(
        run_id=rollout.run_id, worker="w:1", created_at=now, lease_expires_at=now, ended_at=now
    )
    invocation = Invocation.objects.create(
        rollout=rollout, claim=claim, state=InvocationState.FINISHED, started_at=now, finished_at=now
    )
    bodies = {body: payload(body) for pair in exchanges for body in pair if body is not None}
    ModelCall.objects.bulk_create(
        [
            ModelCall(
                **{
                    "invocation": invocation,
                    "turn": turn,
                    "dialect": "openai.chat",
                    "state": CallState.ANSWERED if response is not None else CallState.FAILED,
                    "status": 200 if response is not None else 503,
                    "error_kind": "" if response is not None else "server",
                    "error_text": "" if response is not None else "The provider failed (503).",
                    "request": bodies[request],
                    "response": bodies[response] if response is not None else None,
                    "created_at": now,
                    "latency_ms": 12.0,
                    **values,
                }
            )
            for turn, (request, response) in enumerate(exchanges)
        ],
        batch_size=2000,
    )
    Rollout.objects.filter(pk=rollout.pk).update(answered_by=invocation)
    rollout.answered_by = invocation
    return invocation
