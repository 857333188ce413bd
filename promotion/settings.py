"""The one settings file. Every value comes from the environment through a strict helper, or is a fixed choice.

The embedded default needs nothing set: SQLite, a broker in the file system, everything under `var/`.
"""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import dj_database_url
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value == "":
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} is {value!r}. Use 1 or 0.")


def env_int(name: str, default: int, *, least: int, most: int) -> int:
    value = os.environ.get(name, "").strip()
    if value == "":
        return default
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise ImproperlyConfigured(f"{name} is {value!r}. Use a whole number from {least} to {most}.")
    return int(value)


def env_choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(name, "").strip() or default
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}. Use one of: {', '.join(choices)}.")
    return value


def env_list(name: str, default: list[str]) -> list[str]:
    value = os.environ.get(name, "").strip()
    return [part.strip() for part in value.split(",") if part.strip()] if value else default


def env_path(name: str, default: Path) -> Path:
    value = os.environ.get(name, "").strip()
    return Path(value).expanduser().resolve() if value else default


def env_oidc() -> dict[str, object] | None:
    """The sign-in provider as django-allauth takes it; None where there is none."""
    names = [f"ASSAY_OIDC_{part}" for part in ("URL", "CLIENT_ID", "CLIENT_SECRET", "NAME")]
    url, client_id, secret, name = values = [os.environ.get(variable, "").strip() for variable in names]
    if not any(values):
        return None
    missing = [variable for variable, value in zip(names, values, strict=True) if not value]
    if missing:
        raise ImproperlyConfigured(
            f"Single sign-on needs {', '.join(names)}: all or none. Set {', '.join(missing)}."
        )
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not local:
        # its answers are believed because of the connection they come over
        raise ImproperlyConfigured(f"ASSAY_OIDC_URL is {url!r}. Use the issuer's address with https.")
    return {
        "provider_id": "sso",
        "name": name,
        "client_id": client_id,
        "secret": secret,
        "settings": {"server_url": url},
    }


def kept_secret(file: Path) -> str:
    """A random key made once and kept in a file that only its owner reads: right for one machine, not for several."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        pass
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.touch(mode=0o600)
    part.write_text(secrets.token_urlsafe(50))
    try:
        # link() fails where the file exists, so of two processes that start at once both keep the same key
        os.link(part, file)
    except FileExistsError:
        pass
    finally:
        part.unlink()
    return file.read_text().strip()


ASSAY_ENV = env_choice("ASSAY_ENV", "embedded", ("embedded", "production"))
PRODUCTION = ASSAY_ENV == "production"
DEBUG = env_bool("ASSAY_DEBUG", False)

VAR_DIR = env_path("ASSAY_VAR", BASE_DIR / "var")
ARTIFACTS_DIR = env_path("ASSAY_ARTIFACTS", VAR_DIR / "artifacts")
EXPORTS_DIR = env_path("ASSAY_EXPORTS", VAR_DIR / "exports")
MODELS_DIR = env_path("ASSAY_MODELS", VAR_DIR / "models")

if not VAR_DIR.exists():
    VAR_DIR.mkdir(
        mode=0o700, parents=True, exist_ok=True
    )  # database, keys and unpublished models are nobody else's to read
SECRET_KEY = os.environ.get("ASSAY_SECRET_KEY", "")
if not SECRET_KEY:
    if PRODUCTION:
        raise ImproperlyConfigured(
            "ASSAY_SECRET_KEY is not set. Give every process the same long random value."
        )
    SECRET_KEY = kept_secret(VAR_DIR / "secret_key")

ALLOWED_HOSTS = env_list("ASSAY_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env_list("ASSAY_CSRF_TRUSTED_ORIGINS", [])

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "django_htmx",
    "template_partials",
    "csp",
    "rollouts",
    "promotion",
]

MIDDLEWARE = [
    "rollouts.api.middleware.ApiMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "promotion.web.limits.BodyLimitMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "promotion.urls"
WSGI_APPLICATION = "promotion.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": dj_database_url.parse(
        os.environ.get("DATABASE_URL") or f"sqlite:///{VAR_DIR / 'assay.sqlite3'}",
        conn_max_age=60,
        conn_health_checks=True,
    )
}
SQLITE = DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3"
if SQLITE:
    VAR_DIR.mkdir(parents=True, exist_ok=True)
    DATABASES["default"]["OPTIONS"] = {
        # A write transaction takes the lock at BEGIN, so read-then-write can never deadlock or lose an update.
        "transaction_mode": "IMMEDIATE",
        "timeout": 60,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# the alarm of a broken glass; without a server nothing is sent
EMAIL_HOST = os.environ.get("ASSAY_SMTP_HOST", "")
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'dummy'}.EmailBackend"
EMAIL_PORT = env_int("ASSAY_SMTP_PORT", 587, least=1, most=65535)
EMAIL_USE_SSL, EMAIL_USE_TLS = EMAIL_PORT == 465, EMAIL_PORT == 587
EMAIL_HOST_USER = os.environ.get("ASSAY_SMTP_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("ASSAY_SMTP_PASSWORD", "")
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("ASSAY_SMTP_FROM", "") or "assay@localhost"

AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_ADAPTER = "promotion.web.accounts.ClosedSignupAdapter"
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
ACCOUNT_REAUTHENTICATION_METHODS = ("password", "mfa")
MFA_SUPPORTED_TYPES = ["webauthn"]
MFA_ADAPTER = "promotion.web.accounts.PasskeyAdapter"
MFA_FORMS = {"add_webauthn": "promotion.web.passkeys.AddPasskeyForm"}
MFA_WEBAUTHN_USER_VERIFICATION = "required"
SOCIALACCOUNT_ADAPTER = "promotion.web.accounts.SingleSignOnAdapter"
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app] if (app := env_oidc()) else []}
}

CACHE_URL = os.environ.get("ASSAY_CACHE_URL", "")
CACHES = {
    # counts of failed sign-ins; one cache for all web processes needs a Redis database of its own
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": CACHE_URL}
    if CACHE_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if PRODUCTION
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = not PRODUCTION

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = env_int("ASSAY_SESSION_SECONDS", 12 * 3600, least=300, most=30 * 86400)
if PRODUCTION:
    SECURE_SSL_REDIRECT = env_bool("ASSAY_SSL_REDIRECT", True)
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = env_int("ASSAY_HSTS_SECONDS", 31_536_000, least=0, most=63_072_000)
    SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
    if env_bool("ASSAY_BEHIND_PROXY", False):
        SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

MAX_UPLOAD_BYTES = env_int("ASSAY_MAX_UPLOAD_BYTES", 2 << 30, least=1 << 20, most=1 << 40)
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 << 20
FILE_UPLOAD_MAX_MEMORY_SIZE = 2 << 20

FILE_UPLOAD_TEMP_DIR = str(env_path("ASSAY_UPLOADS", VAR_DIR / "uploads"))
Path(FILE_UPLOAD_TEMP_DIR).mkdir(parents=True, exist_ok=True)

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rollouts.api.authentication.AuditedTokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "rollouts.api.schema.ApiSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rollouts.api.parsers.StrictJSONParser"],
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_THROTTLE_RATES": {"sign_in_address": "30/min", "sign_in_name": "10/min"},
    "EXCEPTION_HANDLER": "rollouts.api.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    # answers hold what models and providers said: escaped, so that no control character reaches a terminal
    "UNICODE_JSON": False,
    "URL_FORMAT_OVERRIDE": None,
    # without a proxy of ours nobody's X-Forwarded-For is believed
    "NUM_PROXIES": 1 if env_bool("ASSAY_BEHIND_PROXY", False) else 0,
}
REST_KNOX = {"TOKEN_TTL": timedelta(days=env_int("ASSAY_TOKEN_DAYS", 30, least=1, most=366))}
SPECTACULAR_SETTINGS = {
    "TITLE": "Assay",
    "DESCRIPTION": "Decides, on evidence, which fine-tuned model ships. There is no verb that signs: people sign in the "
    "browser, with their password, a passkey or single sign-on.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "RunState": "rollouts.models.RunState",
        "RolloutState": "rollouts.models.RolloutState",
        "CallState": "rollouts.models.CallState",
        "InvocationState": "rollouts.models.InvocationState",
        "CandidateState": "promotion.models.CandidateState",
        "DisputeState": "promotion.models.DisputeState",
    },
}

# Shards work at most this long; the lease is far shorter and renewed, so a killed worker is noticed soon.
SHARD_SECONDS = env_int("ASSAY_SHARD_SECONDS", 60, least=5, most=600)
LEASE_SECONDS = env_int("ASSAY_LEASE_SECONDS", 20, least=3, most=600)
SWEEP_SECONDS = env_int("ASSAY_SWEEP_SECONDS", 5, least=1, most=300)
# Runs that ask for it take an answer instead of a call: one this young, of one of the newest so many rollouts.
ATTEMPT_CACHE_DAYS = env_int("ASSAY_ATTEMPT_CACHE_DAYS", 30, least=1, most=3650)
ATTEMPT_CACHE_ROLLOUTS = env_int("ASSAY_ATTEMPT_CACHE_ROLLOUTS", 1_000_000, least=1, most=10**12)
# Processes of the embedded worker. A shard on a local model server keeps one core busy.
WORKER_PROCESSES = env_int("ASSAY_WORKERS", max(1, min(4, os.cpu_count() or 1)), least=1, most=64)

REDIS_URL = os.environ.get("REDIS_URL", "")
CELERY_BROKER_URL = REDIS_URL or "filesystem://"
BROKER_DIR = VAR_DIR / "broker"
if REDIS_URL:
    # Redis delivers a message again after this time; it must be longer than the longest task (checks.py compares).
    CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, object] = {
        "visibility_timeout": 3600,
        # a broker that says nothing is away: whoever waits for it, a web request too, goes on
        "socket_connect_timeout": 5,
        "socket_timeout": 5,
        "socket_keepalive": True,
    }
else:
    (BROKER_DIR / "control").mkdir(parents=True, exist_ok=True)
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(BROKER_DIR),
        "data_folder_out": str(BROKER_DIR),
        "control_folder": str(BROKER_DIR / "control"),
        "processed_folder": str(BROKER_DIR / "processed"),
    }
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
# a shard's time, the runner's overtime and one last answer of the slowest backend fit in (rollouts.engine.runner)
CELERY_TASK_TIME_LIMIT = 2400
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR_DIR / "beat-schedule")
CELERY_BEAT_SCHEDULE = {
    # An old sweep is worth nothing: it expires, so that few pile up behind a long shard, and one still gets its turn.
    "rollouts.sweep": {
        "task": "rollouts.tasks.sweep",
        "schedule": SWEEP_SECONDS,
        "options": {"expires": max(60, SWEEP_SECONDS)},
    },
    "promotion.sweep": {
        "task": "promotion.tasks.sweep",
        "schedule": SWEEP_SECONDS,
        "options": {"expires": max(60, SWEEP_SECONDS)},
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env_choice("ASSAY_LOG", "INFO", ("DEBUG", "INFO", "WARNING"))},
}
