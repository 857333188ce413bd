"""How a person proves who they are at the act. A proof is of one act: it is checked once, there and then."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from cryptography.exceptions import UnsupportedAlgorithm
from django.contrib.auth.models import User
from django.utils import timezone
from fido2.server import Fido2Server
from fido2.utils import websafe_encode
from fido2.webauthn import (
    AttestedCredentialData,
    PublicKeyCredentialRpEntity,
    UserVerificationRequirement,
)

from promotion.models import Method
from rollouts import audit
from rollouts.errors import NotAllowed
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import AuditEvent

MAX_TRIES = 5
TRY_WINDOW = timedelta(minutes=5)
ACT_LIFE = timedelta(minutes=5)
CLOCK_SKEW = timedelta(seconds=30)
# what a passkey's answer that somebody wrote by hand can make its reader raise
UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, UnsupportedAlgorithm)


class WrongPassword(NotAllowed):
    code = "wrong_password"


class TooManyTries(NotAllowed):
    code = "too_many_tries"
    status = 429


class ActRefused(NotAllowed):
    """There is no act that this proof could be of: used, replaced, too old, or another's."""

    code = "act_refused"


class PasskeyRefused(NotAllowed):
    code = "passkey_refused"


class SingleSignOnRefused(NotAllowed):
    code = "sso_refused"


@dataclass(frozen=True, slots=True)
class Authenticated:
    """That the person was there: by which method, and when it says so."""

    method: Method
    at: datetime


class Proof(Protocol):
    def check(self, person: User) -> Authenticated:
        """Raises `NotAllowed` where it does not prove that this is the person, now."""


@dataclass(frozen=True, slots=True)
class Password:
    """The person's password. Hashing takes long: check it before any row is locked."""

    password: str

    def check(self, person: User) -> Authenticated:
        since = timezone.now() - TRY_WINDOW
        tries = AuditEvent.objects.filter(
            action__endswith="_refused",
            actor=audit.actor_of(person),
            at_us__gte=int(since.timestamp() * 1_000_000),
        ).values_list("data", flat=True)
        if sum(json.loads(bytes(data)).get("code") == WrongPassword.code for data in tries) >= MAX_TRIES:
            raise TooManyTries(
                f"{MAX_TRIES} wrong passwords within {TRY_WINDOW.seconds // 60} minutes. Try again in as many."
            )
        # as the database knows the person now, not as the session remembers them
        if not User.objects.get(pk=person.pk).check_password(self.password):
            raise WrongPassword("The password is wrong. It is asked at every signature.")
        return Authenticated(Method.PASSWORD, timezone.now())


@dataclass(frozen=True, slots=True)
class Act:
    """What a person is about to do, fixed before they prove elsewhere that it is they: kept by the server, used once.

    `purpose` says who carries it out, `words` are all that it was asked with, `began_at` is in seconds since 1970.
    """

    purpose: str
    person: int
    method: str
    words: dict[str, str]
    candidate: int | None = None
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    began_at: float = field(default_factory=lambda: timezone.now().timestamp())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def challenge(self) -> bytes:
        """What a passkey signs: 32 bytes that no other act has."""
        bound = {key: value for key, value in asdict(self).items() if key not in ("method", "began_at")}
        return bytes.fromhex(sha256_bytes(b"assay.act.1\n" + canonical_bytes(bound)))

    def require_open_for(self, person: User, method: Method) -> None:
        if self.person != person.pk or self.method != method:
            raise ActRefused("This confirmation belongs to another act. Begin again.")
        age_s = timezone.now().timestamp() - self.began_at
        if not 0 <= age_s <= ACT_LIFE.total_seconds():
            raise ActRefused(
                f"It was confirmed too late: an act waits {ACT_LIFE.seconds // 60} minutes. Begin again."
            )


def _open(act: Act | None, person: User, method: Method) -> Act:
    if act is None:
        raise ActRefused(
            "Nothing waits for this confirmation: it was used already, or replaced. Begin again."
        )
    act.require_open_for(person, method)
    return act


@dataclass(frozen=True, slots=True)
class Passkey:
    """A passkey's answer to the challenge of one act. `host` is the name of the site that the passkey is for."""

    act: Act | None
    answer: Mapping[str, Any]
    host: str

    def check(self, person: User) -> Authenticated:
        act = _open(self.act, person, Method.PASSKEY)
        state = {
            "challenge": websafe_encode(act.challenge),
            "user_verification": UserVerificationRequirement.REQUIRED,
        }
        try:
            server_for(self.host).authenticate_complete(state, keys_of(person), self.answer)
        except UNREADABLE as error:
            raise PasskeyRefused(_why_no_passkey(error)) from error
        return Authenticated(Method.PASSKEY, timezone.now())


def _why_no_passkey(error: Exception) -> str:
    said = str(error)
    if said.startswith("Wrong challenge"):
        return "The passkey confirmed another act, or this one was confirmed already. Begin again."
    if said.startswith("Unknown credential"):
        return "This passkey is not one of yours. Use one that is listed under your passkeys."
    if said.startswith("User verification"):
        return "The passkey did not check that it is you. Use one with a PIN, fingerprint or face."
    return "The passkey's answer could not be verified. Begin again."


def server_for(host: str) -> Fido2Server:
    return Fido2Server(PublicKeyCredentialRpEntity(id=host, name="Assay"))


def keys_of(person: User) -> list[AttestedCredentialData]:
    rows = Authenticator.objects.filter(user_id=person.pk, type=Authenticator.Type.WEBAUTHN)
    return [row.wrap().authenticator_data.credential_data for row in rows]


@dataclass(frozen=True, slots=True)
class SingleSignOn:
    """A sign-in at the provider that was made for one act. `claims` are those of its id_token, verified by allauth."""

    act: Act | None
    provider: str
    subject: str
    claims: Mapping[str, Any]

    def check(self, person: User) -> Authenticated:
        act = _open(self.act, person, Method.OIDC)
        bound = SocialAccount.objects.filter(user_id=person.pk, provider=self.provider, uid=self.subject)
        if self.claims.get("sub") != self.subject or not bound.exists():
            raise SingleSignOnRefused(
                f"You signed in at the provider as somebody else than {person.get_username()}. Nothing was recorded."
            )
        if self.claims.get("nonce") != act.nonce:
            raise SingleSignOnRefused("The provider answered for another act. Begin again.")
        return Authenticated(Method.OIDC, _signed_in_at(self.claims, act))


@dataclass(frozen=True, slots=True)
class NoProof:
    """The provider's answer to an act could not be used."""

    act: Act | None
    why: str

    def check(self, person: User) -> Authenticated:
        raise SingleSignOnRefused(self.why)


def _signed_in_at(claims: Mapping[str, Any], act: Act) -> datetime:
    """When the person signed in at the provider: for this act, not some time before it."""
    at = claims.get("auth_time")
    if type(at) is not int:
        raise SingleSignOnRefused(
            "The provider does not say when you signed in (no auth_time that is a whole number), so it proves nothing of "
            "this moment. An administrator has to make it send auth_time."
        )
    skew_s = CLOCK_SKEW.total_seconds()
    if at < int(act.began_at) - skew_s:
        raise SingleSignOnRefused(
            "The provider let you through on an earlier sign-in. Each signature needs a new one: sign out there, or ask "
            "an administrator to make it honour prompt=login and max_age=0."
        )
    if at > timezone.now().timestamp() + skew_s:
        raise SingleSignOnRefused(
            "The provider says that you signed in later than now. An administrator has to set its clock right."
        )
    return datetime.fromtimestamp(at, UTC)
