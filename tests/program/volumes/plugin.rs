//! A plugin with a remote, and what it has mounted. Dropping it leaves nothing mounted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Place, Random, answer, container_of, ended, run, shell_output, tierfs, wait_until};

use super::wire::{Refused, call, capability, number, text, texts};

pub const SINGLE_NODE_WRITER: u64 = 1;
pub const MULTI_NODE_READER_ONLY: u64 = 3;

/// The attributes of a volume.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

pub struct Node {
    pub place: Place,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    plugin: Option<Child>,
    /// The content of the file `m.safetensors` of the collection t/c.
    pub model: Vec<u8>,
}

impl Node {
    /// A place with a remote `bucket` and a store `store`, which have a collection t/c, and a plugin.
    pub fn new() -> Node {
        let mut node = Node::without_plugin();
        node.start();
        node
    }

    pub fn without_plugin() -> Node {
        let place = Place::new();
        let model = container_of(&mut Random(7), &[("w", 100_000), ("b", 3000)]);
        let source = place.write("in/m.safetensors", &model);
        let store = place.store();
        run(["init".as_ref(), store.as_os_str()]).ok();
        place.import("t/c", &[&source], &[]);
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        let mut push = tierfs();
        answer(push.arg("push").arg(&store).args(["t/c", &url, "--create"])).ok();
        fs::create_dir(place.path("kubernetes.io~csi")).unwrap();
        Node { place, arguments: Vec::new(), environment: Vec::new(), plugin: None, model }
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.place.path("bucket").display())
    }

    pub fn state(&self) -> PathBuf {
        self.place.path("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.place.path("csi.sock")
    }

    /// The output of all plugins of this node.
    pub fn log(&self) -> String {
        fs::read_to_string(self.place.path("plugin.log")).unwrap_or_default()
    }

    pub fn start(&mut self) {
        let log = fs::File::options().append(true).create(true).open(self.place.path("plugin.log")).unwrap();
        let mut command = tierfs();
        command.arg("csi").arg("--endpoint").arg(format!("unix://{}", self.socket().display()));
        command.args(["--node-id", "node-1", "--state"]).arg(self.state()).args(&self.arguments);
        command.envs(self.environment.clone()).env("TIERFS_LOG", "debug");
        self.plugin = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        let plugin = self.plugin.as_mut().unwrap();
        wait_until("an answer of the plugin", || {
            assert!(plugin.try_wait().unwrap().is_none(), "the plugin has ended");
            call(&self.place.path("csi.sock"), "Identity/Probe", &[], "5S").is_ok()
        });
    }

    pub fn process(&self) -> u32 {
        self.plugin.as_ref().unwrap().id()
    }

    pub fn kill(&mut self) {
        let mut plugin = self.plugin.take().unwrap();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
    }

    /// Ends the plugin by SIGTERM.
    pub fn terminate(&mut self) {
        let mut plugin = self.plugin.take().unwrap();
        // SAFETY: kill takes two numbers and touches no memory of this process.
        unsafe { libc::kill(plugin.id() as i32, libc::SIGTERM) };
        assert_eq!(ended(&mut plugin, "the plugin"), Some(0));
    }

    pub fn call(&self, path: &str, message: &[u8]) -> Result<Vec<u8>, Refused> {
        call(&self.socket(), path, message, "60S")
    }

    pub fn pod(&self, name: &str) -> PathBuf {
        self.place.path("kubernetes.io~csi").join(name)
    }

    pub fn staging(&self, id: &str) -> PathBuf {
        let path = self.place.path(format!("kubernetes.io/csi/staging-{id}"));
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn stage(&self, id: &str, attributes: Attributes) -> Result<Vec<u8>, Refused> {
        self.call("Node/NodeStageVolume", &self.stage_message(id, attributes, MULTI_NODE_READER_ONLY, &[]))
    }

    pub fn stage_message(&self, id: &str, attributes: Attributes, mode: u64, secrets: Attributes) -> Vec<u8> {
        let staging = self.staging(id);
        [
            text(1, id),
            text(3, staging.to_str().unwrap()),
            capability(4, mode),
            texts(5, secrets),
            texts(6, attributes),
        ]
        .concat()
    }

    pub fn publish_message(
        &self,
        id: &str,
        pod: &str,
        attributes: Attributes,
        mode: u64,
        read_only: bool,
    ) -> Vec<u8> {
        [
            text(1, id),
            text(3, self.staging(id).to_str().unwrap()),
            text(4, self.pod(pod).to_str().unwrap()),
            capability(5, mode),
            number(6, u64::from(read_only)),
            texts(8, attributes),
        ]
        .concat()
    }

    pub fn publish(&self, id: &str, pod: &str, attributes: Attributes) -> Result<Vec<u8>, Refused> {
        let message = self.publish_message(id, pod, attributes, MULTI_NODE_READER_ONLY, true);
        self.call("Node/NodePublishVolume", &message)
    }

    pub fn unpublish(&self, id: &str, pod: &str) -> Result<Vec<u8>, Refused> {
        let message = [text(1, id), text(2, self.pod(pod).to_str().unwrap())].concat();
        self.call("Node/NodeUnpublishVolume", &message)
    }

    pub fn unstage(&self, id: &str) -> Result<Vec<u8>, Refused> {
        let message = [text(1, id), text(2, self.staging(id).to_str().unwrap())].concat();
        self.call("Node/NodeUnstageVolume", &message)
    }

    /// The processes of daemons of this node.
    pub fn daemons(&self) -> Vec<u32> {
        let below = self.state().join("mounts").display().to_string();
        let own = self.plugin.as_ref().map(Child::id);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            if line.contains(&below) && line.contains("\0mount\0") && Some(process) != own {
                found.push(process);
            }
        }
        found
    }

    /// Mounts below the place, as the kernel shows them.
    pub fn mounts(&self) -> Vec<String> {
        let place = self.place.path("").canonicalize().unwrap();
        let bytes = fs::read("/proc/thread-self/mountinfo").unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
        points.filter(|point| Path::new(point).starts_with(&place)).collect()
    }

    /// Asserts that nothing is left of any volume.
    #[track_caller]
    pub fn is_clean(&self) {
        assert_eq!((self.mounts(), self.daemons()), (Vec::<String>::new(), Vec::new()), "{}", self.log());
        for folder in ["mounts", "volumes"] {
            assert_eq!(fs::read_dir(self.state().join(folder)).unwrap().count(), 0, "{folder}");
        }
        assert_eq!(fs::read_dir(self.place.path("kubernetes.io~csi")).unwrap().count(), 0);
    }

    /// Files and directories of the state that others may read.
    pub fn open_to_others(&self) -> Vec<PathBuf> {
        let mut waiting = vec![self.state()];
        let mut found = Vec::new();
        while let Some(path) = waiting.pop() {
            // A mount has the modes of its source, and the way to it is closed. So is that to the files of a cache.
            if path.file_name().is_some_and(|name| name == "fs") {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.permissions().mode() & 0o077 != 0 {
                found.push(path.clone());
            }
            if metadata.is_dir() && path.file_name().is_some_and(|name| name != "cache") {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        found
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut plugin) = self.plugin.take() {
            drop(plugin.kill());
            drop(plugin.wait());
        }
        for daemon in self.daemons() {
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(daemon as i32, libc::SIGKILL) };
        }
        for mount in self.mounts().iter().rev() {
            shell_output(Path::new("/"), &format!("umount -l '{mount}'"));
        }
    }
}

/// A program that reads a file again and again in a mount namespace of its own, until its standard input ends. It fails at the
/// first error.
pub fn reader_in_a_namespace(file: &Path, expected: &Path) -> Child {
    let script = format!(
        "exec 3<{file}; echo begun; while ! read -r -t 0.01; do cmp -s {file} {expected} || exit 7; done",
        file = file.display(),
        expected = expected.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}
