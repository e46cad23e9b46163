//! Ctrl-C: the first one cancels the command's jobs, the second one ends the command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::INTERRUPTED;
use crate::model::{Error, Result};

/// The flag that the process listens with.
static LISTENING: OnceLock<Interrupt> = OnceLock::new();

/// Whether the user has pressed Ctrl-C.
#[derive(Clone)]
pub(in crate::cli) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to the signals from now on.
    pub fn listen() -> Result<Interrupt> {
        if let Some(listening) = LISTENING.get() {
            return Ok(listening.clone());
        }
        let pressed = Arc::new(AtomicBool::new(false));
        let failed = |error| Error::io("waiting for signals", error);
        for signal in [SIGINT, SIGTERM] {
            // In this order the first signal sets the flag, and the second one finds it set.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), pressed.clone())
                .map_err(failed)?;
            signal_hook::flag::register(signal, pressed.clone()).map_err(failed)?;
        }
        Ok(LISTENING.get_or_init(|| Interrupt(pressed)).clone())
    }

    /// Whether the user has pressed Ctrl-C while the command listened.
    pub fn was_pressed() -> bool {
        LISTENING.get().is_some_and(Interrupt::is_pressed)
    }

    /// Whether the user has pressed Ctrl-C.
    pub fn is_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
