"""Requests to the API server of a cluster, as the user of a kubeconfig: much cheaper than a process for each."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class ApiAccess:
    """The API server that a kubeconfig with a client's certificate names."""

    def __init__(self, kubeconfig: Path):
        document = yaml.safe_load(kubeconfig.read_text())
        [cluster], [user] = document["clusters"], document["users"]
        self._server = urlsplit(cluster["cluster"]["server"])
        self._trust = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
        self._trust.load_cert_chain(user["user"]["client-certificate"], user["user"]["client-key"])

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = 20) -> bytes:
        """Return the answer to a request. Raises AssertionError for a refusal, OSError if there is no answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        client = http.client.HTTPSConnection(
            str(self._server.hostname), self._server.port, timeout=timeout, context=self._trust
        )
        try:
            client.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": kind})
            answer = client.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            client.close()
        assert answer.status < 300, (method, path, answer.status, text[:1000])
        return text
