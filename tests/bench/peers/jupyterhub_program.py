"""JupyterHub after a kill, run by the Python of ``make peers``: ``jupyterhub_program.py (seed|check) DATABASE_URL``.

``seed`` reads JSON from standard input: the pid of the single-user servers, and host and port of each. It writes the
database that a killed hub leaves. ``check`` starts the hub with it and prints, as JSON, its version, how many servers
it found running, and the seconds of ``init_spawners``, which polls each process and asks each server by HTTP.
"""

import json
import sys
import time

from jupyterhub import __version__


def seed(url: str) -> None:
    """Write a user with a running server, and its OAuth client, for each address."""
    from jupyterhub import orm  # noqa: PLC0415  (the other mode needs what the hub imports, and this one only this)

    document = json.load(sys.stdin)
    db = orm.new_session_factory(url)()
    for number, (host, port) in enumerate(document["servers"]):
        name = f"user-{number}"
        prefix = f"/user/{name}/"
        client = orm.OAuthClient(identifier=f"jupyterhub-user-{name}", secret="x")
        server = orm.Server(proto="http", ip=host, port=port, base_url=prefix, cookie_name="bench")
        spawner = orm.Spawner(name="", server=server, state={"pid": document["pid"]}, oauth_client=client)
        db.add(orm.User(name=name, _orm_spawners=[spawner]))
    db.commit()


def check(url: str) -> None:
    """Start the hub, which prints the seconds of its check."""
    from jupyterhub.app import JupyterHub  # noqa: PLC0415  (as above)

    class TimedHub(JupyterHub):  # type: ignore[misc]
        async def init_spawners(self) -> int:
            began = time.perf_counter()
            checked: int = await super().init_spawners()
            seconds = time.perf_counter() - began
            running = sum(spawner.ready for user in self.users.values() for spawner in user.spawners.values())
            print(json.dumps({"version": __version__, "seconds": seconds, "running": running}), flush=True)
            return checked

    options = {
        "JupyterHub.db_url": url,
        "JupyterHub.spawner_class": "simple",
        "JupyterHub.authenticator_class": "dummy",
        "JupyterHub.log_level": "ERROR",
        "JupyterHub.init_spawners_timeout": "-1",  # it starts nothing else before all are checked
    }
    TimedHub.launch_instance([f"--{name}={value}" for name, value in options.items()])


if __name__ == "__main__":
    {"seed": seed, "check": check}[sys.argv[1]](sys.argv[2])
