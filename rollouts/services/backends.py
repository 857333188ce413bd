"""Backends: each change is a new revision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.utils import timezone
from pydantic import BaseModel

from rollouts import audit, permissions
from rollouts.backends import kind_named, parse_config
from rollouts.backends.base import stored_config
from rollouts.backends.dual import Dual
from rollouts.backends.scripted import ScriptedConfig
from rollouts.errors import InvalidInput, NotFound
from rollouts.hashing import sha256_json
from rollouts.models import Backend
from rollouts.races import settled
from rollouts.services import transcripts
from rollouts.services.names import require_slug

# only these variables of the worker's environment are ever sent to a provider
KEY_PREFIX = "ASSAY_KEY_"
KEY_NAME = re.compile(KEY_PREFIX + r"[A-Z0-9_]{1,80}")
MAX_REQUESTS_PER_MINUTE = 1_000_000
LIMITS = {
    "concurrency": (1, 1024),
    "timeout_s": (1, 900),
    "max_attempts": (1, 10),
    "requests_per_minute": (1, MAX_REQUESTS_PER_MINUTE),
}
# left out, they set no limit of ours
OPTIONAL_LIMITS = frozenset(["requests_per_minute"])


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
    requests_per_minute: int | None = None,
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
        "config": stored_config(kind, parsed),
        "key_env": key_env,
        "concurrency": concurrency,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "requests_per_minute": requests_per_minute,
        "prompt_price": prompt_price,
        "completion_price": completion_price,
    }
    _check_limits(values)
    for part in _parts("", kind, parsed, key_env):
        _check_key(part)
        _check_transcript(part)
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


class _Part(NamedTuple):
    """A backend, or one inside another: `path` is where its own fields stand, empty or ending in a dot."""

    path: str
    kind: str
    config: BaseModel
    key_env: str


def _parts(path: str, kind: str, config: BaseModel, key_env: str) -> Iterator[_Part]:
    yield _Part(path, kind, config, key_env)
    for where, inner in kind_named(kind).parts(config).items():
        yield from _parts(f"{where}.", inner.kind, parse_config(inner.kind, inner.config), inner.key_env)


def _check_key(part: _Part) -> None:
    field = f"{part.path}key_env"
    if part.kind == Dual.kind and part.key_env:
        raise InvalidInput(
            field,
            "is not used: a dual backend's parts have keys of their own. Name them in config.target.key_env "
            "and config.generator.key_env.",
        )
    if kind_named(part.kind).needs_key and not part.key_env:
        raise InvalidInput(
            field, f"is missing: {part.kind} needs a key. Name its variable, such as {KEY_PREFIX}AZURE."
        )
    if part.key_env and not KEY_NAME.fullmatch(part.key_env):
        raise InvalidInput(
            field,
            f"must name an environment variable that begins with {KEY_PREFIX}, such as {KEY_PREFIX}OPENAI, never "
            "the key itself.",
        )


def _check_transcript(part: _Part) -> None:
    if not isinstance(part.config, ScriptedConfig):
        return
    field = f"{part.path}config.transcript_sha256"
    try:
        transcripts.read(part.config.transcript_sha256)
    except NotFound as error:
        raise InvalidInput(
            field,
            "there is no such transcript. Save it first: manage.py save_transcript, or POST /api/v1/transcripts.",
        ) from error


def _check_limits(values: dict[str, Any]) -> None:
    for field, (least, most) in LIMITS.items():
        value = values[field]
        if value is None and field in OPTIONAL_LIMITS:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(field, f"must be a whole number from {least} to {most}, not {value!r}.")
    for field in ("prompt_price", "completion_price"):
        price = values[field]
        if price is not None and (isinstance(price, bool) or not isinstance(price, int) or price < 0):
            raise InvalidInput(
                field, "must be micro-dollars per million tokens, a whole number, or left out."
            )
