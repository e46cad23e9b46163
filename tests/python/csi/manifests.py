"""The files of scripts/kubernetes: by the schemas of Kubernetes, by kubectl, and against the plugin.

kubectl asks a server which kinds there are, so a stand-in answers that question alone: `--dry-run=client` then reads each file as it does before it
sends one. The schemas are those of kubernetes-validate, which says of each field whether Kubernetes has it and of which type it is. Neither runs an
admission check or a controller. The volumes of the examples are mounted, by the calls that the kubelet makes of them.
"""
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kubernetes_validate
import yaml

from messages import MULTI_NODE_READER_ONLY, SINGLE_NODE_WRITER
from plugin import INVALID, KEYS, Bucket, capability, node, same_trees

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "scripts/kubernetes"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
KUBERNETES = ["1.34", "1.37"]
DRIVER = "csi.tierfs.io"
KUBELET = "/var/lib/kubelet"
# Kind, plural and whether it is in a namespace, of the kinds that the files have.
KINDS = {
    "v1": [("Namespace", "namespaces", False), ("ServiceAccount", "serviceaccounts", True), ("Secret", "secrets", True), ("Pod", "pods", True),
           ("PersistentVolume", "persistentvolumes", False), ("PersistentVolumeClaim", "persistentvolumeclaims", True)],
    "apps/v1": [("DaemonSet", "daemonsets", True), ("Deployment", "deployments", True)],
    "storage.k8s.io/v1": [("CSIDriver", "csidrivers", False), ("StorageClass", "storageclasses", False)],
    "rbac.authorization.k8s.io/v1": [("ClusterRole", "clusterroles", False), ("ClusterRoleBinding", "clusterrolebindings", False)],
}


def discovery():
    """Answers which kinds there are; the address."""
    groups = [{"groupVersion": group, "version": "v1"} for group in KINDS if "/" in group]
    answers = {"/api": {"kind": "APIVersions", "versions": ["v1"]},
               "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                   {"name": of["groupVersion"].split("/")[0], "versions": [of], "preferredVersion": of} for of in groups]}}
    for group, kinds in KINDS.items():
        listed = [{"kind": kind, "name": plural, "singularName": "", "namespaced": inside, "verbs": ["create", "get"]} for kind, plural, inside in kinds]
        answers[f"/apis/{group}" if "/" in group else f"/api/{group}"] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group,
                                                                          "resources": listed}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = answers.get(self.path.split("?")[0])
            body = json.dumps(found).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def kubectl(home, *arguments):
    program = Path(sys.executable).parent / "kubectl"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, env={"HOME": str(home), "PATH": os.environ["PATH"]})


def pods(documents):
    """The specifications of pods, with the names of what has them."""
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Pod":
            yield document["metadata"]["name"], spec
        elif "template" in spec:
            yield document["metadata"]["name"], spec["template"]["spec"]


def containers(documents):
    for _, spec in pods(documents):
        yield from [(spec, container) for container in [*spec.get("initContainers", []), *spec["containers"]]]


def option(container, name):
    found = [word.partition("=")[2] for word in container["args"] if word.partition("=")[0] == name]
    assert len(found) == 1, (name, container["args"])
    return found[0]


def host_path(spec, container, mount_path):
    """The path on the host of a mount of a container, and its propagation."""
    mount = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == mount_path)
    volume = next(volume for volume in spec["volumes"] if volume["name"] == mount["name"])
    return volume["hostPath"]["path"], mount.get("mountPropagation")


def names(machine, documents):
    """Names and paths that two files must spell alike."""
    of = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    with machine.check("each file names the driver as the plugin does"):
        found = re.findall(r"csi\.tierfs[^\s/\"]*", " ".join(path.read_text() for path in FILES))
        assert set(found) == {DRIVER, f"{DRIVER}:"} or set(found) == {DRIVER}, set(found)
        assert ("CSIDriver", DRIVER) in of
        assert machine.client.GetPluginInfo().name == DRIVER
        for document in documents:
            if document["kind"] == "StorageClass":
                assert document["provisioner"] == DRIVER
            if document["kind"] == "PersistentVolume":
                assert document["spec"]["csi"]["driver"] == DRIVER
    with machine.check("the driver object says what the plugin does"):
        spec = of["CSIDriver", DRIVER]["spec"]
        kinds = {of.rpc.type for of in machine.client.ControllerGetCapabilities().capabilities}
        assert spec["attachRequired"] == (2 in kinds), kinds
        assert spec["podInfoOnMount"] and "Ephemeral" in spec["volumeLifecycleModes"]
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    with machine.check("images have the name and the version of a release"):
        assert '"tierfs:$version"' in (ROOT / "scripts/dist.sh").read_text()
        kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
        assert kustomization["images"] == [{"name": "tierfs", "newName": "tierfs", "newTag": version}], kustomization
        for _, container in containers(documents):
            image, _, tag = container["image"].rpartition(":")
            if container["image"].startswith("tierfs"):
                assert container["image"] in ["tierfs", f"tierfs:{version}"], container
                assert container["command"][0] == "/usr/bin/tierfs", container
            else:
                assert image and tag and tag != "latest", container
    with machine.check("kustomization.yaml has each file of its folder"):
        listed = {"kustomization.yaml", *kustomization["resources"]}
        assert listed == {path.name for path in FOLDER.glob("*.yaml")}, listed
    daemon_set = of["DaemonSet", "tierfs-node"]["spec"]["template"]["spec"]
    plugin, registrar, liveness = daemon_set["containers"]
    with machine.check("the sockets of the plugin, the registrar, the kubelet and the provisioner are one"):
        socket = option(plugin, "--endpoint").removeprefix("unix://")
        folder, name = os.path.split(socket)
        on_host, _ = host_path(daemon_set, plugin, folder)
        assert on_host == f"{KUBELET}/plugins/{option(plugin, '--driver-name')}", on_host
        assert option(registrar, "--kubelet-registration-path") == f"{on_host}/{name}"
        assert host_path(daemon_set, registrar, "/registration")[0] == f"{KUBELET}/plugins_registry"
        controller = of["Deployment", "tierfs-controller"]["spec"]["template"]["spec"]
        for spec, container in [(daemon_set, registrar), (daemon_set, liveness), (controller, controller["containers"][0])]:
            assert option(container, "--csi-address") == socket
            assert host_path(spec, container, folder)[0] == on_host
        ports = {port["name"]: port["containerPort"] for port in plugin["ports"]}
        assert int(option(liveness, "--health-port")) == ports["healthz"] and plugin["livenessProbe"]["httpGet"]["port"] == "healthz"
        assert int(option(plugin, "--metrics").rpartition(":")[2]) == ports["metrics"]
        annotations = of["DaemonSet", "tierfs-node"]["spec"]["template"]["metadata"]["annotations"]
        assert int(annotations["prometheus.io/port"]) == ports["metrics"] and annotations["prometheus.io/path"] == "/metrics"
    with machine.check("what the plugin mounts reaches the host under the same path"):
        for path in [KUBELET, os.path.dirname(option(plugin, "--state"))]:
            assert host_path(daemon_set, plugin, path) == (path, "Bidirectional"), path
        assert option(plugin, "--cache").startswith(os.path.dirname(option(plugin, "--state")) + "/")
        assert of["StorageClass", "tierfs-clone"]["parameters"]["store"].startswith(os.path.dirname(option(plugin, "--state")) + "/")
        assert plugin["securityContext"]["privileged"] and daemon_set["hostPID"] == ("--host-systemd" in plugin["args"])
    with machine.check("only the plugin is privileged"):
        for _, container in containers(documents):
            assert container is plugin or not container.get("securityContext", {}).get("privileged"), container
    with machine.check("accounts, selectors and labels belong together"):
        for document in documents:
            spec = document.get("spec", {})
            if "template" in spec:
                assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"], document
                account = spec["template"]["spec"].get("serviceAccountName")
                assert account is None or ("ServiceAccount", account) in of, account
        binding = of["ClusterRoleBinding", "tierfs-controller"]
        assert ("ClusterRole", binding["roleRef"]["name"]) in of and ("ServiceAccount", binding["subjects"][0]["name"]) in of
    with machine.check("the program takes the options of the plugin, and no other"):
        for more, code in [([], 0), (["--bogus"], 2)]:
            done = subprocess.run([machine.program, *plugin["args"], *more, "--help"], capture_output=True, text=True, timeout=60)
            assert done.returncode == code, done


def secret(documents, reference):
    found = next(document for document in documents if document["kind"] == "Secret" and document["metadata"]["name"] == reference["name"])
    return found["stringData"]


def examples(machine):
    """The volumes of the examples, as the kubelet would mount them, with a bucket of this machine."""
    source = machine.model()
    store = machine.store(source, collection="acme/llama")
    machine.remote(store, "--variants", "q8", collection="acme/llama", name="models/prefix")
    bucket = Bucket(machine.directory / "buckets")
    here = {**KEYS, "AWS_ENDPOINT": bucket.endpoint}
    vllm, prefetch = ([*yaml.safe_load_all((FOLDER / "examples" / name).read_text())] for name in ["vllm.yaml", "prefetch.yaml"])
    with machine.check("the volume of the example of vLLM"):
        csi = next(document for document in vllm if document["kind"] == "PersistentVolume")["spec"]["csi"]
        given = {**secret(vllm, csi["nodeStageSecretRef"]), **here}
        staged = machine.stage(csi["volumeHandle"], csi["volumeAttributes"], given)
        target = machine.publish(csi["volumeHandle"], staged, csi["volumeAttributes"], readonly=csi["readOnly"])
        same_trees(target, source)
        machine.unpublish(csi["volumeHandle"], target)
        machine.unstage(csi["volumeHandle"], staged)
    with machine.check("the volume and the init container of the example of a pod"):
        spec = next(document for document in prefetch if document["kind"] == "Pod")["spec"]
        csi = spec["volumes"][0]["csi"]
        context = {**csi["volumeAttributes"], "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "server"}
        given, target = {**secret(prefetch, csi["nodePublishSecretRef"]), **here}, machine.place("pod") / "mount"
        machine.publish("csi-example", None, context, mode=SINGLE_NODE_WRITER, readonly=csi["readOnly"], at=target, secrets=given)
        [init] = spec["initContainers"]
        command = [str(target) if word == init["volumeMounts"][0]["mountPath"] else word for word in init["command"][1:]]
        user = str(spec["securityContext"]["runAsUser"])
        program = machine.directory / "program"
        program.write_bytes(Path(machine.program).read_bytes())
        program.chmod(0o755)
        for parent in [machine.directory, *machine.directory.parents[:-1]]:
            parent.chmod(parent.stat().st_mode | 0o011)
        done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", program, *command], capture_output=True, text=True,
                              cwd="/", timeout=60)
        assert done.returncode == 0 and "2 files" in done.stdout, done
        asked = len(bucket.requests)
        (target / "model.safetensors").read_bytes()
        assert not [path for path in bucket.requests[asked:] if "/piece/" in path], bucket.requests[asked:]
        machine.run("export", "--as", "q8", store, "acme/llama", machine.directory / "in q8")
        same_trees(target, machine.directory / "in q8")
        machine.unpublish("csi-example", target)
    classes = {of["metadata"]["name"]: of for of in yaml.safe_load_all((FOLDER / "storageclass.yaml").read_text())}
    with machine.check("the claims of the example of a clone"):
        made = {}
        for claim in yaml.safe_load_all((FOLDER / "examples/clone.yaml").read_text()):
            if claim["kind"] != "PersistentVolumeClaim":
                continue
            spec, name = claim["spec"], claim["metadata"]["name"]
            # external-provisioner keeps parameters with this prefix for itself, for example the names of secrets.
            parameters = {key: value for key, value in classes[spec["storageClassName"]]["parameters"].items() if "csi.storage.k8s.io/" not in key}
            if "store" in parameters:
                parameters["store"] = str(store)
            mode = {"ReadOnlyMany": MULTI_NODE_READER_ONLY, "ReadWriteOnce": SINGLE_NODE_WRITER}[spec["accessModes"][0]]
            of = {"volume": {"volume_id": made[spec["dataSource"]["name"]].volume_id}} if "dataSource" in spec else None
            made[name] = machine.client.CreateVolume(name=f"pvc-{name}", parameters=parameters, volume_capabilities=[capability(mode)], secrets=here,
                                                     capacity_range={"required_bytes": 1 << 30}, volume_content_source=of).volume
        assert len(made) == 2, made
        tuned = made["tuned"]
        staged = machine.stage(tuned.volume_id, dict(tuned.volume_context), here, mode=SINGLE_NODE_WRITER)
        target = machine.publish(tuned.volume_id, staged, dict(tuned.volume_context), mode=SINGLE_NODE_WRITER)
        same_trees(target, source)
        (target / "note.txt").write_text("tuned")
        machine.unpublish(tuned.volume_id, target)
        machine.unstage(tuned.volume_id, staged)
        for volume in reversed(made.values()):
            machine.client.DeleteVolume(volume_id=volume.volume_id)
    machine.refused("an attribute that no file has", INVALID, machine.client.NodeStageVolume, volume_id="x", volume_capability=capability(
        MULTI_NODE_READER_ONLY), staging_target_path=str(machine.place("globalmount")), volume_context={"store": str(store), "fsType": "fuse"})


with node() as machine:
    address, documents = discovery(), []
    for path in FILES:
        found = [document for document in yaml.safe_load_all(path.read_text()) if document]
        documents += found
        for document in found:
            of = f"{path.name}: {document['kind']} {document['metadata']['name']}"
            for version in KUBERNETES:
                with machine.check(f"{of} has the fields of Kubernetes {version}"):
                    kubernetes_validate.validate(document, version, strict=True)
            with machine.check(f"{of}: a field that does not exist is noticed"):
                try:
                    kubernetes_validate.validate({**document, "spek": {}}, KUBERNETES[-1], strict=True)
                except kubernetes_validate.ValidationError:
                    pass
                else:
                    raise AssertionError("it is not noticed")
        with machine.check(f"kubectl create --dry-run=client -f {path.name}"):
            done = kubectl(machine.directory, "--server", address, "create", "--dry-run=client", "--validate=false", "-o", "name", "-f", path)
            assert done.returncode == 0 and len(done.stdout.split()) == len(found), done
    with machine.check("kubectl create --dry-run=client -k scripts/kubernetes"):
        done = kubectl(machine.directory, "--server", address, "create", "--dry-run=client", "--validate=false", "-o", "yaml", "-k", FOLDER)
        assert done.returncode == 0, done
        made = [*yaml.safe_load_all(done.stdout)]
        made = made[0]["items"] if made[0]["kind"] == "List" else made
        assert len(made) == sum(1 for path in FILES if path.parent == FOLDER for _ in yaml.safe_load_all(path.read_text())), made
        assert {of["metadata"].get("namespace", "tierfs") for of in made} == {"tierfs"}, made
        assert f"image: tierfs:{re.search('newTag: (.*)', (FOLDER / 'kustomization.yaml').read_text())[1]}\n" in done.stdout
    machine.start()
    names(machine, documents)
    examples(machine)
