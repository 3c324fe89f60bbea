"""The schema: current, its transitions those of the core, closed to everybody it is not for."""

import asyncio
import graphlib
import itertools
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.statements import JSON_ARGS
from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import TRANSITIONS, Stage, State, WaitingOn
from orchestrator.migrate import migrate, missing_sql, sql_files
from orchestrator.migrate.files import CHECKOUT, FOLDERS
from orchestrator.ports import Db, SchemaMismatch, Unavailable
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import Fleet
from tests.db.conformance.conftest import create_database, drop_database
from tests.db.conformance.schema_dump import dump

# The shortest way of a worker into each state.
EARLIER = {"fleet_snapshot": ("p_fleet",)}  # an orchestrator of an earlier version calls them
PATHS = {
    State.SPAWNING: [],
    State.ACTIVE: [State.ACTIVE],
    State.IDLE: [State.ACTIVE, State.IDLE],
    State.TERMINATING: [State.TERMINATING],
    State.TERMINATED: [State.TERMINATING, State.TERMINATED],
}
NO_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)  # comments and texts
MOST_OF_A_CLAIM = 25  # functions of ours
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MOVE = "update workers set status = %s, exit_cause = 'manual' where id = %s"
OURS = "^(task|worker|fleet|internal)_"  # by their names
CALLABLE = """
    select proname from pg_proc
     where pronamespace = 'public'::regnamespace and proname ~ %s and has_function_privilege(%s, oid, 'execute')
"""


def test_no_file_removes_a_function_that_an_earlier_version_calls() -> None:
    """Versions run side by side for the length of a deploy, and back: arguments that are added need a new function."""
    files = sql_files()
    for file in (*files.tables, *files.current):
        dropped = re.findall(r"drop function (?:if exists )?(?:public\.)?((?:task|worker|fleet)_\w+)", file.sql)
        assert dropped == [], file.path


def test_no_column_of_a_user_is_mistaken_for_a_variable() -> None:
    """In PL/pgSQL a name means the variable; in SQL, where a column goes first, an argument has its function's name."""
    pattern = r"create or replace function public\.(\w+)\s*\((.*?)language (plpgsql|sql)\b.*?as \$\$\n(.*?)\$\$;"
    for file in sql_files().current:
        for name, arguments, language, body in re.findall(pattern, file.sql, re.DOTALL):
            if language == "plpgsql":
                assert body.startswith("#variable_conflict use_variable\n"), name
            else:
                code = re.sub(r"'[^']*'", "''", re.sub(r"--.*", "", body))
                bare = set(re.findall(r"(?<![\w.])p_\w+\b(?!\s*=>)", code))
                assert not bare & set(re.findall(r"\bp_\w+", arguments)), name


def test_an_assertion_of_a_user_is_caught_like_any_other_error() -> None:
    """OTHERS leaves out ASSERT_FAILURE: one trigger with ASSERT stopped every claim."""
    for file in sql_files().current:
        assert not re.findall(r"when others (?!or assert_failure (or query_canceled )?then)", file.sql), file.path


async def _calls(database: str) -> dict[str, set[str]]:
    """The functions of ours that each one calls, as the catalogue has them."""
    query = """select proname, prosrc from pg_proc
                where pronamespace in ('public'::regnamespace, 'orchestrator'::regnamespace)"""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        texts: dict[str, str] = dict(await (await connection.execute(query)).fetchall())
    code = {name: NO_CODE.sub("", text) for name, text in texts.items()}
    named = {name: set(re.findall(r"\b(?:public|orchestrator)\.(\w+)\s*\(", text)) for name, text in code.items()}
    return {name: (found & texts.keys()) - {name} for name, found in named.items()}


async def test_no_folder_calls_a_later_one_and_no_two_files_call_each_other(database: str) -> None:
    """A function can be read after those that it builds on."""
    paths = {name: file.path for file in sql_files().current for name in file.functions}
    calls: dict[str, set[str]] = {}
    for name, called in (await _calls(database)).items():
        calls.setdefault(paths[name], set()).update(paths[one] for one in called)
    folder = {path: FOLDERS.index(path.split("/")[1]) for path in calls}
    assert [(path, one) for path, found in calls.items() for one in found if folder[one] > folder[path]] == []
    graphlib.TopologicalSorter({path: found - {path} for path, found in calls.items()}).prepare()


async def test_a_claim_reaches_few_functions(database: str) -> None:
    """What it does not need for its answer is maintenance."""
    calls, found, left = await _calls(database), set[str](), ["worker_claim"]
    while left:
        name = left.pop()
        found.add(name)
        left += calls[name] - found
    assert len(found) <= MOST_OF_A_CLAIM


def test_every_function_is_defined_once() -> None:
    """A reader finds it in one file."""
    names = [name for file in sql_files().current for name in file.functions]
    assert len(names) == len(set(names))
    assert set(FUNCTIONS) <= set(names)


async def test_a_second_migration_finds_nothing_to_do(empty_database: str) -> None:
    """The first says what it applied: table files marked post-deploy come last."""
    files = sql_files()
    first = await migrate(empty_database)
    before, after = ([f.version for f in files.tables if f.post_deploy is post] for post in (False, True))
    assert first.applied == (*before, *(file.version for file in files.current), *after)
    again = await migrate(empty_database)
    assert (again.applied, again.version, again.version) == ((), first.version, str(files.version))


async def test_migrators_that_start_together_share_the_work(empty_database: str) -> None:
    """Each file is applied by exactly one of them."""
    reports = await asyncio.gather(*(migrate(empty_database) for _ in range(4)))
    applied = [version for report in reports for version in report.applied]
    files = sql_files()
    assert sorted(applied) == sorted(file.version for file in (*files.tables, *files.current))


async def test_a_newer_database_is_left_as_it_is(empty_database: str, tmp_path: Path) -> None:
    """A roll-back runs the migrations of its version again, and must not be stopped by them."""
    newer = copy(tmp_path)
    last = int(sql_files().tables[-1].version) + 1
    (newer / f"tables/{last:04}_more.sql").write_text("-- pre-deploy\ncreate table public.more (a int);\n")
    edit(newer / "functions/fleet/leading.sql", "begin", "begin  -- otherwise")
    newest = (await migrate(empty_database, directory=newer)).version
    report = await migrate(empty_database)
    assert (report.applied, report.version) == ((), newest)
    assert "is newer than this version" in report.notes[0]


async def test_functions_of_a_newer_release_are_left_as_they_are(empty_database: str, tmp_path: Path) -> None:
    """Its tables are the same."""
    other = copy(tmp_path)
    edit(other / "functions/fleet/leading.sql", "begin", "begin  -- otherwise")
    await migrate(empty_database, directory=other)
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute("update schema_migrations set release = '99.0'")
    report = await migrate(empty_database)
    assert report.applied == ()
    assert "is newer than this version" in report.notes[0]


async def test_a_database_made_from_other_files_is_refused_untouched(empty_database: str) -> None:
    """It has a migration from between ours: that is another branch's."""
    await migrate(empty_database)
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute("update schema_migrations set version = '0002a' where version = '0002'")
        await connection.execute("insert into schema_migrations (version, name, checksum) values ('0000', 'x', 'x')")
    with pytest.raises(SchemaMismatch, match=r"made from other files.*use another database"):
        await migrate(empty_database)


async def test_a_table_file_that_was_changed_afterwards_is_refused(empty_database: str, tmp_path: Path) -> None:
    """It names the file."""
    directory = copy(tmp_path)
    await migrate(empty_database, directory=directory)
    first = min((directory / "tables").iterdir())
    first.write_text(first.read_text() + "-- better\n")
    with pytest.raises(SchemaMismatch, match=f"tables/{first.name} was applied with another text"):
        await migrate(empty_database, directory=directory)


async def test_a_changed_function_is_applied_again_with_the_grants(empty_database: str, tmp_path: Path) -> None:
    """And nothing else; what a text no longer makes goes, and what is not ours stays."""
    directory = copy(tmp_path)
    functions = directory / "functions/fleet/leading.sql"
    head = "create or replace function public"
    tail = "returns int language sql security definer set search_path = '' as 'select 1';"
    extra = f"{head}.fleet_extra(a int) {tail}\n{head}.internal_extra(a int) {tail}\n"
    functions.write_text(functions.read_text() + extra)
    await migrate(empty_database, directory=directory)
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute(f"{head}.fleet_lead(a int) {tail}".encode())  # a user's own, of the same name
        functions.write_text(functions.read_text().replace(extra, extra.splitlines()[0].replace("(a int)", "(b text)")))
        applied = (await migrate(empty_database, directory=directory)).applied
        assert applied == ("functions/fleet/leading.sql", "grants.sql")
        found = await connection.execute(
            "select oid::regprocedure::text, has_function_privilege('public', oid, 'execute') from pg_proc "
            "where proname = any ('{fleet_extra,internal_extra,fleet_lead}') order by pronargs, 1"
        )
        assert await found.fetchall() == [
            ("fleet_extra(text)", False),
            ("fleet_lead(integer)", True),
            ("fleet_lead(text,text,numeric,timestamp with time zone)", False),
        ]
    back = (await migrate(empty_database)).applied
    assert back == ("functions/fleet/leading.sql", "grants.sql")


async def test_the_functions_of_a_removed_file_are_dropped(empty_database: str, tmp_path: Path) -> None:
    """The ledger forgets it too."""
    directory = copy(tmp_path)
    (directory / "functions/base/extra.sql").write_text(
        "create or replace function public.internal_extra() returns int language sql as 'select 1';\n"
    )
    await migrate(empty_database, directory=directory)
    await migrate(empty_database)
    async with await psycopg.AsyncConnection.connect(empty_database) as connection:
        gone = await connection.execute("select to_regprocedure('internal_extra()')")
        assert await gone.fetchone() == (None,)
    assert (await migrate(empty_database)).applied == ()


async def test_changed_views_and_triggers_are_applied_again(empty_database: str, tmp_path: Path) -> None:
    """A view with other columns too, and the result is the same schema as ever."""
    await migrate(empty_database)
    fresh = await dump(empty_database)
    directory = copy(tmp_path)
    edit(directory / "views.sql", "select w.id, w.fleet, w.pool, w.instance_type,", "select w.pool, w.id, w.fleet,")
    edit(directory / "triggers.sql", "before update of status on public.workers", "before update on public.workers")
    changed = await migrate(empty_database, directory=directory)
    assert (changed.applied, changed.notes) == (("views.sql", "triggers.sql", "grants.sql"), ())
    assert await dump(empty_database) != fresh
    await migrate(empty_database)
    assert await dump(empty_database) == fresh


async def test_line_ends_of_a_checkout_do_not_matter(empty_database: str, tmp_path: Path) -> None:
    """A file is the same file on every system."""
    await migrate(empty_database)
    directory = copy(tmp_path)
    for path in directory.rglob("*.sql"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert (await migrate(empty_database, directory=directory)).applied == ()


async def test_a_migration_that_does_not_fit_leaves_no_trace(empty_database: str, tmp_path: Path) -> None:
    """Neither of itself nor in the ledger; what came before stays."""
    directory = copy(tmp_path)
    last = int(sql_files().tables[-1].version) + 1
    broken = f"tables/{last:04}_broken.sql"
    (directory / broken).write_text("-- post-deploy\ncreate table public.half (a int);\nselect 1 / 0;\n")
    with pytest.raises(SchemaMismatch, match=f"{broken} cannot be applied: division by zero. Nothing of this file"):
        await migrate(empty_database, directory=directory)
    assert (await migrate(empty_database)).applied == ()
    async with await psycopg.AsyncConnection.connect(empty_database) as connection:
        assert await (await connection.execute("select to_regclass('half')")).fetchone() == (None,)


@pytest.mark.parametrize("head", ["create table public.more (a int);", "-- before deploy\nselect 1;"])
async def test_a_table_file_says_when_it_is_applied(empty_database: str, tmp_path: Path, head: str) -> None:
    """In its first line."""
    directory = copy(tmp_path)
    last = int(sql_files().tables[-1].version) + 1
    (directory / f"tables/{last:04}_more.sql").write_text(head)
    with pytest.raises(SchemaMismatch, match=f"tables/{last:04}_more.sql does not begin with '-- pre-deploy' or"):
        await migrate(empty_database, directory=directory)


async def test_the_printed_sql_makes_the_same_database(empty_database: str, server: EmbeddedPostgres) -> None:
    """Applied as one simple query, as the SQL editor does; then there is nothing left to migrate."""
    text = await missing_sql(None, NOW)
    assert "supabase/migrations/20260102030405_gpu_orchestrator.sql" in text
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute(text.encode())
        with pytest.raises(psycopg.errors.RaiseException, match="for a database with schema none, and this"):
            await connection.execute(text.encode())
    report = await migrate(empty_database)
    assert (report.applied, report.version) == ((), str(sql_files().version))
    other = await create_database(server, "printed_fresh")
    try:
        await migrate(server.url_of(other))
        assert await dump(empty_database) == await dump(server.url_of(other))
    finally:
        await drop_database(server, other)


async def test_the_printed_sql_is_what_the_database_lacks(empty_database: str, tmp_path: Path) -> None:
    """A new table file and a changed function; of a current database nothing, of a newer one nothing either."""
    await migrate(empty_database)
    assert await missing_sql(empty_database, NOW) == "-- The schema is up to date.\n"
    directory = copy(tmp_path)
    last = int(sql_files().tables[-1].version) + 1
    (directory / f"tables/{last:04}_more.sql").write_text(
        "-- pre-deploy\n-- no transaction\ncreate index concurrently if not exists more on public.tasks (updated_at);\n"
        "do $$\nbegin\n    perform 1;\n    commit;\nend\n$$;\n"
    )
    edit(directory / "functions/fleet/leading.sql", "begin", "begin  -- otherwise")
    text = await missing_sql(empty_database, NOW, directory=directory)
    assert ("create index if not exists more" in text, "internal_attempt_times" in text) == (True, False)
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute(text.encode())
    assert (await migrate(empty_database, directory=directory)).applied == ()
    assert "is newer than this version" in await missing_sql(empty_database, NOW)


async def test_another_tools_ledger_is_not_taken_for_ours(empty_database: str) -> None:
    """Many tools call theirs schema_migrations."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as connection:
        await connection.execute("create table schema_migrations (version text)")
    with pytest.raises(SchemaMismatch, match="another tool's"):
        await migrate(empty_database)


async def test_a_database_that_is_away_is_unavailable() -> None:
    """Not a traceback of a driver."""
    with pytest.raises(Unavailable, match="cannot be migrated now"):
        await migrate("postgresql://postgres@127.0.0.1:1/x")


async def test_the_database_has_every_function_that_this_version_calls(db: Db, database: str) -> None:
    """With these arguments, and says which it lacks."""
    store = SqlStore(db, "default")
    assert await store.check_functions() == str(sql_files().version)
    functions = (await db.call("fleet_describe"))["functions"]
    assert {name: tuple(arg for arg in args if arg != "p_now") for name, args in functions.items()} == {
        **FUNCTIONS,
        **EARLIER,
    }
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute("alter function public.fleet_pause rename to fleet_halt")
        await connection.execute("alter function public.task_get rename to task_fetch")
        await connection.commit()
        try:
            with pytest.raises(SchemaMismatch, match=r"lacks task_get\(p_id\), fleet_pause\(p_fleet, p_pool"):
                await store.check_functions()
        finally:
            await connection.execute("alter function public.fleet_halt rename to fleet_pause")
            await connection.execute("alter function public.task_fetch rename to task_get")


async def test_a_database_that_was_never_migrated_says_so(empty_database: str) -> None:
    """SchemaMismatch, from the first call."""
    db = await PostgresDb.open(empty_database)
    with pytest.raises(SchemaMismatch):
        await SqlStore(db, "default").check_functions()
    await db.close()


async def test_the_transport_knows_which_arguments_are_json(hand: AsyncConnection[DictRow]) -> None:
    """All others go as text of no type."""
    rows = await (
        await hand.execute(
            """select distinct a.name from pg_proc p, unnest(p.proargnames, p.proargtypes) a (name, type)
                where p.pronamespace = 'public'::regnamespace and p.proname ~ '^(task|worker|fleet)_'
                  and a.type = 'jsonb'::regtype"""
        )
    ).fetchall()
    assert {row["name"] for row in rows} == JSON_ARGS


async def test_an_argument_that_is_json_is_json_in_every_function(hand: AsyncConnection[DictRow]) -> None:
    """The transport goes by the name alone: a name with two types makes one of the functions unknown."""
    rows = await (
        await hand.execute(
            """select p.proname, a.name from pg_proc p, unnest(p.proargnames, p.proargtypes) a (name, type)
                where p.pronamespace = 'public'::regnamespace and p.proname ~ '^(task|worker|fleet)_'
                  and a.name = any (%s) and a.type <> 'jsonb'::regtype""",
            (sorted(JSON_ARGS),),
        )
    ).fetchall()
    assert rows == []


async def test_states_stages_and_causes_are_those_of_the_core(hand: AsyncConnection[DictRow]) -> None:
    """The database refuses a word that the core does not know, and knows every one that it uses."""
    rows = await (await hand.execute("select from_state, to_state from worker_transitions")).fetchall()
    assert {(row["from_state"], row["to_state"]) for row in rows} == {(a.value, b.value) for a, b in TRANSITIONS}
    for words, constraint in (
        (State, "workers_status_known"),
        (Stage, "workers_stage_known"),
        (WaitingOn, "workers_waiting_on_known"),
        (ExitCause, "workers_exit_cause_known"),
    ):
        query = "select pg_get_constraintdef(oid) as text from pg_constraint where conname = %s"
        (row,) = await (await hand.execute(query, (constraint,))).fetchall()
        missing = {word.value for word in words if f"'{word.value}'" not in row["text"]}
        assert not missing, constraint


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(State, 2)))
async def test_a_manual_update_too_makes_only_allowed_transitions(
    fleet: Fleet, hand: AsyncConnection[DictRow], before: State, after: State
) -> None:
    """The trigger refuses every transition that is not in the table, and writes an event for each that is."""
    worker_id = await fleet.spawn()
    for state in PATHS[before]:
        await hand.execute(MOVE, (state, worker_id))
    events = len(PATHS[before]) + 1
    if (before, after) in TRANSITIONS:
        await hand.execute(MOVE, (after, worker_id))
        events += 1
    else:
        with pytest.raises(psycopg.Error, match=f"cannot go from {before} to {after}"):
            await hand.execute(MOVE, (after, worker_id))
    rows = await (await hand.execute("select * from worker_events order by id")).fetchall()
    assert len(rows) == events
    if (before, after) in TRANSITIONS:
        assert (rows[-1]["from_state"], rows[-1]["to_state"]) == (before, after)
        assert (rows[-1]["reason"], rows[-1]["actor"]) == ("changed by hand", "postgres")


@pytest.mark.parametrize("state", [state for state in State if state is not State.SPAWNING])
async def test_no_worker_begins_in_the_middle(fleet: Fleet, hand: AsyncConnection[DictRow], state: State) -> None:
    """There was no intent."""
    with pytest.raises(psycopg.Error, match=f"a worker cannot begin as {state}"):
        await hand.execute("insert into workers (id, status, exit_cause) values ('w', %s, 'manual')", (state,))


@pytest.mark.parametrize("column", ["waiting_on", "deadline_at", "next_attempt_at", "stage"])
async def test_every_wait_names_its_cause_and_deadline(
    fleet: Fleet, hand: AsyncConnection[DictRow], column: str
) -> None:
    """While it lives."""
    worker_id = await fleet.spawn()
    with pytest.raises(psycopg.errors.CheckViolation, match="workers_live_waits"):
        await hand.execute(
            sql.SQL("update workers set {} = null where id = %s").format(sql.Identifier(column)), (worker_id,)
        )


@pytest.mark.parametrize("name", ["", "a" * 64, "-a", "_a", "a b", "a\n", "ä", "a/b"])
async def test_a_pool_has_a_name_of_letters_and_digits(fleet: Fleet, hand: AsyncConnection[DictRow], name: str) -> None:
    """Of 63 at most, with - and _ inside: for the pools of tasks and of workers."""
    await fleet.spawn()
    await hand.execute("insert into tasks (task_type, pool) values ('x', %s), ('x', 'P-1_b')", ("a" * 63,))
    for table, refusal in (("tasks", "pool is not valid"), ("workers", "workers_pool_named")):
        with pytest.raises(psycopg.Error, match=refusal):
            await hand.execute(sql.SQL("update {} set pool = %s").format(sql.Identifier(table)), (name,))


async def test_events_are_never_changed(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """History stays as it was written."""
    await fleet.spawn()
    with pytest.raises(psycopg.Error, match="append-only"):
        await hand.execute("update worker_events set reason = 'something else'")


async def test_a_heartbeat_is_never_assumed(hand: AsyncConnection[DictRow]) -> None:
    """A row that nobody filled has none."""
    query = """select column_default as value from information_schema.columns
                where column_name = 'last_heartbeat' and table_name = 'workers'"""
    assert await (await hand.execute(query)).fetchall() == [{"value": None}]


async def test_the_public_can_read_no_table_and_call_no_function(hand: AsyncConnection[DictRow]) -> None:
    """Row level security without a policy; definer's rights with an empty search path; nothing granted to PUBLIC."""
    open_tables = await (
        await hand.execute(
            "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' "
            "and not relrowsecurity"
        )
    ).fetchall()
    assert open_tables == []
    assert await (await hand.execute("select 1 from pg_policy")).fetchall() == []
    loose = await (
        await hand.execute(
            """select proname from pg_proc
                where pronamespace = 'public'::regnamespace and proname ~ %s
                  and not proname = any (array['internal_users_path', 'internal_enter_path', 'internal_leave_path'])
                  and (not proconfig @> array['search_path=pg_catalog, pg_temp']
                       or (not prosecdef and proname <> 'internal_wanted')
                       or has_function_privilege('public', oid, 'execute'))""",
            (OURS,),
        )
    ).fetchall()
    assert loose == []


async def test_a_pods_role_may_call_its_functions_and_nothing_else(hand: AsyncConnection[DictRow]) -> None:
    """worker_* for itself; no table at all."""
    allowed = {row["proname"] for row in await (await hand.execute(CALLABLE, (OURS, "gpu_worker"))).fetchall()}
    assert allowed == {name for name in FUNCTIONS if name.startswith("worker_")}
    query = """select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'S')
                  and has_table_privilege('gpu_worker', oid, 'select, insert, update, delete, truncate')"""
    assert await (await hand.execute(query)).fetchall() == []


async def test_each_role_of_supabase_gets_only_its_own_rights(tmp_path: Path) -> None:
    """On a server of its own, because roles belong to all databases: service_role everything, the others nothing."""
    tables = """select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'
                   and has_table_privilege(%s, oid, 'select')"""
    async with (
        EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server,
        await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection,
    ):
        for role in ("anon", "authenticated", "service_role bypassrls", "authenticator noinherit login"):
            await connection.execute(f"create role {role}".encode())
        await connection.execute("alter default privileges grant all on tables to anon, authenticated, service_role")
        await connection.execute("alter default privileges grant all on functions to anon, authenticated")
        await migrate(server.url)

        async def names(query: str, *values: str) -> set[Any]:
            return {row[0] for row in await (await connection.execute(query.encode(), values)).fetchall()}

        assert await names(CALLABLE, OURS, "service_role") == set(FUNCTIONS) | set(EARLIER)
        assert {"tasks", "workers", "worker_events"} <= await names(tables, "service_role")
        for role in ("anon", "authenticated"):
            assert await names(CALLABLE, OURS, role) == set()
            assert await names(tables, role) <= {"tasks", "workers"}  # a project's own grants; no policy lets them
        member = await connection.execute("select pg_has_role('authenticator', 'gpu_worker', 'member')")
        assert await member.fetchone() == (True,)


def copy(tmp_path: Path) -> Path:
    """The migrations in a directory of the test's own."""
    return Path(shutil.copytree(CHECKOUT, tmp_path / "migrations"))


def edit(path: Path, old: str, new: str) -> None:
    """Change the first place of a text."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
