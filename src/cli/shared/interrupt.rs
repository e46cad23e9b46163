//! Ctrl-C: the first one cancels what the command has asked for, the second one ends the command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::model::{Error, Result};

/// The exit code of a command that a second Ctrl-C ends: 128 and the number of SIGINT.
const ENDED: i32 = 130;

/// Whether the user has pressed Ctrl-C.
#[derive(Clone)]
pub(in crate::cli) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to the signals from now on.
    pub fn listen() -> Result<Interrupt> {
        let pressed = Arc::new(AtomicBool::new(false));
        let failed = |error| Error::io("waiting for signals", error);
        for signal in [SIGINT, SIGTERM] {
            // In this order the first signal sets the flag, and the second one finds it set.
            signal_hook::flag::register_conditional_shutdown(signal, ENDED, pressed.clone())
                .map_err(failed)?;
            signal_hook::flag::register(signal, pressed.clone()).map_err(failed)?;
        }
        Ok(Interrupt(pressed))
    }

    /// Whether the user has pressed it.
    pub fn is_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
