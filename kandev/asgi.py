"""The ASGI entry point that daphne serves."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")

application = ProtocolTypeRouter({"http": get_asgi_application()})
