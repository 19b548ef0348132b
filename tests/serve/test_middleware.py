"""Who may ask, how often, how much at once, how slowly: in process, without a socket."""

import asyncio
import json

import httpx2
import numpy as np
import pytest

from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import WHOLE, BodyReader, ServerLimits
from lametta.serve.protocol import RequestLimits, TooManyRequestsError

TOKEN = "a-token-of-enough-letters"
PATH = "/v2/models/prudent/infer"


def _config(**limits):
    return ServerConfig({"prudent": CorrectorSpec("prudent", {})}, limits=ServerLimits(**limits))


def _body(n=1, d=4, k=3, **more):
    probs = np.full((n, k), 1 / k)
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP64",
            "data": array.ravel().tolist(),
        }
        for name, array in (("features", np.ones((n, d))), ("probs", probs))
    ]
    return json.dumps({"inputs": inputs, **more}).encode()


def _play(play, config):
    async def session():
        transport = httpx2.ASGITransport(config.app(), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await play(client)

    return asyncio.run(session())


def _ask(config, method="POST", path=PATH, **options):
    async def play(client):
        return await client.request(method, path, **options)

    return _play(play, config)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        ("Bearer another-token-too", 200),
    ],
)
def test_tokens(given, status):
    headers = {} if given is None else {"Authorization": given}
    config = _config(tokens=(TOKEN, "another-token-too"))
    answer = _ask(config, content=_body(), headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json() == {"error": "a bearer token is needed"}


@pytest.mark.parametrize("path", ["/", "/v2/health/live", "/v2/health/ready"])
def test_probes_and_the_page_need_no_token(path):
    assert _ask(_config(tokens=(TOKEN,)), "GET", path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v2", "/metrics", "/status.json", "/openapi.json", "/v2/models/prudent", "/nothing"]
)
def test_all_else_does(path):
    assert _ask(_config(tokens=(TOKEN,)), "GET", path).status_code == 401


def test_bodies_are_refused_by_their_length_before_they_are_read():
    async def play(client):
        async def never():
            raise AssertionError("the body was read")
            yield

        headers = {"Content-Length": "1001"}
        return await client.post(PATH, content=never(), headers=headers)

    answer = _play(play, _config(request=RequestLimits(1000, 10, 10)))
    assert answer.status_code == 413
    assert answer.json() == {"error": "the body must have at most 1000 bytes"}


@pytest.mark.parametrize("length", ["9" * 5000, "1e3", "-1", "²", ""])
def test_lengths_that_are_none(length):
    headers = {"Content-Length": length.encode()}
    answer = _ask(_config(request=RequestLimits(1000, 10, 10)), content=b"", headers=headers)
    assert answer.status_code in (400, 413)


def test_bodies_without_a_length_are_cut_off():
    sent = []

    async def play(client):
        async def endless():
            while len(sent) < 1000:
                sent.append(1)
                yield b" " * 300

        return await client.post(PATH, content=endless())

    answer = _play(play, _config(request=RequestLimits(1000, 10, 10)))
    assert answer.status_code == 413


def test_shapes_are_refused_before_data():
    config = _config(request=RequestLimits(10**6, 8, 16))
    for body, message in (
        (_body(n=9), "at most 8 rows"),
        (_body(d=17), "at most 16 columns"),
    ):
        answer = _ask(config, content=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]


def test_compressed_bodies_are_not_read():
    answer = _ask(_config(), content=_body(), headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("text/plain;charset=UTF-8", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
def test_bodies_that_a_page_of_another_origin_can_send(kind, status):
    """Browsers send these three kinds without asking the server first."""
    headers = {} if kind is None else {"Content-Type": kind}
    answer = _ask(_config(), content=_body(), headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert "Content-Type must be application/json or application/octet-st" in answer.text


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://server", 200),
        ("https://server", 200),  # behind a proxy that speaks TLS
        ("http://server:8001", 403),
        ("http://evil.example", 403),
        ("http://server.evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_pages_of_other_origins(origin, status):
    """A body without a type, as of a typed array, says nothing of where it is from."""
    for path, method in ((PATH, "POST"), ("/v2", "GET")):
        content = _body() if method == "POST" else b""
        answer = _ask(_config(), method, path, content=content, headers={"Origin": origin})
        assert answer.status_code == status
    if status == 403:
        assert answer.json() == {"error": "a page of another origin may not ask"}


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("a.example.com:8", 200), ("example.com", 400), ("evil.example", 400)],
)
def test_names_of_the_server(host, status):
    config = _config(hosts=("localhost", "*.example.com"))
    for path, method in ((PATH, "POST"), ("/", "GET"), ("/v2/health/live", "GET")):
        content = _body() if method == "POST" else b""
        answer = _ask(config, method, path, content=content, headers={"Host": host})
        assert answer.status_code == status


def test_answers_take_room_until_they_have_left():
    """There is room for two requests, but not beside an answer that nobody reads."""
    body = _body(n=30, k=250)  # 53 kB; the answer, whose numbers are not as round, has 158

    async def play():
        app, written, taken = config.app(), asyncio.Event(), asyncio.Event()

        async def ask():
            statuses = []

            async def receive():
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message):
                if statuses == [200, None]:
                    await taken.wait()  # as servers do while bytes of the message before are there
                statuses.append(message.get("status"))
                if len(message.get("body", b"")) > 2**14:
                    written.set()

            headers = [(b"content-length", b"%d" % len(body))]
            scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
            await app(scope, receive, send)
            return statuses[0]

        first = asyncio.create_task(ask())
        await asyncio.wait_for(written.wait(), 20)
        second = await asyncio.wait_for(ask(), 20)
        taken.set()
        return await first, second, await ask()

    config = _config(request=RequestLimits(2**17, 100, 1000), pending=2**17)
    assert asyncio.run(play()) == (200, 429, 200)


def test_an_answer_takes_the_room_that_it_needs():
    """It may be larger than its request."""
    reader = BodyReader(ServerLimits(pending=1000))
    with reader.reserve(400) as room:
        room.grow(300)  # never less than was reserved
        with reader.reserve(600):
            pass
        room.grow(1500)
        with pytest.raises(TooManyRequestsError), reader.reserve(1):
            pass
    assert (reader.n_requests, reader.n_bytes) == (0, 0)


def test_rates_are_each_clients_own():
    async def play(client):
        async def ask(token):
            headers = {"Authorization": f"Bearer {token}"}
            return (await client.get("/v2", headers=headers)).status_code

        tokens = [TOKEN] * 5 + ["another-token-too"] * 3
        return [await ask(token) for token in tokens]

    config = _config(tokens=(TOKEN, "another-token-too"), rate=1.0)
    assert _play(play, config) == [200, 200, 429, 429, 429, 200, 200, 429]
    first, second = _play(_twice, _config(rate=0.001))
    assert first.status_code == 200
    assert (second.status_code, second.headers["Retry-After"]) == (429, "1")
    assert second.json() == {"error": "rate limit exceeded: 0.001 requests per second"}


async def _twice(client):
    return [await client.get("/v2") for _ in range(2)]


def test_guessing_tokens_is_slow():
    async def play(client):
        wrong = [await client.get("/v2", headers={"Authorization": "Bearer x"}) for _ in range(4)]
        right = await client.get("/v2", headers={"Authorization": f"Bearer {TOKEN}"})
        return [answer.status_code for answer in (*wrong, right)]

    assert _play(play, _config(tokens=(TOKEN,), rate=1.0)) == [401, 401, 429, 429, 200]


def test_a_full_queue_says_so():
    """Three slow bodies, room for two."""

    async def play(client):
        release = asyncio.Event()

        async def slow():
            body = _body()
            yield body[:10]
            await release.wait()
            yield body[10:]

        asked = [asyncio.create_task(client.post(PATH, content=slow())) for _ in range(3)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        release.set()
        answers = await asyncio.gather(*asked)
        return [task.result().status_code for task in done], answers

    first, answers = _play(play, _config(queue=2))
    assert first == [429]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
    busy = next(answer for answer in answers if answer.status_code == 429)
    assert busy.headers["Retry-After"] == "1"


def test_memory_for_bodies_is_shared():
    async def play(client):
        release = asyncio.Event()

        async def slow():
            await release.wait()
            yield _body()

        first = asyncio.create_task(client.post(PATH, content=slow()))  # may be of any length
        await asyncio.sleep(0.01)
        second = await client.post(PATH, content=_body())
        release.set()
        return (await first).status_code, second.status_code, second.json()

    config = _config(request=RequestLimits(1000, 10, 10), pending=1200)
    first, second, said = _play(play, config)
    assert (first, second) == (200, 429)
    assert said == {"error": "the requests that are waiting are too large together"}


def test_slow_bodies_are_given_up():
    async def play(client):
        async def slow():
            yield b"{"
            await asyncio.sleep(5)
            yield b"}"

        return await client.post(PATH, content=slow())

    answer = _play(play, _config(patience=0.05))
    assert answer.status_code == 408
    assert answer.headers["Connection"] == "close"


@pytest.mark.parametrize("whole", [True, False])
def test_no_timer_is_started_for_a_body_that_is_there(whole, monkeypatch):
    body, started, statuses = _body(), [], []
    timeout = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda s: started.append(s) or timeout(s))

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        statuses.append(message.get("status"))

    headers = [(b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
    scope["extensions"] = {WHOLE: lambda: whole}
    asyncio.run(_config().app()(scope, receive, send))
    assert statuses == [200, None]
    assert started == ([] if whole else [10.0])


@pytest.mark.parametrize(
    ("path", "root", "status"),
    [
        ("/v2/", "", 200),
        ("/here/v2", "/here", 200),
        ("/here/v2/models/prudent/ready", "/here", 200),
        ("/herev2", "/here", 404),
        ("/v2//", "", 200),
        ("//", "", 404),
    ],
)
def test_paths_are_below_where_the_application_is_mounted(path, root, status):
    statuses = []

    async def send(message):
        statuses.append(message.get("status"))

    scope = {"type": "http", "method": "GET", "path": path, "root_path": root, "headers": []}
    asyncio.run(_config().app()(scope, None, send))
    assert statuses[0] == status


def test_deadlines_leave_the_stream_as_it_was():
    async def play(client):
        stream = {"sequence_id": 7}
        late = await client.post(PATH, content=_body(parameters={**stream, "timeout": 0.001}))
        good = await client.post(PATH, content=_body(parameters=stream))
        return late, good

    late, good = _play(play, _config())
    assert late.status_code == 504
    assert good.status_code == 200


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sequence_id": True}, "sequence_id must be an integer or a text, got True"),
        ({"sequence_id": 1.5}, "sequence_id must be an integer or a text, got 1.5"),
        ({"sequence_id": "x" * 257}, "sequence_id must have at most 256 characters"),
        ({"sequence_start": True}, "must come with a sequence_id"),
        ({"sequence_id": 1, "sequence_end": 1}, "sequence_end must be true or false, got 1"),
        ({"timeout": -1}, "timeout must be microseconds, got -1"),
        ({"timeout": "soon"}, "timeout must be microseconds, got 'soon'"),
    ],
)
def test_parameters_that_are_wrong(parameters, message):
    answer = _ask(_config(), content=_body(parameters=parameters))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_what_fails_says_nothing_of_why(monkeypatch, logged):
    from lametta.serve.service import Service

    def fail(*_):
        raise RuntimeError("a secret of the server")

    config = _config()
    monkeypatch.setattr(Service, "infer", fail)
    answer = _ask(config, content=_body())
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error"}
    assert "a secret of the server" in logged.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/nothing", 404),
        ("GET", "/v2/models/prudent/versions/2", 404),
        ("POST", "/v2/models/nothing/infer", 404),
        ("GET", PATH, 405),
        ("DELETE", "/v2", 405),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e%2fapp.py", 404),
        ("GET", "/docs", 404),
    ],
)
def test_what_there_is_not(method, path, status):
    answer = _ask(_config(), method, path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


def test_the_page_may_load_nothing_from_elsewhere():
    policy = _ask(_config(), "GET", "/").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'")


def test_metrics_count_every_request():
    async def play(client):
        for body in (_body(), b"{}"):
            await client.post(PATH, content=body)
        return (await client.get("/metrics")).text

    text = _play(play, _config())
    assert 'lametta_requests_total{code="200",model="prudent"} 1.0' in text
    assert 'lametta_requests_total{code="400",model="prudent"} 1.0' in text
