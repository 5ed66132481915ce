"""On PostgreSQL and Redis, the loss of any one process, or of a server for a while, loses nothing an agent says."""

from __future__ import annotations

import asyncio
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar

import pytest

from tests import postgresql
from tests.drills.deployment import Deployment, Session, agent_text
from tests.drills.hosts import PARTS, Follower, several_hosts
from tests.drills.session_steps import check_only_turn, wait_until_talking
from tests.environment import DATABASE_URL
from tests.redis_server import RedisServer, running_redis
from tests.waiting import eventually

pytestmark = [pytest.mark.postgresql]
QUEUE = "from django_q.tasks import async_task; async_task('sessions_app.tasks.maintenance.maintain')"
COMPLETED = "session.run.completed"


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Yield a Redis that a drill may kill."""
    with running_redis() as made:
        yield made


def check_log(session: Session, follower: Follower) -> None:
    """Check that a follower got every event up to the turn's end once and in order, with all that the agent said."""
    assert [event["seq"] for event in follower.events] == list(range(1, len(follower.events) + 1))
    messages = [{"name": event["event"], "payload": event["payload"]} for event in follower.events]
    assert agent_text(messages) == session.agent_log()


@pytest.mark.parametrize("lost", PARTS)
async def test_killing_any_one_process_in_mid_turn_loses_nothing(
    deployment: Deployment, redis: RedisServer, lost: str
) -> None:
    with several_hosts(deployment, redis) as hosts:
        session = deployment.start_session("work 8")
        followers = [Follower(session, urls) for urls in (deployment.urls, deployment.urls[::-1])]
        following = [asyncio.create_task(one.until(COMPLETED)) for one in followers]
        await asyncio.to_thread(wait_until_talking, session)

        await asyncio.to_thread(hosts.kill, lost)

        if lost == "first web":
            deployment.url = deployment.urls[1]
        await asyncio.gather(*following)
        await asyncio.to_thread(check_only_turn, session)
        for follower in followers:
            check_log(session, follower)
        assert {one.openings > 1 for one in followers} == ({True, False} if "web" in lost else {False})


async def test_prompt_to_one_web_reaches_clients_of_the_other(deployment: Deployment, redis: RedisServer) -> None:
    with several_hosts(deployment, redis) as hosts:
        first, second = deployment.urls
        session = deployment.start_session("work 1")
        followers = [Follower(session, [url]) for url in (first, second)]
        await asyncio.gather(*(one.until(COMPLETED) for one in followers))

        prompt = {"message_id": "from-the-second", "text": "work 1"}
        deployment.api("POST", f"{session.path}/prompt/", prompt, at=second)
        await asyncio.gather(*(one.until(COMPLETED, times=2) for one in followers))

        for one in followers:
            check_log(session, one)
            accepted = [event["payload"] for event in one.events if event["event"] == "session.prompt.accepted"]
            assert accepted[1]["message_id"] == "from-the-second"
        assert redis.subscribers() >= len(hosts.supervisors), "every supervisor subscribes to Redis"


async def test_sessions_continue_while_redis_is_down(deployment: Deployment, redis: RedisServer) -> None:
    with several_hosts(deployment, redis) as hosts:
        session = deployment.start_session("work 4")
        follower = Follower(session, deployment.urls[1:])
        following = asyncio.create_task(follower.until(COMPLETED))
        await asyncio.to_thread(wait_until_talking, session)

        redis.kill()
        assert [await asyncio.to_thread(wrong_login, url) for url in deployment.urls] == [200, 200]
        other = deployment.start_session("work 1")
        await asyncio.to_thread(check_only_turn, other)
        await following
        await asyncio.to_thread(check_only_turn, session)
        check_log(session, follower)
        assert follower.openings == 1, "no page reconnected"

        await asyncio.to_thread(redis.start)
        eventually(
            lambda: redis.subscribers() >= len(hosts.supervisors),
            timeout=60,
            describe="every supervisor subscribes again",
        )
        third = deployment.start_session("work 1")
        await asyncio.to_thread(check_only_turn, third)
        assert all(process.poll() is None for process in hosts.processes.values())


async def test_postgresql_outage_interrupts_no_turn(deployment: Deployment, redis: RedisServer) -> None:
    server = postgresql.Server()
    server.start()
    try:
        deployment.env[DATABASE_URL] = server.new_database()
        deployment.data.rename(deployment.home / "unused")
        deployment.repository.rename(deployment.home / "unused-repository")
        deployment.prepare()
        with several_hosts(deployment, redis) as hosts:
            session = deployment.start_session("work 6")
            follower = Follower(session, deployment.urls)
            following = asyncio.create_task(follower.until(COMPLETED))
            await asyncio.to_thread(wait_until_talking, session)

            server.stop()
            eventually(
                lambda: not deployment.is_ready(),
                describe="the web process reports that the database is gone",
            )
            await asyncio.to_thread(server.start)

            await following
            await asyncio.to_thread(check_only_turn, session)
            check_log(session, follower)
            assert all(process.poll() is None for process in hosts.processes.values())
    finally:
        deployment.close()
        server.close()


def test_jobs_queued_for_a_killed_worker_are_done_by_the_next(deployment: Deployment, redis: RedisServer) -> None:
    with several_hosts(deployment, redis) as hosts:
        hosts.kill("worker")
        queued = deployment.manage("shell", "-v", "0", "-c", QUEUE)
        assert queued.returncode == 0, queued.stderr
        waiting = queued_rows(deployment)
        assert waiting
        hosts.work()
        eventually(
            lambda: not waiting & queued_rows(deployment), timeout=120, describe="the next worker takes the jobs"
        )


def queued_rows(deployment: Deployment) -> set[int]:
    """Return the ids of jobs that wait for a worker or are running."""
    return {row["id"] for row in deployment.rows("SELECT id FROM django_q_ormq")}


def wrong_login(url: str) -> int:
    """Return the status of a login with a wrong password: 200, as the form is shown again."""
    jar = urllib.request.HTTPCookieProcessor(CookieJar())
    browser = urllib.request.build_opener(jar)
    with browser.open(f"{url}/login/", timeout=30) as page:
        token = page.read().decode().partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form = {"csrfmiddlewaretoken": token, "username": "nobody", "password": "wrong"}
    with browser.open(f"{url}/login/", urllib.parse.urlencode(form).encode(), timeout=30) as answer:
        return int(answer.status)
