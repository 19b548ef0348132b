"""``lametta serve``: correctors behind the Open Inference Protocol."""

import math
import os
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lametta import methods
from lametta._checks import check_choice, reading
from lametta._files import check_regular_file
from lametta.cli._console import (
    Features,
    Logits,
    check_beside,
    option_names,
    parse_settings,
    require,
    user_errors,
)
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.serve.config import CorrectorSpec
    from lametta.types import Prototypes

_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_SPEC = re.compile(
    r"(?:(?P<name>[^:=]*)=)?(?P<method>python:[^:]+:[^:]+|[^:=]+)(?::(?P<options>.+))?"
)
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]|\*")
_SHORTEST = 16  # characters of a token
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def serve(
    correctors: Annotated[
        list[str] | None,
        typer.Option(
            "--corrector",
            metavar="[NAME=]METHOD[:OPTION=VALUE,...]",
            help="What to serve, as the model of that name, such as prudent or fast=lame:k=3; may "
            "be given repeatedly. prudent if not given.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="A port for gRPC beside HTTP, on the same address; 0: a free one.",
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="FOLDER|memory|redis://HOST",
            help="Where the states of streams survive; Redis lets several replicas share them.",
        ),
    ] = "lametta-streams",
    durable: Annotated[
        str | None,
        typer.Option(
            metavar="always|interval|never",
            help="When a folder's files are forced to the disk: before each answer, every second "
            "(the default), or when the system likes. A power cut loses what was not.",
        ),
    ] = None,
    store_password_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the password of Redis, else LAMETTA_STORE_PASSWORD of the "
            "environment: in --store, others could see it."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file of bearer tokens, one a line; every request needs one of them."),
    ] = None,
    everyone: Annotated[
        bool,
        typer.Option("--open", help="Serve without tokens, though others can reach the address."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that Host may have, such as that of a proxy or *.example.com; may be "
            "given repeatedly. By default those of this machine on a local --host, else any.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.ONNX",
            help="A classifier that predicts here: requests then bring images or its tensors.",
        ),
    ] = None,
    features: Features = None,
    logits: Logits = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text file with the names of the classes, one a line in their order, or a bank "
            "of the model's outputs that has them, for answers (label_name) and the page at /; by "
            "default those in the file of --prototypes, or in the model's.",
        ),
    ] = None,
    prototypes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .npz or .safetensors file, such as a bank, with prototypes [K, d] and bias "
            "[K], the weights of the model's head, for correctors that need them; by default those "
            "in the model's file.",
        ),
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Answer with the network's own probabilities, and record what the correction "
            "would have said: the page at / and lametta report show where they differ.",
        ),
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="Streams that are kept.")] = 100_000,
    idle: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which an unused stream is forgotten.")
    ] = 86_400.0,
    memory: Annotated[
        str,
        typer.Option(
            help="Bytes of states held ready, for each corrector, and as many of --store memory: "
            "512M, 2G."
        ),
    ] = "1G",
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait at a time.")] = 256,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests a second from one client.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which an answer is of no use.")
    ] = 10.0,
    patience: Annotated[
        float, typer.Option(min=0.001, help="Seconds that a client may take to send a request.")
    ] = 10.0,
    max_body: Annotated[str, typer.Option(help="Bytes of a request: 16M.")] = "16M",
    max_head: Annotated[
        str, typer.Option(help="Bytes of a request's head, its line and headers: 16k.")
    ] = "16k",
    max_json: Annotated[str, typer.Option(help="Bytes of JSON in a request: 4M.")] = "4M",
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a tensor.")] = 4096,
    max_columns: Annotated[
        int, typer.Option(min=1, help="Columns of a tensor: features, classes, pixels of a side.")
    ] = 65_536,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Pixels of all images of a request, for --model.")
    ] = 89_478_485,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads that compute requests; by default one a core, for those that take long.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve on a Ray cluster, such as auto or ray://HEAD:10001; needs a Redis store.",
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas on the cluster; 2 if not given.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug logs every request; info, warning, error.")
    ] = "info",
) -> None:
    """Serve correctors over HTTP, each stream with its own memory.

    The server speaks the Open Inference Protocol v2 (JSON and binary tensors), as Triton and
    KServe do, so that their clients work: inputs features [N, d] and probs or logits [N, K], a
    sequence_id for the stream; outputs probs, label and source_label. A page at / shows what it
    does, /metrics is for Prometheus.

    Example: lametta serve --port 8000 --corrector prudent --corrector fast=lame:k=3
    """
    with user_errors():
        needs = "httptools", "orjson", "prometheus_client", "threadpoolctl", "uvicorn"
        require("serve", *needs)
        check_beside("--features", features, "--model", model)
        check_beside("--logits", logits, "--model", model)
        check_beside("--replicas", replicas, "--ray", ray)
        if model is not None:
            require("onnx", "onnx", "onnxruntime")
        if grpc_port is not None:
            if ray is not None:
                raise LamettaError("--grpc-port must not come with --ray, which has HTTP alone")
            require("grpc", "grpc", "tritonclient")
        if "://" in store:
            require("redis", "redis")
        from lametta.serve.config import ServerConfig
        from lametta.serve.middleware import ServerLimits
        from lametta.serve.protocol import RequestLimits

        body, json = _bytes("--max-body", max_body), _bytes("--max-json", max_json)
        limits = ServerLimits(
            tokens=_tokens(token_file),
            request=RequestLimits(body, max_rows, max_columns, json, max_pixels),
            rate=math.inf if rate is None else rate,
            queue=queue,
            pending=max(body, 2**27),
            deadline=deadline,
            patience=patience,
            head=_bytes("--max-head", max_head),
            hosts=_hosts(host, allow_host or []),
        )
        if not limits.tokens and not everyone and not _is_local(host):
            raise LamettaError(
                f"--token-file must be given where others can reach the server, got --host {host} "
                "without it; --open serves everyone"
            )
        head, named = (None, None) if prototypes is None else _head(prototypes)
        config = ServerConfig(
            correctors=_served(correctors or ["prudent"]),
            store=store,
            limits=limits,
            most=most,
            idle=idle,
            memory=_bytes("--memory", memory),
            durable=durable,
            password=_password(store_password_file, store),
            threads=threads,
            model=model,
            features=features,
            logits=logits,
            names=named if names is None else _names(names),
            prototypes=head,
            shadow=shadow,
        )
        from lametta.serve.server import log_to_stderr, run

        check_choice("--log-level", log_level, ("debug", "info", "warning", "error"))
        level = log_level.upper()
        log_to_stderr(level)
        with option_names(
            store="--store",
            durable="--durable",
            password="--store-password-file",
            path="--model",
            names="--names",
            prototypes="--prototypes",
            address="--ray",
            port="--port",
        ):
            if ray is not None:
                require("ray", "ray")
                from lametta.serve.ray import serve_on_ray

                serve_on_ray(
                    config, ray, replicas=replicas or 2, host=host, port=port, log_level=level
                )
                return
            app = config.app()
    run(app, host, port, limits, grpc_port)


def _served(specs: Sequence[str]) -> "dict[str, CorrectorSpec]":
    """The correctors that ``[NAME=]METHOD[:OPTION=VALUE,...]`` say, by name."""
    from lametta.serve.config import CorrectorSpec

    served: dict[str, CorrectorSpec] = {}
    for spec in specs:
        found = _SPEC.fullmatch(spec)
        if found is None:
            raise LamettaError(
                f"--corrector must be [NAME=]METHOD[:OPTION=VALUE,...], got {spec!r}"
            )
        name, method, text = found["name"] or found["method"], found["method"], found["options"]
        options = parse_settings(text.split(","), "--corrector") if text else {}
        for option, message in methods.find(method, "--corrector").param_errors(options):
            raise LamettaError(f"--corrector {spec}: {option} {message}")
        with option_names(correctors="--corrector"):
            CorrectorSpec(method, options).make()
        if not _NAME.fullmatch(name):
            raise LamettaError(
                f"--corrector must have a name of letters, digits and ._+-, got {name!r}; "
                "NAME=METHOD gives one"
            )
        if name in served:
            raise LamettaError(f"--corrector must have a name of its own, got {name!r} twice")
        served[name] = CorrectorSpec(method, options)
    return served


def _tokens(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    check_regular_file("--token-file", path)
    text = path.read_text(encoding="utf-8", errors="replace")
    tokens = tuple(filter(None, map(str.strip, text.splitlines())))
    if not tokens or any(len(token) < _SHORTEST or not token.isascii() for token in tokens):
        raise LamettaError(
            f"--token-file must have tokens of {_SHORTEST} ASCII characters or more, one a line, "
            f"got {path} with {'others' if tokens else 'none'}"
        )
    return tokens


def _password(path: Path | None, store: str) -> str | None:
    """The password of Redis, if there is one."""
    if path is None:
        return os.environ.get("LAMETTA_STORE_PASSWORD") if "://" in store else None
    check_regular_file("--store-password-file", path)
    password = path.read_text(encoding="utf-8").strip()
    if not password:
        raise LamettaError(f"--store-password-file must have a password, got {path} with none")
    return password


def _names(path: Path) -> tuple[str, ...]:
    """The names of classes in a file, one a line, or in a bank."""
    check_regular_file("--names", path)
    if path.suffix in (".npz", ".safetensors"):
        return _bank_names(path)
    with reading(path, "a text file in UTF-8", UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    names = tuple(map(str.strip, lines))
    if path.suffix == ".json" or not names or "" in names:
        where = f", line {names.index('') + 1} of which is empty" if "" in names else ""
        raise LamettaError(
            f"--names must be a text file with a class in each line, got {path}{where}"
        )
    return names


def _bank_names(path: Path) -> tuple[str, ...]:
    from lametta.cli._predictions import class_names
    from lametta.data.bank import Bank

    with option_names(path="--names"):
        bank = Bank.open(path)
    if not (names := class_names(bank.header, bank.n_classes)):
        raise LamettaError(f"--names must be a bank that names its classes, got {path} without")
    return names


def _head(path: Path) -> "tuple[Prototypes, tuple[str, ...] | None]":
    """The prototypes in a file, such as a bank, and the names of their classes, if it has them."""
    from lametta.cli._predictions import class_names
    from lametta.data.bank.bank import read_prototypes

    prototypes, header = read_prototypes(path, "--prototypes")
    return prototypes, class_names(header, len(prototypes.weight)) or None


def _bytes(option: str, text: str) -> int:
    """A number of bytes: 512M is 512 times 2^20."""
    found = re.fullmatch(r"(\d{1,15})([kmgt]?)b?", text.strip().lower())
    if not found or not int(found[1]):
        raise LamettaError(f"{option} must be bytes such as 512M or 2G, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _hosts(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The names that Host may have: a page that was given another for this address may not ask."""
    for name in allowed:
        if not _HOST.fullmatch(name):
            raise LamettaError(
                f"--allow-host must be a name without a port, or *.NAME, got {name!r}"
            )
    own = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host}
    return (*sorted(own), *allowed) if _is_local(host) else tuple(allowed)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
