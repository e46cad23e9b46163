//! Programs whose output is wanted within a time.

use std::io::{self, Read};
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The pause between looks at a program.
const PAUSE: Duration = Duration::from_millis(10);

/// The processes that are killed when the time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::remote) enum Killed {
    Program,
    /// All of its group, of which it was started as the first one.
    Group,
}

impl Killed {
    fn kill(self, child: &mut Child) -> io::Result<()> {
        match (self, Pid::from_raw(child.id().cast_signed())) {
            (Killed::Group, Some(group)) => match kill_process_group(group, Signal::KILL) {
                // Nobody is left.
                Err(rustix::io::Errno::SRCH) => Ok(()),
                killed => Ok(killed?),
            },
            _ => child.kill(),
        }
    }
}

/// The status and the output, at most `bytes_max` of it, of a program that was started with its standard output piped. `None`
/// if it has not ended within `time_max`, or if something that it started keeps the output open for longer: then it is killed.
pub(in crate::remote) fn wait_for_output(
    child: &mut Child,
    bytes_max: u64,
    time_max: Duration,
    killed: Killed,
) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let begun = Instant::now();
    let (sender, read) = mpsc::channel();
    let output = child.stdout.take();
    std::thread::spawn(move || {
        let mut printed = Vec::new();
        let end = output.map_or(Ok(0), |output| output.take(bytes_max).read_to_end(&mut printed));
        if sender.send(end.map(|_| printed)).is_err() {
            log::debug!("the output of a program came too late");
        }
    });
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() >= time_max => {
                killed.kill(child)?;
                child.wait()?;
                return Ok(None);
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    match read.recv_timeout(time_max.saturating_sub(begun.elapsed())) {
        Ok(printed) => Ok(Some((status, printed?))),
        Err(_) => {
            killed.kill(child)?;
            Ok(None)
        }
    }
}
