"""Being told outside the pages: one's own e-mail, one's own webhooks, and those of teams that one looks after."""

from __future__ import annotations

import uuid

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.notifications import (
    DeliverySerializer,
    MadeWebhook,
    NewWebhook,
    SettingsSerializer,
    WebhookChange,
    WebhookSerializer,
)
from sessions_app.api.views.attention import OwnMarks
from sessions_app.models import Webhook
from sessions_app.services import notification_choices as choices


class _Own(ApiView):
    """A view of what is the user's own."""

    permission_classes = [OwnMarks]


class Notifications(_Own):
    """E-mail."""

    @described({200: SettingsSerializer})
    def get(self, request: Request) -> Response:
        """Show what the user is told by e-mail."""
        return self.show(SettingsSerializer, choices.settings_of(request.user))

    @described({200: SettingsSerializer}, 400, 409, request=SettingsSerializer(partial=True))
    def patch(self, request: Request) -> Response:
        """Choose; what is left out stays."""
        asked = SettingsSerializer(data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        return self.show(SettingsSerializer, choices.change_settings(request.user, asked.validated_data))


class TestEmail(_Own):
    """A test."""

    @described({202: DeliverySerializer}, 409, request=None)
    def post(self, request: Request) -> Response:
        """Send the user an e-mail that says that e-mail arrives."""
        return self.show(DeliverySerializer, choices.send_test_email(request.user), 202)


class Deliveries(_Own):
    """What became of it."""

    @described({200: DeliverySerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List what the user and the user's webhooks were told, newest first."""
        return self.list(DeliverySerializer, choices.deliveries_of(request.user))


class Webhooks(_Own):
    """Webhooks."""

    @described({200: WebhookSerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the user's own, and those of the teams that the user looks after."""
        return self.list(WebhookSerializer, choices.webhooks_of(request.user))

    @described({201: MadeWebhook}, 400, 409, request=NewWebhook)
    def post(self, request: Request) -> Response:
        """Make a webhook. Its secret is in this answer alone."""
        made = choices.make_webhook(request.user, **self.body(NewWebhook))
        return _with_secret(self, made, 201)


def _with_secret(view: ApiView, hook: Webhook, status: int) -> Response:
    answer = view.show(MadeWebhook, hook, status)
    answer["Cache-Control"] = "no-store"
    return answer


class WebhookDetail(_Own):
    """One webhook."""

    @described({200: WebhookSerializer}, 404)
    def get(self, request: Request, webhook_id: uuid.UUID) -> Response:
        """Show a webhook."""
        return self.show(WebhookSerializer, choices.find_webhook(request.user, webhook_id))

    @described({200: WebhookSerializer}, 400, 404, request=WebhookChange)
    def patch(self, request: Request, webhook_id: uuid.UUID) -> Response:
        """Change where it leads, what it is told, or whether it is."""
        hook = choices.find_webhook(request.user, webhook_id)
        changed = choices.change_webhook(request.user, hook, self.body(WebhookChange))
        return self.show(WebhookSerializer, changed)

    @described({204: None}, 404)
    def delete(self, request: Request, webhook_id: uuid.UUID) -> Response:
        """Remove a webhook, and what is known of its deliveries."""
        choices.find_webhook(request.user, webhook_id).delete()
        return Response(status=204)


class RotateWebhook(_Own):
    """Another secret."""

    @described({200: MadeWebhook}, 404, request=None)
    def post(self, request: Request, webhook_id: uuid.UUID) -> Response:
        """Sign with a new secret from now on. It is in this answer alone."""
        hook = choices.find_webhook(request.user, webhook_id)
        choices.rotate_secret(hook)
        return _with_secret(self, hook, 200)


class TestWebhook(_Own):
    """A test."""

    @described({202: DeliverySerializer}, 404, request=None)
    def post(self, request: Request, webhook_id: uuid.UUID) -> Response:
        """Call the webhook with an event of type ``ping``, once."""
        hook = choices.find_webhook(request.user, webhook_id)
        return self.show(DeliverySerializer, choices.send_test_call(request.user, hook), 202)
