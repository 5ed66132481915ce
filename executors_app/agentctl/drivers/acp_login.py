"""Log an ACP agent in (``authenticate``) or out (``logout``) between ``initialize`` and its conversation."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from executors_app.agentctl.agent_settings import REASON_LIMIT, clean_text
from executors_app.agentctl.auth_methods import AGENT
from executors_app.agentctl.drivers import LoginRequest, StartFailed
from executors_app.agentctl.drivers.acp_session_setup import AgentInfo
from executors_app.agentctl.drivers.json_rpc import JsonRpcConnection, RpcError
from executors_app.agentctl.protocol import Code, LoginAction, LoginState

_LOGGED_OUT: Final = "the agent was logged out, as requested"


class Login:
    """The login or logout of one start; ``outcome`` is the value of ``StartResult.login``."""

    def __init__(self, request: LoginRequest | None):
        self._request = request
        ended = {"code": Code.LOGIN_FAILED.value, "reason": "the agent ended before it answered"}
        self.outcome: dict[str, Any] = {"state": LoginState.FAILED.value, **ended} if request else {}

    async def carry_out(self, wire: JsonRpcConnection, peer: AgentInfo) -> None:
        """Do what the start was asked for; nothing without a request.

        Raises StartFailed if it fails, and after a logout, because the agent opens no conversation then. AgentGone and
        PipeStuck pass through.
        """
        request = self._request
        if request is None:
            return
        if request.action == LoginAction.LOGOUT:
            if not peer.logs_out:
                raise self._failed(Code.LOGIN_UNSUPPORTED, "the agent does not offer to log out")
            await self._call(wire, "logout", {}, request.timeout)
            raise StartFailed(Code.AUTH_REQUIRED, _LOGGED_OUT, permanent=True)
        if not any(each["id"] == request.method and each["type"] == AGENT for each in peer.auth_methods):
            raise self._failed(Code.LOGIN_UNSUPPORTED, "the agent no longer offers this way to log in")
        await self._call(wire, "authenticate", {"methodId": request.method}, request.timeout)

    async def _call(self, wire: JsonRpcConnection, method: str, params: dict[str, Any], limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await wire.call(method, params)
        except TimeoutError:
            raise self._failed(Code.LOGIN_TIMEOUT, f"the agent did not finish within {limit:g} s") from None
        except RpcError as error:
            reason = clean_text(error.text, REASON_LIMIT) or "the agent gave no reason"
            raise self._failed(Code.LOGIN_FAILED, reason) from error
        self.outcome = {"state": LoginState.SUCCEEDED.value, "code": "", "reason": ""}

    def _failed(self, code: Code, reason: str) -> StartFailed:
        self.outcome = {"state": LoginState.FAILED.value, "code": code.value, "reason": reason}
        if self._request is not None and self._request.action == LoginAction.LOGOUT:
            return StartFailed(code, f"the logout failed: {reason}", permanent=True)
        return StartFailed(Code.AUTH_REQUIRED, f"the login failed: {reason}", permanent=True)
