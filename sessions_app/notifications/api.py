"""API of notifications: e-mail settings, webhooks and deliveries."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import (
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
    document_responses,
)
from sessions_app.board.api.views import MemberPermission
from sessions_app.notifications import user_settings
from sessions_app.notifications.models import DIGEST_CHOICES, NOTIFIED_KINDS, Delivery, NotificationSettings, Webhook


class AttentionKindsField(SizedListField):
    """Kinds of inbox items."""

    child = choice_field(NOTIFIED_KINDS)

    def __init__(self, **kwargs: Any):
        super().__init__(max_length=len(NOTIFIED_KINDS), **kwargs)

    def to_representation(self, data: Any) -> list[str]:
        """Return those that the user can be told of, so that what was read can be sent back."""
        mine = user_settings.kinds_for(self.context["request"].user)
        return [kind for kind in super().to_representation(data) if kind in mine]


class SettingsSerializer(StrictSerializer, StrictModelSerializer):
    """The user's e-mail settings: the kinds of items, and the minimum number of minutes between two e-mails."""

    kinds = AttentionKindsField(required=False)
    every = serializers.ChoiceField(choices=[minutes for minutes, _ in DIGEST_CHOICES], required=False)
    minimum_share = serializers.IntegerField(min_value=0, max_value=100, required=False)

    class Meta:
        model = NotificationSettings
        fields = ("email", "kinds", "only_mine", "every", "minimum_share")


class WebhookSerializer(StrictModelSerializer):
    """A webhook, without its secret. ``team`` null: the user's own."""

    kinds = AttentionKindsField(read_only=True)
    team_name = serializers.CharField(source="team.name", default=None, read_only=True, allow_null=True)

    class Meta:
        model = Webhook
        fields = ("id", "url", "kinds", "enabled", "team", "team_name", "created_at")
        read_only_fields = fields


class MadeWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which no other response contains."""

    secret = serializers.CharField(read_only=True)

    class Meta:
        model = Webhook
        fields = (*WebhookSerializer.Meta.fields, "secret")
        read_only_fields = fields


class NewWebhookSerializer(serializers.Serializer[Any]):
    """A webhook to create: URL, kinds of items and team; without a team it is the user's own."""

    url = StrictCharField(max_length=500)
    kinds = AttentionKindsField(required=False)
    team = TeamField(required=False)


class WebhookChangeSerializer(StrictSerializer):
    """Changes to a webhook; omitted fields stay as they are."""

    url = StrictCharField(max_length=500, required=False)
    kinds = AttentionKindsField(required=False)
    enabled = serializers.BooleanField(required=False)


class DeliverySerializer(StrictModelSerializer):
    """One notification and the state of its delivery."""

    class Meta:
        model = Delivery
        fields = (
            *("id", "channel", "webhook", "is_test", "state", "attempts", "next_attempt_at"),
            *("last_error", "created_at", "finished_at"),
        )
        read_only_fields = fields


class _OwnNotificationsView(ApiView):
    """Base class of views of the current user's notifications."""

    permission_classes = [MemberPermission]


class NotificationSettingsView(_OwnNotificationsView):
    """E-mail settings of the current user."""

    @document_responses({200: SettingsSerializer})
    def get(self, request: UserRequest) -> Response:
        """Return your e-mail settings."""
        return self.show(SettingsSerializer, user_settings.get_settings(request.user))

    @document_responses({200: SettingsSerializer}, 400, 409, request=SettingsSerializer(partial=True))
    def patch(self, request: UserRequest) -> Response:
        """Change your e-mail settings; omitted fields stay as they are."""
        serializer = SettingsSerializer(data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        return self.show(SettingsSerializer, user_settings.change_settings(request.user, serializer.validated_data))


class TestEmailView(_OwnNotificationsView):
    """A test."""

    @document_responses({202: DeliverySerializer}, 409, request=None)
    def post(self, request: UserRequest) -> Response:
        """Send yourself a test e-mail."""
        return self.show(DeliverySerializer, user_settings.send_test_email(request.user), 202)


class DeliveryListView(_OwnNotificationsView):
    """Deliveries of notifications."""

    @document_responses({200: DeliverySerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the deliveries to you and to your webhooks, newest first."""
        return self.list(DeliverySerializer, user_settings.list_deliveries(request.user))


class WebhookListCreateView(_OwnNotificationsView):
    """The webhooks of the current user and of the teams that the user manages."""

    @document_responses({200: WebhookSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List your webhooks, and those of the teams that you manage."""
        return self.list(WebhookSerializer, user_settings.list_webhooks(request.user))

    @document_responses({201: MadeWebhookSerializer}, 400, 409, request=NewWebhookSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create a webhook. Its secret is only in this response."""
        made = user_settings.create_webhook(request.user, **self.body(NewWebhookSerializer))
        return _webhook_with_secret(self, made, 201)


def _webhook_with_secret(view: ApiView, hook: Webhook, status: int) -> Response:
    answer = view.show(MadeWebhookSerializer, hook, status)
    answer["Cache-Control"] = "no-store"
    return answer


class WebhookDetailView(_OwnNotificationsView):
    """One webhook."""

    @document_responses({200: WebhookSerializer}, 404)
    def get(self, request: UserRequest, webhook_id: uuid.UUID) -> Response:
        """Return a webhook."""
        return self.show(WebhookSerializer, user_settings.find_webhook(request.user, webhook_id))

    @document_responses({200: WebhookSerializer}, 400, 404, request=WebhookChangeSerializer)
    def patch(self, request: UserRequest, webhook_id: uuid.UUID) -> Response:
        """Change a webhook's URL or kinds of items, or switch it on or off."""
        hook = user_settings.find_webhook(request.user, webhook_id)
        changed = user_settings.change_webhook(request.user, hook, self.body(WebhookChangeSerializer))
        return self.show(WebhookSerializer, changed)

    @document_responses({204: None}, 404)
    def delete(self, request: UserRequest, webhook_id: uuid.UUID) -> Response:
        """Delete a webhook and the records of its deliveries."""
        user_settings.find_webhook(request.user, webhook_id).delete()
        return Response(status=204)


class WebhookSecretRotateView(_OwnNotificationsView):
    """Replacement of a webhook's secret."""

    @document_responses({200: MadeWebhookSerializer}, 404, request=None)
    def post(self, request: UserRequest, webhook_id: uuid.UUID) -> Response:
        """Replace the secret with which requests are signed. The new one is only in this response."""
        hook = user_settings.find_webhook(request.user, webhook_id)
        user_settings.rotate_secret(hook)
        return _webhook_with_secret(self, hook, 200)


class WebhookTestView(_OwnNotificationsView):
    """A test."""

    @document_responses({202: DeliverySerializer}, 404, request=None)
    def post(self, request: UserRequest, webhook_id: uuid.UUID) -> Response:
        """Call the webhook with an event of type ``ping``, once."""
        hook = user_settings.find_webhook(request.user, webhook_id)
        return self.show(DeliverySerializer, user_settings.send_test_call(request.user, hook), 202)
