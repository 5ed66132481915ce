"""Django settings, built only from the environment (`kandev.environment`)."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.conf import global_settings

from executors_app import __version__
from executors_app.machine import crash_points
from kandev import databases
from kandev.databases import database_settings, load_secret_key, prepare_data_directory
from kandev.environment import MAIL_SCHEMES, read_environment

BASE_DIR = Path(__file__).resolve().parent.parent
_env = read_environment()

# --- Settings from the environment (docs/settings.md); durations in seconds ---

KANDEV_DATA_DIR = prepare_data_directory(_env.data_dir)
KANDEV_EMBEDDED = not _env.database_url
KANDEV_HOST_NAME = _env.host_name
KANDEV_BEAT_PATH = _env.beat_path
KANDEV_REDIS_URL = _env.redis_url
KANDEV_METRICS_TOKEN = _env.metrics_token
KANDEV_RECOVERY_POLICY = _env.recovery_policy
KANDEV_SWEEP_CONCURRENCY = _env.sweep_concurrency
KANDEV_SWEEP_TIMEOUT = _env.sweep_timeout
KANDEV_RECONCILE_INTERVAL = _env.reconcile_interval
KANDEV_MAX_RESTARTS = _env.max_restarts
KANDEV_RESTART_DELAY = _env.restart_delay
KANDEV_IDLE_SLEEP = _env.idle_sleep
KANDEV_START_CONCURRENCY = _env.start_concurrency
KANDEV_MAX_STARTS_PER_PASS = _env.max_starts_per_pass
KANDEV_BOOT_GRACE = _env.boot_grace
KANDEV_START_TIMEOUT = _env.start_timeout
KANDEV_CONTINUE = _env.continue_
KANDEV_TURN_RETRIES = _env.turn_retries
KANDEV_BACKGROUND_PROCESSES = _env.background_processes
KANDEV_CONTINUE_AT_RESET = _env.continue_at_reset
KANDEV_MISSED_SCHEDULES = _env.missed_schedules
KANDEV_STALL_NOTICE = _env.stall_notice
KANDEV_AGENT_TURN_QUIET = _env.agent_turn_quiet
KANDEV_AGENT_TURN_LIMIT = _env.agent_turn_limit
KANDEV_TURN_OUTPUT_LIMIT = _env.turn_output_limit
KANDEV_SESSION_OUTPUT_LIMIT = _env.session_output_limit
KANDEV_PERMISSION_TIMEOUT = _env.permission_timeout
KANDEV_JOURNAL_RETENTION = _env.journal_retention
KANDEV_RECOVERY_RETENTION = _env.recovery_retention
KANDEV_HISTORY_RETENTION = _env.history_retention
KANDEV_EVENT_RETENTION = _env.event_retention
KANDEV_WORKTREE_RETENTION = _env.worktree_retention
KANDEV_WORKTREE_TRASH = _env.worktree_trash
KANDEV_BACKUP_MAX_AGE = _env.backup_max_age
KANDEV_WORKTREE_CACHES = _env.worktree_caches
KANDEV_REPOSITORY_ROOTS = _env.repository_roots
KANDEV_LEASE_TTL = _env.lease_ttl
KANDEV_DOCKER_HOST = _env.docker_host
KANDEV_SPRITES_TOKEN = _env.sprites_token
KANDEV_SPRITES_URL = _env.sprites_url
KANDEV_AGENTCTL_IMAGE = _env.agentctl_image
KANDEV_SITE_URL = _env.site_url
KANDEV_WEBHOOK_ALLOWED_HOSTS = _env.webhook_allowed_hosts
KANDEV_EMAIL = bool(_env.email_url)
KANDEV_CRASH_AT = _env.crash_at
KANDEV_CRASH_DIR = _env.crash_dir

if KANDEV_CRASH_DIR:
    crash_points.arm(KANDEV_CRASH_AT, KANDEV_CRASH_DIR)

# ``serve`` listens beyond the loopback only with both of these (see ``refuse_unprotected_public_host``).
KANDEV_PUBLIC = bool(_env.secret_key and _env.allowed_hosts)

# --- Security ---

SECRET_KEY = _env.secret_key or load_secret_key(KANDEV_DATA_DIR)
SECRET_KEY_FALLBACKS = list(_env.secret_key_fallbacks)
DEBUG = False
# Cookies ignore ports, so other servers at "localhost" would receive ours. A host name of its own prevents that.
KANDEV_LOCAL_NAME = "kandev.localhost"
ALLOWED_HOSTS = [*_env.allowed_hosts] or ["localhost", "127.0.0.1", "[::1]", KANDEV_LOCAL_NAME]
CSRF_TRUSTED_ORIGINS = [*_env.trusted_origins]
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
_behind_https = bool(_env.trusted_origins) and all(origin.startswith("https://") for origin in _env.trusted_origins)
# Browsers accept a ``__Host-`` cookie only over TLS, from this exact host and for all its paths. So neither another
# host of the domain nor an attacker without TLS can set one.
KANDEV_COOKIE_PREFIX = "__Host-" if _behind_https else ""
SESSION_COOKIE_NAME = KANDEV_COOKIE_PREFIX + "kandev_session"
SESSION_COOKIE_AGE = 14 * 86_400
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = _behind_https
CSRF_COOKIE_NAME = KANDEV_COOKIE_PREFIX + "kandev_csrf"
CSRF_COOKIE_HTTPONLY = True  # scripts read the token from the form in the page
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = _behind_https

# Without TLS there is no proxy of ours, so no client may set such headers, from whatever address.
KANDEV_TRUSTED_PROXIES = _env.trusted_proxies if _behind_https else ()
SECURE_HSTS_SECONDS = 31_536_000 if _behind_https else 0

# The script that reloads an incomplete page is inline, because it must work when no file could be loaded. The policy
# allows only this inline script, by its hash.
KANDEV_INLINE_SCRIPT = BASE_DIR / "templates" / "parts" / "whole_page.js"
_inline_script_hash = b64encode(sha256(KANDEV_INLINE_SCRIPT.read_bytes()).digest()).decode()
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "script-src": [SELF, f"'sha256-{_inline_script_hash}'"],
    }
}

SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # HSTS for subdomains: other services of the domain may not use https
    "security.W021",  # HSTS preloading: the owner of the domain decides
    "security.W008",  # https redirect: the proxy does that; health checks and metrics use plain http
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{validator}"}
    for validator in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

# --- Application ---

INSTALLED_APPS = [
    "kandev.apps.KandevAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "executors_app",
    "sessions_app.accounts",
    "sessions_app.workflows",
    "sessions_app",
    "sessions_app.notifications",
    # After our apps: the first app with a command wins, and our ``qcluster`` ends its processes with its first one.
    "django_q",
    # After our apps, too: our ``drf_create_token`` stores tokens as hashes.
    "rest_framework.authtoken",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Every view requires a login unless it has @login_not_required; REST framework authenticates on its own.
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "kandev.request_slots.remember_user_middleware",
    "sessions_app.accounts.password_hasher.TooManyPasswordsMiddleware",
]
PASSWORD_HASHERS = ["sessions_app.accounts.password_hasher.LimitedPBKDF2", *global_settings.PASSWORD_HASHERS[1:]]

ROOT_URLCONF = "kandev.urls"
ASGI_APPLICATION = "kandev.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "sessions_app.pages.templates_backend.VisibleTemplates",
        "DIRS": [BASE_DIR / "templates", *sorted((BASE_DIR / "sessions_app").glob("*/templates"))],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "sessions_app.accounts.views.settings.appearance",
                "sessions_app.attention.views.attention_count",
            ]
        },
    }
]

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = "kandev.formats"
"""Times in the admin look as on our pages."""

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "frontend" / "static"]
WHITENOISE_USE_FINDERS = True  # so that no collectstatic is needed before the first start
WHITENOISE_ALLOW_ALL_ORIGINS = False
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/static/kandev/built/[a-z_]+-[A-Z0-9]{8}\.(js|css)$"

# --- Data ---

DATABASES = {"default": database_settings(_env.database_url, KANDEV_DATA_DIR, KANDEV_LEASE_TTL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = databases.cache_settings(KANDEV_REDIS_URL)
CHANNEL_LAYERS = databases.channel_layer_settings(KANDEV_REDIS_URL)

Q_CLUSTER: dict[str, Any] = {
    "name": "kandev",
    "orm": "default",
    "workers": 2,
    "poll": 1,
    "timeout": 300,
    # Longer than the timeout of a task plus its wait in the local queue; otherwise a running task would start again.
    "retry": 900,
    "max_attempts": 5,
    "save_limit": -1,
    "catch_up": False,
}

# --- E-mail ---

_mail = urlsplit(_env.email_url or "smtp+plain://localhost")
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if KANDEV_EMAIL else 'dummy'}.EmailBackend"
DEFAULT_FROM_EMAIL = _env.email_from
EMAIL_HOST, EMAIL_PORT = _mail.hostname or "", _mail.port or MAIL_SCHEMES[_mail.scheme]
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = unquote(_mail.username or ""), unquote(_mail.password or "")
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.scheme == "smtp", _mail.scheme == "smtps"
EMAIL_TIMEOUT = 20

REST_FRAMEWORK = {
    # REST framework uses the challenge of the first class. Sessions have none, so a missing login would be a 403.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "sessions_app.accounts.api.authentication.ApiTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "sessions_app.api.pagination.NumberedPagination",
    "PAGE_SIZE": 50,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "sessions_app.api.errors.exception_handler",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Kandev",
    "DESCRIPTION": "Coding-agent sessions that survive restarts.",
    "VERSION": __version__,
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "AttentionKind": "sessions_app.api.serializers.common.ATTENTION_KINDS",
        "BackgroundPolicySource": "sessions_app.api.serializers.common.BACKGROUND_POLICY_SOURCES",
        "BackgroundWorkPolicy": "sessions_app.background.models.POLICIES",
        "CommittedContent": "sessions_app.review.api.commit.CONTENTS",
        "DesiredState": "sessions_app.api.serializers.common.DESIRED_STATES",
        "FinishState": "sessions_app.finish.api.serializers.FINISH_STATES",
        "Policy": "sessions_app.api.serializers.common.POLICIES",
        "PartProblemEnum": "sessions_app.review.api.serializers.PART_PROBLEMS",
        "PolicySourceEnum": "sessions_app.api.serializers.common.POLICY_SOURCES",
        "ProblemEnum": "sessions_app.review.api.serializers.PROBLEMS",
        "PromptState": "sessions_app.api.serializers.common.PROMPT_STATES",
        "ReviewSide": "sessions_app.review.api.comments.SIDES",
        "RunState": "sessions_app.api.serializers.common.RUN_STATES",
        "SessionState": "sessions_app.api.serializers.common.SESSION_STATES",
        "SideEnum": ["staged", "unstaged", "untracked", "conflicted"],
        "TaskState": "sessions_app.api.serializers.common.TASK_STATES",
        "TokenScope": "sessions_app.api.serializers.common.TOKEN_SCOPES",
        "UndoAction": "sessions_app.review.api.uncommitted.UNDO_ACTIONS",
        "WaitKindEnum": "sessions_app.api.serializers.common.WAIT_KINDS",
        "WorkState": "sessions_app.api.serializers.common.WORK_STATES",
        "WorkflowNodeState": "sessions_app.workflows.models.NODE_STATES",
        "WorkflowRunState": "sessions_app.workflows.models.RUN_STATES",
    },
}

# --- Logs ---

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "console": {
            "()": "kandev.log_format.ConsoleFormatter",
            "format": "{asctime} {levelname:<7} {name}: {message}",
            "style": "{",
        },
        "json": {"()": "kandev.log_format.JsonFormatter"},
    },
    "filters": {
        "with_what_is_known": {"()": "kandev.log_format.ContextFilter"},
        "without_login_secrets": {"()": "kandev.log_format.LoginSecretFilter"},
        "once_per_outage": {"()": "kandev.log_format.OutageFilter"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": _env.log_format,
            "filters": ["once_per_outage", "with_what_is_known", "without_login_secrets"],
        }
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        "daphne": {"level": "WARNING"},
        "django.channels.server": {"level": "WARNING"},
        "django-q": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "mcp": {"level": "WARNING"},  # else four lines for each request
        # Without Redis it logs a traceback every second; we log the outage ourselves.
        "channels_redis": {"level": "CRITICAL"},
    },
}
