"""The product's settings with a Redis that takes a message for lost after 5 s, which no installation should have."""

from __future__ import annotations

from promotion.settings import *  # noqa: F403

CELERY_BROKER_TRANSPORT_OPTIONS = {**CELERY_BROKER_TRANSPORT_OPTIONS, "visibility_timeout": 5}  # noqa: F405
