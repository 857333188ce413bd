"""What pages, the API and evidence read."""

from __future__ import annotations

from typing import Any

from rollouts.hashing import sha256_json
from rollouts.models import BaseModel


def local_subject_digest(
    *, base: BaseModel, adapter_sha256: str | None, adapter_source_sha256: str, sampling: dict[str, Any]
) -> str:
    """The identity of what an eval run tests: every byte that shapes its answers."""
    return sha256_json(
        {
            "base": base.artifact_id,
            "adapter": adapter_sha256,
            "adapter_source": adapter_source_sha256,
            "chat_template": base.chat_template_sha256,
            "sampling": sampling,
        }
    )
