"""Whom the sign-in provider means: by its lasting identifier, and the first time by an e-mail address it verified."""

from __future__ import annotations

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.db import transaction

from rollouts import audit
from rollouts.errors import NotAllowed


class NotKnown(NotAllowed):
    code = "sso_not_known"


@transaction.atomic
def bind(*, provider: str, subject: str, email: str) -> SocialAccount:
    """Binds the provider's `subject` (its `sub`) to the account with this `email`, which the provider has verified.

    From then on only `subject` counts, so that nobody gets the account by being given its address later. Raises
    `NotKnown` where not exactly one active account has the address, or it is bound to another subject already.
    """
    # an administrator gave the address to the account; nobody can give one to their own
    found = (
        list(User.objects.select_for_update().filter(email__iexact=email, is_active=True)[:2])
        if email
        else []
    )
    if len(found) != 1:
        raise NotKnown(
            "No account here belongs to you. An administrator has to make one: manage.py create_user NAME --role ROLE "
            "--sso E-MAIL, with the address that the provider has verified for you."
        )
    (person,) = found
    if SocialAccount.objects.filter(user=person, provider=provider).exists():
        raise NotKnown(
            "The account with your e-mail address is bound to somebody else at the provider. An administrator has to "
            "look into it."
        )
    bound = SocialAccount.objects.create(user=person, provider=provider, uid=subject)
    audit.record(
        "person.sso_bound", subject=person, actor=person, provider=provider, sub=subject, email=email
    )
    return bound
