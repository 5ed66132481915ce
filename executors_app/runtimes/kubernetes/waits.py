"""What a Pod that does not run yet waits for, as a code and a sentence, from its object alone."""

from __future__ import annotations

from typing import Final

from executors_app.runtimes.kubernetes import words
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.executions import LaunchWait

SEED: Final = LaunchWait("pod_receives_files", "Its Pod runs, and receives the session’s files.", is_obstacle=False)
WORKSPACE: Final = LaunchWait("pod_makes_workspace", "Its Pod makes the workspace.", is_obstacle=False)
_SCHEDULING: Final = LaunchWait("pod_pending", "The cluster looks for a node for its Pod.", is_obstacle=False)
_PREPARING: Final = LaunchWait(
    "pod_prepared", "A node prepares its Pod: it attaches the volume and pulls the image.", is_obstacle=False
)


def wait_of(pod: Pod) -> LaunchWait:
    """Return what a Pod waits for that has not begun to receive its seed.

    It quotes the cluster's scheduler and nodes, cut to a limit. An agent can write none of it: it does not run yet.
    """
    if said := pod.unscheduled_because():
        if "PersistentVolumeClaim" in said or "volume" in said:
            return LaunchWait("pod_volume_not_bound", f"The cluster has no volume for it yet: {words.shorten(said)}")
        return LaunchWait("pod_unschedulable", f"No node can take its Pod yet: {words.shorten(said)}")
    if problem := pod.pull_problem():
        return LaunchWait("pod_image_not_pulled", f"Its image could not be pulled yet: {words.shorten(problem)}")
    if pod.node:
        return _PREPARING
    return _SCHEDULING
