"""Backends: each change is a new revision."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from rollouts import audit, permissions
from rollouts.backends import parse_config
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_json
from rollouts.models import Backend
from rollouts.races import settled
from rollouts.services.names import require_slug

# only these variables of the worker's environment are ever sent to a provider
KEY_PREFIX = "ASSAY_KEY_"
LIMITS = {"concurrency": (1, 1024), "timeout_s": (1, 3600), "max_attempts": (1, 10)}


def save(
    *,
    name: str,
    kind: str,
    config: dict[str, Any],
    by: User,
    key_env: str = "",
    concurrency: int = 1,
    timeout_s: int = 120,
    max_attempts: int = 3,
    prompt_price: int | None = None,
    completion_price: int | None = None,
) -> Backend:
    """The newest revision with these values: the present one where nothing changed, else a new one.

    Prices are micro-dollars per million tokens. Raises `InvalidInput` with the field.
    """
    permissions.require_can_register(by)
    require_slug("name", name)
    parsed = parse_config(kind, config)
    values = {
        "kind": kind,
        "config": parsed.model_dump(),
        "key_env": key_env,
        "concurrency": concurrency,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "prompt_price": prompt_price,
        "completion_price": completion_price,
    }
    _check_limits(values)
    digest = sha256_json({"name": name, **values})
    return settled(lambda: _keep(name, values, digest, by))


def _keep(name: str, values: dict[str, Any], digest: str, by: User) -> Backend:
    latest = Backend.objects.select_for_update().filter(name=name).order_by("-revision").first()
    if latest is not None and latest.digest == digest:
        return latest
    saved = Backend.objects.create(
        name=name,
        revision=latest.revision + 1 if latest else 1,
        digest=digest,
        created_at=timezone.now(),
        created_by=by,
        **values,
    )
    audit.record("backend.saved", subject=saved, actor=by, digest=digest, revision=saved.revision)
    return saved


def _check_limits(values: dict[str, Any]) -> None:
    for field, (least, most) in LIMITS.items():
        value = values[field]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(field, f"must be a whole number from {least} to {most}, not {value!r}.")
    if values["key_env"] and not re.fullmatch(KEY_PREFIX + r"[A-Z0-9_]{1,80}", values["key_env"]):
        raise InvalidInput(
            "key_env",
            f"must name an environment variable that begins with {KEY_PREFIX}, such as {KEY_PREFIX}OPENAI, never "
            "the key itself.",
        )
    for field in ("prompt_price", "completion_price"):
        price = values[field]
        if price is not None and (isinstance(price, bool) or not isinstance(price, int) or price < 0):
            raise InvalidInput(
                field, "must be micro-dollars per million tokens, a whole number, or left out."
            )
