"""The addresses of a cluster, and the links between its machines.

All of them are in network namespaces of the cluster's own: nothing outside has these addresses or can reach them.
"""

from __future__ import annotations

from typing import Final

from tests.kubernetes.namespaces import Namespace

CONTROL_PLANE_ADDRESS: Final = "10.214.0.1"
API_PORT: Final = 6443
API_URL: Final = f"https://{CONTROL_PLANE_ADDRESS}:{API_PORT}"
"""Where the API server is for programs on the cluster's machines."""
SERVICES: Final = "10.96.0.0/16"
API_SERVICE_ADDRESS: Final = "10.96.0.1"
"""Where the API server is for Pods."""
PODS: Final = "10.245.0.0/16"
_BRIDGE: Final = "lan"


def node_address(number: int) -> str:
    """Return the address of a node; nodes are counted from 1."""
    return f"10.214.0.{10 + number}"


def pod_addresses(number: int) -> str:
    """Return the addresses of a node's Pods."""
    return f"10.245.{number}.0/24"


def prepare_control_plane(machine: Namespace) -> None:
    """Create the bridge to which the nodes are connected."""
    machine.run("ip", "link", "add", _BRIDGE, "type", "bridge")
    machine.run("ip", "address", "add", f"{CONTROL_PLANE_ADDRESS}/24", "dev", _BRIDGE)
    machine.run("ip", "link", "set", _BRIDGE, "up")
    machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")


def connect_node(control_plane: Namespace, node: Namespace, number: int) -> None:
    """Connect a node to the bridge, and route its Pods' addresses to it."""
    cable = _cable(number)
    other_end = ("peer", "name", "eth0", "netns", str(node.pid()))
    control_plane.run("ip", "link", "add", cable, "type", "veth", *other_end)
    control_plane.run("ip", "link", "set", cable, "master", _BRIDGE, "up")
    node.run("ip", "address", "add", f"{node_address(number)}/24", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    node.run("ip", "route", "replace", "default", "via", CONTROL_PLANE_ADDRESS)
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    control_plane.run("ip", "route", "replace", pod_addresses(number), "via", node_address(number))


def unplug(control_plane: Namespace, number: int) -> None:
    """Partition a node: nothing reaches it, and it reaches nothing."""
    control_plane.run("ip", "link", "set", _cable(number), "down")


def plug_in(control_plane: Namespace, number: int) -> None:
    """End the partition of a node."""
    control_plane.run("ip", "link", "set", _cable(number), "up")


def _cable(number: int) -> str:
    return f"cable{number}"
