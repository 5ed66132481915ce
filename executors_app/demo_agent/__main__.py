"""Run the demo agent: ``python -m executors_app.demo_agent``, or ``python -I`` and the path of this folder."""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is not on the module search path
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from executors_app.demo_agent.agent import DemoAgent, default_home

DemoAgent(default_home()).run()
