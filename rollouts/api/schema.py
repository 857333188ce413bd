"""The OpenAPI document, from what the views declare: nothing about a verb is written twice."""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import build_parameter_type
from rest_framework import serializers

from rollouts.api.fields import DIGEST_PATTERN, MAX_ID, Pattern, StrictSerializer
from rollouts.api.problems import CONTENT_TYPE
from rollouts.api.views import MayDo

PATHS: dict[str, dict[str, Any]] = {
    "id": {"type": "integer", "minimum": 1, "maximum": MAX_ID},
    "number": {"type": "integer", "minimum": 1, "maximum": MAX_ID},
    "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,100}$"},
    "digest": {"type": "string", "pattern": DIGEST_PATTERN},
    "key": {"type": "string", "pattern": "^[a-zA-Z0-9]{1,25}$"},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "description": "The same key with the same request gets the first answer again, for 24 hours.",
}
PRECONDITION, NOT_MODIFIED = 412, 304
HEADERS: dict[str, tuple[str, str]] = {
    "201": ("Location", "The address of what was made."),
    "202": ("Location", "The status address: ask it how far the work is."),
    "401": ("WWW-Authenticate", "How to authenticate."),
    "429": ("Retry-After", "Seconds until another try is taken."),
    "503": ("Retry-After", "Seconds until another try is worth it."),
}
DESCRIPTIONS = {
    400: "The input is wrong; `field` names it.",
    401: "No valid token.",
    403: "The person may not do this.",
    404: "There is no such thing.",
    406: "Only JSON is answered.",
    409: "The state of things forbids it now; `blocked_by` says what is in the way.",
    412: "It changed since it was read.",
    413: "The body is too large.",
    415: "The body's media type is not taken.",
    422: "The Idempotency-Key was used for another request.",
    429: "Too many tries.",
    503: "The database was busy; nothing was changed.",
    507: "The disk did not take the bytes.",
}


def _etag_header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}


class ProblemOutput(serializers.Serializer[Any]):
    """An error (RFC 9457). `code` is stable; `detail` is for people."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    field = serializers.CharField(allow_null=True, help_text="Dotted path of the value that is wrong.")
    blocked_by = serializers.ListField(child=serializers.CharField(), help_text="Each unmet condition.")
    facts = serializers.DictField(help_text="The values that belong to the sentence.")


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "rollouts.api.authentication.AuditedTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Token <token>`, from POST /api/v1/auth/token.",
        }


class ApiSchema(AutoSchema):
    """Reads `may`, `queries`, `gives`, `takes` and `problems` of the views."""

    @property
    def _handler(self) -> Any:
        return getattr(self.view, self.view.action)

    def get_operation_id(self) -> str:
        resource = "_".join(self._tokenize_path())
        return resource if resource.endswith(self.view.action) else f"{resource}_{self.view.action}"

    def get_tags(self) -> list[str]:
        return [self._tokenize_path()[0]]

    def get_description(self) -> str:
        return (self._handler.__doc__ or "").strip()

    def get_override_parameters(self) -> list[Any]:
        query = self.view.queries.get(self.view.action)
        return [query] if query else []

    def _get_parameters(self) -> list[Any]:
        parameters: list[Any] = super()._get_parameters()
        if self._has_effect:
            parameters.append(IDEMPOTENCY_KEY)
        if PRECONDITION in getattr(self._handler, "problems", ()):
            parameters.append(_etag_header("If-Match", "Act only on the state with this ETag."))
        if NOT_MODIFIED in self._handler.gives:
            parameters.append(_etag_header("If-None-Match", "Answer 304 where the ETag is still this one."))
        return parameters

    @property
    def _has_effect(self) -> bool:
        return getattr(self._handler, "takes_idempotency_key", False)

    def _resolve_path_parameters(self, variables: list[str]) -> list[Any]:
        return [
            build_parameter_type(name=name, location="path", schema=dict(PATHS[name])) for name in variables
        ]

    def get_request_serializer(self) -> Any:
        return getattr(self._handler, "takes", None)

    def get_response_serializers(self) -> Any:
        return self._handler.gives

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        found: dict[str, Any] = super()._get_response_bodies(direction)
        for status in sorted(self._problems()):
            answer = self._get_response_for_code(ProblemOutput, str(status), [CONTENT_TYPE])
            found[str(status)] = {**answer, "description": DESCRIPTIONS[status]}
        return found

    def _problems(self) -> set[int]:
        found = {400, 406, *getattr(self._handler, "problems", ())}
        if any(isinstance(permission, MayDo) for permission in self.view.get_permissions()):
            found |= {401, 403}
        if "{" in self.path:
            found.add(404)
        if self.method == "POST":
            found |= {413, 415, 503}
        return found | {409, 422} if self._has_effect else found

    def _get_response_headers_for_code(self, status_code: str, direction: Any = "response") -> dict[str, Any]:
        if status_code not in HEADERS or (status_code in {"201", "202"} and not self._has_effect):
            return {}
        name, description = HEADERS[status_code]
        return {name: {"schema": {"type": "string"}, "description": description, "required": True}}

    def _map_serializer(
        self, serializer: Any, direction: Any, bypass_extensions: bool = False
    ) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_serializer(serializer, direction, bypass_extensions)
        made = serializer() if isinstance(serializer, type) else serializer
        if isinstance(made, StrictSerializer):
            schema["additionalProperties"] = False
        elif schema.get("properties"):
            schema["required"] = sorted(schema["properties"])  # answers hold every field, null where unknown
        return schema

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        schema = super()._map_serializer_field(field, direction, bypass_extensions)
        if isinstance(field, Pattern):
            schema = {**schema, "pattern": field.pattern}
        return schema


@cache
def document() -> dict[str, Any]:
    """The whole document, made once a process."""
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return found
