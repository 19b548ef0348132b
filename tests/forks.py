"""``pytest --forks N``: run the tests in N forks of the process that collected them.

Workers that start by themselves, as those of pytest-xdist do, each import every library and collect
every test, which is 18 seconds of a processor for each of them. A fork has both already.
"""

import multiprocessing
import os
from collections import Counter, defaultdict
from multiprocessing.connection import wait

import pytest

from tests import processes

context = multiprocessing.get_context("fork")


def pytest_addoption(parser):
    parser.addoption("--forks", type=int, default=0, help="run tests in so many forks")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    count = session.config.getoption("forks")
    if session.testsfailed or session.config.option.collectonly:
        return None  # for pytest's own loop to say so
    if not count:
        processes.start_server()
        return None
    groups = _groups(session.items)
    session.config._tmp_path_factory.getbasetemp()  # the same for all
    tasks, queue = os.pipe()  # processes that read two bytes take the next group each
    workers = [_start(session, groups, tasks, queue, i) for i in range(min(count, len(groups)))]
    os.close(tasks)
    try:
        for i in range(len(groups)):
            os.write(queue, i.to_bytes(2))
        os.close(queue)
        _listen(session, [reports for _, reports in workers])
        for process, _ in workers:
            process.join(10)  # while its pools end theirs
    finally:
        for process, _ in workers:
            process.terminate()
            process.join()
    return True


def _groups(items):
    """Tests to run one after the other in one process: those of a file, or one that is long."""
    groups = defaultdict(list)
    for item in items:
        seconds = _seconds(item)
        groups[seconds, item.nodeid if seconds >= 20 else item.path].append(item)
    # The longest first, so that in the end no process waits for one.
    return sorted(groups.values(), key=lambda group: -(_seconds(group[0]) + 0.02) * len(group))


def _seconds(item):
    """About how long a test takes, by its mark."""
    slow = item.get_closest_marker("slow")
    return 0 if slow is None else next(iter(slow.args), 0.25)


def _start(session, groups, tasks, queue, number):
    reports, sender = context.Pipe(duplex=False)

    def work():
        os.close(queue)
        _work(session, groups, tasks, sender, f"fork-{number}")

    process = context.Process(target=work)
    process.start()
    sender.close()  # so that the end of the process is the end of its reports
    return process, reports


def _work(session, groups, tasks, sender, name):
    """Run groups of tests until none is left, and send what becomes of each."""
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, sender))
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # whose files are shared with the other forks
    capture.start_global_capturing()
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir()
    processes.start_server()

    def take():
        while number := os.read(tasks, 2):
            yield from groups[int.from_bytes(number)]

    items = take()
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    sender.close()
    processes.end()


class _Sender:
    """What takes the place of a terminal in a fork."""

    def __init__(self, config, connection):
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report):
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(data)


def _listen(session, connections):
    """Pass on the reports of all forks, until each has closed its end."""
    hook = session.config.hook
    left = Counter(item.nodeid for item in session.items)
    while connections:
        for connection in wait(connections):
            try:
                data = connection.recv()
            except EOFError:
                connections.remove(connection)
                continue
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                left[report.nodeid] -= 1
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    for name in left.elements():  # nothing is lost where a process died
        told, place = "its process ended before it did", (name.partition("::")[0], None, name)
        report = pytest.TestReport(name, place, {}, "failed", told, "call")
        hook.pytest_runtest_logreport(report=report)
