"""Tracks and their aliases."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class Track(models.Model):
    """A line of models with one purpose, one policy and one champion."""

    name = models.SlugField(max_length=60, unique=True)
    purpose = models.TextField()
    created_at = models.DateTimeField()
    created_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    # who may see the track and all of it besides auditors and administrators; none: everybody with a role
    readers = models.ManyToManyField("auth.Group", related_name="+")

    seen_with = ""
    audited = True
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Alias(models.Model):
    """A movable name for a registry entry of a track. Only `registry.move_alias` changes it."""

    track = models.ForeignKey(Track, models.PROTECT, related_name="aliases")
    name = models.SlugField(max_length=40)
    entry = models.ForeignKey("promotion.RegistryEntry", models.PROTECT, related_name="aliases")
    moved_at = models.DateTimeField()

    seen_with = "track"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["track", "name"], name="alias_one_per_track")]


class AliasMove(models.Model):
    """The history of an alias. Never changed."""

    track = models.ForeignKey(Track, models.PROTECT, related_name="alias_moves")
    name = models.SlugField(max_length=40)
    old = models.ForeignKey("promotion.RegistryEntry", models.PROTECT, null=True, related_name="+")
    new = models.ForeignKey("promotion.RegistryEntry", models.PROTECT, related_name="+")
    reason = models.TextField()
    moved_at = models.DateTimeField()

    seen_with = "track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(old__isnull=True) | ~Q(old=models.F("new")), name="aliasmove_changes_something"
            )
        ]
