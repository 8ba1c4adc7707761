"""The registry's protocol, with a server that answers as registries do."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from echelon.errors import NotFoundError, UnavailableError
from echelon.launch.container.reference import parse_reference
from echelon.launch.container.registry import read_credentials, resolve

MANIFESTS = {
    "/v2/team/x/manifests/1": {"config": {"digest": "sha256:c"}},
    "/v2/team/many/manifests/1": {
        "manifests": [
            {"platform": {"architecture": "arm64", "os": "linux"}},
            {"platform": {"architecture": "amd64"}},
        ]
    },
    "/v2/team/list/manifests/1": [],
    "/v2/team/odd/manifests/1": {"manifests": ["x"]},
}
LOGIN = base64.b64encode(b"ada:secret").decode()


class Registry(ThreadingHTTPServer):
    daemon_threads = True
    private = ""
    """How clients authenticate: `basic`, `bearer`, or not at all."""
    realm = ""
    """Where it sends them for a token; by default to itself."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        given = self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            known = given == f"Basic {LOGIN}"
            self.answer({"token": "t0ken"} if known else {}, 200 if known else 401)
        elif self.server.private == "basic" and given != f"Basic {LOGIN}":
            self.answer({}, 401, {"WWW-Authenticate": 'Basic realm="x"'})
        elif self.server.private == "bearer" and given != "Bearer t0ken":
            realm = self.server.realm or f"http://127.0.0.1:{self.server.server_port}/token"
            asked = f'Bearer realm="{realm}",service="r",scope="repository:a:pull"'
            self.answer({}, 401, {"WWW-Authenticate": asked})
        elif self.path in MANIFESTS:
            self.answer(MANIFESTS[self.path])
        elif self.path == "/v2/team/x/blobs/sha256:c":
            self.answer({"architecture": "amd64"})
        elif self.path == "/v2/team/broken/manifests/1":
            self.answer({}, 500)
        else:
            self.answer({}, 404)

    def answer(self, content, code=200, headers=None):
        data = json.dumps(content).encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def registry():
    server = Registry(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server, name, *, architecture="amd64", login=""):
    host = f"127.0.0.1:{server.server_port}"
    reference = parse_reference(f"{host}/{name}")
    return resolve(reference, architecture, {host: login} if login else {})


def digest_of(name):
    """Return the digest of a manifest: that of its text."""
    text = json.dumps(MANIFESTS[f"/v2/{name.replace(':', '/manifests/')}"])
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@pytest.mark.parametrize("name", ["team/x:1", "team/many:1"])
def test_a_tag_gets_its_digest(registry, name):
    found = ask(registry, name)
    assert (found.tag, found.digest) == ("1", digest_of(name))


@pytest.mark.parametrize(
    ("name", "why"),
    [("team/list:1", "not answer with a JSON object"), ("team/odd:1", "does not describe")],
)
def test_a_manifest_that_is_none(registry, name, why):
    with pytest.raises(UnavailableError, match=why):
        ask(registry, name)


@pytest.mark.parametrize("host", ["localhost.example", "127.0.0.1.example", "other.example"])
def test_a_login_is_not_sent_to_another_machine_without_tls(registry, host):
    registry.private, registry.realm = "bearer", f"http://{host}/token"
    with pytest.raises(UnavailableError, match=f"it sends us to http://{host}/token"):
        ask(registry, "team/x:1", login=LOGIN)


@pytest.mark.parametrize("private", ["basic", "bearer"])
def test_a_private_image_needs_the_login_of_podman_or_docker(registry, private):
    registry.private = private
    assert ask(registry, "team/x:1", login=LOGIN).digest == digest_of("team/x:1")
    with pytest.raises(NotFoundError, match="answered 401") as raised:
        ask(registry, "team/x:1")
    assert "podman login" in raised.value.hint


def test_an_image_that_does_not_exist(registry):
    with pytest.raises(NotFoundError, match=r"team/none:1 was not found: .* answered 404"):
        ask(registry, "team/none:1")


@pytest.mark.parametrize("name", ["team/x:1", "team/many:1"])
def test_an_image_for_another_architecture(registry, name):
    with pytest.raises(NotFoundError, match=r"is for .*amd64, not riscv64"):
        ask(registry, name, architecture="riscv64")


def test_a_registry_that_fails_or_is_away(registry):
    with pytest.raises(UnavailableError, match="cannot ask") as raised:
        ask(registry, "team/broken:1")
    assert "sha256" in raised.value.hint
    with pytest.raises(UnavailableError, match="Connection refused"):
        resolve(parse_reference("127.0.0.1:9/x:1"), "amd64", {})


def test_logins_are_read_from_the_files_of_podman_and_docker(tmp_path):
    first, second = tmp_path / "auth.json", tmp_path / ".docker" / "config.json"
    second.parent.mkdir()
    first.write_text(json.dumps({"auths": {"a.b:5": {"auth": "1"}}}))
    more = {"https://index.docker.io/v1/": {"auth": "2"}, "a.b:5": {"auth": "3"}}
    second.write_text(json.dumps({"auths": more}))
    environ = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(first)}
    assert read_credentials(environ) == {"a.b:5": "1", "docker.io": "2"}
    first.write_text("damaged")
    assert read_credentials(environ)["a.b:5"] == "3"
    assert read_credentials({"HOME": "/nonexistent"}) == {}
