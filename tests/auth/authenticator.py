"""A passkey in software: what a phone or a security key would answer."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fido2.cose import ES256
from fido2.utils import websafe_decode, websafe_encode
from fido2.webauthn import AttestationObject, AttestedCredentialData, AuthenticatorData, CollectedClientData

FLAG = AuthenticatorData.FLAG


class SoftPasskey:
    """`verifies`: whether it asks for a PIN or finger, as every signature needs."""

    def __init__(
        self, *, origin: str = "http://localhost", host: str = "localhost", verifies: bool = True
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.id = secrets.token_bytes(16)
        self.origin, self.host, self.verifies = origin, host, verifies

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        """The answer to creation options as a page carries them."""
        public = ES256.from_cryptography_key(self.key.public_key())
        attested = AttestedCredentialData.create(b"\0" * 16, self.id, public)
        data = AuthenticatorData.create(self._host_hash, self._flags | FLAG.AT, 0, attested)
        answered = self._client_data("webauthn.create", options)
        return self._answer(answered, attestationObject=AttestationObject.create("none", data, {}))

    def get(self, options: dict[str, Any]) -> dict[str, Any]:
        """The answer to request options as a page carries them."""
        data = AuthenticatorData.create(self._host_hash, self._flags, 0)
        answered = self._client_data("webauthn.get", options)
        signature = self.key.sign(data + answered.hash, ec.ECDSA(hashes.SHA256()))
        return self._answer(answered, authenticatorData=data, signature=signature)

    @property
    def _host_hash(self) -> bytes:
        return hashlib.sha256(self.host.encode()).digest()

    @property
    def _flags(self) -> FLAG:
        return FLAG.UP | FLAG.UV if self.verifies else FLAG.UP

    def _client_data(self, kind: str, options: dict[str, Any]) -> CollectedClientData:
        challenge = websafe_decode(options["publicKey"]["challenge"])
        return CollectedClientData.create(kind, challenge, self.origin)

    def _answer(self, answered: CollectedClientData, **parts: bytes) -> dict[str, Any]:
        response = {name: websafe_encode(part) for name, part in parts.items()}
        return {
            "id": websafe_encode(self.id),
            "rawId": websafe_encode(self.id),
            "type": "public-key",
            "clientExtensionResults": {},
            "response": {"clientDataJSON": websafe_encode(answered), **response},
        }
