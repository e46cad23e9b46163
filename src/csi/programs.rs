//! Runs this program and others for a limited time.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::csi::failure::{Code, Failure, Outcome};
use crate::csi::secrets::Secrets;
use crate::model::{Error, ErrorKind};

/// Bytes of a program's answer that are kept. The JSON of an error is shorter.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// How often it is looked whether a program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Variables of the plugin's own service.
const OF_THE_SERVICE: [&str; 4] = ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC"];

/// This program, also after another version has taken its place.
pub(in crate::csi) fn own_program() -> PathBuf {
    let path = std::env::current_exe().ok().filter(|path| path.exists());
    path.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// The variables of this process, without those of its service.
pub(in crate::csi) fn own_environment() -> impl Iterator<Item = (OsString, OsString)> {
    let is_of_service = |name: &OsString| OF_THE_SERVICE.iter().any(|known| name == known);
    std::env::vars_os().filter(move |(name, _)| !is_of_service(name))
}

/// This program with the credentials of a volume.
pub(in crate::csi) fn own_command(secrets: &Secrets) -> Command {
    let mut command = Command::new(own_program());
    command.env_clear().envs(secrets.environment(own_environment())).stdin(Stdio::null());
    command
}

/// Waits for the end of a program, and kills it if it does not end in time. Whether it has succeeded.
pub(in crate::csi) fn ended(mut child: Child, doing: &str, until: Instant) -> Outcome<bool> {
    let failed = |error| Failure::from(Error::io(doing, error));
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status.success());
        }
        if Instant::now() >= until {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Err(Failure::late(doing));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Runs a command of this program, which prints JSON. `doing` says for messages what it does.
pub(in crate::csi) fn run(mut command: Command, doing: &str, until: Instant) -> Outcome<()> {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |error| Failure::from(Error::io(doing, error));
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take();
    // The pipe may hold less than the answer.
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut output) = output {
            let read = output.by_ref().take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
            // A program that prints more shall end too.
            if read.and_then(|_| io::copy(&mut output, &mut io::sink())).is_err() {
                bytes.clear();
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    if ended(child, doing, until)? {
        return Ok(());
    }
    let text = reader.join().unwrap_or_default();
    Err(told(&text).unwrap_or_else(|| Failure::new(Code::Internal, format!("{doing}: it failed"))))
}

/// The error that a command has printed as JSON.
pub(in crate::csi) fn told(text: &str) -> Option<Failure> {
    let value: Value = serde_json::from_str(text).ok()?;
    let error = value.get("error")?;
    let kind = ErrorKind::of_code(error.get("code")?.as_str()?)?;
    Some(Error::new(kind, error.get("text")?.as_str()?).into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{run, told};
    use crate::csi::failure::Code;

    #[test]
    fn the_error_of_a_command_decides_the_code() {
        for (kind, code) in [
            ("not found", Code::NotFound),
            ("forbidden", Code::PermissionDenied),
            ("io", Code::Unavailable),
            ("busy", Code::Unavailable),
            ("exists", Code::AlreadyExists),
        ] {
            let text = format!("{{\n\"error\": {{ \"code\": \"{kind}\", \"text\": \"why\" }} }}");
            let failure = told(&text).unwrap();
            assert_eq!((failure.code, failure.text.as_str()), (code, "why"));
        }
        assert_eq!(told("ready"), None);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let failure = run(sleep, "sleeping", Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(failure.code, Code::DeadlineExceeded);
    }
}
