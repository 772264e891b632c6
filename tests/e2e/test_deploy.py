"""The files of deploy/, as far as one box can test them: nginx in front, the systemd unit, the manifests."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.cuda import fake
from support.daemon import HANG, binary, wait_until
from support.daemons import peer_flags
from support.http import samples, scrape
from support.nginx import in_front
from support.tls import Authority
from support.users import need_two_users

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
HELP = subprocess.run([binary(), "--help"], capture_output=True, text=True, timeout=120).stdout


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.fixture
def proxied(start_daemon, tmp_path):
    with in_front(start_daemon, tmp_path) as front:
        yield front


def test_nginx_in_front(proxied, tt):
    address, authority, token = proxied.address, proxied.authority, proxied.token
    cert = authority.issue("alice")
    with tt.connect(address, token=token, ca=authority.ca, cert=cert):
        x = tt.arange(300_000, dtype=tt.float32)  # an upload and a download of more than a buffer
        y = tt.tensor(x.numpy()).requires_grad_()
        (y * y).sum().backward()
        assert float(y.grad[-1].item()) == 2.0 * 299_999
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(address, ca=authority.ca, cert=cert)
    with pytest.raises((tt.RefusedError, tt.SessionLostError)):  # nginx answers 400
        tt.connect(address, token=token, ca=authority.ca)


def test_the_unit():
    path = DEPLOY / "teletensord.service"
    text = path.read_text(encoding="utf-8")
    assert flags_of(text.split("ExecStart=")[1].splitlines()[0]) <= flags_of(HELP)
    if not shutil.which("systemd-analyze"):
        pytest.skip("not installed: systemd-analyze")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=30", str(path)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr


def test_the_supervisor_is_told(start_daemon, tmp_path):
    """The daemon's messages to systemd: READY, WATCHDOG of the health probe, STOPPING (the protocol of
    sd_notify)."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(HANG)
        daemon = start_daemon(env={"NOTIFY_SOCKET": path})
        told = set()
        while not told >= {"READY=1", "WATCHDOG=1"}:
            told.add(receiver.recv(100).decode())
        assert told == {"READY=1", "WATCHDOG=1"}
        assert daemon.terminate() == 0
        daemon.stop = lambda: ""
        while (last := receiver.recv(100).decode()) != "STOPPING=1":
            assert last == "WATCHDOG=1"


@pytest.mark.parametrize("name", ["kubernetes/daemon/teletensor.yaml", "kubernetes/peers/stateful.yaml",
                                  "kubernetes/jobset.yaml", "monitoring/prometheus.yml", "compose.yaml", "nginx.conf"])
def test_flags_that_files_name_exist(name):
    used = flags_of((DEPLOY / name).read_text(encoding="utf-8"))
    assert used - flags_of(HELP) <= {"--role"}


def loaded(name):
    yaml = pytest.importorskip("yaml")
    with open(DEPLOY / "kubernetes" / name, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def manifests():
    return loaded("daemon/teletensor.yaml")


def patched(manifest, patch):
    """Applies a JSON Patch, with the operations that the files use."""
    for step in patch:
        *way, last = step["path"].strip("/").split("/")
        at = manifest
        for key in way:
            at = at[int(key)] if isinstance(at, list) else at[key]
        assert step["op"] == "add" or last in at
        if last == "-":
            at.append(step["value"])
        else:
            at[last] = step["value"]
    return manifest


def peers():
    """The manifests of daemons that work together."""
    service, disruption, network, stateful = manifests()
    (network_patch,), (stateful_patch,) = loaded("peers/network.yaml"), loaded("peers/stateful.yaml")
    return [service, disruption, patched(network, network_patch), patched(stateful, stateful_patch),
            *loaded("peers/service.yaml")]


def check_schemas(found, oldest="1.27"):
    """Validates manifests against the API's own schemas, strictly: a key that Kubernetes does not know is an
    error."""
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in found:
        for version in (oldest, validate.latest_version()):
            validate.validate(manifest, version, strict=True)


def test_kubernetes_manifests_are_what_they_claim():
    found = manifests()
    assert [m["kind"] for m in found] == ["Service", "PodDisruptionBudget", "NetworkPolicy", "StatefulSet"]
    check_schemas(found)
    check_schemas(peers())
    validate = pytest.importorskip("kubernetes_validate")
    with pytest.raises(validate.ValidationError):
        found[3]["spec"]["template"]["spec"]["containers"][0]["recources"] = {}
        check_schemas(found)


def names_of(flag):
    """The daemons of --peers, with their addresses."""
    return dict(each.split("=") for each in flag.split(","))


def test_kubernetes_daemons_that_work_together():
    _, _, network, stateful, headless = peers()
    daemon = stateful["spec"]["template"]["spec"]["containers"][0]
    flags = dict(a.removeprefix("--").split("=", 1) for a in daemon["args"])
    service, name = headless["metadata"]["name"], stateful["metadata"]["name"]
    assert stateful["spec"]["serviceName"] == service and headless["spec"]["clusterIP"] == "None"
    port = {p["name"]: p["containerPort"] for p in daemon["ports"]}["peers"]
    assert flags["peer-listen"] == f"0.0.0.0:{port}" and flags["peer-name"] == "$(POD_NAME)"
    pods = [f"{name}-{i}" for i in range(stateful["spec"]["replicas"])]
    assert names_of(flags["peers"]) == {pod: f"{pod}.{service}:{port}" for pod in pods}
    mounts = {m["mountPath"] for m in daemon["volumeMounts"]}
    assert {os.path.dirname(flags[f"peer-{file}"]) for file in ("cert", "key", "ca")} <= mounts
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    to_peers = network["spec"]["egress"][0]
    assert to_peers["ports"] == [{"port": port}] and to_peers["to"][0]["podSelector"]["matchLabels"] == labels


@pytest.mark.parametrize("name, change", [("daemon", manifests), ("peers", peers), ("gpu", None)])
def test_kustomize_makes_these_manifests(name, change):
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("not installed: kubectl")
    yaml = pytest.importorskip("yaml")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY / "kubernetes" / name)], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr

    def by_name(found):
        return {(m["kind"], m["metadata"]["name"]): m for m in found}
    made = by_name(yaml.safe_load_all(done.stdout))
    if change is not None:
        assert made == by_name(change())
        return
    wanted = by_name(manifests())
    container = wanted["StatefulSet", "teletensor"]["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "teletensor:cuda"
    container["resources"]["limits"]["nvidia.com/gpu"] = 1
    assert made == wanted
    check_schemas(made.values())


def test_the_job_set_is_what_it_claims():
    """Validates the JobSet against its own types, and its job against Kubernetes' schema. Kubernetes has
    sidecars since 1.29."""
    job_set, network = loaded("jobset.yaml")
    models = pytest.importorskip("kubeflow_trainer_api.models")
    kept = models.JobsetV1alpha2JobSet.from_dict(job_set).to_dict()  # without keys that are unknown
    (node,) = job_set["spec"]["replicatedJobs"]
    kept["spec"]["replicatedJobs"][0]["template"] = node["template"]
    assert kept == job_set
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "training-node-0"}, **node["template"]}
    check_schemas([job, network], "1.29")
    template = job["spec"]["template"]
    (daemon,), (program,) = template["spec"]["initContainers"], template["spec"]["containers"]
    flags = dict(a.removeprefix("--").split("=", 1) for a in daemon["args"])
    ranks, domain = job["spec"]["completions"], job_set["spec"]["network"]["subdomain"]
    port = {p["name"]: p["containerPort"] for p in daemon["ports"]}["peers"]
    pods = [f"{job_set['metadata']['name']}-{node['name']}-0-{i}" for i in range(ranks)]
    assert flags["peer-listen"] == f"0.0.0.0:{port}"
    assert names_of(flags["peers"]) == {f"node-{i}": f"{pod}.{domain}:{port}" for i, pod in enumerate(pods)}
    variables = {v["name"]: v.get("value") for v in program["env"]}
    assert variables["WORLD_SIZE"] == str(ranks) == str(job["spec"]["parallelism"])
    assert variables["MASTER_ADDR"] == f"{pods[0]}.{domain}"
    assert variables["TELETENSOR_ADDRESS"] == f"unix:{flags['socket']}" and "RANK" in variables
    volumes = {v["name"] for v in template["spec"]["volumes"]}
    for container in (daemon, program):
        assert {m["name"] for m in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert network["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert network["spec"]["egress"][0]["ports"] == network["spec"]["ingress"][0]["ports"] == [{"port": port}]


def test_kubernetes_manifests_fit_together():
    service, disruption, network, stateful = manifests()
    template, spec = stateful["spec"]["template"], stateful["spec"]["template"]["spec"]
    labels = template["metadata"]["labels"]
    for selector in (service["spec"]["selector"], disruption["spec"]["selector"]["matchLabels"],
                     network["spec"]["podSelector"]["matchLabels"], stateful["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    volumes = {v["name"] for v in spec["volumes"]} | {v["metadata"]["name"]
                                                      for v in stateful["spec"]["volumeClaimTemplates"]}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {m["name"] for m in container["volumeMounts"]} <= volumes
        assert container["resources"]["requests"]["memory"] and container["resources"]["limits"]["memory"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
    daemon = spec["containers"][0]
    flags = dict(a.removeprefix("--").split("=") for a in daemon["args"])
    ports = {p["name"]: p["containerPort"] for p in daemon["ports"]}
    assert {p["targetPort"]: p["port"] for p in service["spec"]["ports"]} == ports
    assert flags["listen"] == f"0.0.0.0:{ports['grpc']}" and flags["http"] == f"0.0.0.0:{ports['http']}"
    assert int(flags["drain"]) < spec["terminationGracePeriodSeconds"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert daemon[probe]["exec"]["command"] == ["teletensor-health", f"unix:{flags['socket']}"]


@pytest.fixture
def open_folder():
    """A folder that other users can enter, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_mounted_keys_are_taken(open_folder):
    """Kubernetes mounts a secret as root's file, readable for the pod's group: the daemon accepts only this
    form of mode 0440."""
    need_two_users()
    certificate, key = Authority(open_folder / "ca").issue("server")
    (open_folder / "ca").chmod(0o755)
    key.chmod(0o440)

    def starts(gid):
        os.chown(key, 0, gid)
        home = open_folder / f"home-{gid}"
        home.mkdir(exist_ok=True)
        os.chown(home, 10001, 10001)
        flags = ["--listen", "127.0.0.1:0", "--state-dir", str(home / "state"), "--socket", str(home / "s"),
                 "--tls-cert", str(certificate), "--tls-key", str(key)]
        process = subprocess.Popen([program, *flags], user=10001, group=10001, extra_groups=[],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        process.terminate()
        return "ready" in line, process.communicate(timeout=120)[1]
    program = open_folder / "teletensord"  # the checkout may lie where others cannot look
    shutil.copy(binary(), program)
    program.chmod(0o755)
    assert starts(10001)[0]
    ready, text = starts(0)
    assert not ready and "Permission denied" in text
    key.chmod(0o444)
    ready, text = starts(10001)
    assert not ready and "chmod 600" in text


def expressions():
    """Returns (file, PromQL expression) of the alerts and of the dashboard."""
    alerts = re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|annotations):",
                        (DEPLOY / "monitoring/alerts.yml").read_text(encoding="utf-8"), re.DOTALL)
    dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text(encoding="utf-8"))
    panels = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    queries = [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(alerts) >= 8 and len(panels) >= 20 and queries
    return [*(("alerts.yml", e) for e in alerts), *(("dashboard.json", e) for e in (*panels, *queries))]


def test_alerts_and_dashboard_name_metrics_that_exist(start_daemon, tt, tmp_path):
    """The metrics with their labels, from a daemon on which every metric has a row."""
    flags, environment = fake("--disk-memory", "1GiB", "--disk-dir", str(tmp_path / "disk"),
                              *peer_flags("a", "b=127.0.0.1:1"))
    daemon = start_daemon(*flags, env=environment)
    exported = {}
    with tt.connect(daemon.unix):
        tt.ones(3).sum().item()
        tt.frexp(tt.ones(3, device="cuda"))[0].sum().item()  # on the host
        with tt.connect(daemon.unix):
            pass
        wait_until(lambda: "teletensor_sessions_ended_total{" in scrape(daemon))
        for name, labels in samples(scrape(daemon)):
            exported.setdefault(name, set()).update(labels)
    from_prometheus = {"instance", "job"}
    named = set()
    for file, expression in expressions():
        for name, matchers in re.findall(r"\b((?:teletensor|process)_[a-z_]+)(?:\{([^}]*)\})?", expression):
            assert name in exported, (file, name)
            named.add(name)
            has = {label for label, _ in exported[name]}
            for label, operator, value in re.findall(r'(\w+)(=~?)"([^"]*)"', matchers):
                assert label in has | from_prometheus, (file, expression)
                if operator == "=" and label not in from_prometheus:
                    assert (label, value) in exported[name], (file, expression)
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert set(re.split(r", *", labels)) <= from_prometheus.union(
                *({label for label, _ in exported[name]} for name in exported if name in expression)), expression
    # In the other direction, each metric that a daemon exports is shown on the dashboard or raises an alert.
    assert set(exported) - named == set()


def test_dashboard_panels_do_not_overlap():
    panels = json.loads((DEPLOY / "monitoring/dashboard.json").read_text(encoding="utf-8"))["panels"]
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len({p["id"] for p in panels}) == len(panels)


def test_compose_files_fit_together(tmp_path):
    yaml = pytest.importorskip("yaml")
    own, more = (yaml.safe_load((DEPLOY / n).read_text(encoding="utf-8"))["services"]
                 for n in ("compose.yaml", "compose-monitoring.yaml"))
    assert set(own) == {"teletensord"} and set(more) == {"teletensord", "prometheus", "grafana"}
    assert flags_of(" ".join(more["teletensord"]["command"])) <= flags_of(HELP)
    assert [f for f in own["teletensord"]["command"] if f not in more["teletensord"]["command"]] == []
    for service in more.values():
        for volume in service.get("volumes", []):
            assert (DEPLOY / volume.split(":")[0]).exists(), volume
    http = more["teletensord"]["command"][more["teletensord"]["command"].index("--http") + 1]
    scraped = yaml.safe_load((DEPLOY / "monitoring/prometheus.yml").read_text(encoding="utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == [http]
    compose = shutil.which("docker-compose")
    if compose:
        environment = {**os.environ, "TELETENSOR_RUN": str(tmp_path), "GRAFANA_PASSWORD": "x"}
        files = [w for n in ("compose.yaml", "compose-monitoring.yaml") for w in ("-f", str(DEPLOY / n))]
        done = subprocess.run([compose, *files, "config", "-q"], env=environment, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stderr
@pytest.mark.skipif(not shutil.which("docker-compose"), reason="needs docker-compose")
def test_the_gpu_file_goes_over_the_other():
    done = subprocess.run(
        ["docker-compose", "-f", DEPLOY / "compose.yaml", "-f", DEPLOY / "compose.gpu.yaml", "config"],
        env={**os.environ, "TELETENSOR_RUN": "/run/teletensor"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "teletensor:cuda" in done.stdout and "nvidia" in done.stdout


def test_image_targets_that_files_name_exist():
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (DEPLOY.parent / "Dockerfile").read_text(), re.M)
    for name in ("compose.yaml", "compose.gpu.yaml"):
        for target in re.findall(r"target: (\w+)", (DEPLOY / name).read_text()):
            assert target in stages
