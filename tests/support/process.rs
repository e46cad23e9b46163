//! Running the `tierfs` program, and other programs.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// The exit code and the output of a program.
#[derive(Debug)]
pub struct Answer {
    /// `None` if a signal ended the program.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// The standard output of a program that succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// The standard error of a program that failed with `code` and printed each of `words` there.
    #[track_caller]
    pub fn failed(self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is missing in {:?}", self.err);
        }
        self.err
    }

    /// The standard output of a program that succeeded, as JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// The path of the program under test, which Cargo and nextest put into the environment of every integration test.
pub fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_tierfs").expect("run the tests with cargo test or cargo nextest").into()
}

/// The program under test.
pub fn tierfs() -> Command {
    let mut command = Command::new(program());
    command.stdin(Stdio::null());
    command
}

/// The program under test, limited to this many open files.
pub fn tierfs_limited(descriptors: u64) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = tierfs();
    let set = move || {
        let limit = rustix::process::Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
        Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?)
    };
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
    command
}

/// Runs `tierfs` with these arguments.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Answer {
    answer(tierfs().args(arguments))
}

/// Checks an unmounted store with `tierfs fsck`, which must find it clean.
#[track_caller]
pub fn fsck(store: &Path) {
    run(["fsck".as_ref(), store.as_os_str()]).ok();
}

/// Runs a command to its end, which must come in time.
pub fn answer(command: &mut Command) -> Answer {
    let shown = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let readers = [
        collect(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
        collect(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
    ];
    let code = ended(&mut child, &shown);
    let [out, err] = readers.map(|reader| reader.join().unwrap());
    Answer { code, out, err }
}

fn collect(pipe: Option<Box<dyn Read + Send>>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child, which must end in time; its exit code, or `None` if a signal ended it.
pub fn ended(child: &mut Child, what: &str) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= until {
            child.kill().unwrap();
            panic!("{what} did not end within {PATIENCE:?}");
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn bash(directory: &Path, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory);
    command
}

/// Runs a shell script, which must succeed.
#[track_caller]
pub fn shell(directory: &Path, script: &str) -> Output {
    let output = bash(directory, script).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    output
}

/// Runs a shell script, which must end in time.
pub fn script(directory: &Path, text: &str) -> Answer {
    answer(&mut bash(directory, text))
}

/// Runs a shell line as a user and a group, in a directory: the user may lack permission for the directories above it.
pub fn as_user(user: u32, group: u32, directory: &Path, line: &str) -> Answer {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
    command.args(["timeout", "20", "sh", "-c", line]);
    answer(command.current_dir(directory))
}

/// Runs a shell line as nobody, in a directory.
pub fn as_nobody(directory: &Path, line: &str) -> Answer {
    as_user(65534, 65534, directory, line)
}
