"""`ray up` on loopback: an sshd of the test's own, whose sessions have a home folder of their own."""

import getpass
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import yaml

from serve.config import yaml_files
from serve.launch.local import node_environment
from serve.launch.ports import free_port

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "up"
BIN = Path(sys.executable).parent
NEEDED = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "rsync": "rsync"}
_SSHD = """\
Port {port}
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={folder}/home
"""


def missing() -> list[str]:
    """Debian's packages that are not here."""
    return sorted({package for program, package in NEEDED.items() if find(program) is None})


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Launcher:
    """The machine from which `ray up` is run, and the two nodes' common home.

    Attributes:
        url: Where the gateway will be.
        cluster_file: What `ray up` gets.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, str]) -> None:
        self._folder, self.home = folder, folder / "home"
        ssh_port, http_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http_port}"
        (self.home / "loopback").mkdir(parents=True)
        for key in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        self._write_programs(ssh_port)
        token = self.home / ".ray" / "auth_token"
        token.parent.mkdir()
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        exports = [f"export {name}={shlex.quote(value)}" for name, value in nodes.items()]
        path = f"export PATH={shlex.quote(f'{folder}/bin:{BIN}')}:$PATH"
        (self.home / ".bashrc").write_text("\n".join([path, *exports]) + "\n")
        (folder / "sshd_config").write_text(_SSHD.format(port=ssh_port, folder=folder))
        self.cluster_file = self._write_configs(http_port)

    def _write_programs(self, ssh_port: int) -> None:
        """An `ssh` that knows the sshd's port, which the launcher has no setting for; a `ray` that spares others."""
        programs = {
            # The key a second time: ssh looks for the head's ~/ray_bootstrap_key.pem in the user's real home.
            "ssh": f'#!/bin/sh\nexec {find("ssh")} -p {ssh_port} -i {self._folder}/key "$@"\n',
            "ray": f'#!/bin/sh\nexec {sys.executable} {HERE / "ray_of_one_node.py"} "$@"\n',
        }
        (self._folder / "bin").mkdir()
        for name, text in programs.items():
            program = self._folder / "bin" / name
            program.write_text(text)
            program.chmod(0o755)

    def _write_configs(self, http_port: int) -> Path:
        serve = yaml.safe_load((HERE / "serve.yaml").read_text())
        sent = self._folder / "sent"
        sent.mkdir()
        (sent / "serve.yaml").write_text(yaml.safe_dump({**serve, "http_options": {"port": http_port}}))
        specifics = {
            "auth": {"ssh_user": getpass.getuser(), "ssh_private_key": str(self._folder / "key")},
            "file_mounts": {"~/loopback": str(sent)},
        }
        file = self._folder / "cluster.yaml"
        file.write_text(yaml.safe_dump(yaml_files.overlay(yaml_files.read(HERE / "loopback.yaml"), specifics)))
        return file

    def ray(self, *arguments: str, timeout_s: float) -> str:
        """Run Ray's cluster launcher; returns what it printed."""
        environment = {
            **os.environ, "PATH": f"{self._folder}/bin:{BIN}:{os.environ['PATH']}", "HOME": str(self.home),
            "RAY_TMPDIR": str(self._folder / "ray"), "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        done = subprocess.run(
            [BIN / "ray", *arguments], cwd=ROOT, env=environment, timeout=timeout_s, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """All that runs on the two nodes."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.home):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@contextmanager
def loopback() -> Iterator[Launcher]:
    """Two nodes that `ray up` can reach; whatever it leaves running there is ended."""
    with ExitStack() as held:
        # Short, for Ray and ssh put Unix sockets there.
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="sg", ignore_cleanup_errors=True)))
        haproxy = folder / "haproxy"
        haproxy.mkdir()
        nodes = {**node_environment(str(haproxy)), "RAY_TMPDIR": str(folder / "ray")}
        del nodes["SPECGATE_ENGINE_HOST"]  # engines listen where their node is, as in a real cluster
        nodes |= {name: str(free_port()) for name in ("GCS_PORT", "DASHBOARD_PORT", "CLIENT_PORT")}
        launcher = Launcher(folder, nodes)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it when root runs it
        log = held.enter_context((folder / "sshd.log").open("wb"))
        command = [find("sshd") or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        sshd = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        held.callback(sshd.wait)
        held.callback(sshd.kill)
        held.callback(lambda: [process.kill() for process in launcher.processes()])
        time.sleep(0.5)
        assert sshd.poll() is None, (folder / "sshd.log").read_text()
        yield launcher
