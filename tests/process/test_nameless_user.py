"""Every command as a user without a name: no passwd entry, no HOME, no USER, as OpenShift starts a container."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from prefeed.kubernetes.layout import DOCUMENTS, HOME, MEMORY, RUNTIME, STATE
from prefeed.kubernetes.sizes import PATH
from process.conditions import wait_for
from process.ports import free_port
from sandbox import Sandbox
from slow_files import write_files
from unit.sampleset.documents import sample_job, sample_set

USER = 65532


def become(user: int) -> list[str]:
    """Return the command that starts another one as a user, with a mount namespace of its own."""
    return ["unshare", "--user", f"--map-user={user}", f"--map-group={user}", "--mount", "--keep-caps"]


TRAINING = """
import sys
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        with open(f"{sys.argv[1]}/{index}.txt") as file:
            return file.read()

loader = DataLoader(Files(), batch_size=2, num_workers=1)
print([list(loader) for _ in range(2)])
"""

pytestmark = pytest.mark.skipif(
    subprocess.run([*become(USER), "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine allows no user namespaces",
)


class Nameless:
    """Runs commands as the user."""

    def __init__(self, sandbox: Sandbox, user: int = USER) -> None:
        self._become = become(user)
        self.output = ""  # of the last command that was started
        self.data = write_files(sandbox.root / "data", {f"{number}.txt": b"%d" % number for number in range(4)})
        self._environ = {
            name: value for name, value in os.environ.items() if name.startswith("PREFEED_") or name == "PYTHONPATH"
        }
        self._environ["PATH"] = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"

    @contextlib.contextmanager
    def started(self, *command: str, first: str = "true", **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Start ``prefeed COMMAND``, after a line of shell; end it by SIGTERM, which is a success."""
        line = [*self._become, "sh", "-c", f'{first} && exec "$@"', "sh", sys.executable, "-m", "prefeed", *command]
        with subprocess.Popen(
            line, env=self._environ | environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()
                self.output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, self.output

    def run(self, *command: str, **environ: str) -> str:
        """Return the output of ``prefeed COMMAND``."""
        line = [*self._become, sys.executable, "-m", "prefeed", *command]
        done = subprocess.run(line, env=self._environ | environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def user(sandbox: Sandbox) -> Nameless:
    return Nameless(sandbox)


def test_server_and_training(user: Nameless, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)

    assert "started" in user.run("server", "start")
    assert "4 objects" in user.run("warm", str(user.data))
    batches = user.run("run", "python", str(tmp_path / "train.py"), str(user.data), PREFEED_ROOTS=str(user.data))
    assert batches.count("[['0', '1'], ['2', '3']]") == 2
    assert json.loads(user.run("stats", "--json").splitlines()[-1])["hits"] > 0
    assert "stopped" in user.run("server", "stop")


def test_job(user: Nameless, sandbox: Sandbox, tmp_path: Path) -> None:
    copy = sandbox.root / "copy"
    options = {"source": f"file://{user.data}", "destination": f"file://{copy}"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(sample_job("copy", type="sync", syncOptions=options)))

    user.run("job", "apply", "-f", str(tmp_path / "job.yaml"))

    assert sorted(path.name for path in copy.iterdir() if path.is_file()) == ["0.txt", "1.txt", "2.txt", "3.txt"]


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="there is no FUSE here")
def test_mount(sandbox: Sandbox) -> None:
    """Only root may mount for other containers, so here it is root that has no passwd entry."""
    user, point = Nameless(sandbox, user=0), sandbox.root / "mnt"
    point.mkdir()
    nameless = "mount --bind /dev/null /etc/passwd"
    with user.started("mount", str(user.data), str(point), "--foreground", first=nameless) as process:
        inside = Path(f"/proc/{process.pid}/root{point}")  # in the mount namespace of the process
        wait_for(lambda: (inside / "3.txt").exists() and (inside / "3.txt").read_bytes() == b"3", "the mount")


def test_sidecar(user: Nameless, sandbox: Sandbox) -> None:
    document = sandbox.root / "sampleset.yaml"
    document.write_text(yaml.safe_dump(sample_set("photos", source={"uri": f"file://{user.data}"})))
    port = free_port()
    volumes = f"mount -t tmpfs tmpfs /run && mkdir -p {DOCUMENTS} {STATE} {MEMORY} && cp {document} {DOCUMENTS}"
    home = {"PREFEED_HOME": str(HOME), "XDG_RUNTIME_DIR": str(RUNTIME)}

    def served_set() -> str:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}") as answer:
            return str(json.load(answer)["name"])
        return ""

    with user.started("kubernetes", "sidecar", "photos", "--sizes-port", str(port), first=volumes, **home):
        wait_for(lambda: served_set() == "photos", "the sidecar")
    assert f"serves the sample set photos from {user.data}; memory tier: " in user.output


def test_operator(user: Nameless, tmp_path: Path) -> None:
    """It starts, goes on while the API server does not answer, and ends by SIGTERM."""
    cluster = {"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}  # nothing listens there
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [cluster],
        "users": [{"name": "test", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    url = f"http://127.0.0.1:{free_port()}/healthz"

    def is_alive() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            return bool(answer.status == 200)
        return False

    command = ("operator", "run", "--image", "prefeed:1", "--liveness", url)
    with user.started(*command, KUBECONFIG=str(tmp_path / "kubeconfig")):
        wait_for(is_alive, "the operator")
    assert "the API server does not answer" in user.output
