"""How the agentctl of a Pod is reached: at the Pod's address inside the cluster, else through a tunnel."""

from __future__ import annotations

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.agentctl_client.pod_tunnel import PodAddress
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.manifests import PORT
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.launch_tokens import derive_launch_token, token_state


def pod_url(config: KubernetesConfig, pod: Pod) -> str:
    """Return the URL of a Pod's agentctl; empty if it has no address yet."""
    if config.is_inside:
        return f"http://{pod.address}:{PORT}" if pod.address else ""
    return PodAddress(config.cluster, config.namespace, pod.name).url(PORT)


def pod_token(pod: Pod, secret: str) -> str:
    """Return the token of a Pod's launch; ``secret`` is the execution's.

    A Pod of which somebody has changed the nonce gets a token that no agentctl accepts, and never the secret itself.
    """
    return derive_launch_token(secret, pod.nonce or "none")


def launch_state(pod: Pod, secret: str) -> dict[str, str]:
    """Return what the row's state records of a Pod's launch."""
    return token_state(pod_token(pod, secret))


def status_client(url: str, token: str, execution_id: str) -> AgentctlClient:
    """Return a client that is only used for the status."""
    return AgentctlClient(url, token, execution_id)
