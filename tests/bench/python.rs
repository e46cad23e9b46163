//! Python programs that the rows ask to do something.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;
use crate::place::missing;

const PYTHON: &str = "target/venv/bin/python";

/// A process that reads lines `VERB PATH` and answers each with a line.
pub struct Python {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Python {
    pub fn start(script: &str, arguments: &[&str]) -> Result<Python> {
        if !Path::new(PYTHON).exists() {
            return Err(missing(&format!("{PYTHON} is not there (scripts/setup.sh bench)")));
        }
        let mut command = Command::new(PYTHON);
        command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let say = child.stdin.take().ok_or("no pipe")?;
        let hear = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Python { child, say, hear })
    }

    pub fn ask(&mut self, verb: &str, path: &Path) -> Result<String> {
        writeln!(self.say, "{verb} {}", path.display())?;
        let mut answer = String::new();
        self.hear.read_line(&mut answer)?;
        match answer.trim() {
            "" => Err("the Python program ended".into()),
            answer => Ok(answer.to_owned()),
        }
    }

    /// [`ask`](Self::ask) for a number of seconds.
    pub fn seconds(&mut self, verb: &str, path: &Path) -> Result<f64> {
        let answer = self.ask(verb, path)?;
        answer.parse().map_err(|_| format!("the Python program says {answer:?}").into())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).unwrap_or_default();
    }
}
