"""Fields that take a value only in its own JSON type, and serializers that name every unknown field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from rollouts.api.strict_json import check_text
from rollouts.errors import InvalidInput

NAME_PATTERN = r"^[a-z0-9]([a-z0-9_-]{0,58}[a-z0-9])?$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
MAX_ID = 10**18 - 1


class Text(serializers.CharField):
    """A JSON string; DRF's own field takes numbers too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "max_length": 200, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("must be a string.")
        text: str = super().to_internal_value(data)
        return text


class Pattern(Text):
    """A string of a fixed form; `what` says which."""

    def __init__(self, pattern: str, what: str, **options: Any) -> None:
        super().__init__(**{"max_length": None, **options})
        self.pattern, self.what = pattern, what

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if not re.fullmatch(self.pattern.removesuffix("$"), text):
            raise serializers.ValidationError(f"must be {self.what}.")
        return text


class Name(Pattern):
    def __init__(self, **options: Any) -> None:
        super().__init__(NAME_PATTERN, "1 to 60 of a-z, 0-9, - and _", **options)


class Digest(Pattern):
    def __init__(self, **options: Any) -> None:
        super().__init__(DIGEST_PATTERN, "a SHA-256: 64 hexadecimal digits in lower case", **options)


class Whole(serializers.IntegerField):
    """A JSON integer: no boolean, no string, no 1.0."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("must be a whole number.")
        number: int = super().to_internal_value(data)
        return number


class Number(serializers.FloatField):
    """A JSON number, kept as it came: 0 stays an integer."""

    def to_internal_value(self, data: Any) -> int | float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("must be a number.")
        return data


class TrueFalse(serializers.BooleanField):
    """A JSON boolean."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError("must be true or false.")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {}})
class Document(serializers.DictField):
    """A JSON object whose keys its service checks."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("must be an object.")
        return data


@extend_schema_field(OpenApiTypes.BINARY)
class Upload(serializers.Field):
    """A file of a form, already on disk."""

    default_error_messages = {"required": "must be sent as a file of the form."}

    def to_internal_value(self, data: Any) -> UploadedFile:
        if not isinstance(data, UploadedFile):
            raise serializers.ValidationError("must be sent as a file of the form, with a file name.")
        return data

    def to_representation(self, value: Any) -> Any:
        raise NotImplementedError


class FormTrueFalse(serializers.ChoiceField):
    """`true` or `false` as text, in a form or a query."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=["true", "false"], **options)

    def to_internal_value(self, data: Any) -> bool:
        return bool(super().to_internal_value(data) == "true")


class QueryId(serializers.IntegerField):
    """A row's number in a query."""

    def __init__(self, *, least: int = 1, most: int = MAX_ID, **options: Any) -> None:
        super().__init__(min_value=least, max_value=most, **options)

    def to_internal_value(self, data: Any) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", data):
            raise serializers.ValidationError("must be a whole number.")
        return int(data)


class StrictSerializer(serializers.Serializer[Any]):
    """Input. Unknown fields are refused, each by its name."""

    def to_internal_value(self, data: Any) -> Any:
        values = self._values(data)
        unknown = [str(name) for name in values if name not in self.fields]
        if unknown:
            raise serializers.ValidationError(
                {
                    name: [f"is not a field here. Known: {', '.join(self.fields) or 'none'}."]
                    for name in unknown
                }
            )
        return super().to_internal_value(values)

    @staticmethod
    def _values(data: Any) -> Mapping[str, Any]:
        """Forms and queries as plain values, each name once, every text free of NUL."""
        if not isinstance(data, Mapping):
            raise serializers.ValidationError({"non_field_errors": ["must be an object."]})
        if not isinstance(data, QueryDict):
            return data
        for name, values in data.lists():
            check_text(ascii(name)[1:-1][:80], name)
            if len(values) > 1:
                raise InvalidInput(name, "is given more than once.")
            if isinstance(values[0], str):
                check_text(name, values[0])
        return {name: values[0] for name, values in data.lists()}


class NoInput(StrictSerializer):
    """Verbs without input take no body, or an empty object."""


class Query(StrictSerializer):
    """The query parameters of an address. Unknown ones are refused."""
