"""Pages of notification settings at the root, and their API under ``api/v1/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.notifications import api, views

urlpatterns = [
    path("settings/notifications/", views.edit_notification_settings, name="settings-notifications"),
    path("settings/notifications/browser/", views.change_browser_notifications, name="settings-browser"),
    path("settings/notifications/test/", views.send_test_email_now, name="settings-test-email"),
    path("settings/notifications/devices/", views.add_device_from_form, name="settings-devices"),
    path("settings/notifications/devices/key/", views.give_push_key, name="settings-push-key"),
    path("settings/notifications/devices/renew/", views.renew_device_from_script, name="settings-device-renew"),
    path("settings/notifications/devices/replace/", views.replace_subscription, name="settings-device-replace"),
    path(
        "settings/notifications/devices/<uuid:device_id>/<str:what>/",
        views.change_or_test_device,
        name="settings-device",
    ),
    path("settings/notifications/webhooks/", views.create_webhook_from_form, name="settings-webhooks"),
    path(
        "settings/notifications/webhooks/<uuid:webhook_id>/<str:what>/",
        views.change_or_test_webhook,
        name="settings-webhook",
    ),
]

api_urlpatterns = [
    path("notifications/", api.NotificationSettingsView.as_view()),
    path("notifications/test/", api.TestEmailView.as_view()),
    path("notifications/deliveries/", api.DeliveryListView.as_view()),
    path("webhooks/", api.WebhookListCreateView.as_view()),
    path("webhooks/<uuid:webhook_id>/", api.WebhookDetailView.as_view()),
    path("webhooks/<uuid:webhook_id>/rotate/", api.WebhookSecretRotateView.as_view()),
    path("webhooks/<uuid:webhook_id>/test/", api.WebhookTestView.as_view()),
]
