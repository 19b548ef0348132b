"""The files to deploy by name what there is: options of the command, paths, metrics."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from typer.main import get_command

from lametta import Prediction
from lametta.cli import app
from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.monitoring import Monitor
from lametta.serve.monitoring.alarms import ALARMS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
if not DEPLOY.exists():
    pytest.skip("deploy/ is not in this copy", allow_module_level=True)


def _dockerfile():
    """The instructions of the last stage, by name."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    last = max(i for i, line in enumerate(lines) if line.startswith("FROM"))
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines[last:]}, lines


def _manifest():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def _kind(name):
    (found,) = [part for part in _manifest() if part["kind"] == name]
    return found


def _pod():
    return _kind("Deployment")["spec"]["template"]["spec"]


def _parse(arguments):
    """What the command makes of these options; it is not run."""
    command = get_command(app).commands["serve"]
    return command.make_context("serve", list(arguments)).params


@pytest.fixture(scope="module")
def exported():
    """Samples of all metrics, by name: the labels that each has."""
    gauges = {name: lambda: 1 for name in ("queue", "streams", "evictions")}
    monitor = Monitor(["lame"], gauges)
    info = dict.fromkeys(("entropy", "evidence", "trust", "novelty", "n_iter"), 0.5)
    monitor.record_answer("lame", "s", np.eye(2), Prediction(np.eye(2), np.eye(2), info), 0.1)
    monitor.record_request("lame", 200, 0.1)
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(monitor.text().decode())
        for sample in family.samples
    }


def _queries():
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"dashboard: {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable: {variable['name']}", variable["definition"]
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


def test_every_query_asks_for_what_is_exported(exported):
    asked = set()
    for where, query in _queries():
        names = set(re.findall(r"lametta_\w+", query))
        assert names, where
        assert names <= exported.keys(), where
        asked |= names
        for name, labels in re.findall(r"(lametta_\w+)\{(.*?)\}", query):
            assert set(re.findall(r"(\w+)\s*[=!]~?", labels)) <= exported[name], where
        for labels in re.findall(r"by \((.*?)\)", query):
            assert set(labels.split(", ")) <= set.union(*(exported[name] for name in names)), where
        for left, right in ("()", "{}", "[]"):
            assert query.count(left) == query.count(right), where
    derived = re.compile("_(sum|created|count)$")  # beside the buckets
    assert {name for name in exported if not derived.search(name)} <= asked


def test_alarms_are_asked_for_by_their_names():
    words = " ".join(query for where, query in _queries() if where.startswith("alert"))
    for name in ALARMS:
        assert name in words


def test_panels_do_not_overlap():
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_image_runs_the_command_without_root_and_with_tokens():
    stage, _ = _dockerfile()
    assert int(stage["USER"]) > 0
    entry = json.loads(stage["ENTRYPOINT"])
    assert entry[:2] == ["lametta", "serve"]
    params = _parse(entry[2:] + json.loads(stage["CMD"]))
    assert params["host"] == "0.0.0.0"
    assert params["token_file"] is not None
    assert not params["everyone"]
    assert str(params["port"]) == stage["EXPOSE"]
    assert params["store"] == stage["VOLUME"]
    _, probe = stage["HEALTHCHECK"].split("CMD ")
    interpreter, _, code = json.loads(probe)
    assert interpreter == "python"
    compile(code, "probe", "exec")
    assert f"127.0.0.1:{params['port']}/v2/health/ready" in code


def test_the_image_installs_extras_that_there_are():
    _, lines = _dockerfile()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (asked,) = re.findall(r'"\.\[(.*?)\]"', "\n".join(lines))
    assert set(asked.split(",")) <= extras.keys()
    copied = [shlex.split(line)[1:-1] for line in lines if line.startswith("COPY ")]
    for path in (path for paths in copied if "--from=build" not in paths for path in paths):
        assert (ROOT / path).exists()
        assert f"!{path}" in (DEPLOY / "Dockerfile.dockerignore").read_text().split()


def test_the_image_has_what_a_wheel_is_made_from(tmp_path):
    _, lines = _dockerfile()
    for line in lines:
        if line.startswith("COPY ") and "--from=build" not in line:
            *paths, target = shlex.split(line)[1:]
            for path in paths:
                inside = tmp_path / target
                inside = inside if target == f"./{path}" else inside / Path(path).name
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.symlink_to(ROOT / path)
    about = ProjectMetadata(str(tmp_path), PluginManager())
    assert "lametta" in about.core.readme
    assert all((tmp_path / file).exists() for file in about.core.license_files)


def test_the_manifest_gives_options_that_there_are():
    (container,) = _pod()["containers"]
    stage, _ = _dockerfile()
    params = _parse(json.loads(stage["ENTRYPOINT"])[2:] + container["args"])
    assert params["correctors"] == ["prudent", "fast=lame:k=5"]
    assert params["store"] == "$(STORE)"
    (variable,) = container["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert (variable["name"], secret["name"]) == ("STORE", _kind("Secret")["metadata"]["name"])
    assert _kind("Secret")["stringData"][secret["key"]].startswith("redis://")
    (mount,) = [x for x in container["volumeMounts"] if x["name"] == "tokens"]
    assert f"{mount['mountPath']}/tokens" == str(params["token_file"])
    grace = _pod()["terminationGracePeriodSeconds"]
    assert grace > 5 + params["deadline"] + params["patience"]


def test_the_manifest_has_no_token_that_works():
    """Who applies it as it stands gets a server that does not start, not one that all can ask."""
    assert _kind("Secret")["stringData"]["tokens"] == ""


def test_pods_may_do_little():
    pod = _pod()
    (container,) = pod["containers"]
    stage, _ = _dockerfile()
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == int(stage["USER"])
    assert not pod["automountServiceAccountToken"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert _kind("Deployment")["spec"]["replicas"] == 2


def test_selectors_and_ports_fit_together():
    deployment, service = _kind("Deployment")["spec"], _kind("Service")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == service["selector"] == labels
    assert _kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    (port,) = _pod()["containers"][0]["ports"]
    assert service["ports"][0]["targetPort"] == port["name"]
    stage, _ = _dockerfile()
    assert str(port["containerPort"]) == stage["EXPOSE"]


def test_the_proxy_has_the_limits_of_the_server():
    text = re.sub("#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    directives = {
        line.split()[0]: line.split()[1:] for line in re.split("[;{}]", text) if line.split()
    }
    server = _parse([])
    n_heads, head = directives["large_client_header_buffers"]
    heads = [
        int(size.removesuffix("k")) for size in (*directives["client_header_buffer_size"], head)
    ]
    assert f"{heads[0] + int(n_heads) * heads[1]}k" == server["max_head"]
    assert directives["client_max_body_size"] == [server["max_body"].lower()]
    for name in ("client_header_timeout", "client_body_timeout", "send_timeout"):
        assert directives[name] == [f"{server['patience']:g}s"]
    assert directives["proxy_read_timeout"] == [f"{server['deadline'] + server['patience']:g}s"]
    assert f":{server['port']}" in text
    assert "proxy_set_header Host $http_host" in text
    (name,) = directives["server_name"]
    assert f"--allow-host {name}" in (DEPLOY / "nginx.conf").read_text()


def test_promises_name_tests_that_there_are():
    said = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/security.md").read_text())
    assert len(said) > 15
    for path, name in said:
        assert f"\ndef {name}(" in (ROOT / path).read_text(), name


def test_probes_ask_for_paths_that_need_no_token():
    (container,) = _pod()["containers"]
    paths = [
        container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    ]
    limits = ServerLimits(tokens=("a-token-of-enough-letters",))
    config = ServerConfig({"prudent": CorrectorSpec("prudent", {})}, limits=limits)
    with TestClient(config.app()) as client:
        assert [client.get(path).status_code for path in paths] == [200, 200, 200]
        assert client.get("/metrics").status_code == 401
