"""Many sessions resumed or stopped with one request."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView
from sessions_app.api.serializers.bulk import BulkAnswer, BulkRequest
from sessions_app.api.serializers.common import described
from sessions_app.services.bulk import order_many


class Bulk(ApiView):
    """The same order for many sessions."""

    @described({200: BulkAnswer}, 400, request=BulkRequest)
    def post(self, request: Request) -> Response:
        """Resume or stop each of the sessions; one that fails stops no other, and each outcome is told."""
        asked = self.body(BulkRequest)
        return self.show(BulkAnswer, {"results": order_many(request.user, asked["action"], asked["sessions"])})
