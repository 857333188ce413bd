"""Who may see a row: what hangs on a track or on an eval run is seen by its readers."""

from __future__ import annotations

from typing import Any, Self

from django.apps import apps
from django.db import models
from django.db.models import BigIntegerField, BooleanField, Case, Exists, OuterRef, When
from django.db.models.functions import Cast

from rollouts.roles import Person, own_groups, sees_all


class SeenByReaders(models.QuerySet[Any]):
    """Rows of a model whose `seen_with` is the path to what has `readers`; "" where the row itself has them.

    Only those that are `audited` too may be the subject of an audit event: each costs the audit's page a part of its query.
    """

    def visible_to(self, person: Person) -> Self:
        """What the person may see: what has no readers, and what one of their groups reads. No further query."""
        if sees_all(person):
            return self
        owner, at = _owner_of(self.model)
        through = owner._meta.get_field("readers").remote_field.through
        readers = through.objects.filter(**{owner._meta.model_name: OuterRef(at)})
        mine = readers.filter(group__name__in=own_groups(person))
        return self.filter(~Exists(readers) | Exists(mine))


def _owner_of(model: type[models.Model]) -> tuple[type[models.Model], str]:
    """What has the readers, and the path to its key."""
    path: str = model.seen_with  # type: ignore[attr-defined]
    owner = model
    for part in path.split("__") if path else ():
        owner = owner._meta.get_field(part).related_model  # type: ignore[assignment]
    return owner, path or "pk"


class SeenWithSubject(models.QuerySet[Any]):
    """Audit events: each is seen by those who may see its subject."""

    def visible_to(self, person: Person) -> Self:
        """Without the events of subjects that the person may not see; the rest of the chain is everybody's."""
        if sees_all(person):
            return self
        hiding = [
            model
            for model in apps.get_models()
            if isinstance(model._default_manager.all(), SeenByReaders) and getattr(model, "audited", False)
        ]
        # a case and not an or: what is never asked for is never looked up, and only numbers are read as such
        seen = Case(
            *(
                When(
                    subject_type=model._meta.label,
                    then=Exists(
                        model._default_manager.visible_to(person).filter(pk=OuterRef("subject_number"))
                    ),
                )
                for model in hiding
            ),
            default=True,
            output_field=BooleanField(),
        )
        number = Cast("subject_id", BigIntegerField())
        return self.alias(subject_number=number).filter(seen)
