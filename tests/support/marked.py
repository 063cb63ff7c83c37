"""Processes of a cluster that a test has started, told from those of any other cluster on this machine by a mark."""

import psutil

MARK = "SPECGATE_TEST_MARK"  # the variable in their environment, which processes inherit


def marked(mark: str) -> list[psutil.Process]:
    """All processes with this mark, whoever their parent is now."""
    return [each for each in psutil.process_iter() if environment_of(each).get(MARK) == mark]


def environment_of(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; empty if it has ended, or is not ours."""
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return {}
