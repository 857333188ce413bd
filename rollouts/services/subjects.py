"""Base models and subjects: what can be tested, by content."""

from __future__ import annotations

import hashlib
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from rollouts import audit
from rollouts.errors import Conflict, InvalidInput
from rollouts.hashing import sha256_json
from rollouts.models import Artifact, BaseModel, Subject
from rollouts.races import settled
from rollouts.selectors import local_subject_digest
from rollouts.services.names import require_slug


def register_base(
    *,
    name: str,
    artifact: Artifact,
    architecture: str,
    header: dict[str, Any],
    chat_template: str | None,
    by: User,
) -> BaseModel:
    """The row of a base GGUF that is already in the store; the same file under the same name gives the row there is."""
    require_slug("name", name)
    if chat_template is None:
        raise InvalidInput(
            "file", "holds no chat template (tokenizer.chat_template). Use an instruct model's GGUF."
        )

    def keep() -> BaseModel:
        same = BaseModel.objects.filter(artifact=artifact).first()
        if same is not None:
            if same.name != name:
                raise Conflict(f"This file is registered already as {same.name}. Use that base model.")
            return same
        if BaseModel.objects.filter(name=name).exists():
            raise Conflict(f"Another file is registered as {name}. Choose another name.")
        base = BaseModel.objects.create(
            name=name,
            artifact=artifact,
            architecture=architecture,
            header=header,
            chat_template_sha256=hashlib.sha256(chat_template.encode()).hexdigest(),
            created_at=timezone.now(),
            created_by=by,
        )
        audit.record("base_model.registered", subject=base, actor=by, sha256=artifact.sha256)
        return base

    return settled(keep)


def local_subject(
    *, base: BaseModel, adapter: Artifact | None, adapter_source_sha256: str, sampling: dict[str, Any]
) -> Subject:
    """The subject of a base model with or without a built adapter, under one sampling."""
    digest = local_subject_digest(
        base=base,
        adapter_sha256=adapter.sha256 if adapter else None,
        adapter_source_sha256=adapter_source_sha256,
        sampling=sampling,
    )
    subject, _ = Subject.objects.get_or_create(
        digest=digest,
        defaults={
            "base": base,
            "adapter": adapter,
            "adapter_source_sha256": adapter_source_sha256,
            "sampling": sampling,
            "created_at": timezone.now(),
        },
    )
    return subject


def remote_subject(*, model: str, backend_name: str, sampling: dict[str, Any]) -> Subject:
    """A model that an endpoint serves under a name: no digest of its bytes is known."""
    if not model or len(model) > 200:
        raise InvalidInput("model", "must be 1 to 200 characters, as the endpoint knows the model.")
    digest = sha256_json({"remote_model": model, "backend": backend_name, "sampling": sampling})
    subject, _ = Subject.objects.get_or_create(
        digest=digest,
        defaults={"remote_model": model, "sampling": sampling, "created_at": timezone.now()},
    )
    return subject
