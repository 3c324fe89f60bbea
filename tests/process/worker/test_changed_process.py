"""Whatever a handler does to its process: its own finished work counts, and the next task finds nothing of it."""

import json
import textwrap
from collections.abc import Callable

import pytest

from tests.process.worker.scripted import Orchestrator, Pod

# What a task finds. It is read before the module's own code of the second task runs.
PROBE = """
import gc, json, locale, logging, os, resource, signal, socket, subprocess, sys, tempfile, threading, time, warnings
import copy, urllib.request

def seen(task):
    blocked = sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    known = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in known}
    mask = os.umask(0o77)
    os.umask(mask)
    print("é", "printed by", task.id)
    print("complained by", task.id, file=sys.stderr)
    return {
        "is_at_home": os.getcwd() == os.path.realpath(task.dir), "stdin": sys.stdin.read(), "mask": mask,
        "environment": sorted((n, v) for n, v in os.environ.items() if n != "ORCHESTRATOR_HANDLER"),
        "child": subprocess.run(["/bin/sh", "-c", "echo $NEW $HOME $PATH; echo written by $0", task.id]).returncode,
        "signals": [str(signal.getsignal(n)).partition(" at 0x")[0] for n in signal.valid_signals()],
        "blocked": blocked, "timers": [signal.getitimer(which) for which in (0, 1, 2)], "limits": limits,
        "recursion": sys.getrecursionlimit(), "digits": sys.get_int_max_str_digits(),
        "path": sys.path, "importers": len(sys.meta_path), "builtins": [len("four"), "surprise" in dir(__builtins__)],
        "json": [json.dumps({"a": 1}), json.loads("[1]")], "is_now": time.time() > 1_700_000_000,
        "advances": time.monotonic() <= time.monotonic(), "patched": isinstance(socket.socket, type(int)),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()], "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)), "traced": [str(sys.gettrace()), str(sys.getprofile())],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "locale": locale.setlocale(locale.LC_ALL), "timeout": socket.getdefaulttimeout(),
        "temporary": tempfile.gettempdir(), "disabled": logging.root.manager.disable, "loop": loop(),
        "method": method(), "decimal": decimals(), "warned": warned(), "argv": sys.argv[1:2],
        "module": __import__("colorsys").__name__, "zone": [time.tzname, time.localtime(0)[3]],
        "sys": [getattr(sys, "tracebacklimit", 0), sys.executable, sys.dont_write_bytecode, sys.getdlopenflags()],
        "scheduler": os.sched_getscheduler(0), "callbacks": len(gc.callbacks), "copied": copy.deepcopy([1]),
        "generators": sys.get_asyncgen_hooks(), "opener": urllib.request._opener is None,
        "requested": urllib.request.urlopen("data:,text").read().decode(),
        "memory": __import__("tracemalloc").is_tracing(), "logged": logged(),
    }

def logged():
    logging.basicConfig(filename="run.log", level=logging.INFO)
    logging.info("hello")
    return open("run.log").read()

def loop():
    import asyncio
    async def one(): return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [asyncio.get_event_loop_policy().get_event_loop().is_running(), asyncio.run(one())]

def method():
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    return multiprocessing.get_start_method()

def decimals():
    import decimal
    return str(decimal.Decimal(1) / 3)

def warned():
    try:
        warnings.warn("old", UserWarning)
    except UserWarning:
        return True
    return False
"""
MODULE = """
import os, sys
import probe

class Odd(Exception):
    pass

def look(params, task):
    return probe.seen(task)

def act(params, task):
{body}
    return {{"done": task.id}}
"""
DOES = {
    "nothing": "",
    "close stdout": "sys.stdout.close()",
    "close stderr": "sys.stderr.close()",
    "close stdin": "sys.stdin.close()",
    "close the descriptors": "for fd in (0, 1, 2): os.close(fd)",
    "reuse the descriptors": "for fd in (0, 1, 2): os.close(fd)\n"
    "for n in range(3): os.open(f'file{n}', os.O_CREAT | os.O_RDWR)",
    "redirect the descriptors": "fd = os.open('mine', os.O_CREAT | os.O_RDWR)\nfor to in (0, 1, 2): os.dup2(fd, to)",
    "replace stdout": "import io; sys.stdout = io.StringIO(); sys.stderr = open('errors', 'w')",
    "lose stdout": "sys.stdout = None; sys.stderr = None",
    "break stdout": "sys.stdout = object(); sys.stdin = object()",
    "detach stdout": "sys.stdout.detach(); sys.stderr.detach()",
    "reopen stdout": "sys.stdout = open(1, 'w')",
    "encode stdout": "sys.stdout.reconfigure(encoding='ascii', errors='strict')",
    "replace a method of stdout": "sys.stdout.write = sys.stderr.flush = None",
    "replace stdin": "import io; sys.stdin = io.StringIO('not yours')",
    "change the directory": "os.chdir('/tmp')",
    "delete the directory": "import shutil; shutil.rmtree(task.dir)",
    "delete the directory above": "import shutil; os.mkdir('in'); os.chdir('in'); shutil.rmtree(task.dir)",
    "change the environment": "os.environ['NEW'] = '1'; os.environ['HOME'] = '/nowhere'; del os.environ['PATH']",
    "replace the environment": "os.environ = {'PATH': '/nowhere'}",
    "clear the environment": "os.environ.clear()",
    "change the time zone": "import time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "ignore signals": "import signal\nfor n in (1, 2, 3, 13, 15, 17): signal.signal(n, signal.SIG_IGN)",
    "handle signals": "import signal; signal.signal(15, lambda *_: None); signal.signal(10, lambda *_: sys.exit(1))",
    "block signals": "import signal; signal.pthread_sigmask(0, range(1, 60))",
    "leave a blocked signal": "import signal; signal.pthread_sigmask(0, [10]); os.kill(os.getpid(), 10)",
    "set an alarm": "import signal; signal.alarm(1)",
    "set a timer": "import signal; signal.setitimer(0, 0.2, 0.2); signal.setitimer(2, 0.01)",
    "let a fault handler exit": "import faulthandler; faulthandler.dump_traceback_later(0.3, exit=True)",
    "wake up a descriptor": "import signal; r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)",
    "insert into the path": "sys.path.insert(0, str(task.dir))\nopen('colorsys.py', 'w').write('raise ValueError')",
    "clear the path": "sys.path.clear()",
    "replace the path": "sys.path = []",
    "remove modules": "for name in ('json', 'os', 'probe', 'threading'): del sys.modules[name]",
    "replace a module": "import types; sys.modules['json'] = types.ModuleType('json')",
    "forbid a module": "sys.modules['json'] = None",
    "add an importer": "class No:\n    def find_spec(self, *_): raise ImportError\nsys.meta_path.insert(0, No())",
    "replace builtins": "import builtins; builtins.len = lambda _: 7; builtins.print = builtins.open = None",
    "delete builtins": "import builtins\n"
    "for name in ('len', 'isinstance', 'str', 'getattr', 'range'): delattr(builtins, name)",
    "add builtins": "import builtins; builtins.surprise = 1",
    "replace json": "import json; json.dumps = lambda *_, **__: 'broken'; json.loads = None",
    "replace the encoder": "import json; json.JSONEncoder.encode = lambda *_: 'broken'",
    "replace clocks": "import time; time.time = lambda: 0; time.monotonic = None; time.sleep = print",
    "replace functions of os": "import os as o; o.getpid = lambda: 1; o.chdir = o.environ.get; o.write = None",
    "replace a function of the library": "import copy; copy.deepcopy = None",
    "replace a download": "import urllib.request; urllib.request.urlopen = None",
    "install an opener": "import urllib.request; urllib.request.install_opener(urllib.request.OpenerDirector())",
    "replace sockets": "import socket; socket.socket = None; socket.socketpair = None",
    "replace an inherited method": "import pathlib, socket\n"
    "socket.socket.sendall = lambda *_: None; pathlib.PosixPath.__fspath__ = lambda _: 1 / 0",
    "replace threads": "import threading; threading.Thread = None; threading.Lock = None",
    "leave a thread": "import threading, time; threading.Thread(target=lambda: time.sleep(30)).start()",
    "leave a busy thread": "import threading\ndef busy():\n    while True: os.environ['BUSY'] = '1'; os.chdir('/tmp')\n"
    "threading.Thread(target=busy, daemon=True).start()",
    "leave a bare thread": "import _thread\ndef busy():\n    while True: os.environ['BUSY'] = '1'; os.chdir('/tmp')\n"
    "_thread.start_new_thread(busy, ())",
    "leave a timer": "import threading; threading.Timer(0.3, lambda: os._exit(1)).start()",
    "interrupt later": "import threading, _thread; threading.Timer(0.2, _thread.interrupt_main).start()",
    "leave work in a pool": "from concurrent.futures import ThreadPoolExecutor\nimport time\n"
    "ThreadPoolExecutor().submit(lambda: (time.sleep(0.4), os.chdir('/tmp')))",
    "exit at the end": "import atexit; atexit.register(lambda: os._exit(9))",
    "hang at the end": "import atexit, time; atexit.register(time.sleep, 30)",
    "lower the recursion limit": "sys.setrecursionlimit(30)",
    "raise the recursion limit": "sys.setrecursionlimit(100_000)",
    "limit the digits": "sys.set_int_max_str_digits(640)",
    "change the locale": "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "change the mask": "os.umask(0o777)",
    "limit open files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(7)[1]))",
    "limit open files for good": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))",
    "limit memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(9)[1]))",
    "limit files": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.getrlimit(1)[1]))",
    "limit time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(0)[1]))",
    "limit processes": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(6)[1]))",
    "disable the collector": "import gc; gc.disable(); gc.set_threshold(1, 1, 1)",
    "replace hooks": "sys.excepthook = print; sys.displayhook = None; sys.unraisablehook = None; sys.argv = []",
    "cut tracebacks": "sys.tracebacklimit = 0; sys.executable = '/nowhere'; sys.dont_write_bytecode = 7",
    "load libraries otherwise": "sys.setdlopenflags(257)",
    "watch generators": "sys.set_asyncgen_hooks(firstiter=lambda _: 1 / 0)",
    "watch the collector": "import gc; gc.callbacks.append(lambda *_: None)",
    "watch memory": "import tracemalloc; tracemalloc.start()",
    "trace": "sys.settrace(lambda *_: None); sys.setprofile(lambda *_: None)",
    "trace and raise": "def broken(*_): raise ValueError\nsys.settrace(broken)",
    "profile and raise": "def broken(*_): raise ValueError\ndef begin(): sys.setprofile(broken)\ntry: begin()\n"
    "except ValueError: pass",
    "make warnings errors": "import warnings; warnings.simplefilter('error')",
    "replace the filters": "import warnings; warnings.filters = [('error', None, Warning, None, 0)]",
    "change decimals": "import decimal; decimal.getcontext().prec = 3",
    "set decimals": "import decimal; decimal.setcontext(decimal.Context(prec=2))",
    "run a loop": "import asyncio\nasync def one(): return 1\nasyncio.run(one())",
    "leave a loop": "import asyncio; loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); loop.close()",
    "leave a running loop": "import asyncio; asyncio._set_running_loop(asyncio.new_event_loop())",
    "replace the policy of loops": "import asyncio\n"
    "class No(asyncio.DefaultEventLoopPolicy):\n    def new_event_loop(self): raise ValueError\n"
    "asyncio.set_event_loop_policy(No())",
    "be a batch": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "be nice": "os.nice(5)",
    "use one processor": "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    "move temporary files": "import tempfile; tempfile.tempdir = str(task.dir)",
    "set a socket timeout": "import socket; socket.setdefaulttimeout(0.001)",
    "choose a start method": "import multiprocessing; multiprocessing.set_start_method('fork')",
    "log to a file": "import logging; logging.basicConfig(filename='run.log', level=logging.INFO)",
    "log to a file of a logger": "import logging\n"
    "logging.getLogger('asyncio').addHandler(logging.FileHandler('aio.log')); logging.basicConfig(filename='x')",
    "disable logging": "import logging; logging.disable(logging.CRITICAL)",
    "open many files": "import resource\nkept = globals().setdefault('kept', [])\n"
    "for _ in range(resource.getrlimit(7)[0] - 40): kept.append(os.dup(1))",
    "stop the world": "import threading; threading.current_thread().name = 'x'; threading.enumerate = None",
}
FAILS = {
    "exit": ("sys.exit()", "SystemExit"),
    "exit with a text": ("sys.exit('a reason')", "a reason"),
    "exit with an object": ("sys.exit(object())", "SystemExit"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "stop the generator": ("raise GeneratorExit", "GeneratorExit"),
    "leave the process": ("os._exit(0)", "status 0"),
    "abort": ("os.abort()", "SIGABRT"),
    "raise without a text": ("Odd.__str__ = lambda _: 1 / 0\nraise Odd", "cannot be made: ZeroDivisionError"),
    "raise with an exit": ("Odd.__str__ = lambda _: sys.exit(1)\nraise Odd", "cannot be made: SystemExit"),
    "raise with no string": ("Odd.__str__ = lambda _: None\nraise Odd", "cannot be made: TypeError"),
    "raise an endless text": ("Odd.__str__ = lambda self: str(self)\nraise Odd", "cannot be made: RecursionError"),
    "raise a large text": ("raise Odd('x' * 30_000_000)", "xxx"),
    "raise an unprintable text": ("raise Odd('\\ud800\\0')", "Odd"),
    "raise a cycle": ("a, b = Odd('a'), Odd('b'); a.__cause__ = b; b.__cause__ = a\nraise a", "Odd: a"),
    "raise from deep": ("def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
    "refuse an answer": ("Odd.retryable = property(lambda _: 1 / 0)\nraise Odd('x')", "Odd: x"),
    "rename the error": ("raise type('E' * 5000, (Exception,), {})('x')", "EEE: x"),
    "raise with builtins gone": ("import builtins; builtins.str = builtins.isinstance = None\nraise Odd('x')", "x"),
    "raise with json gone": ("import json; json.dumps = json.JSONEncoder = None\nraise Odd('x')", "Odd: x"),
    "raise with clocks gone": ("import time; time.monotonic = None\nraise Odd('x')", "Odd: x"),
    "raise without streams": ("os.close(1); os.close(2); sys.stderr = None\nraise Odd('x')", "Odd: x"),
    "return what raises": ("class D(dict):\n    def items(self): raise Odd('x')\nreturn {'d': D(a=1)}", "Odd: x"),
    "return a cycle": ("d = {}; d['d'] = d\nreturn d", "cannot be stored"),
    "return an object": ("return {'a': object()}", "cannot be stored"),
}


def code(body: str) -> str:
    return MODULE.format(body=textwrap.indent(body or "pass", "    "))


def modules(bodies: dict[str, str]) -> dict[str, str]:
    named = {name.replace(" ", "_"): body for name, body in bodies.items()}
    return {"probe.py": PROBE, **{f"m_{name}.py": code(body) for name, body in named.items()}}


def start(pod: Pod, bodies: dict[str, str]) -> None:
    names = {name: f"m_{name.replace(' ', '_')}" for name in bodies}
    handlers = {f"{what} {name}": f"{module}:{what}" for name, module in names.items() for what in ("look", "act")}
    pod.start(handlers, heartbeat_s=1, default_timeout_s=30)


def ended(orchestrator: Orchestrator, task: str) -> dict[str, object]:
    """The result of a task, or how it failed."""
    orchestrator.until(lambda: task in orchestrator.completed | orchestrator.failures)
    if task in orchestrator.failures:
        return {"failed": orchestrator.failures[task][-1]["p_failure"]["message"]}
    result: dict[str, object] = orchestrator.completed[task][-1]["p_result_data"]
    return result


def found(orchestrator: Orchestrator, name: str) -> dict[str, object]:
    """What the task after an act found."""
    return json.loads(json.dumps(ended(orchestrator, f"look {name}")).replace(f"m_{name.replace(' ', '_')}", "m"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("names", [list(DOES)[::6], pytest.param(list(DOES), marks=pytest.mark.full)], ids=len)
def test_a_changed_process_changes_no_task(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], names: list[str]
) -> None:
    """Two tasks in a row for each entry: the second one finds what it finds after a task that changed nothing."""
    bodies = {name: DOES[name] for name in names}
    pod = make_pod(modules(bodies))
    start(pod, bodies)
    for name in names:
        for what in ("act", "look"):
            orchestrator.submit(f"{what} {name}", f"{what} {name}", timeout_s=30)
    wanted, wrong = found(orchestrator, "nothing"), {}
    for name in names:
        result, seen = ended(orchestrator, f"act {name}"), found(orchestrator, name)
        if result != {"done": f"act {name}"}:
            wrong[name] = result
        elif seen != wanted:
            wrong[name] = {key: seen.get(key) for key in seen | wanted if seen.get(key) != wanted.get(key)}
    log = pod.log("handler")
    for name in names:
        if not all(f"{how} by look {name}\n" in log for how in ("printed", "complained", "written")):
            wrong.setdefault(name, {"failed": "its output is not in the log"})
    assert wrong == {}
    assert "failed" not in wanted


def test_a_failure_says_why_whatever_the_handler_raised(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """And the next task runs as ever."""
    bodies = {"nothing": "", **{name: body for name, (body, _) in FAILS.items()}}
    pod = make_pod(modules(bodies))
    start(pod, bodies)
    for name in bodies:
        for what in ("act", "look"):
            orchestrator.submit(f"{what} {name}", f"{what} {name}", timeout_s=30)
    wanted, wrong = found(orchestrator, "nothing"), {}
    for name, (_, message) in FAILS.items():
        result = ended(orchestrator, f"act {name}")
        if message not in str(result.get("failed")):
            wrong[name] = str(result)[:300]
        elif found(orchestrator, name) != wanted:
            wrong[name] = str(found(orchestrator, name))[:300]
    assert wrong == {}


@pytest.mark.parametrize("change", ["nothing", "change the environment", "change the directory", "replace stdout"])
def test_a_process_that_can_be_restored_stays_warm(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], change: str
) -> None:
    """A new process would load the model again. Only what cannot be restored costs one, and the log says what."""
    bodies = {"t": DOES[change], "path": DOES["replace the path"]}
    pod = make_pod(modules(bodies))
    start(pod, bodies)
    for number in range(3):
        orchestrator.submit(f"{number}", "act t")
        assert ended(orchestrator, f"{number}") == {"done": f"{number}"}
    assert len(pod.events("host_started")) == 1
    for number in range(3, 5):
        orchestrator.submit(f"{number}", "act path")
        assert ended(orchestrator, f"{number}") == {"done": f"{number}"}
    assert len(pod.events("host_started")) == 3
    assert [one["why"] for one in pod.events("host_renewed")] == ["sys.path"] * 2
    assert "the next task gets a new process, because this one left: sys.path\n" in pod.log("handler")
