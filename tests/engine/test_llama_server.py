"""A real llama.cpp server measures a real model, proves which bytes it loaded, and ends with its shard."""

from __future__ import annotations

import hashlib

import psutil
import pytest
from django.contrib.auth.models import User

from promotion.export.base_header import read_base_header
from promotion.services import bases
from rollouts.models import EvalRun, ModelCall, Rollout, RunState
from rollouts.services import runs
from rollouts.services.subjects import local_subject
from tests import factories
from tests.conftest import base_gguf

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.llama]


@pytest.fixture
def run(engineer: User) -> EvalRun:
    file = base_gguf()
    assert file is not None
    base = bases.register(name="smollm2", file=file, by=engineer)
    subject = local_subject(
        base=base, adapter=None, adapter_source_sha256="", sampling={"temperature": 0, "max_tokens": 12}
    )
    suite = factories.suite(engineer, calls=1, declines=1)
    return runs.plan(subject=subject, suite=suite, backend=factories.local_backend(engineer), by=engineer)


def test_the_run_says_which_bytes_answered(run: EvalRun) -> None:
    assert runs.work_shard(run.pk) == 2

    run.refresh_from_db()
    base, facts = run.subject.base, run.server_facts
    assert (run.state, run.scored) == (RunState.SCORED, 2)
    assert base is not None and facts is not None
    assert (facts["base_sha256"], facts["adapter_sha256"]) == (base.artifact_id, None)
    template = read_base_header(base_gguf()).chat_template
    assert facts["chat_template_sha256"] == hashlib.sha256(str(template).encode()).hexdigest()
    assert facts["build"].startswith("xllamacpp ")


def test_the_servers_memory_is_measured_and_its_seeds_are_tried(run: EvalRun) -> None:
    runs.work_shard(run.pk)

    run.refresh_from_db()
    base = run.subject.base
    assert base is not None and run.peak_memory_bytes is not None
    # it maps the model's file, and does not need many times its size
    assert 0.3 * base.artifact.size_bytes < run.peak_memory_bytes < 20 * base.artifact.size_bytes
    assert run.server_facts["same_seed_same_text"] is True


def test_the_server_ends_with_its_shard_and_its_key_is_in_no_row(run: EvalRun) -> None:
    runs.work_shard(run.pk)

    assert [child.name() for child in psutil.Process().children(recursive=True)] == []
    assert not any("Bearer" in str(call.response_headers) for call in ModelCall.objects.all())


def test_temperature_0_gives_the_same_answer_twice(run: EvalRun, engineer: User) -> None:
    runs.work_shard(run.pk)
    again = runs.plan(subject=run.subject, suite=run.suite, backend=run.backend, by=engineer)
    runs.work_shard(again.pk)

    answers = [
        list(Rollout.objects.filter(run=r).order_by("case").values_list("answer", flat=True))
        for r in (run, again)
    ]
    assert answers[0] == answers[1] and all(answers[0])
    assert all(tokens for tokens in ModelCall.objects.values_list("completion_tokens", flat=True))
