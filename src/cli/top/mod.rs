//! `tierfs top`: a live view of a mount, from its control files only.

mod feed;
mod screen;
mod text;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::Outcome;
use crate::cli::common::jobs::cancel;
use crate::cli::common::mounts::{Mounted, mount_of};
use crate::cli::common::output::print;
use crate::cli::common::places::mount_or_below;
use crate::cli::top::feed::{NextMove, Sample};
use crate::cli::top::screen::{Key, Screen, Wish};
use crate::model::{Error, ErrorKind, Result};

/// Watch a mount: requests, tiers, the hottest tensors, jobs, and the daemon's memory and processor time.
///
/// Each sample reads .ctl/stats.json, which opens every collection. Without a terminal, prints one picture with
/// the averages since the mount began.
///
/// Example: tierfs top /mnt/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A mount point, a path below one, or a mounted store
    mountpoint: PathBuf,
    /// Print one picture as text and leave
    #[arg(long)]
    once: bool,
    /// Seconds between two samples, 0.1 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
}

/// The size of the picture that is printed as text.
const PRINTED: (u16, u16) = (120, 40);

fn parse_interval(text: &str) -> Result<Duration> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    let wrong = || Error::invalid(format!("invalid value {text:?}; expected 0.1 to 60 seconds"));
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mounted = mount_of(&mount_or_below(&self.mountpoint)?)?.ok_or_else(|| {
            let text = format!(
                "{} is not on a tierfs mount; tierfs status lists the mounts",
                self.mountpoint.display()
            );
            Error::new(ErrorKind::NotFound, text)
        })?;
        let [mountpoint, store] =
            [&mounted.mountpoint, &mounted.store].map(|path| path.display().to_string());
        let mut screen = Screen::new(mountpoint, store);
        let began = Instant::now();
        screen.add(Sample::read(&mounted.mountpoint, 0.0)?);
        if self.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            print(&printed(&screen)?)?;
            return Ok(Outcome::Succeeded);
        }
        let mut terminal = ratatui::try_init().map_err(|error| Error::io("preparing the terminal", error))?;
        let watched = self.watch(&mounted, &mut screen, &mut terminal, began);
        ratatui::try_restore().map_err(|error| Error::io("restoring the terminal", error))?;
        watched.map(|()| Outcome::Succeeded)
    }

    fn watch(
        &self,
        mounted: &Mounted,
        screen: &mut Screen,
        terminal: &mut ratatui::DefaultTerminal,
        began: Instant,
    ) -> Result<()> {
        let failed = |error| Error::io("using the terminal", error);
        let mut next = Instant::now() + self.interval;
        loop {
            terminal.draw(|frame| screen.draw(frame)).map_err(failed)?;
            if !event::poll(next.saturating_duration_since(Instant::now())).map_err(failed)? {
                screen.add(Sample::read(&mounted.mountpoint, began.elapsed().as_secs_f64())?);
                next = Instant::now() + self.interval;
                continue;
            }
            // A change of the size only draws anew.
            let Event::Key(pressed) = event::read().map_err(failed)? else { continue };
            match key_of(pressed).map_or(Wish::Nothing, |key| screen.press(key)) {
                Wish::Nothing => {}
                Wish::Leave => return Ok(()),
                Wish::Foresee => foresee(screen, mounted),
                Wish::Cancel(number) => {
                    screen.tell(match cancel(mounted, number) {
                        Ok(true) => format!("job {number} is being cancelled"),
                        Ok(false) => format!("job {number} has ended already"),
                        Err(error) => error.to_string(),
                    });
                    next = Instant::now();
                }
            }
        }
    }
}

/// Shows the next moves of the policy. Only root and the mount's user may read them.
fn foresee(screen: &mut Screen, mounted: &Mounted) {
    match NextMove::read(&mounted.mountpoint) {
        Ok(moves) => screen.foresee(moves),
        Err(error) => screen.tell(error.to_string()),
    }
}

fn key_of(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    match pressed.code {
        KeyCode::Char('c') if pressed.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Escape),
        KeyCode::Char(letter) => Some(Key::Letter(letter)),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::Esc => Some(Key::Escape),
        _ => None,
    }
}

/// The picture as text.
fn printed(screen: &Screen) -> Result<String> {
    let (width, height) = PRINTED;
    let failed = |error| Error::invalid(format!("drawing the picture: {error}"));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(failed)?;
    terminal.draw(|frame| screen.draw(frame)).map_err(failed)?;
    Ok(plain(terminal.backend().buffer()))
}

/// The letters of a buffer, without colours.
fn plain(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width.max(1))) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
