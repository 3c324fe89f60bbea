"""Actions on all tasks that fit a filter, on the pages: asked, started once, followed, stopped."""

import re
from html import unescape

import httpx

from orchestrator.core.api_tokens import ENV_ADMIN
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.dashboard_rig import HOSTILE, DashboardRig, csrf_of


def form_of(answer: httpx.Response) -> dict[str, str]:
    """The fields of the form of a page that asks."""
    return {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', answer.text)}


async def work(board: DashboardRig) -> None:
    """Do what the leader does, until nothing is left."""
    while (await board.rows.task_changes.step(board.term))["more"]:
        pass
    board.dashboard.shared._answers.clear()


async def test_tasks_of_a_filter_are_cancelled_after_a_question_that_counts_them(board: DashboardRig) -> None:
    """A form that is sent twice starts one change. The list and the audit log lead to its page."""
    await board.gateway.submit(board.pool, 3, task_type="upscale")
    await board.gateway.submit(board.pool, task_type="other")
    visitor = await board.visitor(ADMIN)
    query = f"status=Queued&task_type=upscale&pool={board.pool}"
    tasks = (await visitor.get(f"/tasks?{query}")).text
    assert "Cancel these…" in tasks
    assert "Retry these…" not in tasks
    (asks,) = [unescape(one) for one in re.findall(r'href="(/do/cancel-tasks[^"]+)"', tasks)]
    asked = await visitor.get(asks)
    assert "Cancel 3 tasks?" in asked.text
    for text in (
        "3 Queued of type upscale",
        "no work is lost",
        "--status Queued --type upscale",
        "--background",
    ):
        assert text in asked.text
    form = form_of(asked)
    answers = [await visitor.post(asks, data=form) for _ in range(2)]
    (path,) = {answer.headers["location"] for answer in answers}
    assert [answer.status_code for answer in answers] == [303, 303]
    assert re.fullmatch(r"/tasks/changes/[0-9]+", path)
    page = (await visitor.get(path)).text
    for text in ("It is asked for.", "The leader begins", "Stop…", "upscale", "env:admin"):
        assert text in page
    await work(board)
    page = (await visitor.get(path)).text
    assert "<dt>Cancelled</dt><dd>3</dd>" in page
    assert "Stop…" not in page
    assert f'href="{path}"' in (await visitor.get("/tasks/changes")).text
    assert f'href="{path}"' in (await visitor.get("/audit")).text
    assert "1 Queued" in (await visitor.get(f"/do/cancel-tasks?pool={board.pool}")).text


async def test_a_change_is_stopped_after_a_question(board: DashboardRig) -> None:
    """And says who stopped it."""
    await board.gateway.submit(board.pool, 2)
    visitor = await board.visitor(ADMIN)
    asks = f"/do/cancel-tasks?pool={board.pool}"
    path = (await visitor.post(asks, data=form_of(await visitor.get(asks)))).headers["location"]
    stops = unescape(re.findall(r'href="(/do/stop-change[^"]+)"', (await visitor.get(path)).text)[0])
    asked = await visitor.get(stops)
    assert "0 tasks are cancelled by now" in asked.text
    answer = await visitor.post(stops, data=form_of(asked))
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    await work(board)
    page = (await visitor.get(path)).text
    assert all(text in page for text in ("It is stopped.", "stopped", "by env:admin", "<dt>Cancelled</dt><dd>0</dd>"))


async def test_a_retry_says_what_it_costs_or_that_nobody_knows(board: DashboardRig) -> None:
    """Of types without attempts in the last seven days."""
    (task,) = await board.gateway.submit(board.pool, task_type="rare")
    visitor = await board.visitor(ADMIN)
    await visitor.post(f"/do/cancel?task={task}", data={"csrf": csrf_of(await visitor.get("/tasks")), "task": task})
    asked = await visitor.get(f"/do/retry-tasks?status=Cancelled&pool={board.pool}")
    assert all(text in asked.text for text in ("Retry 1 task?", "What an attempt of rare costs is unknown"))
    await visitor.post("/do/retry-tasks", data=form_of(asked))
    await work(board)
    assert (await board.rows.task_changes.all(ENV_ADMIN, 1))["changes"][0]["changed"] == 1


async def test_links_are_for_those_who_may_and_for_statuses_that_can_be_changed(board: DashboardRig) -> None:
    """Without a filter there is none: nobody cancels everything by mistake."""
    operator, reader = await board.visitor(await board.token("operate")), await board.visitor(VIEWER)
    links = {
        "": set(), "?status=Queued": {"cancel"}, "?status=In+Progress": {"cancel"}, "?status=Failed": {"retry"},
        "?status=Complete": set(), "?task_type=t": {"cancel", "retry"}, "?id=abc": set(),
    }  # fmt: skip
    for query, actions in links.items():
        text = (await operator.get(f"/tasks{query}")).text
        assert {name for name in ("cancel", "retry") if f"/do/{name}-tasks" in text} == actions, query
        assert "-tasks?" not in (await reader.get(f"/tasks{query}")).text
    assert (await reader.get("/do/cancel-tasks?status=Queued")).status_code == 403
    for wrong in ("", "?status=Failed", "?label=x", "?pool=%3Cb%3E"):
        assert (await operator.get(f"/do/cancel-tasks{wrong}")).status_code in {400, 422}, wrong


async def test_a_token_of_a_pool_sees_its_own_changes(board: DashboardRig) -> None:
    """Those of others are not found; neither is what is no id. A form of another session starts nothing."""
    await board.furnish()
    whole = await board.visitor(ADMIN)
    (path,) = re.findall(r'href="(/tasks/changes/[0-9]+)"', (await whole.get("/tasks/changes")).text)
    page = (await whole.get(path)).text
    assert "&lt;script&gt;document" in page
    assert HOSTILE not in page
    mine = await board.visitor(await board.token("operate", pools=[board.pool]))
    assert path not in (await mine.get("/tasks/changes")).text
    for missing in (path, "/tasks/changes/x", "/tasks/changes/0", f"/do/stop-change?change={path.rpartition('/')[2]}"):
        assert (await mine.get(missing)).status_code == 404, missing
    asks = f"/do/cancel-tasks?pool={board.pool}"
    form = form_of(await whole.get(asks))
    assert (await mine.post(asks, data=form)).status_code == 403
    form = form_of(await mine.get(asks))
    path = (await mine.post(asks, data=form)).headers["location"]
    assert (await mine.get(path)).status_code == 200
