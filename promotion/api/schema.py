"""The OpenAPI document at its address. It holds no secret, so nobody needs a token to read it."""

from __future__ import annotations

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.api.schema import document


class SchemaView(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]
    schema = None

    def get(self, request: Request) -> Response:
        return Response(document())
