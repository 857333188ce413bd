"""One remote model on a scripted provider, planned by the real services and worked on by the real engine."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.engine import runner
from rollouts.models import EvalRun, ModelCall, Payload, Rollout
from rollouts.services import runs
from tests import factories
from tests.engine.scripted import Provider, right


@pytest.fixture(autouse=True)
def _no_broker(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are kept, not sent; pauses between attempts are short."""
    monkeypatch.setattr(runner, "BACKOFF_S", 0.02)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(right).running() as running:
        yield running


@pytest.fixture
def engineer(transactional_db: None) -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture
def plan(engineer: User, provider: Provider) -> Callable[..., EvalRun]:
    """plan(calls=3, declines=0, samples=1, url=..., **limits) plans a run of the scripted model."""

    def make(
        *,
        calls: int = 3,
        declines: int = 0,
        samples: int = 1,
        url: str = "",
        model: str = "scripted-model",
        reuse: bool = False,
        budget: dict[str, Any] | None = None,
        label: str = "",
        **limits: Any,
    ) -> EvalRun:
        return runs.plan(
            subject=factories.remote_subject(model),
            suite=factories.suite(engineer, calls=calls, declines=declines),
            backend=factories.remote_backend(engineer, url or provider.url, **limits),
            by=engineer,
            samples=samples,
            reuse=reuse,
            budget=budget,
            label=label,
        )

    return make


def rollout_of(run: EvalRun, key: str, sample: int = 0) -> Rollout:
    return Rollout.objects.get(run=run, case__key=key, sample_index=sample)


def calls_of(rollout: Rollout) -> list[ModelCall]:
    return list(ModelCall.objects.filter(invocation__rollout=rollout).order_by("id"))


def body_of(payload_id: str | None) -> bytes:
    assert payload_id is not None
    return zlib.decompress(bytes(Payload.objects.get(pk=payload_id).data))
