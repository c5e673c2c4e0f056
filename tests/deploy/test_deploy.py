"""A deployment's settings, certificates, hand-over and messages, without a server."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import yaml
from deployment_files import NODE, PARAMS, SERVER, rehearse, write
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.data.inputs import InputSettings
from hetfl.data.store import Dataset, Subset, read_card, read_dataset, write_dataset
from hetfl.deploy.agreement import Agreement, agreement, check_agreement, public_checksum
from hetfl.deploy.cards import class_counts, client_card, client_checksums, write_cards
from hetfl.deploy.certs import make_certificates
from hetfl.deploy.handover import HandoverError, ask, serve
from hetfl.deploy.processes import PARENT, free_port, new_secret
from hetfl.deploy.rehearse import write_deployment
from hetfl.deploy.sent import note, noted_error
from hetfl.deploy.settings import read_node, read_server
from hetfl.deploy.superlink import Control, check_address, direct, environment, start
from hetfl.deploy.worker import Worker, joined
from hetfl.errors import HetflError
from hetfl.experiments.identity import inputs
from hetfl.experiments.plan import ComputeSettings, Workspace, cells, load_params
from hetfl.files import read_json, write_json
from hetfl.message import Message
from hetfl.training.engine import Task
from hetfl.training.host import Host, Question, Reply, Request


def test_paths_begin_at_the_file(folder):
    server = read_server(write(folder, "server", SERVER))
    assert server.project == folder / "project" and server.nodes["north"].key == folder / "certs/north.pub"
    node = read_node(write(folder, "node", NODE))
    assert node.socket == folder / "flower/worker.sock" and node.clients[1] == folder / "data"


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("server", {"address": "9092"}, "server.address: '9092' is no address; write host:port"),
        ("server", {"address": "host:99999"}, "is no address"),
        ("server", {"adress": "host:1"}, "unknown setting 'adress'; did you mean 'address'?"),
        ("server", {"nodes": {}}, "server.nodes"),
        ("server", {"nodes": {"north": {"clients": [0, 2]}}}, "each from 0 on must be at exactly one node"),
        ("server", {"key": "certs/none.key"}, "certs/none.key does not exist; hetfl certs makes one"),
        ("server", {"key": None}, "server.key: is missing; hetfl certs makes one, --insecure does without"),
        ("server", {"key": "certs/authority.crt"}, "others may read"),
        ("server", {"deadline": 0}, "server.deadline: 0"),
        ("server", {"missing": "stop"}, "server.missing: 'stop' should be 'wait' or 'go-on'"),
        ("server", {"project": "data"}, "is no project, since it has no params.yaml"),
        ("node", {"name": "The North"}, "node.name: 'The North'"),
        ("node", {"clients": {}}, "node.clients"),
        ("node", {"clients": {0: "project"}}, "node.clients.0: "),
        ("node", {"authority": None}, "node.authority: is missing"),
        ("node", {"folder": "x" * 90}, "is too long for a socket"),
    ],
)
def test_a_mistake_is_one_line(folder, part, change, said):
    path = write(folder, part, {**(SERVER if part == "server" else NODE), **change})
    with pytest.raises(HetflError) as error:
        (read_server if part == "server" else read_node)(path)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_is_for_its_owner_only(folder, tmp_path, mode):
    key = tmp_path / "server.key"
    key.touch()
    key.chmod(mode)
    with pytest.raises(HetflError, match="others may read .*; chmod 600 it"):
        read_server(write(folder, "server", {**SERVER, "key": str(key)}))


@pytest.fixture
def keys(folder, tmp_path):
    """Files with keys of another kind."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    for name, content in {"ed.key": private, "ed.pub": public, "none.key": b"x", "none.pub": b"x"}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("name", ["ed", "none"])
def test_keys_of_another_kind_are_refused(folder, keys, name):
    wanted = "should be an OpenSSH key of an elliptic curve .* without a password; hetfl certs makes one$"
    with pytest.raises(HetflError, match=f"node.yaml: node.key: .*/{name}.key {wanted}"):
        read_node(write(folder, "node", {**NODE, "key": str(keys / f"{name}.key")}))
    nodes = {
        "north": {**SERVER["nodes"]["north"], "key": str(keys / f"{name}.pub")},
        "south": SERVER["nodes"]["south"],
    }
    with pytest.raises(HetflError, match=f"server.yaml: server.nodes.north.key: .*/{name}.pub {wanted}"):
        read_server(write(folder, "server", {**SERVER, "nodes": nodes}))


def test_two_nodes_do_not_have_one_key(folder, tmp_path):
    shutil.copyfile(folder / "certs/north.pub", tmp_path / "copy.pub")
    nodes = {**SERVER["nodes"], "south": {"key": str(tmp_path / "copy.pub"), "clients": [2]}}
    with pytest.raises(HetflError, match="server.nodes.south.key: .*/copy.pub is the key of north, too; hetfl certs"):
        read_server(write(folder, "server", {**SERVER, "nodes": nodes}))


def test_an_address_where_nobody_can_listen_is_one_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(HetflError, match=f"^server.address: 127.0.0.1:{port}: another process listens there"):
            check_address("127.0.0.1", port)
    with pytest.raises(HetflError, match="192.0.2.1:9092: is no address of this machine; use one that it has"):
        check_address("192.0.2.1", 9092)


def test_a_superlink_is_waited_for_as_long_as_its_process_is_there(folder, tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr("hetfl.deploy.superlink.PATIENCE", 0.1)
    server = read_server(write(folder, "server", {**SERVER, "address": "127.0.0.1:1"}))
    log, told = tmp_path / "superlink.log", []
    log.write_text("begins\nno such certificate\n\n")
    ended = "ended with status 3; the last line of .*superlink.log is: no such certificate"
    program = "import time; time.sleep(2); exit(3)"
    with subprocess.Popen([sys.executable, "-c", program]) as process, pytest.raises(HetflError, match=ended):
        Control(server, b"secret", False).wait(process, log, told.append)
    assert told and told[0].startswith("the SuperLink at 127.0.0.1:1 does not answer yet (ConnectError")


def test_a_certificate_of_another_authority_is_told_and_not_waited_for(folder, tmp_path):
    pytest.importorskip("flwr")
    make_certificates(tmp_path, [], [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refused() -> None:
            for _ in range(3):
                with contextlib.suppress(OSError), listener.accept()[0] as connection:
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=refused, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        server = read_server(write(folder, "server", {**SERVER, "address": address}))
        polls = iter([None, None, 3])
        process, log = SimpleNamespace(poll=lambda: next(polls)), tmp_path / "superlink.log"
        log.touch()
        told = "^server.certificate: .*certs/server.crt is not signed by server.authority, or has expired; remove it"
        with pytest.raises(HetflError, match=told):
            Control(server, b"secret", False).wait(process, log, print)


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        ("[::]:9092", "[::1]:9092"),
        ("192.0.2.1:9092", "192.0.2.1:9092"),
    ],
)
def test_the_server_speaks_to_its_superlink_where_that_listens(folder, monkeypatch, address, own):
    monkeypatch.setattr(os, "environ", {**os.environ})
    control = Control(read_server(write(folder, "server", {**SERVER, "address": address})), b"secret", False)
    assert control.address == own
    assert own.rpartition(":")[0].strip("[]") in os.environ["no_proxy"].split(",")


def test_the_server_reaches_its_own_superlink_whatever_its_certificate_names(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    for name in ("HTTPS_PROXY", "https_proxy"):  # as in a hospital, where nobody answers for this machine
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(os, "environ", {**os.environ})
    make_certificates(tmp_path / "certs", ["fl.example.org"], ["north", "south"])
    for name in ("project/params.yaml", "data/card.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    server = read_server(write(tmp_path, "server", {**SERVER, "address": f"0.0.0.0:{free_port()}"}))
    server.folder.mkdir(parents=True, exist_ok=True)
    secret, told = new_secret(server.folder), []
    process = start(server, False, secret)
    try:
        control = Control(server, secret.read_bytes(), False)
        control.wait(process, server.folder / "superlink.log", told.append)
        keys = {name: node.key for name, node in server.nodes.items()}
        assert {*control.register(keys).values()} == {*server.nodes}
        assert [*control.begin().get_nodes()] == []
    finally:
        process.kill()  # asked to end, it waits for those who are connected
        process.wait()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "cuda:9"}, "error: node.device: 'cuda:9' but "),
        ({"clients": {"1": "empty"}}, "card.json"),
    ],
)
def test_a_node_with_a_mistake_in_its_own_files_ends_with_one_line(rehearsed, change, said):
    (rehearsed / "empty").mkdir(exist_ok=True)
    (rehearsed / "empty" / "card.json").write_text("{}")
    content = yaml.safe_load((rehearsed / "node-1.yaml").read_text())["node"] | change
    done = subprocess.run(
        [sys.executable, "-m", "hetfl", "join", str(write(rehearsed, "node", content))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and said in errors[0], done.stderr
    assert "Traceback" not in done.stderr


def test_the_other_part_of_a_file_is_no_part(folder):
    with pytest.raises(HetflError, match="has no server part; hetfl join starts a node"):
        read_server(write(folder, "node", NODE))
    with pytest.raises(HetflError, match="has no node part; hetfl serve starts the server"):
        read_node(write(folder, "server", SERVER))


@pytest.mark.parametrize("read", [read_server, read_node])
def test_a_file_that_is_missing_is_one_of_a_deployment(tmp_path, read):
    with pytest.raises(HetflError, match="none.yaml: does not exist; name a deployment's file, such as"):
        read(tmp_path / "none.yaml")


def test_insecure_is_asked_for_twice(folder):
    path = write(folder, "node", NODE)
    with pytest.raises(HetflError, match="node.key: is given, and --insecure does without"):
        read_node(path, insecure=True)
    without = {key: value for key, value in NODE.items() if key not in ("key", "authority")}
    assert read_node(write(folder, "node", without), insecure=True).key is None


def shake_hands(certs: Path, authority: Path, name: str) -> None:
    """A server with its certificate, and a client that knows an authority and calls it by a name."""
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_cert_chain(certs / "server.crt", certs / "server.key")
    theirs.load_verify_locations(authority)
    a, b, c, d = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = ours.wrap_bio(a, b, server_side=True), theirs.wrap_bio(c, d, server_hostname=name)
    done = set()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            a.write(d.read()) if side is client else c.write(b.read())


def test_certificates_are_checked_by_a_client_that_knows_the_authority(folder, tmp_path):
    other = tmp_path / "other"
    make_certificates(other, ["localhost"], [])
    assert stat.S_IMODE((folder / "certs").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in (folder / "certs").glob("*.key"))

    for name in ("localhost", "127.0.0.1"):
        shake_hands(folder / "certs", folder / "certs/authority.crt", name)
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed|unable to get local issuer"):
        shake_hands(folder / "certs", other / "authority.crt", "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="[Hh]ostname"):
        shake_hands(folder / "certs", folder / "certs/authority.crt", "fl.example.org")


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Stands for a full disk: no file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_part_of_a_key_and_the_same_command_goes_on(tmp_path):
    folder = tmp_path / "certs"
    with files_of_at_most(100), pytest.raises(OSError) as told:
        make_certificates(folder, ["localhost"], ["north"])
    assert told.value.filename == str(folder / "authority.key") and not [*folder.iterdir()]
    assert "server.key" in {path.name for path in make_certificates(folder, ["localhost"], ["north"])}


def test_who_sees_into_a_folder_that_was_there_stays_as_it_was(tmp_path):
    tmp_path.chmod(0o755)
    make_certificates(tmp_path, ["localhost"], [])
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in tmp_path.glob("*.key"))


def test_a_full_disk_tears_no_line_of_what_a_node_sent(rehearsed, tmp_path):
    node = read_node(rehearsed / "node-1.yaml").model_copy(update={"folder": tmp_path})
    note(node, [{"error": "first"}])
    with files_of_at_most(100), pytest.raises(OSError) as told:
        note(node, [{"error": "x" * 200}])
    assert told.value.filename == str(tmp_path / "sent.jsonl")
    note(node, [{"error": "last"}])
    lines = (tmp_path / "sent.jsonl").read_text().splitlines()
    assert [json.loads(line)["error"] for line in lines] == ["first", "last"]


def test_nodes_are_added_to_certificates_that_stay(folder):
    before = {path.name: path.read_bytes() for path in (folder / "certs").iterdir()}
    assert [path.name for path in make_certificates(folder / "certs", [], ["north", "west"])] == [
        "west.key",
        "west.pub",
    ]
    assert all((folder / "certs" / name).read_bytes() == content for name, content in before.items())


def test_a_certificate_for_other_hosts_is_told_and_made_again_once_it_is_removed(tmp_path):
    make_certificates(tmp_path, ["fl.example.org", "192.0.2.1", "::1"], [])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert make_certificates(tmp_path, ["192.0.2.1", "[::1]"], []) == []
    told = r"server.crt: names fl.example.org, 192.0.2.1, ::1, and not other.example.org, 192.0.2.2; remove it to"
    with pytest.raises(HetflError, match=told):
        make_certificates(tmp_path, ["other.example.org", "fl.example.org", "192.0.2.2"], ["north"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "server.crt").unlink()
    assert make_certificates(tmp_path, ["other.example.org"], []) == [tmp_path / "server.crt"]
    shake_hands(tmp_path, tmp_path / "authority.crt", "other.example.org")
    (tmp_path / "server.crt").write_text("x")
    with pytest.raises(HetflError, match="server.crt: is no certificate; remove it"):
        make_certificates(tmp_path, ["other.example.org"], [])


def test_certificates_that_have_expired_are_made_again_from_their_keys(tmp_path, monkeypatch):
    with monkeypatch.context() as short:
        short.setattr("hetfl.deploy.certs.DAYS", 0.001)
        make_certificates(tmp_path, ["localhost"], ["north"])
    before = {path: path.read_bytes() for path in tmp_path.glob("*.[kp]*")}
    for name in ("authority", "server"):
        told = rf"{name}.crt: has expired \(\d{{4}}-\d\d-\d\d\); remove it (and server.crt )?to have"
        with pytest.raises(HetflError, match=told):
            make_certificates(tmp_path, [], ["west"])
        (tmp_path / f"{name}.crt").unlink()
    assert [path.name for path in make_certificates(tmp_path, ["localhost"], [])] == ["authority.crt", "server.crt"]
    assert {path: path.read_bytes() for path in tmp_path.glob("*.[kp]*")} == before
    shake_hands(tmp_path, tmp_path / "authority.crt", "localhost")


@pytest.mark.parametrize("lost", ["authority.crt", "server.crt", "north.pub"])
def test_what_belongs_to_a_key_is_made_again(tmp_path, lost):
    """And what it was made for still goes together."""
    make_certificates(tmp_path, ["localhost"], ["north"])
    (tmp_path / lost).rename(tmp_path / "before")
    assert make_certificates(tmp_path, ["localhost"], ["north"]) == [tmp_path / lost]
    if lost.endswith(".pub"):
        assert (tmp_path / lost).read_bytes() == (tmp_path / "before").read_bytes()
    else:
        shake_hands(tmp_path, tmp_path / "authority.crt", "localhost")


@pytest.mark.parametrize("lost", ["server", "north"])
def test_a_key_that_is_lost_is_not_made_again_beside_what_was_made_from_it(tmp_path, lost):
    make_certificates(tmp_path, ["localhost"], ["north"])
    (tmp_path / f"{lost}.key").unlink()
    with pytest.raises(HetflError, match=rf"its key {lost}.key is missing; put it there, or remove {lost}\.\w+ to"):
        make_certificates(tmp_path, ["localhost"], ["north", "west"])
    assert not (tmp_path / "west.key").exists()


def test_nodes_are_added_without_the_authoritys_key(tmp_path):
    make_certificates(tmp_path, ["localhost"], [])
    (tmp_path / "authority.key").unlink()
    assert len(make_certificates(tmp_path, ["localhost"], ["north"])) == 2


@pytest.mark.parametrize(
    ("host", "node", "said"),
    [
        ("localhost", "../evil", "'../evil' is no name of a node"),
        ("localhost", "server", "'server' is no name of a node"),
        ("localhost", "authority", "but not 'authority' or 'server'"),
        ("localhost", "north\n", "is no name of a node"),
        ("", "north", "'' is no host; write its address, or its name in ASCII"),
        ("münchen.example.org", "north", "is no host"),
        ("fl.example.org:9092", "north", "is no host"),
        (f"{'x' * 64}.example.org", "north", "is no host"),
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_written(tmp_path, host, node, said):
    with pytest.raises(HetflError) as error:
        make_certificates(tmp_path / "certs", [host], [node])
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "certs").exists()


def test_a_rehearsal_has_an_address(tmp_path):
    with pytest.raises(HetflError, match="^--address: '9092' is no address; write host:port"):
        write_deployment([], [], Workspace(tmp_path), tmp_path / "deployment", None, "9092")


@pytest.mark.parametrize(
    ("host", "called"), [("[::1]", "::1"), ("::1", "::1"), (long := f"{'x' * 60}.{'y' * 60}.example.org", long)]
)
def test_a_server_can_have_an_address_of_version_6_or_a_long_name(tmp_path, host, called):
    make_certificates(tmp_path, [host], [])
    shake_hands(tmp_path, tmp_path / "authority.crt", called)


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """The socket of a worker that reverses bytes, and fails where it is told to."""
    path, ready = tmp_path / "w" / "worker.sock", threading.Event()

    def answer(header, body):
        if header.get("fail"):
            raise HetflError("no such cell")
        return bytes(body)[::-1]

    threading.Thread(target=serve, args=(path, answer, ready.set), daemon=True).start()
    assert ready.wait(5)
    return path


def test_bytes_are_handed_over(worker):
    body = os.urandom(3_000_000)
    assert ask(worker, {}, body) == body[::-1]
    assert ask(worker, {}, b"") == b""
    with pytest.raises(HandoverError, match="^no such cell$"):
        ask(worker, {"fail": 1}, b"x")
    assert ask(worker, {}, b"after an error") == b"rorre na retfa"


def test_an_answer_to_a_question_without_a_body_is_no_end_of_the_worker(worker, monkeypatch):
    """It can come before the nothing of the body is sent."""
    monkeypatch.setattr("hetfl.deploy.handover.BREAKS", 1)
    for _ in range(200):
        assert ask(worker, {}, b"") == b""


def test_only_the_owner_reaches_the_socket(worker):
    assert stat.S_IMODE(worker.stat().st_mode) == 0o600 and stat.S_IMODE(worker.parent.stat().st_mode) == 0o700
    if os.getuid() == 0:
        program = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(worker)!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "PermissionError" in done.stderr


def test_a_peer_of_another_user_is_not_answered(worker, monkeypatch):
    monkeypatch.setattr("hetfl.deploy.handover.os.getuid", lambda: 12345)
    with pytest.raises(HandoverError, match="does not answer"):
        ask(worker, {}, b"x", patience=0.2)


def test_garbage_does_not_end_a_worker(worker):
    for garbage in (b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"{{{{{", (1 << 60).to_bytes(8, "little")):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(worker))
            connection.sendall(garbage)
    assert ask(worker, {}, b"ab") == b"ba"


def test_a_worker_that_comes_late_is_waited_for(tmp_path):
    path = tmp_path / "w.sock"
    with pytest.raises(HandoverError, match="does not answer"):
        ask(path, {}, b"x", patience=0.2)

    def late() -> None:
        time.sleep(0.3)
        serve(path, lambda header, body: bytes(body))

    threading.Thread(target=late, daemon=True).start()
    began = time.monotonic()
    assert ask(path, {}, b"x", patience=5) == b"x"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("ends", [2, 3])
def test_a_worker_that_ends_whenever_it_answers_is_not_asked_for_ever(tmp_path, ends):
    """As one does that the system ends for its memory."""
    path = tmp_path / "w.sock"

    def dying() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            for _ in range(ends):
                listener.accept()[0].close()
        serve(path, lambda header, body: bytes(body))

    threading.Thread(target=dying, daemon=True).start()
    if ends == 2:
        assert ask(path, {}, b"x", patience=5) == b"x"
    else:
        with pytest.raises(HandoverError, match="^the worker ended 3 times while it answered$"):
            ask(path, {}, b"x", patience=5)


def test_a_header_that_no_worker_takes_is_not_sent(worker):
    with pytest.raises(HandoverError, match=r"^the question's header has \d+ bytes, at most 1048576 are allowed$"):
        ask(worker, {"classes": "x" * (1 << 20)}, b"")


def test_messages_carry_bytes_and_little_else():
    flwr = pytest.importorskip("flwr")
    from flwr.app import ArrayRecord
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from hetfl.deploy.messages import ENVELOPE, pack, unpack

    assert flwr.__version__ == "1.41.0"
    for size in (0, 1000, 12_000_000):
        body = os.urandom(size)
        content = pack({"cell": "a"}, body)
        assert unpack(content) == ({"cell": "a"}, body)
        carried = sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
        assert 0 < carried - size < ENVELOPE
    content["body"] = ArrayRecord()
    with pytest.raises(ValueError, match="has no"):
        unpack(content)


def test_the_client_app_imports_no_torch():
    pytest.importorskip("flwr")
    heavy = ["torch", "timm", "mlflow", "sklearn"]
    program = "import gc, sys; gc.disable(); import hetfl.deploy.link\n"
    program += f"print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]


def test_clients_of_a_node_get_their_own_samples_back():
    def dataset(first: int, size: int) -> Dataset:
        images = np.arange(first, first + size, dtype=np.uint8).reshape(-1, 1, 1, 1)
        subset = Subset(images, np.zeros(size, dtype=np.int64))
        return Dataset("x", "X", ("a", "b"), {"train": subset, "test": subset}, "c")

    whole, partition = joined({1: dataset(10, 3), 4: dataset(20, 2)}, 6)
    found = [whole.subset("train").images[places].ravel().tolist() for places in partition.train]
    assert found == [[], [10, 11, 12], [], [], [20, 21], []]
    assert partition.test is not None and len(partition.test[4]) == 2


def test_data_sets_of_one_node_have_the_same_classes():
    subset = Subset(np.zeros((2, 1, 1, 1), np.uint8), np.arange(2))
    subsets, known = {"train": subset, "test": subset}, {"x": ("a", "b"), "y": ("b", "a")}
    data = [Dataset(name, name, classes, subsets, "c") for name, classes in known.items()]
    with pytest.raises(HetflError, match="^node.clients: the data sets x and y have different classes$"):
        joined(dict(enumerate(data)), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 3}, "^node-1: tiny/.* has 2 clients here and 3 at the server; use one params.yaml$"),
        ({"clients": 10**12}, "has 2 clients here and 1000000000000 at the server"),
        ({"clients": 0}, "^the server's request: clients: 0"),
        ({"classes": ["b", "a"]}, "^node-1: node.clients.1: class 0 is 'a' here and 'b' at the server; prepare it"),
        ({"classes": ["a"]}, "^node-1: node.clients.1: class 1 is 'b' here and 'missing' at the server; prepare it"),
        ({"data": {"1": "0" * 64}}, "^node-1: node.clients.1: has other data than the server's card says; name the"),
        (
            {"public": "0" * 64},
            "^node-1: node.public: has other samples than the server's card says, or in another order",
        ),
        ({"cell": "tiny/none"}, "has no cell 'tiny/none'"),
    ],
)
def test_a_node_plays_only_the_cell_of_its_own_project(rehearsed, change, said):
    worker = Worker(read_node(rehearsed / "node-1.yaml"))
    (cell,) = cells(worker.params, "tiny")
    agreed = agreement(cell, Workspace(rehearsed / "server"), cell.models, "0" * 64).model_dump()
    with pytest.raises(ValueError, match="is no message"):
        worker.answer(agreed, bytearray(b"x"))
    with pytest.raises(HetflError, match=said) as error:
        worker.answer(agreed | change, bytearray())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("server", [{"vit": "b"}, {}])
def test_other_weights_than_the_nodes_are_refused(server):
    node = Agreement(cell="tiny/x", settings={}, weights={"vit": "a"}, clients=1, run="0" * 64)
    check_agreement(node, node, "north", {})
    refused = "^north: the weights of vit are not those of the server; copy its weights/$"
    with pytest.raises(HetflError, match=refused):
        check_agreement(node.model_copy(update={"weights": server}), node, "north", {})


def test_the_checksum_of_public_samples_covers_their_images(tmp_path):
    about = {"name": "x", "title": "X", "origin": "", "licence": "", "source": [], "settings": {}}
    found = set()
    for value in (0, 1):
        subset = Subset(np.full((2, 8, 8, 1), value, np.uint8), np.arange(2))
        write_dataset(tmp_path / str(value), **about, class_names=("a", "b"), subsets={"train": subset})
        found.add(public_checksum(read_card(tmp_path / str(value)), "train"))
    assert len(found) == 2


def test_errors_leave_a_node_without_its_paths_and_are_noted(rehearsed, tmp_path):
    node = read_node(rehearsed / "node-1.yaml").model_copy(update={"folder": tmp_path / "f"})
    worker = Worker(node)
    (cell,) = cells(worker.params, "tiny")
    agreed = agreement(cell, worker.workspace, cell.models, "0" * 64).model_dump()
    asked = Request(Question(run="0" * 64, kind="train", round=1), [Task(1, Message())]).to_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "_check_request", lambda *given: None)
        error = Reply.from_bytes(worker.answer(agreed, bytearray(asked))).error
    assert (
        error
        == f"node.folder/state/{'0' * 64}: "
        + "has no states of clients from before round 1; a host that "
        + ("lost them cannot go on")
    )
    broken = HandoverError(
        f"{node.project}/params.yaml: no; {node.clients[1]}/card.json: no; /etc/my x/y.txt is no key"
    )
    other = noted_error(node, broken)
    assert other == "node.project/params.yaml: no; node.clients.1/card.json: no; y.txt is no key"
    noted = [json.loads(line)["error"] for line in (node.folder / "sent.jsonl").read_text().splitlines()]
    assert noted == [error, other]


def test_a_server_is_told_of_an_error_that_cannot_be_noted(rehearsed, tmp_path):
    node = read_node(rehearsed / "node-1.yaml").model_copy(update={"folder": tmp_path / "gone"})
    assert noted_error(node, HandoverError("the disk is full")) == "the disk is full"


def test_a_setting_that_differs_is_named(rehearsed):
    worker = Worker(read_node(rehearsed / "node-1.yaml"))
    (cell,) = cells(worker.params, "tiny")
    agreed = agreement(cell, worker.workspace, cell.models, "0" * 64).model_dump()
    other = agreed | {"settings": agreed["settings"] | {"settings.lr": 0.5}}
    with pytest.raises(HetflError, match="has settings.lr its default here and 0.5 at the server; use one"):
        worker.answer(other, bytearray())
    # It has not to be started anew for its operator's correction.
    before = yaml.safe_load(worker.workspace.params.read_text())
    corrected = copy.deepcopy(before)
    corrected["experiments"]["tiny"]["rows"]["fedavg"] = {"settings": {"lr": 0.5}}
    worker.workspace.params.write_text(yaml.safe_dump(corrected))
    with pytest.raises(ValueError, match="is no message"):
        worker.answer(other, bytearray())
    worker.workspace.params.write_text(yaml.safe_dump(before))


def test_folders_of_two_clients_that_are_exchanged_are_noticed(rehearsed, tmp_path):
    """The card of a rehearsed server has the checksums of the clients' data, and a run's identity none of them."""
    workspace = Workspace(rehearsed / "server")
    (cell,) = cells(load_params(workspace.params), "tiny")
    data = client_checksums(cell, workspace)
    assert sorted(data) == ["0", "1"] and data["0"] != data["1"]
    card = workspace.partition("digits", "iid", 0) / "card.json"
    before, content = inputs(cell, workspace), card.read_text()
    write_json(card, {key: value for key, value in read_json(card).items() if key != "checksums"})
    assert (inputs(cell, workspace), client_checksums(cell, workspace)) == (before, {})
    card.write_text(content)
    agreed = agreement(cell, workspace, cell.models, "0" * 64, ("a", "b"), data)
    assert agreed.of([1]).data == {"1": data["1"]}
    node = read_node(rehearsed / "node-1.yaml")
    other = rehearsed / "node-0" / "data" / "client-0"
    worker = Worker(node.model_copy(update={"clients": {1: other}, "folder": tmp_path}))
    with pytest.raises(HetflError, match="^node-1: node.clients.1: has the data of client 0; name the client's own"):
        worker.answer(agreed.model_dump(mode="json"), bytearray())
    with pytest.raises(HetflError, match="^node-1: node.clients.1: has other data than the server's card says"):
        worker.answer(agreed.of([1]).model_dump(mode="json"), bytearray())


def test_each_client_of_a_rehearsal_tests_on_its_own_samples(tmp_path_factory):
    split = {"scheme": "pathological", "clients": 2, "classes_per_client": 1}
    told = {"partitions": {"digits": {"seeds": 1, "splits": {"iid": split}}}}
    deployment = rehearse(tmp_path_factory.mktemp("own"), PARAMS | told)
    counts = read_json(deployment / "server/partitions/digits/iid-s0/card.json")["class_counts"]
    for client in range(2):
        data = read_dataset(deployment / f"node-{client}/data/client-{client}")
        for side in ("train", "test"):
            assert data.subset(side).class_counts(2).tolist() == counts[side][client]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "card.json: class_counts: has not those of each client; hetfl rehearse and hetfl cards write it"),
        ({"train": [[5, 5], [5, 5]]}, "class_counts: has not those of each client"),
        ({"train": [[5, 5]], "test": [[5, 5]]}, "class_counts.train: has 1 clients, 2 are needed; hetfl rehearse"),
        ({"train": [[5, 5], [5]], "test": []}, "class_counts.train.1: are not counts of 2 classes"),
        ({"train": [[5, 5], [5, -5]], "test": []}, "class_counts.train.1: are not counts of 2 classes"),
    ],
)
def test_a_servers_card_has_the_counts_of_each_client(rehearsed, tmp_path, change, said):
    with pytest.raises(HetflError) as error:
        counts_of_a_card(rehearsed, tmp_path, change)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_client_may_lack_a_class(rehearsed, tmp_path):
    counts = {"train": [[9, 0], [0, 9]], "test": [[4, 0], [0, 4]]}
    assert counts_of_a_card(rehearsed, tmp_path, counts).model_dump() == counts


def counts_of_a_card(rehearsed, tmp_path, written):
    """What a server reads from a card with these counts; None: without any."""
    shutil.copytree(rehearsed / "server", tmp_path, dirs_exist_ok=True)
    workspace = Workspace(tmp_path)
    (cell,) = cells(load_params(workspace.params), "tiny")
    path = workspace.partition("digits", "iid", 0) / "card.json"
    card = {name: value for name, value in read_json(path).items() if name != "class_counts"}
    write_json(path, card | ({"class_counts": written} if written else {}))
    return class_counts(cell, workspace)


def test_a_node_normalises_images_as_the_experiment_says(rehearsed):
    worker = Worker(read_node(rehearsed / "node-1.yaml"))
    (cell,) = cells(worker.params, "tiny")
    asked = InputSettings(mean=(0.25, 0.5, 0.75), std=(0.5, 0.5, 0.25))
    (model,) = {*worker._engine(cell.model_copy(update={"input": asked}), 2).models}
    assert (model.spec.mean, model.spec.std) == (asked.mean, asked.std)


def test_a_node_has_only_clients_that_its_cell_has(rehearsed):
    node = read_node(rehearsed / "node-1.yaml")
    worker = Worker(node.model_copy(update={"clients": {1: node.clients[1], 2: node.clients[1]}}))
    (cell,) = cells(worker.params, "tiny")
    agreed = agreement(cell, worker.workspace, cell.models, "0" * 64).model_dump()
    with pytest.raises(HetflError, match="^node-1: node.clients: 2, tiny/.* has 2 clients, numbered from 0$"):
        worker.answer(agreed, bytearray())


@pytest.mark.parametrize(
    ("missing", "asked", "needed"), [("wait", None, None), ("go-on", None, 1), ("wait", 2, 2), ("go-on", 2, 2)]
)
def test_a_round_that_waits_needs_all_uplinks_unless_fewer_are_asked_for(
    rehearsed, monkeypatch, missing, asked, needed
):
    pytest.importorskip("flwr")
    from hetfl.deploy import play

    found = []
    monkeypatch.setattr(play, "run_cell", lambda *given, **_: found.append(given[3].uplinks_needed))
    params = load_params(rehearsed / "server" / "params.yaml")
    (cell,) = cells(params, "tiny")
    server = read_server(rehearsed / "server.yaml").model_copy(update={"missing": missing})
    workspace, compute = Workspace(rehearsed / "server"), ComputeSettings(uplinks_needed=asked)
    play.play(cell, workspace, torch.device("cpu"), compute, SimpleNamespace(server=server))
    assert found == [needed]


CARD = {
    "dataset": "digits",
    "title": "X",
    "class_names": ["a", "b"],
    "image_shape": [8, 8, 1],
    "train": [2, 1],
    "test": [1, 1],
    "checksum": "0",
}
"""Of a client's data, as `hetfl card` writes it, but for the client's number."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client": -1}, "client: -1 should be greater than or equal to 0"),
        ({"test": [1, -5]}, "test.1: -5 should be greater than or equal to 0"),
        ({"train": [1, 1, 1]}, "client 0: train: 3 classes are counted and 2 named; let hetfl card write it again"),
    ],
)
def test_a_card_that_cannot_be_is_refused(tmp_path, change, said):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    write_json(tmp_path / "0.json", CARD | {"client": 0} | change)
    params = load_params(tmp_path / "params.yaml")
    with pytest.raises(HetflError) as error:
        write_cards([tmp_path / "0.json"], "iid", Workspace(tmp_path), params)
    assert said in str(error.value)


@pytest.mark.parametrize("own", [None, 7])
def test_a_server_knows_of_data_what_clients_cards_say(tmp_path, own):
    folders = []
    for client in range(2):
        images = np.full((4, 8, 8, 1), client, dtype=np.uint8)
        subset = Subset(images, np.array([0, 1, client, client]))
        folders.append(tmp_path / f"client-{client}")
        about = {"name": "x", "title": "X", "origin": "", "licence": "", "source": [], "settings": {}}
        subsets = {"train": subset, "test": subset}
        write_dataset(folders[-1], **about, class_names=("a", "b"), subsets=subsets)
    settings = copy.deepcopy(PARAMS)
    settings["partitions"]["digits"]["splits"]["iid"]["seed"] = own
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    paths = []
    for client, folder in enumerate(folders):
        paths.append(tmp_path / f"{client}.json")
        paths[-1].write_text(client_card(client, "digits", folder).model_dump_json())
    workspace, params = Workspace(tmp_path), load_params(tmp_path / "params.yaml")
    write_cards([paths[1], paths[0]], "iid", workspace, params)
    (cell,) = cells(params, "tiny")
    assert inputs(cell, workspace).weights == {}
    found = class_counts(cell, workspace)
    assert found.train == found.test == [[3, 1], [1, 3]]
    with pytest.raises(HetflError, match="clients: 2, and there are cards of clients 1; give one of each from 0 on"):
        write_cards(paths[1:], "iid", workspace, params)
    mine = workspace.dataset("digits")
    write_dataset(mine, **about, class_names=("a", "b"), subsets=subsets)
    before = (mine / "card.json").read_bytes()
    with pytest.raises(HetflError, match="holds prepared data"):
        write_cards(paths, "iid", workspace, params)
    assert (mine / "card.json").read_bytes() == before


def test_the_servers_card_covers_the_checksums_of_the_clients_data(tmp_path):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    workspace, params = Workspace(tmp_path), load_params(tmp_path / "params.yaml")
    paths, found = [tmp_path / "0.json", tmp_path / "1.json"], set()
    for checksum in ("0", "1"):
        for client, path in enumerate(paths):
            write_json(path, CARD | {"client": client, "checksum": checksum})
        write_cards(paths, "iid", workspace, params)
        found.add(read_card(workspace.dataset("digits")).checksum)
    assert len(found) == 2


@pytest.mark.parametrize("command", ["serve", "join", "certs", "rehearse", "card", "cards"])
def test_commands_have_help(command):
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0 and "Example: hetfl" in shown.output


KEPT = """
import os, sys, time
from hetfl.deploy.processes import keep_running

def work():
    first = not os.path.exists("pids")
    with open("pids", "a") as file:
        print(os.getpid(), file=file)
    if first:
        sys.exit(3)  # as Flower does
    time.sleep(60)

keep_running(work, lambda line: print(line, flush=True), first=0.05)
print("done")
"""


@pytest.mark.parametrize("kill", [False, True])
def test_a_connection_that_ends_is_made_again_without_new_imports(tmp_path, kill):
    """And it ends with its process, however that ends."""
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {KEPT!r}])" if kill else KEPT
    process = subprocess.Popen([sys.executable, "-c", outer], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    pids, deadline = tmp_path / "pids", time.monotonic() + 60
    while not pids.exists() or pids.read_text().count("\n") < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert said == "ended with status 1; starting it again\ndone\n"
    for pid in map(int, pids.read_text().split()):
        assert pid != process.pid and not psutil.pid_exists(pid)


def test_a_connection_that_ends_for_a_mistake_is_not_made_again():
    program = "import os\nfrom hetfl.deploy.processes import keep_running\nkeep_running(lambda: os._exit(2), print)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr


@pytest.mark.parametrize(
    "waits", ["end_with_parent(); time.sleep(20)", "keep_running(lambda: time.sleep(20), print)"]
)
def test_a_process_whose_parent_ended_before_it_could_ask_ends(waits):
    program = f"import time\nfrom hetfl.deploy.processes import end_with_parent, keep_running\n{waits}"
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        pass
    began, env = time.monotonic(), {**os.environ, PARENT: str(gone.pid)}
    subprocess.run([sys.executable, "-c", program], env=env, timeout=60)
    assert time.monotonic() - began < 20


def test_processes_are_told_who_starts_them(tmp_path):
    assert environment(tmp_path)[PARENT] == str(os.getpid())


def test_no_proxy_stands_between_this_machine_and_itself():
    assert {"127.0.0.1", "::1", "localhost"} <= {*direct()["no_proxy"].split(",")}
