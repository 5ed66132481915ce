"""The organisation's sprites through ``sprites-py``: names that follow from ids, and calls that raise our errors."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from django.conf import settings

from executors_app.agentctl_client import sprite_tunnel
from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable

if TYPE_CHECKING:
    from sprites import AsyncSpritesClient, exceptions


NAME_PREFIX: Final = "kandev-"
SERVICE: Final = "agentctl"
ROOT_PATH = PurePosixPath("/home/sprite", "kandev")
"""The directory that contains everything of ours in a sprite."""
HOLD_SOCKET = PurePosixPath("/.sprite/api.sock")
"""The socket inside a sprite that takes requests to stay awake."""
_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000

_PAGE: Final = 50
_ERROR_TEXT_LIMIT: Final = 500
OUTPUT_LIMIT: Final = 1 << 30
"""Bytes that one command may write: the agent controls the whole machine and could send without end."""


def sprite_name(execution_id: str) -> str:
    """Return the name of an execution's sprite."""
    return f"{NAME_PREFIX}{execution_id}"


def sprite_execution(name: str) -> str:
    """Return the execution that a sprite was made for."""
    return name.removeprefix(NAME_PREFIX)


def sprite_root(execution_id: str) -> PurePosixPath:
    """Return the directory of one execution in its sprite, whose disk outlives every pause."""
    return ROOT_PATH / execution_id


def deployment_label() -> str:
    """Return the label of this deployment's sprites: other deployments may share the organisation."""
    place = str(Path(settings.KANDEV_DATA_DIR).resolve())
    return f"{NAME_PREFIX}{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def is_ours(labels: Collection[str]) -> bool:
    """Whether a sprite with our name prefix belongs to this deployment; without labels the name decides."""
    return not labels or deployment_label() in labels


def sprite_port(execution_id: str) -> int:
    """Return the port on the sprite's loopback where agentctl listens."""
    digest = hashlib.sha256(execution_id.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def sprite_url(execution_id: str) -> str:
    """Return the agentctl URL for the row: the same in every process and over every pause of the sprite."""
    return f"http://{sprite_name(execution_id)}{sprite_tunnel.SUFFIX}:{sprite_port(execution_id)}"


class SpriteRefused(LaunchFailed):
    """The Sprites API refused."""


@dataclass(frozen=True, slots=True)
class Sprite:
    """A sprite as the API describes it."""

    name: str
    status: str
    """``running``; ``warm``: paused, its processes frozen; ``cold``: its processes are gone. The disk remains."""
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    exit_code: int
    output: bytes
    errors: str


class _Sink:
    """Collects a command's output up to ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.data, self.limit, self.is_full = bytearray(), limit, False

    def write(self, data: bytes) -> None:
        """Append output; raises ValueError, which ends the connection, beyond the limit."""
        self.is_full = len(self.data) + len(data) > self.limit
        if self.is_full:
            raise ValueError("too much output")
        self.data += data


class Organisation:
    """Calls about the sprites of the token's organisation; see ``open_organisation``."""

    def __init__(self, client: AsyncSpritesClient):
        self._client = client

    async def sprites(self) -> dict[str, Sprite]:
        """Return all sprites with our name prefix, by name; wakes none."""
        from sprites.types import ListOptions  # noqa: PLC0415 - see above

        found: dict[str, Sprite] = {}
        token: str | None = None
        while True:
            with _translated_errors():
                options = ListOptions(prefix=NAME_PREFIX, max_results=_PAGE, continuation_token=token)
                page = await self._client.list_sprites(options)
            found |= {one.name: Sprite(one.name, one.status, one.labels) for one in page.sprites}
            token = page.next_continuation_token
            if not page.has_more or not token:
                return found

    async def find(self, name: str) -> Sprite | None:
        """Return the sprite of that name; does not wake it."""
        try:
            with _translated_errors():
                one = await self._client.get_sprite(name)
        except _NotFound:
            return None
        return Sprite(name, one.status or "", one.labels)

    async def create(self, name: str) -> None:
        """Create a private sprite with our label, or find it."""
        try:
            with _translated_errors():
                await self._client.create_sprite(name, labels=[deployment_label()])
        except SpriteRefused:  # also if an interrupted launch has created it already
            if await self.find(name) is None:
                raise

    async def destroy(self, name: str) -> None:
        """Delete a sprite with its disk."""
        with _translated_errors():
            await self._client.destroy_sprite(name)

    async def run(self, name: str, *argv: str, timeout: float = 60.0, limit: int = 0) -> CommandResult:
        """Run a command in the sprite, which this wakes.

        Raises SpriteRefused if it writes more than ``limit`` bytes, by default ``OUTPUT_LIMIT``.
        """
        from sprites import exceptions  # noqa: PLC0415 - see above

        limit = limit or OUTPUT_LIMIT
        output, errors = _Sink(limit), _Sink(limit)
        exit_code = 0
        with _translated_errors():
            try:
                command = self._client.sprite(name).command(*argv, stdout=output, stderr=errors, timeout=timeout)
                await command.run()
            except exceptions.ExitError as error:
                exit_code = error.exit_code()
            except exceptions.NetworkError as error:
                if output.is_full or errors.is_full:
                    raise SpriteRefused(f"A command in the sprite wrote more than {limit} bytes.") from error
                raise
        return CommandResult(exit_code, bytes(output.data), errors.data.decode(errors="replace")[-_ERROR_TEXT_LIMIT:])

    async def write(self, name: str, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file and create the directories above it."""
        with _translated_errors():
            await self._client.sprite(name).filesystem().path(path).write_bytes(data, mode)

    async def read(self, name: str, path: str, *, timeout: float, limit: int) -> bytes:
        """Return a file's content; raises SpriteRefused if there is none, or more than ``limit`` bytes."""
        # Not with the API's call for files, which sets no limit on what it receives.
        ran = await self.run(name, "cat", "--", path, timeout=timeout, limit=limit)
        if ran.exit_code:
            raise SpriteRefused(f"The sprite has no file {path}: {ran.errors}")
        return ran.output

    async def service(self, name: str, service: str) -> str:
        """Return a service's state (stopped, starting, running, stopping or failed); empty if there is none."""
        try:
            with _translated_errors():
                found = await self._client.sprite(name).get_service(service)
        except _NotFound:
            return ""
        if found.state:
            return found.state.status
        return "stopped"

    async def define_service(
        self, name: str, service: str, argv: Sequence[str], env: Mapping[str, str], directory: str
    ) -> None:
        """Define or redefine a service and start it."""
        sprite, (command, *arguments) = self._client.sprite(name), argv
        with _translated_errors():
            await sprite.create_service(service, command, arguments, duration=1, env=dict(env), dir=directory)
        if await self.service(name, service) in ("stopped", "failed"):
            with _translated_errors():
                await sprite.start_service(service, duration=1)

    async def stop_service(self, name: str, service: str, grace: float) -> None:
        """Stop a service, which then stays stopped over every pause; does nothing if it is not running."""
        try:
            with _translated_errors():
                await self._client.sprite(name).stop_service(service, timeout=grace)
        except _NotRunning:
            return


@asynccontextmanager
async def open_organisation(timeout: float = 30.0) -> AsyncIterator[Organisation]:
    """Connect to ``KANDEV_SPRITES_URL``; raises RuntimeUnavailable without a token."""
    from sprites import AsyncSpritesClient  # noqa: PLC0415 - see above

    if not settings.KANDEV_SPRITES_TOKEN:
        raise RuntimeUnavailable("KANDEV_SPRITES_TOKEN is not set. Set it to a token of your Sprites organisation.")
    async with AsyncSpritesClient(settings.KANDEV_SPRITES_TOKEN, settings.KANDEV_SPRITES_URL, timeout) as client:
        yield Organisation(client)


class _NotFound(SpriteRefused):
    """The API answered 404."""


class _NotRunning(SpriteRefused):
    """The service is not running."""


@contextmanager
def _translated_errors() -> Iterator[None]:
    from sprites import exceptions  # noqa: PLC0415 - see above

    try:
        yield
    except (exceptions.AuthenticationError, exceptions.NetworkError, exceptions.TimeoutError) as error:
        raise RuntimeUnavailable(f"The Sprites API cannot be used: {str(error)[:_ERROR_TEXT_LIMIT]}") from error
    except exceptions.NotFoundError as error:
        raise _NotFound(str(error)[:_ERROR_TEXT_LIMIT]) from error
    except exceptions.APIError as error:
        raise _error_for(error) from error
    except (exceptions.SpriteError, ValueError, KeyError, TypeError) as error:
        raise SpriteRefused(f"The Sprites API refused: {str(error)[:_ERROR_TEXT_LIMIT]}") from error


def _error_for(error: exceptions.APIError) -> Exception:
    message = f"{error} {error.response or ''}".strip()[:_ERROR_TEXT_LIMIT]
    match error.status_code:
        case 404:
            return _NotFound(message)
        case 409:
            return _NotRunning(message)
        case None | 0 | 401 | 429 | 500 | 502 | 503 | 504:
            return RuntimeUnavailable(f"The Sprites API cannot be used: {message}")
    return SpriteRefused(f"The Sprites API refused: {message}")
