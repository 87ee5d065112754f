"""S3 servers for tests on loopback: moto (a mock, from pip) and Ceph's RADOS gateway (the real thing, from Debian; as root)."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

ACCESS, SECRET = "test", "testsecret"
CEPH_TOOLS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 6442450944
mon data avail crit = 1
"""


def environment(url: str) -> dict[str, str]:
    """The variables that point boto3 at a server, and at nothing else."""
    names = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    return keys | {"AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"} | dict.fromkeys(names, "/nonexistent")


def make_bucket(name: str) -> None:
    """Makes a bucket on the server that the environment points to."""
    boto3.Session().client("s3", region_name="us-east-1", config=Config(s3={"addressing_style": "path"})).create_bucket(
        Bucket=name
    )


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def rgw_gap() -> str | None:
    """What keeps the gateway from running here; None when nothing does."""
    missing = [tool for tool in CEPH_TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is missing; run: apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common"
    return None if os.geteuid() == 0 else "ceph-osd wants root"


@contextmanager
def moto() -> Iterator[str]:
    """The endpoint of a moto server in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def rgw(folder: Path) -> Iterator[str]:
    """The endpoint of a throw-away Ceph: one monitor, one OSD in memory, one gateway, authentication on (it needs that)."""
    ceph = Ceph(folder)
    try:
        yield ceph.start()
    finally:
        ceph.stop()


class Ceph:
    """A throw-away cluster in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        fsid = str(uuid.uuid4())
        self._mon_port, self._port = free_port(), free_port()
        (folder / "ceph.conf").write_text(CONF.format(fsid=fsid, mon_port=self._mon_port, folder=folder))
        self._fsid = fsid
        self._environment = os.environ | {"CEPH_ARGS": f"-c {folder}/ceph.conf"}

    def start(self) -> str:
        """Brings the cluster up and makes the one user; returns the endpoint."""
        folder, keyring = self.folder, f"{self.folder}/keyring"
        for part in ("mon", "osd", "rgw"):
            (folder / part).mkdir()
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self._run(
            "ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *"
        )
        address = f"[v2:127.0.0.1:{self._mon_port}]"
        self._run("monmaptool", "--create", "--clobber", "--addv", "a", address, "--fsid", self._fsid, f"{folder}/monmap")
        self._run(
            "ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{folder}/monmap", "--keyring", keyring, "--mon-data", f"{folder}/mon"
        )
        self._daemon("ceph-mon", "-f", "-i", "a", "--mon-data", f"{folder}/mon")
        osd = str(uuid.uuid4())
        self._run("ceph", "osd", "new", osd)
        self._run("ceph-authtool", "--create-keyring", f"{folder}/osd/keyring", "--gen-key", "-n", "osd.0")
        self._run("ceph", "auth", "add", "osd.0", "mon", "allow profile osd", "osd", "allow *", "-i", f"{folder}/osd/keyring")
        where = ("--osd-data", f"{folder}/osd", "--keyring", f"{folder}/osd/keyring")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, *where)
        self._daemon("ceph-osd", "-f", "-i", "0", *where)
        self._start_gateway()
        user = ("--uid", "t", "--display-name", "t", "--access-key", ACCESS, "--secret-key", SECRET)
        self._run("radosgw-admin", "-n", "client.admin", "user", "create", *user)
        return f"http://127.0.0.1:{self._port}"

    def restart_gateway(self) -> bool:
        """Kills the gateway with SIGKILL and starts it again; the objects are the OSD's and stay."""
        gateway = self._daemons.pop()
        gateway.kill()
        gateway.wait()
        self._start_gateway()
        return True

    def _start_gateway(self) -> None:
        frontend = f"beast endpoint=127.0.0.1:{self._port} tcp_nodelay=1"  # without it every answer waits for Nagle
        where = ("--rgw-data", f"{self.folder}/rgw", "--rgw-frontends", frontend)
        self._daemon("radosgw", "-f", "-n", "client.admin", *where)
        _wait(f"http://127.0.0.1:{self._port}/")

    def stop(self) -> None:
        """Kills the daemons, gateway first; their data were in memory."""
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode(errors='replace')[-600:]}")

    def _daemon(self, *command: str) -> None:
        output = subprocess.DEVNULL
        self._daemons.append(
            subprocess.Popen(command, env=self._environment, stdout=output, stderr=output, start_new_session=True)
        )


def _wait(url: str, seconds: float = 120.0) -> None:
    """Returns once anything answers there, be it an error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
